"""Questions to calculators: rounds, and a target; no cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from shuffle_ledger.accounting import CALIBRATION_POLICIES, MAXIMUM_ROUNDS, ShuffledRound
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.questions.fields import Body, Delta, Epsilon, Repeated, config, whole
from shuffle_ledger.ledger.questions.kinds import ROUND_FIELDS, PlannedRound, RoundParameters, counted

KINDS_MAX = 200  # of rounds in one composition; each may cost as much as an amplification
_ONE_OF_BOTH = "The answer bounds the other one; exactly one of `delta` and `epsilon` is given."


@dataclass(frozen=True, kw_only=True)
class AmplifyRound(RoundParameters):
    """A round to bound, and the delta at which epsilon is wanted, or the epsilon at which delta is."""

    delta: Annotated[Delta | None, Field(description=_ONE_OF_BOTH)] = None
    epsilon: Annotated[Epsilon | None, Field(description=_ONE_OF_BOTH)] = None

    __pydantic_config__ = config(randomizer="krr(k=10, epsilon0=1.15)", reports=1000, delta=1e-6)

    @classmethod
    def asking(
        cls, described: ShuffledRound, *, delta: float | None = None, epsilon: float | None = None
    ) -> Self:
        """Return the question: epsilon at a delta, or delta at an epsilon."""
        return cls.of(described, delta=delta, epsilon=epsilon)


@dataclass(frozen=True, kw_only=True)
class ComposeRounds(Body):
    """Rounds to bound together; each with how often it happens."""

    rounds: Annotated[tuple[PlannedRound, ...], Field(min_length=1, max_length=KINDS_MAX)]
    delta: Annotated[Delta | None, Field(description=_ONE_OF_BOTH)] = None
    epsilon: Annotated[Epsilon | None, Field(description=_ONE_OF_BOTH)] = None

    __pydantic_config__ = config(
        rounds=[{"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000, "count": 12}], delta=1e-7
    )

    @classmethod
    def of(
        cls,
        rounds: Mapping[ShuffledRound, int],
        *,
        delta: float | None = None,
        epsilon: float | None = None,
    ) -> Self:
        """Return the question about rounds, each with how often it happens."""
        listed = tuple(PlannedRound.of(each, count=count) for each, count in rounds.items())
        return cls(rounds=listed, delta=delta, epsilon=epsilon)

    def counted(self) -> dict[ShuffledRound, int]:
        """Return how often each kind of round happens; raises InvalidParameter, InvalidValue."""
        counts = counted(self.rounds)
        total = sum(counts.values())
        if total > MAXIMUM_ROUNDS:
            expected = f"at most {MAXIMUM_ROUNDS} rounds altogether"
            raise InvalidValue(field="count", value=total, expected=expected)
        return counts


def _written(value: object) -> object:
    written = whole(value)
    if not isinstance(written, str | dict):
        raise ValueError("a call such as krr(k=10), or its JSON form")
    return written


@dataclass(frozen=True, kw_only=True)
class CalibrateRounds(RoundParameters):
    """Rounds whose randomizer leaves out the parameter that is asked for, and the target."""

    randomizer: Annotated[
        str | dict[str, Any],
        BeforeValidator(_written),
        Field(
            description="A randomizer without epsilon0, as `krr(k=10)`, a protocol without one parameter"
            " of its noise, as `binomial_sum(bits=1)`, or a mixed fleet without its dummies, as"
            " `mixed((500, krr(k=10, epsilon0=2)))`; a call or its JSON form."
        ),
    ]
    epsilon: Epsilon
    delta: Delta
    rounds: Annotated[Repeated, Field(description="How many such rounds meet the target together.")] = 1
    policy: Literal[CALIBRATION_POLICIES] = CALIBRATION_POLICIES[0]  # type: ignore[valid-type]  # the accountant's own list

    __pydantic_config__ = config(randomizer="krr(k=10)", reports=30000, epsilon=0.5, delta=1e-7, rounds=4)

    @classmethod
    def asking(
        cls,
        described: Mapping[str, object],
        *,
        epsilon: float,
        delta: float,
        rounds: int = 1,
        policy: str = CALIBRATION_POLICIES[0],
    ) -> Self:
        """Return the question; arguments are as of `accounting.calibrate`."""
        return cls(**described, epsilon=epsilon, delta=delta, rounds=rounds, policy=policy)  # type: ignore[arg-type]  # checked by the server

    def incomplete(self) -> dict[str, object]:
        """Return the round's JSON form as given, its randomizer not complete."""
        own = [each for each in fields(self) if each.name in ROUND_FIELDS]
        return {
            each.name: getattr(self, each.name) for each in own if getattr(self, each.name) != each.default
        }
