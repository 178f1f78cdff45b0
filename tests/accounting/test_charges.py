"""Charges dominate, compared with brute force in many digits, and are nearly as small as they can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    FilterCharge,
    FilterSet,
    PrivacyLossDistribution,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.accounting.filters import charges
from shuffle_ledger.accounting.filters.charges import (
    _bare_profile,
    _mass_beyond,
    _smoothed_profile,
    charge_of,
)
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence, gaussian_growth, gaussian_tangents
from tests.accounting.alike import alike
from tests.accounting.totals import epsilon_upper, holding

if TYPE_CHECKING:
    from tests.accounting.conftest import Oracle

mp.mp.dps = 50
FILTERS = FilterSet.for_budget(epsilon=1.0, delta=1e-7)
ROUNDS: list[tuple[str, dict[str, object]]] = [
    ("generic(epsilon0=1)", {"reports": 10_000}),
    ("generic(epsilon0=4)", {"reports": 1_000}),
    ("krr(k=10, epsilon0=2)", {"reports": 50}),
    ("rappor(epsilon0=3)", {"reports": 300}),
    ("krr(k=4, epsilon0=2)", {"reports": 500, "analysis": "strong-adversary"}),
    ("generic(epsilon0=2)", {"reports": 1_000, "sampled_from": 10_000}),
    ("generic(epsilon0=4)", {"reports": 500, "sampled_from": 50_000}),
    ("krr(k=5, epsilon0=1)", {"reports": 10_000, "participation": 0.1}),
    ("generic(epsilon0=0.3)", {"reports": 2}),
]


def made(randomizer: str, **fields: object) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), **fields)


def exact_gaussian(variance: object, loss: object) -> mp.mpf:
    """The hockey-stick divergence of order exp(loss) of Gaussians sqrt(variance) apart."""
    mu, loss = mp.sqrt(mp.mpf(variance)), mp.mpf(loss)
    return mp.ncdf(mu / 2 - loss / mu) - mp.exp(loss) * mp.ncdf(-mu / 2 - loss / mu)


def exact_smoothed(pair: PrivacyLossDistribution, variance: float, loss: float) -> mp.mpf:
    """The divergence of a pair together with Gaussian noise, from the definition."""
    total = mp.mpf(pair.infinity)
    atoms = zip(pair.losses.tolist(), pair.p.tolist(), pair.q.tolist(), strict=True)
    for x, p, q in [(0.0, pair.zero, 0.0), *atoms]:
        for at, mass in ((x, p), (-x, q)):
            if not mass:
                continue
            if variance:
                total += mass * exact_gaussian(variance, loss - at)
            elif at > loss:
                total += mass * -mp.expm1(mp.mpf(loss) - at)
    return total


def thinned(pair: PrivacyLossDistribution, count: int = 10) -> PrivacyLossDistribution:
    """A pair of so few losses that sums in many digits are quick: all other mass counts as loss 0."""
    losses = pair.largest_loss * np.linspace(0, 1, count) ** 2  # wherever the lattice is fine
    chosen = np.unique(np.minimum(np.searchsorted(pair.losses, losses), pair.index.size - 1))
    p, q = pair.p[chosen], pair.q[chosen]
    zero = 1 - pair.infinity - math.fsum([*p, *q])
    return replace(pair, index=pair.index[chosen], p=p, q=q, zero=zero)


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "fields"), ROUNDS[2::2])
def test_a_charge_dominates_and_is_nearly_the_smallest(randomizer: str, fields: dict[str, object]) -> None:
    pair = thinned(Accountant().privacy_loss(made(randomizer, **fields)).upper)
    rules = FILTERS.gaussian
    charge = charge_of(pair, FILTERS, slack=0.0)
    about = float(mp.mpf(pair.hockey_stick_divergence(0.0)) ** 2 * 2 * mp.pi)
    for reserve, cost in zip(rules.reserves, charge.gaussian, strict=True):
        smoothing = min(reserve, 1024.0 * about)  # less noise than the reserve: harder to dominate
        spread = math.sqrt(smoothing + float(cost))
        losses = [*np.linspace(0, 9 * spread, 30), *np.linspace(0, pair.largest_loss, 6)]
        if not reserve:
            losses += [*pair.losses, *(pair.losses * (1 - 1e-9)), *np.linspace(0, pair.largest_loss, 24)]
        leak = mp.mpf(rules.leak_rate) * float(cost)
        excess = []
        for loss in map(float, losses):
            theirs = exact_smoothed(pair, reserve, loss)
            ours = leak + (1 - leak) * exact_gaussian(mp.mpf(reserve) + float(cost), loss)
            assert theirs <= ours, (reserve, loss)
            less = float(cost) * 0.97
            leak_less = mp.mpf(rules.leak_rate) * less
            excess.append(
                exact_smoothed(pair, smoothing, loss)
                > leak_less + (1 - leak_less) * exact_gaussian(mp.mpf(smoothing) + less, loss)
            )
        assert any(excess), f"3 % less would do at reserve {reserve}"


@pytest.mark.parametrize(("randomizer", "fields"), ROUNDS[::3])
def test_a_renyi_charge_bounds_the_moment(randomizer: str, fields: dict[str, object]) -> None:
    pair = Accountant().privacy_loss(made(randomizer, **fields)).upper
    charge = charge_of(pair, FILTERS, slack=0.0)
    *orders, largest = zip(FILTERS.renyi, charge.renyi, strict=True)
    rules, cost = largest
    assert math.isinf(rules.order)
    above = float(pair.p[pair.losses > float(cost)].sum()) + pair.infinity
    assert above <= rules.leak_rate * float(cost)
    for rules, cost in orders:
        theta = mp.mpf(rules.order) - 1
        leak = mp.mpf(rules.leak_rate) * float(cost)
        # What may leave: the largest losses, as long as the leak covers them.
        beyond, kept = mp.mpf(pair.infinity), pair.index.size
        assert beyond <= leak
        while kept and beyond + float(pair.p[kept - 1]) <= leak:
            kept -= 1
            beyond += float(pair.p[kept])
        moment = mp.mpf(pair.zero)
        for position, (x, p, q) in enumerate(zip(pair.losses, pair.p, pair.q, strict=True)):
            moment += mp.mpf(float(q)) * mp.exp(-theta * float(x))
            if position < kept:
                moment += mp.mpf(float(p)) * mp.exp(theta * float(x))
        assert mp.log(moment) <= theta * float(cost)


def test_a_charge_that_leaks_much_pays_for_its_leak() -> None:
    """A budget of a large delta, and a round that takes much of it, without a reserve."""
    rules = FilterSet.for_budget(epsilon=4.0, delta=0.09)
    pair = thinned(Accountant().privacy_loss(made("krr(k=10, epsilon0=3)", reports=10)).upper)
    cost = float(charge_of(pair, rules, slack=0.0).gaussian[0])
    leak = mp.mpf(rules.gaussian.leak_rate) * cost
    assert leak > 1e-4
    for loss in (*pair.losses, *np.linspace(0, pair.largest_loss, 100)):
        kept = (1 - leak) * exact_gaussian(cost, float(loss))
        assert exact_smoothed(pair, 0.0, float(loss)) <= leak + kept


def test_a_charge_dominates_the_round_itself(oracle: Oracle) -> None:
    for randomizer, reports in (("krr(k=2, epsilon0=1)", 6), ("krr(k=3, epsilon0=0.5)", 4)):
        shuffled = made(randomizer, reports=reports)
        masses = shuffled.randomizer.analysis("blanket").decomposition
        outcomes = oracle.blanket_outcomes(masses, reports)
        rules = FILTERS.gaussian
        cost = float(Accountant().charge(shuffled, FILTERS).gaussian[0])
        leak = mp.mpf(rules.leak_rate) * cost
        for loss in np.linspace(0, shuffled.randomizer.epsilon0 * 1.1, 60):
            assert oracle.delta(outcomes, loss) <= leak + (1 - leak) * exact_gaussian(cost, float(loss))


@settings(max_examples=60, deadline=None)
@given(
    mu=st.floats(-6, 1.2).map(lambda x: 10.0**x),
    deviations=st.floats(-3, 12),
    other=st.floats(-3, 12),
)
def test_gaussian_bounds_and_tangents(mu: float, deviations: float, other: float) -> None:
    loss = np.array([deviations * mu])
    exact = exact_gaussian(mp.mpf(mu) ** 2, float(loss[0]))
    lower, upper = gaussian_divergence(mu, loss)
    assert lower[0] <= exact <= upper[0]
    assert upper[0] - lower[0] <= (1e-10 + 1e-12 / mu) * (1 + abs(deviations) ** 3) * exact + 1e-290
    line = gaussian_tangents(mu, np.abs(loss))
    at, there = abs(float(loss[0])), abs(other) * mu
    step = mp.exp(mp.mpf(there)) - mp.exp(mp.mpf(at))
    slope = float(line.slope_lower[0] if step < 0 else line.slope_upper[0])
    assert float(line.value[0]) - slope * step <= exact_gaussian(mp.mpf(mu) ** 2, there)
    growth = mp.diff(lambda variance: exact_gaussian(variance, float(loss[0])), mp.mpf(mu) ** 2)
    assert float(gaussian_growth(mu, loss)[0]) == pytest.approx(float(growth), rel=1e-9, abs=1e-290)


def test_filters_charge_the_pure_version_and_the_account_the_slack() -> None:
    pure = made("generic(epsilon0=1)", reports=10_000, analysis="clone")
    impure = replace(pure, delta0=1e-12)
    accountant = Accountant()
    cost, more = accountant.charge(pure, FILTERS), accountant.charge(impure, FILTERS)
    assert (more.gaussian, more.renyi) == (cost.gaussian, cost.renyi)
    assert not any(cost.account)
    assert Fraction(impure.slack) <= more.account[1] <= Fraction(impure.slack) * Fraction(1 + 1e-9)


def test_largest_losses_add_up() -> None:
    accountant = Accountant()
    alone = made("generic(epsilon0=0.25)", reports=1)
    filters = FilterSet.for_budget(epsilon=2.0, delta=1e-9)
    charge = accountant.charge(alone, filters)
    assert 0.25 <= charge.renyi[-1] <= 0.2501
    readings = [epsilon_upper(filters, charge * count) for count in (1, 7)]
    assert all(count * 0.25 <= read <= count * 0.2501 for count, read in zip((1, 7), readings, strict=True))
    impure = made("generic(epsilon0=0.25)", reports=1, analysis="clone", delta0=1e-30)
    assert accountant.charge(impure, filters).renyi == charge.renyi, "its account pays for the rest"


def test_a_round_that_may_reveal_everything_costs_everything() -> None:
    accountant = Accountant()
    alone = made("krr(k=3, epsilon0=9)", reports=1, analysis="strong-adversary")
    charge = accountant.charge(alone, FILTERS)
    assert math.isinf(epsilon_upper(FILTERS, charge))


def largest_count(holds: Callable[[int], bool]) -> int:
    low, high = 0, 1
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@pytest.mark.slow
@pytest.mark.parametrize(
    ("randomizer", "fields", "share"),
    [
        ("generic(epsilon0=1)", {"reports": 10_000}, 0.97),
        # Heavy tails, which much noise smooths.
        ("generic(epsilon0=2)", {"reports": 1_000, "sampled_from": 100_000}, 0.93),
    ],
)
def test_the_price_of_adaptivity_is_small(randomizer: str, fields: dict[str, object], share: float) -> None:
    accountant = Accountant(precision=4e-3)
    shuffled = made(randomizer, **fields)
    for epsilon, delta in ((1.0, 1e-6),):
        filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
        charge = accountant.charge(shuffled, filters)

        def adaptive(
            count: int, epsilon: float = epsilon, filters: FilterSet = filters, charge: FilterCharge = charge
        ) -> bool:
            return bool(holding(filters, charge * count, epsilon))

        def fixed(count: int, epsilon: float = epsilon, delta: float = delta) -> bool:
            return accountant.certify({shuffled: count}, delta=delta).epsilon_lower <= epsilon

        exact, admitted = largest_count(fixed), largest_count(adaptive)
        assert admitted <= exact, "the exact composition would refuse this"
        assert admitted >= share * exact - 1, (epsilon, delta, admitted, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "fields"), ROUNDS[1:4:2])
def test_sums_behind_a_charge_are_rounded_up(randomizer: str, fields: dict[str, object]) -> None:
    """The profiles behind charges are never below sums in 50 digits, and only slightly above."""
    pair = thinned(Accountant().privacy_loss(made(randomizer, **fields)).upper)
    deviation = math.sqrt(pair.variance())
    smoothed = _smoothed_profile(pair, (0.3 * deviation) ** 2, 1e-12, 64.0, 0.012)
    bare = _bare_profile(pair, deviation, 1e-12, 40.0, 0.012)
    for (places, heights, smooth), room in ((smoothed, 1e-14), (bare, 1e-60)):
        for place in np.linspace(0, places.size - 1, 40).astype(int):
            exact = exact_smoothed(pair, smooth, float(places[place]))
            assert exact <= heights[place] <= exact * (1 + mp.mpf(2) ** -28) + mp.mpf(room)
    beyond = _mass_beyond(pair)
    for place in range(pair.index.size + 1):
        exact = mp.fsum([mp.mpf(pair.infinity), *(mp.mpf(float(mass)) for mass in pair.p[place:])])
        assert exact <= beyond[place] <= exact * (1 + mp.mpf(2) ** -28)


@pytest.mark.parametrize("leak", [1e-12, 1e-25])
def test_sums_by_transforms_are_never_below_those_term_by_term(
    monkeypatch: pytest.MonkeyPatch, leak: float
) -> None:
    """Their round-off, which is included, stays a small share of each sum, however small that is."""
    pair = Accountant(precision=4e-3).privacy_loss(made("generic(epsilon0=1)", reports=10**4)).upper
    variance = 9 * pair.variance()
    found = _smoothed_profile(pair, variance, leak, 64.0, 0.012).values
    monkeypatch.setattr(charges, "ELEMENTS_PER_POINT", math.inf)
    exact = _smoothed_profile(pair, variance, leak, 64.0, 0.012).values
    assert exact[-1] < leak
    assert np.any(found > exact)
    assert np.all(found >= exact * (1 - 1e-14))
    assert np.all(found <= exact + (exact + leak) * 2.0**-7)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # which is what must not be admitted
@pytest.mark.parametrize("loss", [700.0, 720.0, 800.0, 5000.0])
def test_a_loss_whose_exponential_overflows_is_never_charged_less(loss: float) -> None:
    filters = FilterSet.for_budget(epsilon=200.0, delta=1e-2)
    certain = PrivacyLossDistribution(
        spacing=loss,
        index=np.array([1]),
        p=np.array([1.0]),
        q=np.array([math.exp(-loss)]),
        zero=0.0,
        infinity=0.0,
        support=loss,
        side="upper",
    )
    charge = charge_of(certain, filters, slack=0.0)
    assert epsilon_upper(filters, charge) > 200.0
    assert not holding(filters, charge, 200.0)
