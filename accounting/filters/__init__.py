"""Privacy filters for adaptively chosen rounds, and the charge of a round in each of them.

Imports `rounds` and what lies below it.
"""
