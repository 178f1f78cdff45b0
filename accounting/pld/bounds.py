"""Certified bounds on a privacy profile at given orders, and an estimate of it."""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import FloatArray


class ProfileBounds(NamedTuple):
    """Certified bounds on hockey-stick divergences, each array of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray


class Sketch(NamedTuple):
    """An estimate of a privacy profile, which is not a bound; arrays of shape (losses,).

    Attributes:
        losses: ascending from 0.
        log_values: about the logarithms of the hockey-stick divergences of these orders; may be infinite.
    """

    losses: FloatArray
    log_values: FloatArray
