"""The phrases about budgets: true of every kind that they name, and short."""

from __future__ import annotations

from datetime import date

import pytest

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.answers.budgets import FittingRounds, PromiseReading
from shuffle_ledger.ledger.answers.forecasts import RecentSchedule
from shuffle_ledger.ledger.answers.summaries import (
    ASSUMES,
    fits_in_words,
    pace_detail,
    pace_in_words,
    state_in_words,
    used_percent,
)


def kind(randomizer: str, reports: int = 1000) -> ShuffledRound:
    return ShuffledRound.from_mapping({"randomizer": randomizer, "reports": reports})


def fitting(*counts: tuple[str, int, int]) -> list[FittingRounds]:
    return [FittingRounds(round=kind(each, n), rounds_at_least=count) for each, n, count in counts]


KRR, OUE, LAPLACE = "krr(k=96, epsilon0=2)", "oue(epsilon0=2, domain=64)", "laplace(epsilon0=1)"


@pytest.mark.parametrize(
    ("fits", "expected"),
    [
        ([], ()),
        (
            [(KRR, 900, 40), (OUE, 900, 0), (KRR, 800, 36), (LAPLACE, 900, 0)],
            ("36 or more of krr(k=96)", "none of oue(domain=64), laplace"),
        ),
        # Where some of a randomizer fit and others do not, no number holds for all of them.
        (
            [(KRR, 900, 1_200), (KRR, 800, 0)],
            ("1,200 or more of krr(k=96) with 900 reports", "none of krr(k=96) with 800 reports"),
        ),
        # Names that would be the same keep their epsilon0.
        (
            [(KRR, 900, 4), ("krr(k=96, epsilon0=1)", 900, 0)],
            ("4 or more of krr(epsilon0=2, k=96)", "none of krr(epsilon0=1, k=96)"),
        ),
    ],
)
def test_what_fits_is_said_by_randomizer(fits: list[tuple[str, int, int]], expected: tuple[str, ...]) -> None:
    assert fits_in_words(fitting(*fits)) == expected


def test_the_used_part_is_rounded_up() -> None:
    assert used_percent(1.54148, 3.0) == "51.4 %"
    assert used_percent(0.5 + 1e-12, 1.0) == "50.1 %"
    assert used_percent(0.0, 1.0) == "0 %"
    assert used_percent(0.9995, 1.0) == "over 99.9 %", "something is left"
    assert used_percent(1.0, 1.0) == "100 %"
    assert used_percent(1.11, 1.0) == "111.1 %"  # the float is above 1.11
    assert used_percent(float("inf"), 1.0) == "more than 100 %"


@pytest.mark.parametrize(
    ("spent", "remaining", "left"), [(0.0, 0.3, "0.3"), (1e-20, 0.3, "0.299999"), (0.1, 0.19999, "0.19999")]
)
def test_only_the_rest_of_an_unused_budget_is_the_budget(spent: float, remaining: float, left: str) -> None:
    found = PromiseReading(
        budget="phones",
        period="life",
        kind="life",
        first=None,
        last=None,
        renews=None,
        status="open",
        epsilon_budget=0.3,
        delta_budget=1e-6,
        epsilon_spent_upper=spent,
        epsilon_remaining=remaining,
    )
    assert found.left == left


def test_a_state_never_sounds_better_than_it_is() -> None:
    some, mixed, none = (fitting(*each) for each in (
        [(KRR, 900, 3)], [(KRR, 900, 3), (OUE, 900, 0)], [(KRR, 900, 0)]
    ))  # fmt: skip
    assert state_in_words("open", 0.5, 1.0, some) == "open"
    assert state_in_words("open", 0.9, 1.0, some) == "nearly used up"
    assert state_in_words("open", 0.5, 1.0, mixed) == "nearly used up"
    assert state_in_words("open", 0.1, 1.0, mixed) == "open", "one kind is too large, and not much is used"
    assert state_in_words("open", 0.1, 1.0, none) == "used up"
    assert state_in_words("overspent", 0.1, 1.0, some) == "overspent"
    assert state_in_words("frozen", 0.1, 1.0, some) == "frozen"


def test_a_pace_names_its_last_day() -> None:
    pace = RecentSchedule(
        every="week",
        kinds=(kind(KRR), kind(OUE), kind(KRR, 900)),
        periods_at_least=5,
        ends_on=date(2026, 12, 28),
    )
    assert pace_in_words(pace) == "enough until 28 December 2026"
    assert pace_detail(pace) == "every week one each of krr(k=96) (2 times), oue(domain=64)"
    assert pace_in_words(None) is None


def test_conditions_are_short_sentences() -> None:
    for listed in ASSUMES.values():
        assert len(listed) > 2
        assert all(len(one) <= 100 and one.endswith(".") for one in listed)
