"""Charges are proven, not compared: what a ledger made is covered, and what is too small is not."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, FilterCharge, FilterSet, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.filters.charges import charge_of, is_covered
from shuffle_ledger.accounting.verification.coverage import Coverage
from tests.accounting.alike import alike

FILTERS = FilterSet.for_budget(epsilon=1.0, delta=1e-7)
KINDS: list[tuple[str, dict[str, object]]] = [
    ("generic(epsilon0=1)", {"reports": 10_000}),
    ("generic(epsilon0=4)", {"reports": 1_000}),
    ("generic(epsilon0=0.3)", {"reports": 2}),
    ("krr(k=10, epsilon0=2)", {"reports": 50}),
    ("krr(k=4, epsilon0=2)", {"reports": 500, "analysis": "strong-adversary"}),
    ("krr(k=5, epsilon0=1)", {"reports": 10_000, "participation": 0.1}),
    ("krr(k=96, epsilon0=2)", {"reports": 4_898_457}),
    ("rappor(epsilon0=3)", {"reports": 300}),
    ("oue(epsilon0=8, domain=4096)", {"reports": 19_319, "sampled_from": 192_407}),
    ("generic(epsilon0=4)", {"reports": 500, "sampled_from": 50_000}),
    ("generic(epsilon0=1)", {"reports": 10_000, "delta0": 1e-14, "analysis": "clone"}),
    ("laplace(epsilon0=1)", {"reports": 1_000}),
    ("declared(epsilon=0.1, delta=1e-9)", {"reports": 1}),
    ("declared(epsilon=0.1, delta=0.4)", {"reports": 1}),  # its charge leaks everything
    ("distinct_elements(p=0.1)", {"reports": 500}),
    ("binomial_sum(bits=100, p=0.3)", {"reports": 5_000}),
]


def made(randomizer: str, **fields: object) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), **fields)


def scaled(charge: FilterCharge, factor: float, *, only: int | None = None) -> FilterCharge:
    parts = [*charge.gaussian, *charge.renyi]
    parts = [part * Fraction(factor) if only in (None, place) else part for place, part in enumerate(parts)]
    count = len(charge.gaussian)
    return FilterCharge(gaussian=tuple(parts[:count]), renyi=tuple(parts[count:]), account=charge.account)


@pytest.fixture(scope="module")
def auditor() -> Coverage:
    return Coverage(Accountant(precision=1e-3))


@pytest.mark.parametrize("precision", [0.1])
@pytest.mark.parametrize(("randomizer", "fields"), KINDS)
def test_what_a_ledger_charges_is_covered_for_an_auditor_of_another_precision(
    auditor: Coverage, randomizer: str, fields: dict[str, object], precision: float
) -> None:
    kind = made(randomizer, **fields)
    charge = Accountant(precision=precision).charge(kind, FILTERS)
    assert auditor.covers(kind, FILTERS, charge)
    if charge.gaussian[0] < Fraction(1e-29):
        return  # the least charge that there is, the same everywhere
    # Another processor or NumPy rounds otherwise; a largest loss may be exact.
    nearly = scaled(charge, 1 - 5e-10)
    assert auditor.covers(kind, FILTERS, replace(nearly, renyi=(*nearly.renyi[:-1], charge.renyi[-1])))


def test_a_charge_below_those_at_every_finer_precision_is_covered_at_its_own(auditor: Coverage) -> None:
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-9)
    kind = made("krr(k=10, epsilon0=8)", reports=99_777)
    charge = Accountant(precision=4e-3).charge(kind, filters)
    assert charge.renyi[0] < min(
        Accountant(precision=1e-3 / part).charge(kind, filters).renyi[0] for part in (1, 4)
    )
    assert auditor.covers(kind, filters, charge)


def test_only_a_certain_loss_of_everything_covers_any_slack(auditor: Coverage) -> None:
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-7)
    kind = made("generic(epsilon0=1)", reports=10_000, delta0=1e-3, analysis="clone")
    charge = Accountant().charge(kind, filters)
    for certain, is_enough in ((Fraction(1), True), (Fraction(999, 1000), False)):
        without = replace(charge, account=(certain, Fraction(0)))
        assert auditor.covers(kind, filters, without) is is_enough


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "fields"), KINDS[:3] + KINDS[12:14])
def test_a_charge_one_percent_too_small_is_not(
    auditor: Coverage, randomizer: str, fields: dict[str, object]
) -> None:
    kind = made(randomizer, **fields)
    charge = Accountant(precision=1e-3).charge(kind, FILTERS)
    for place in range(len(charge.gaussian)):
        assert not auditor.covers(kind, FILTERS, scaled(charge, 0.99, only=place)), place
    assert not auditor.covers(kind, FILTERS, scaled(charge, 0.0))
    assert not auditor.covers(kind, FILTERS, scaled(charge, -1.0))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 6.0), st.integers(1, 10**6), st.floats(0.1, 4.0), st.integers(3, 12))
def test_what_is_charged_is_covered_by_its_own_pair(
    epsilon0: float, reports: int, epsilon: float, digits: int
) -> None:
    filters = FilterSet.for_budget(epsilon=epsilon, delta=10.0**-digits)
    pair = (
        Accountant(precision=4e-3)
        .privacy_loss(made(f"generic(epsilon0={epsilon0!r})", reports=reports))
        .upper
    )
    charge = charge_of(pair, filters, slack=0.0)
    assert is_covered(pair, filters, charge, slack=0.0)
    assert is_covered(pair, filters, scaled(charge, 1.5), slack=0.0), "more is enough too"
    for place, cost in enumerate(charge.gaussian):
        if cost < min(charge.gaussian[:place], default=math.inf):  # searched for at this reserve
            less = scaled(charge, 1 - 1e-3, only=place)
            assert not is_covered(pair, filters, less, slack=0.0), "the search ends at the smallest"


@pytest.mark.slow
def test_the_smallest_covered_renyi_charge_bounds_the_moment_in_many_digits() -> None:
    """A part of one loss's mass may leave: then what is left has a moment within the charge."""
    pair = Accountant().privacy_loss(made("krr(k=10, epsilon0=2)", reports=50)).upper
    rules = FILTERS.renyi[0]
    charge = charge_of(pair, FILTERS, slack=0.0)
    low, high = 0.5, 1.0
    place = len(charge.gaussian)
    for _ in range(12):
        middle = (low + high) / 2
        good = is_covered(pair, FILTERS, scaled(charge, middle, only=place), slack=0.0)
        low, high = (low, middle) if good else (middle, high)
    cost, theta = float(charge.renyi[0]) * high, mp.mpf(rules.order) - 1
    leak, moment = mp.mpf(rules.leak_rate) * cost - pair.infinity, mp.mpf(pair.zero)
    for x, p, q in reversed(list(zip(pair.losses.tolist(), pair.p.tolist(), pair.q.tolist(), strict=True))):
        leaving = min(leak, mp.mpf(p))
        leak -= leaving
        moment += q * mp.exp(-theta * x) + (p - leaving) * mp.exp(theta * x)
    assert moment + mp.mpf(rules.leak_rate) * cost - leak <= mp.exp(theta * cost)


def test_a_slack_is_paid_by_its_account() -> None:
    kind = made("generic(epsilon0=1)", reports=10_000, delta0=1e-13, analysis="clone")
    charge = Accountant().charge(kind, FILTERS)
    pair = Accountant().privacy_loss(kind).upper
    assert is_covered(pair, FILTERS, charge, slack=kind.slack)
    paid = float(charge.account[1])
    assert not is_covered(pair, FILTERS, charge, slack=math.nextafter(paid, math.inf))
