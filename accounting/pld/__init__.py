"""Privacy loss distributions: pairs of bounds on a grid, their composition, and epsilon or delta from them.

Imports `numeric` and what lies below it.
"""
