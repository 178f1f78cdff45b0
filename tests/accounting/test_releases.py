"""Releases that are private as a whole: declared by other measures, and central mechanisms."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from shuffle_ledger.accounting import (
    Accountant,
    Declared,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    fits,
    parse_randomizer,
    slot_for,
    with_summed_curves,
)
from shuffle_ledger.accounting.pld.renyi_conversion import linear_curve, profile_of_renyi_bounds
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.verification import Coverage

mp.mp.dps = 40
FILTERS = FilterSet.for_budget(epsilon=2, delta=1e-6)
FLOOR = mp.mpf("1e-50")  # below every delta that is answered


def release(written: str, **rest: object) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(written), reports=1, **rest)  # type: ignore[arg-type]


def gaussian_delta(mu: mp.mpf, loss: float) -> mp.mpf:
    x, order = mp.mpf(loss), mp.exp(mp.mpf(loss))
    return mp.ncdf(mu / 2 - x / mu) - order * mp.ncdf(-mu / 2 - x / mu)


def encloses(written: str, losses: list[float], exact: list[mp.mpf], *, width: float) -> None:
    bounds = RoundProfile(release(written), smoothing=2e-3)(np.expm1(losses))
    for upper, lower, truth in zip(bounds.upper, bounds.lower, exact, strict=True):
        # Losses are floats, so are their orders: off by a few units.
        assert float(lower) <= truth * (1 + mp.mpf("1e-11")) + FLOOR
        assert truth <= float(upper) * (1 + mp.mpf("1e-11")) + FLOOR
        assert upper - lower <= width * upper + 1e-49


@pytest.mark.parametrize(
    ("written", "mu"),
    [
        ("declared(mu=0.5)", "0.5"),
        ("declared(mu=0.25, relation='add-remove')", "0.5"),
        ("declared(mu=3)", "3"),
        ("declared(mu=1e-5)", "1e-5"),
        ("gaussian(sigma=4)", "0.25"),
        ("gaussian(sigma=7, sensitivity=2, relation='add-remove')", mp.mpf(4) / 7),
    ],
)
def test_gaussian_releases_are_gaussian(written: str, mu: str | mp.mpf) -> None:
    exact_mu = mp.mpf(mu)
    losses = [float(step * exact_mu) for step in (0.0, 0.01, 1.0, 3.0, 8.0, 12.0)]
    encloses(written, losses, [gaussian_delta(exact_mu, x) for x in losses], width=1e-5)


def test_gaussian_releases_compose_like_one() -> None:
    shuffled = release("gaussian(sigma=10)")
    found = Accountant().certify({shuffled: 50}, delta=1e-9)
    mu = mp.sqrt(50) / 10
    assert gaussian_delta(mu, found.epsilon_upper) <= 1e-9 <= gaussian_delta(mu, found.epsilon_lower)
    assert found.precise


def test_a_share_of_a_release_may_reveal_everything() -> None:
    losses = [0.0, 1.0, 4.0, 9.0]
    delta = mp.mpf("1e-7")
    exact = [delta + (1 - delta) * gaussian_delta(mp.mpf(1), x) for x in losses]
    encloses("declared(mu=1, delta=1e-7)", losses, exact, width=1e-9)
    found = Accountant().certify({release("declared(mu=1, delta=1e-7)"): 1}, delta=9e-8)
    assert found.epsilon_upper == math.inf


@pytest.mark.parametrize(("sigma", "shift"), [(0.4, 1), (3.0, 1), (3.0, 7), (200.0, 5)])
def test_discrete_gaussian_noise_is_summed(sigma: float, shift: int) -> None:
    reach = math.ceil(16 * sigma) + shift + 40
    weights = {k: mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2)) for k in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    moved = [(weights.get(k - shift, mp.mpf(0)), one) for k, one in weights.items()]
    losses = [step * shift / sigma for step in (0.0, 0.3, 2.1, 7.7)]
    exact = [
        mp.fsum(max(there - mp.exp(mp.mpf(x)) * here, 0) for there, here in moved) / total for x in losses
    ]
    encloses(f"discrete_gaussian(sigma={sigma}, sensitivity={shift})", losses, exact, width=1e-8)


def test_laplace_noise_is_integrated() -> None:
    epsilon = mp.mpf(3) / 4

    def density(y: mp.mpf, at: mp.mpf) -> mp.mpf:
        return epsilon / 2 * mp.exp(-epsilon * abs(y - at))

    losses = [0.0, 0.2, 0.7]
    exact = []
    for x in losses:
        order, turn = mp.exp(mp.mpf(x)), (1 + mp.mpf(x) / epsilon) / 2
        exact.append(mp.quad(lambda y, a=order: density(y, 1) - a * density(y, 0), [turn, 1, 60, mp.inf]))
    encloses("central_laplace(scale=4, sensitivity=3)", losses, exact, width=1e-9)
    noise = release("central_laplace(scale=4, sensitivity=3)")
    assert Accountant().certify_delta({noise: 1}, epsilon=0.75).delta_upper < 1e-12


def renyi(p: np.ndarray, q: np.ndarray, orders: np.ndarray) -> np.ndarray:
    terms = np.multiply.outer(orders, np.log(p)) + np.multiply.outer(1 - orders, np.log(q))
    return np.asarray(special.logsumexp(terms, axis=1) / (orders - 1))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.02, 1), min_size=2, max_size=4),
    st.lists(st.floats(0.02, 1), min_size=4, max_size=4),
)
def test_no_mechanism_of_a_declared_rho_reveals_more(some: list[float], others: list[float]) -> None:
    p, q = np.array(some) / sum(some), np.array(others[: len(some)]) / sum(others[: len(some)])
    orders = 1 + np.geomspace(1e-4, 1e4, 400)
    largest = np.log(np.maximum(p / q, q / p)).max()
    rho = float((np.maximum(renyi(p, q, orders), renyi(q, p, orders)) / orders).max())
    if rho < 1e-6:
        return
    profile = profile_of_renyi_bounds(*linear_curve(rho * 1.0005))
    losses = np.linspace(0, largest, 23)
    upper = profile.bounds(np.expm1(losses)).upper
    for loss, bound in zip(losses, upper, strict=True):
        for first, second in ((p, q), (q, p)):
            assert np.maximum(first - math.exp(loss) * second, 0).sum() <= bound + 1e-12


@pytest.mark.parametrize(
    ("order", "ones"),
    [(3.0, (0.9853, 1.28e-3, 6e-8)), (4.0, (0.994, 3.7e-3, 2.1e-6)), (8.0, (0.034, 0.995, 1 - 1e-5))],
)
def test_two_neighbours_by_adding_are_further_apart_than_twice_one(
    order: float, ones: tuple[float, ...]
) -> None:
    """Bits of three datasets: the divergence of the first from the last, at half the order."""
    first, middle, last = (np.array([1 - one, one]) for one in ones)
    pairs = [(first, middle), (middle, first), (middle, last), (last, middle)]
    largest = max(float(renyi(*pair, np.array([order]))[0]) for pair in pairs)
    declared = parse_randomizer(f"declared(renyi=[[{order}, {largest!r}]], relation='add-remove')")
    assert isinstance(declared, Declared)
    ((half, bound),) = declared.curve
    assert half == order / 2
    assert 2 * largest < renyi(first, last, np.array([half]))[0] <= bound


def test_a_curve_bounds_the_mechanism_it_is_the_curve_of() -> None:
    epsilon = 0.8

    def of_laplace(order: float) -> float:  # Mironov, Table II
        rise = math.exp((order - 1) * epsilon) * order / (2 * order - 1)
        return math.log(rise + (order - 1) / (2 * order - 1) * math.exp(-order * epsilon)) / (order - 1)

    orders = [1.1, 1.5, 2.0, 4.0, 16.0, 64.0]
    listed = ", ".join(f"[{order}, {of_laplace(order)!r}]" for order in orders)
    losses = np.linspace(0, 0.79, 12)
    curve = RoundProfile(release(f"declared(renyi=[{listed}])"), smoothing=2e-3)(np.expm1(losses)).upper
    single = release(f"declared(renyi=[[2, {of_laplace(2)!r}]])")
    one = RoundProfile(single, smoothing=2e-3)(np.expm1(losses)).upper
    assert np.all(curve >= -np.expm1((losses - epsilon) / 2))
    assert np.all(curve <= one)
    twice = release(f"declared(renyi=[{listed}], relation='add-remove')")
    doubled = RoundProfile(twice, smoothing=2e-3)(np.expm1(2 * losses)).upper
    assert np.all(doubled >= -np.expm1(losses - epsilon))  # the mechanism moved twice as far


@pytest.mark.slow
def test_renyi_divergences_add_up_before_they_are_converted() -> None:
    accountant, each = Accountant(precision=0.01), release("declared(rho=0.004)")
    found = accountant.certify({each: 25}, delta=1e-8)
    whole = accountant.certify({release("declared(rho=0.1)"): 1}, delta=1e-8)
    assert found.rounds == 25
    assert found.epsilon_upper == pytest.approx(whole.epsilon_upper, rel=1e-6)
    # Gaussian noise of mu^2 = 2 rho has the guarantee.
    assert gaussian_delta(mp.sqrt(mp.mpf("0.2")), found.epsilon_lower) < 1e-8
    # Beside other rounds, and by delta.
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=1000)
    both = accountant.certify({each: 25, shuffled: 3}, delta=1e-8)
    assert found.epsilon_upper < both.epsilon_upper < found.epsilon_upper + 3
    again = accountant.certify_delta({each: 25}, epsilon=found.epsilon_upper)
    assert again.delta_upper == pytest.approx(1e-8, rel=1e-2)


def test_only_curves_of_the_same_orders_add_up() -> None:
    one, two = release("declared(renyi=[[2, 0.1], [4, 0.3]])"), release("declared(renyi=[[3, 0.1]])")
    gaussian = release("declared(mu=0.1)")
    summed = with_summed_curves({one: 3, two: 1, gaussian: 2})
    assert summed is not None
    assert summed[two] == 1
    assert summed[gaussian] == 2
    (whole,) = [kind for kind in summed if kind not in (two, gaussian)]
    curve = dict(whole.randomizer.to_mapping()["renyi"])  # type: ignore[call-overload]
    total = 3 * Fraction(0.1)
    assert total <= Fraction(curve[2.0]) <= total * (1 + Fraction(1, 10**15))
    assert with_summed_curves({one: 1, two: 1, gaussian: 2}) is None
    sampled = ShuffledRound(randomizer=one.randomizer, reports=10, sampled_from=100)
    assert with_summed_curves({sampled: 5}) is None


@pytest.mark.slow
def test_filters_charge_what_is_declared_exactly() -> None:
    accountant = Accountant()
    gaussian = accountant.charge(release("gaussian(sigma=20)"), FILTERS)
    assert all(1 <= 400 * cost <= 1 + Fraction(1, 10**8) for cost in gaussian.gaussian)
    concentrated = accountant.charge(release("declared(rho=0.01)"), FILTERS)
    orders = [one.order for one in FILTERS.renyi]
    for order, cost in zip(orders, concentrated.renyi, strict=True):
        if math.isfinite(order):
            assert Fraction(0.0099) * Fraction(order) <= cost <= Fraction(0.0100001) * Fraction(order)
    coverage = Coverage(accountant)
    for written, charge in (("gaussian(sigma=20)", gaussian), ("declared(rho=0.01)", concentrated)):
        assert coverage.covers(release(written), FILTERS, charge)
    # Of a sample, and of what may reveal everything, only the pair is known.
    open_ended = accountant.charge(release("declared(rho=0.01, delta=1e-12)"), FILTERS)
    assert open_ended.renyi[0] > concentrated.renyi[0]
    bound = accountant.renyi_divergence({release("declared(rho=0.01)"): 3}, order=8.0)
    assert bound.lower <= bound.upper <= 0.24 * (1 + 1e-9)


@pytest.mark.parametrize(
    "written",
    [
        "declared(rho=1e-8)",
        "declared(rho=0.01, relation='add-remove')",
        "declared(rho=5)",
        "declared(renyi=[[4, 0.02], [16, 0.1]])",
        "declared(renyi=[[1.5, 0.01]])",
        "declared(rho=0.1, delta=1e-6)",
        "gaussian(sigma=0.3)",
        "discrete_gaussian(sigma=3)",
        "central_laplace(scale=0.1)",
    ],
)
def test_stored_losses_are_recognized(written: str) -> None:
    """At order 1, too, where a profile is below the chord from a point's mirror image to the point."""
    accountant, shuffled = Accountant(), release(written)
    assert accountant.encloses(shuffled, accountant.privacy_loss(shuffled))


def test_a_release_fits_a_slot_of_a_larger_one() -> None:
    chains = [
        ["gaussian(sigma=5)", "gaussian(sigma=8, sensitivity=2)", "gaussian(sigma=4, relation='add-remove')"],
        ["discrete_gaussian(sigma=5)", "discrete_gaussian(sigma=5, sensitivity=3)"],
        ["central_laplace(scale=2)", "central_laplace(scale=1)"],
        ["declared(rho=0.1)", "declared(rho=0.2)", "declared(rho=0.2, delta=1e-9)"],
        ["declared(mu=0.1)", "declared(mu=0.1, relation='add-remove')"],
        ["declared(renyi=[[2, 0.1], [8, 0.2]])", "declared(renyi=[[2, 0.1]])"],
        ["declared(epsilon=1)", "declared(epsilon=40)", "declared(epsilon=40, delta=0.1)"],
    ]
    for chain in chains:
        rounds = [slot_for(ShuffledRound(randomizer=parse_randomizer(one), reports=77)) for one in chain]
        for smaller, larger in itertools.combinations(rounds, 2):
            assert fits(smaller, larger)
            assert not fits(larger, smaller)
    for one, other in itertools.permutations([chain[0] for chain in chains], 2):
        assert not fits(release(one), release(other))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("declared()", "exactly one of epsilon, rho, mu, renyi"),
        ("declared(epsilon=1, rho=1)", "exactly one of"),
        ("declared(mu=1, delta=1e-9, relation='add-remove')", "declare the guarantee of a substitution"),
        ("declared(renyi=[])", "pairs of an order and a divergence"),
        ("declared(renyi=[[1, 0.1]])", "a number from 1.0001"),
        ("declared(renyi=[[2, 0.1], [2, 0.2]])", "every order once"),
        ("declared(renyi=[[2, 0.1]], relation='add-remove')", "an order above 2.0002"),
        ("discrete_gaussian(sigma=1e6)", r"declared\(rho=...\)"),
        ("discrete_gaussian(sigma=1, sensitivity=0.5)", "a whole number from 1"),
        ("gaussian(sigma=1, relation='other')", "one of substitution, add-remove"),
    ],
)
def test_bad_releases_are_refused(written: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        parse_randomizer(written)
    with pytest.raises(InvalidParameter, match="the collector's noise"):
        release("gaussian(sigma=1)", honest_fraction=0.5)
