"""Questions: one frozen dataclass for each thing that can be asked, with the JSON names of its fields."""
