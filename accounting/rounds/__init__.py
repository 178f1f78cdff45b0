"""One shuffled round: its parameters, its slot on the grid, and which rounds it dominates.

Imports `randomizers` and what lies below it.
"""
