"""Kinds of rounds in questions: the fields of a round as planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from shuffle_ledger import accounting
from shuffle_ledger.accounting import MAXIMUM_REPORTS_PER_USER
from shuffle_ledger.ledger.questions.fields import (
    Analysis,
    Body,
    Count,
    LocalDelta,
    Randomizer,
    Repeated,
    Share,
    config,
    whole,
)

PerUser = Annotated[int, Field(strict=True, ge=1, le=MAXIMUM_REPORTS_PER_USER), BeforeValidator(whole)]


@dataclass(frozen=True, kw_only=True)
class RoundParameters(Body):
    """A round as planned: the same fields as the command line's options and the columns of an import."""

    randomizer: Randomizer
    reports: Count
    sampled_from: Count | None = None
    participation: Share | None = None
    honest_fraction: Share = 1.0
    delta0: LocalDelta = 0.0
    analysis: Analysis | None = None
    reports_per_user: Annotated[
        PerUser,
        Field(
            description="No user sends more reports to the round. Those beyond are dropped before `reports`"
            " are counted."
        ),
    ] = 1

    __pydantic_config__ = config(randomizer="krr(k=96, epsilon0=2)", reports=30000)

    @classmethod
    def of(cls, described: accounting.ShuffledRound, **more: Any) -> Self:
        """Return the words that described a round: they are read with the reader's own defaults."""
        return cls(**described.asked_mapping(), **more)  # type: ignore[arg-type]  # a round's own fields

    def described(self) -> accounting.ShuffledRound:
        """Return the round; raises InvalidParameter where values contradict each other."""
        return accounting.ShuffledRound(**{name: getattr(self, name) for name in ROUND_FIELDS})


ROUND_FIELDS = tuple(RoundParameters.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class PlannedRound(RoundParameters):
    """Rounds of one kind that policy plan reserves."""

    count: Repeated = 1


def counted(planned: Iterable[PlannedRound]) -> dict[accounting.ShuffledRound, int]:
    """Return how often each kind of round happens; raises InvalidParameter."""
    counts: dict[accounting.ShuffledRound, int] = {}
    for each in planned:
        described = each.described()
        counts[described] = counts.get(described, 0) + each.count
    return counts
