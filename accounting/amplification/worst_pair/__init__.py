"""The largest profile among all pairs of inputs of a table of probabilities.

Imports `blanket` and what lies below it.
"""
