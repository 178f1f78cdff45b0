"""Numerical tools without any notion of privacy: arrays, characteristic functions, kernels, convex minorants.

Imports `errors` and `validation` only.
"""
