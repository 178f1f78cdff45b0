"""A conflict names the fields that the caller chose otherwise, and none that follows from others."""

from __future__ import annotations

import dataclasses
from datetime import date

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.values.differences import other_round
from shuffle_ledger.ledger.values.requests import RoundRequest

ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=1000)
STORED = RoundRequest(
    round_id="r",
    cohort="weekly",
    round=ROUND,
    collected_on=date(2026, 11, 26),
    windows=("weekly@2026-W48",),
)


def test_days_and_periods_that_a_request_leaves_out_do_not_differ() -> None:
    given = RoundRequest(round_id="r", cohort="weekly", round=ROUND, use_case="emoji")
    found = other_round(STORED, given)
    assert [each.field for each in found.differences] == ["use_case"]
    assert str(found) == (
        "round 'r' was registered with other content: use_case: stored nothing, given emoji"
    )
    later = dataclasses.replace(given, collected_on=date(2026, 11, 27))
    assert [each.field for each in other_round(STORED, later).differences] == ["collected_on", "use_case"]


def test_an_audience_differs_as_a_whole() -> None:
    stored = RoundRequest(round_id="r", cohort="a", audience=("a", "b"), round=ROUND)
    given = RoundRequest(round_id="r", cohort="a", round=ROUND)
    found = {each.field: (each.stored, each.given) for each in other_round(stored, given).differences}
    assert found == {"cohort": (None, "a"), "audience": (["a", "b"], None)}
