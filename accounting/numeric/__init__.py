"""Arrays, characteristic functions, kernels and convex minorants: numerical tools that know no privacy.

Imports `errors` and `validation` only.
"""
