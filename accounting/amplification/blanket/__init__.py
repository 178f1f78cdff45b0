"""The privacy blanket's hockey-stick divergence, as a contour integral over the sum of the users' gains.

Imports `numeric` and `pld`.
"""
