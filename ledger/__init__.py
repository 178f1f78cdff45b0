"""The truth: who may spend what, and who did."""
