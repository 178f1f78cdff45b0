"""Choices before a round: parameters for a target, plans, and the trade-off of local Gaussian noise."""
