"""What calculators are asked: rounds, and a target; no cohort."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from shuffle_ledger.accounting import CALIBRATION_POLICIES, MAXIMUM_ROUNDS, ShuffledRound
from shuffle_ledger.ledger.api.schemas.requests import (
    Body,
    Delta,
    Epsilon,
    PlannedRound,
    RoundParameters,
    whole,
)
from shuffle_ledger.ledger.errors import InvalidValue

KINDS_MAX = 200  # of rounds in one composition; each may cost as much as an amplification
_ONE_OF_BOTH = "The answer bounds the other one; exactly one of `delta` and `epsilon` is given."


class AmplifyRound(RoundParameters):
    """A round to bound, and the delta at which epsilon is wanted, or the epsilon at which delta is."""

    delta: Annotated[Delta | None, Field(description=_ONE_OF_BOTH)] = None
    epsilon: Annotated[Epsilon | None, Field(description=_ONE_OF_BOTH)] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"randomizer": "krr(k=10, epsilon0=1.15)", "reports": 1000, "delta": 1e-6}]
        }
    )


class ComposeRounds(Body):
    """Rounds to bound together; each with how often it happens."""

    rounds: Annotated[list[PlannedRound], Field(min_length=1, max_length=KINDS_MAX)]
    delta: Annotated[Delta | None, Field(description=_ONE_OF_BOTH)] = None
    epsilon: Annotated[Epsilon | None, Field(description=_ONE_OF_BOTH)] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "rounds": [{"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000, "count": 12}],
                    "delta": 1e-7,
                }
            ]
        }
    )

    def counted(self) -> dict[ShuffledRound, int]:
        """Return how often each kind of round happens; raises InvalidParameter, InvalidValue."""
        counts: dict[ShuffledRound, int] = {}
        for each in self.rounds:
            shuffled = each.round()
            counts[shuffled] = counts.get(shuffled, 0) + each.count
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


class CalibrateRounds(RoundParameters):
    """Rounds whose randomizer leaves out the parameter that is asked for, and the target."""

    randomizer: Annotated[
        str | dict[str, Any],
        BeforeValidator(_written),
        Field(
            description="A randomizer without epsilon0, as `krr(k=10)`, or a protocol without one parameter"
            " of its noise, as `binomial_sum(bits=1)`; a call or its JSON form."
        ),
    ]
    epsilon: Epsilon
    delta: Delta
    rounds: Annotated[
        int,
        Field(ge=1, le=MAXIMUM_ROUNDS, description="How many such rounds meet the target together."),
        BeforeValidator(whole),
    ] = 1
    policy: Literal[CALIBRATION_POLICIES] = CALIBRATION_POLICIES[0]  # type: ignore[valid-type]  # the accountant's own list

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"randomizer": "krr(k=10)", "reports": 30000, "epsilon": 0.5, "delta": 1e-7, "rounds": 4}
            ]
        }
    )

    def described(self) -> dict[str, object]:
        """Return the round's JSON form as given, its randomizer not complete."""
        given = self.model_dump(exclude_unset=True)
        return {name: value for name, value in given.items() if name in self._names}
