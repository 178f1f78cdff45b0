"""One module per schema revision, numbered in order."""
