"""Privacy amplification by shuffling: the privacy profile of one round of a decomposition.

Imports `pld` and what lies below it.
"""
