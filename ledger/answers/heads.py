"""The heads of chains: which entry is the last, and its digest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last entry of a cohort's chain. If it is kept elsewhere, a shortened chain is detected."""

    sequence: int
    digest: str  # hexadecimal


@dataclass(frozen=True, kw_only=True)
class StoredHead:
    """One row of the heads."""

    cohort: str
    sequence: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Which ledger this is, and where all its chains end, at one moment of the database's clock."""

    ledger_id: str
    at: datetime
    heads: tuple[StoredHead, ...]  # in the order of the cohorts' names
