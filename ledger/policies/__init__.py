"""How a cohort's rounds may be chosen: policies `adaptive` and `plan`, and their numbers.

Imports `loss_cache`, `storage` and what lies below them.
"""
