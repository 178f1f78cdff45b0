"""Certified bounds on a privacy profile at given orders."""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import FloatArray


class ProfileBounds(NamedTuple):
    """Certified bounds on hockey-stick divergences, each array of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray
