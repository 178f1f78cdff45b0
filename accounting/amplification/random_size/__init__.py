"""Rounds whose number of honest reports is random: sampling, and mixtures over that number.

Imports `blanket` and what lies below it.
"""
