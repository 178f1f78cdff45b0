"""Published closed forms: their numbers in many digits, their conditions, and that certified bounds are
below."""

from __future__ import annotations

import math

import mpmath as mp
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, published_bounds
from tests.accounting.alike import alike

NAMES = ["local", "clones", "clones, krr", "blanket, krr", "first"]


def one_round(written: str, reports: int, **rest: object) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(written),
        reports=reports,
        **rest,
    )


def by_name(shuffled: ShuffledRound, delta: float) -> dict[str, float | None]:
    found = published_bounds(shuffled, delta=delta)
    assert [one.name for one in found] == NAMES
    for one in found:
        assert one.source
        assert (one.epsilon_upper is None) == bool(one.condition)
    return {one.name: one.epsilon_upper for one in found}


@pytest.mark.parametrize(
    ("epsilon0", "k", "n", "delta"), [(0.4, 10, 100_000, 1e-6), (3.0, 64, 10**6, 1e-9), (0.01, 2, 5000, 1e-3)]
)
def test_numbers_are_those_of_the_theorems(epsilon0: float, k: int, n: int, delta: float) -> None:
    mp.mp.dps = 30
    e, log = mp.exp(mp.mpf(epsilon0)), mp.log(4 / mp.mpf(delta))
    expected = {
        "local": mp.mpf(epsilon0),
        "clones": mp.log(1 + (e - 1) / (e + 1) * (8 * mp.sqrt(e * log) / mp.sqrt(n) + 8 * e / n)),
        "clones, krr": mp.log(
            1
            + (e - 1)
            * (4 * mp.sqrt(2 * (k + 1) * log / ((e + k - 1) * k * n)) + mp.mpf(4 * (k + 1)) / (k * n))
        ),
        "first": 12 * mp.mpf(epsilon0) * mp.sqrt(mp.log(1 / mp.mpf(delta)) / n),
    }
    found = by_name(one_round(f"krr(k={k}, epsilon0={epsilon0!r})", n), delta)
    for name, exact in expected.items():
        value = found[name]
        if value is not None:
            assert exact <= value <= exact * (1 + mp.mpf("1e-12"))
    assert (found["first"] is None) == (epsilon0 >= 0.5)
    # The theorem asks that the share of uniform reports is at least what epsilon needs, and it just is.
    epsilon = found["blanket, krr"]
    assert epsilon is not None
    share = k / (e + k - 1)
    needed = [
        14 * k * mp.log(2 / mp.mpf(delta)) / ((n - 1) * epsilon**2),
        27 * k / ((n - 1) * mp.mpf(epsilon)),
    ]
    assert max(needed) <= share <= max(needed) * (1 + mp.mpf("1e-12"))


@pytest.mark.parametrize(
    "written", ["krr(k=10, epsilon0=0.4)", "krr(k=3, epsilon0=2)", "oue(epsilon0=1, domain=9)"]
)
def test_certified_bounds_are_below(written: str) -> None:
    accountant = Accountant(precision=0.01)
    for n, delta in ((2000, 1e-3), (10**6, 1e-8)):
        shuffled = one_round(written, n)
        certified = accountant.certify({shuffled: 1}, delta=delta).epsilon_upper
        for name, epsilon in by_name(shuffled, delta).items():
            assert epsilon is None or certified <= epsilon, name


def test_conditions_are_stated_where_they_do_not_hold() -> None:
    few = by_name(one_round("krr(k=10, epsilon0=4)", 1000), 1e-6)
    assert few["clones"] is None
    assert few["clones, krr"] is None
    assert few["blanket, krr"] is None
    assert few["local"] == 4.0
    for shuffled in (
        one_round("krr(k=4, epsilon0=0.3)", 10_000, sampled_from=10**6),
        one_round("krr(k=4, epsilon0=0.3)", 10_000, participation=0.5),
        one_round("declared(rho=0.1)", 10_000),
        one_round("generic(epsilon0=0.3)", 10_000, delta0=1e-12, analysis="clone"),
    ):
        found = by_name(shuffled, 1e-6)
        assert all(found[name] is None for name in NAMES[1:])
    # Only honest reports count.
    half = by_name(one_round("krr(k=4, epsilon0=0.3)", 20_000, honest_fraction=0.5), 1e-6)
    assert half == by_name(one_round("krr(k=4, epsilon0=0.3)", 10_000), 1e-6)
    sequential = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=0.3)"), reports=10_000)
    assert sequential.analysis == "clone"
    assert by_name(sequential, 1e-6)["clones"] is not None
    assert math.isfinite(by_name(sequential, 1e-6)["first"] or math.inf)
