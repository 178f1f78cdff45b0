"""Rounds as they are listed, in the order of registration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from shuffle_ledger.ledger.values.requests import RefusalReason, RoundRequest, RoundState

STATES: tuple[RoundState, ...] = get_args(RoundState)


@dataclass(frozen=True, kw_only=True)
class ListedRound(RoundRequest):
    """A registered round as lists show it: its request, its present state, and why it was refused.

    Its document has each field of the request beside the others.
    """

    state: RoundState
    registered_by: str
    registered_at: datetime
    sequence: int | None  # of the entry that decided it; None while it is pending
    decided_at: datetime | None
    reason: RefusalReason | None  # of a refusal
    message: str | None  # of a refusal
    epsilon_requested_upper: float | None  # of a refusal: the total with it; None: no finite bound


@dataclass(frozen=True, kw_only=True)
class RoundPage:
    """Rounds in the order of registration. There may be more where there are fewer than were asked for."""

    rounds: tuple[ListedRound, ...]
    after: str | None  # the identifier to go on after; None: this was the end
