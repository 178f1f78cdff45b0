"""The sum over rounds, against brute force over all outcomes and against Gaussians, whose composition is
known."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, RoundLoss, ShuffledRound, Table, parse_randomizer
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.tilting import (
    Contour,
    LossSpectrum,
    SpectrumMemory,
    _added_up,
    _transformed,
    _weights,
)
from tests.accounting.alike import alike
from tests.accounting.conftest import pairs_around
from tests.accounting.memory import peak_memory


def _round(randomizer: str, reports: int, **rest: Any) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), reports=reports, **rest)


def _outcomes(oracle: Any, shuffled: ShuffledRound) -> Any:
    masses = shuffled.randomizer.analysis(str(shuffled.analysis)).decomposition.merged()
    return oracle.blanket_outcomes(masses, shuffled.honest_reports)


SMALL_ROUNDS = [
    _round("krr(k=3, epsilon0=1.2)", 4),
    _round("generic(epsilon0=0.8)", 6, analysis="clone"),
    _round("rappor(epsilon0=2, domain=4)", 3),
    _round("generic(epsilon0=2.5)", 3),
    _round("oue(epsilon0=1)", 3),
    _round("krr(k=2, epsilon0=0.3)", 9, analysis="blanket"),
]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(SMALL_ROUNDS), min_size=1, max_size=3),
    st.floats(-9, -0.5).map(lambda x: 10**x),
)
def test_small_rounds_composed_lie_in_the_interval(
    oracle: Any, rounds: list[ShuffledRound], delta: float
) -> None:
    """Different small rounds, every combination of their outcomes listed."""
    counts = {one: rounds.count(one) for one in rounds}
    certificate = Accountant().certify(counts, delta=delta)
    parts = [_outcomes(oracle, one) for one in rounds]
    local = sum(one.randomizer.epsilon0 for one in rounds)
    exact = min(oracle.product_epsilon(parts, delta), local)
    assert certificate.epsilon_lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= certificate.epsilon_upper
    assert certificate.epsilon_upper - certificate.epsilon_lower <= 0.01 * certificate.epsilon_upper + 1e-4
    at = Accountant().certify_delta(counts, epsilon=0.4 * local)
    p, q = oracle.product(parts)
    assert (
        at.delta_lower - 1e-13 <= np.maximum(p - math.exp(0.4 * local) * q, 0).sum() <= at.delta_upper + 1e-13
    )


def _gaussian_loss(mu: float) -> RoundLoss:
    """The Gaussian mechanism's profile, handed over as any other round's is: as bounds in floating point."""

    def profile(excess: np.ndarray) -> ProfileBounds:
        values = np.array([float(_gaussian_delta(mu, math.log1p(r))) for r in excess])
        return ProfileBounds(values * (1 + 1e-14), values * (1 - 1e-14))

    end = 14.5 * mu + mu * mu
    pairs = pairs_around(profile, largest_loss=math.inf, end=end, precision=1e-3)
    return RoundLoss(upper=pairs[0], lower=pairs[1])


def _gaussian_delta(mu: float, epsilon: float) -> mp.mpf:
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "delta", "epsilon"),
    [(1800, 1e-14, 11.47662), (2, 1e-6, None), (50, 1e-30, None)],
)
def test_gaussian_rounds(rounds: int, delta: float, epsilon: float | None) -> None:
    """1,800 Gaussian rounds of sigma 30 at delta 1e-14 need 11.47662; accountants in use report as little as
    11.18."""
    mp.mp.dps = 60
    total = math.sqrt(rounds) / 30
    low, high = 0.0, total * total + 16 * total
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _gaussian_delta(total, middle) <= delta else (middle, high)
    if epsilon is not None:
        assert math.isclose(high, epsilon, rel_tol=1e-6)
    shuffled = _round("krr(k=2, epsilon0=1)", 1)
    accountant = Accountant()
    accountant.adopt(shuffled, _gaussian_loss(1 / 30))
    certificate = accountant.certify({shuffled: rounds}, delta=delta)
    assert certificate.epsilon_lower <= high <= certificate.epsilon_upper
    assert certificate.precise


@pytest.mark.parametrize(("times", "epsilon0", "delta"), [(30, 0.5, 1e-6), (100, 0.25, 1e-9)])
def test_delta_is_not_exceeded_at_the_upper_end(times: int, epsilon0: float, delta: float) -> None:
    """Losses on a lattice, whose sum is binomial: the upper end is as close as its own search."""
    alone = _round(f"krr(k=2, epsilon0={epsilon0})", 1)
    found = Accountant().certify({alone: times}, delta=delta)
    with mp.workdps(40):
        likely = 1 / (1 + mp.exp(-mp.mpf(epsilon0)))
        exact = mp.fsum(
            mp.binomial(times, more)
            * likely**more
            * (1 - likely) ** (times - more)
            * max(-mp.expm1(found.epsilon_upper - (2 * more - times) * mp.mpf(epsilon0)), 0)
            for more in range(times + 1)
        )
        assert delta * (1 - 1e-4) <= exact <= delta


@pytest.mark.slow
def test_losses_enclose_the_profile_at_every_order() -> None:
    from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

    for shuffled in [
        _round("generic(epsilon0=1)", 10**4),
        _round("rappor(epsilon0=4, domain=64)", 3000),
        _round("oue(epsilon0=8)", 15_000, sampled_from=150_000),
        _round("krr(k=20, epsilon0=6)", 500),
        _round("krr(k=4, epsilon0=1)", 40, analysis="strong-adversary"),
    ]:
        loss = Accountant().privacy_loss(shuffled)
        profile = RoundProfile(shuffled, smoothing=2e-3)
        points = np.sort(np.random.default_rng(1).uniform(0, min(profile.end, 1.5), 60))
        exact = profile(np.expm1(points))
        above = np.array([loss.upper.hockey_stick_divergence(x) for x in points])
        below = np.array([loss.lower.hockey_stick_divergence(x) for x in points])
        assert np.all(exact.lower <= above * (1 + 1e-12))
        assert np.all(below <= exact.upper * (1 + 1e-12))


@pytest.mark.slow
def test_intervals_nest_as_precision_rises() -> None:
    counts = {_round("generic(epsilon0=2)", 5000): 30, _round("krr(k=8, epsilon0=3)", 20_000): 40}
    coarse = Accountant(precision=1e-2).certify(counts, delta=1e-8)
    fine = Accountant(precision=1e-4).certify(counts, delta=1e-8)
    assert coarse.epsilon_lower <= fine.epsilon_upper
    assert fine.epsilon_lower <= coarse.epsilon_upper
    assert fine.precise
    assert fine.epsilon_upper - fine.epsilon_lower <= 1e-4 * fine.epsilon_upper
    for certificate in (coarse, fine):
        width = certificate.epsilon_upper - certificate.epsilon_lower
        error = certificate.error
        assert math.isclose(error.discretization + error.truncation + error.round_off, width, rel_tol=1e-6)


@pytest.mark.parametrize("delta", [1e-2, 1e-30])
@pytest.mark.parametrize("rounds", [1, 100_000])
def test_intervals_are_as_narrow_as_asked(rounds: int, delta: float) -> None:
    certificate = Accountant().certify({_round("krr(k=16, epsilon0=1)", 10**5): rounds}, delta=delta)
    assert certificate.precise
    assert certificate.epsilon_upper - certificate.epsilon_lower <= 1e-3 * certificate.epsilon_upper


def test_sides_are_kept_under_any_contour() -> None:
    """A bound holds on every contour, suited to its epsilon or not."""
    loss = Accountant().privacy_loss(_round("krr(k=5, epsilon0=1)", 2000))
    above, below = (
        Composition([(LossSpectrum(loss.upper, SpectrumMemory()), 7)], "upper"),
        Composition([(LossSpectrum(loss.lower, SpectrumMemory()), 7)], "lower"),
    )
    best_upper, best_lower = math.inf, 0.0
    for aimed in (0.0, 0.05, 0.2, 0.4, 1.0):
        for smoothing in (0.3, 0.05, 0.01):
            contour = above.contour(aimed, smoothing)
            best_upper = min(best_upper, above.delta(0.2, contour).value)
            best_lower = max(best_lower, below.delta(0.2, contour).value)
            assert below.delta(0.2, contour).value <= best_upper
            assert best_lower <= above.delta(0.2, contour).value


@pytest.mark.parametrize(("rounds", "reports"), [(1, 1000), (100, 10**5)])
def test_sides_are_kept_under_contours_of_other_rounds(rounds: int, reports: int) -> None:
    """A contour whose nodes end with the narrow lobe of a million rounds says little of a few, and nothing
    wrong."""
    accountant = Accountant()
    many, memory = accountant.privacy_loss(_round("krr(k=10, epsilon0=1)", 10**5)), SpectrumMemory()
    wide = Composition([(LossSpectrum(many.upper, memory), 10**6)], "upper")
    contour = wide.contour(5.0, 0.012)
    assert contour.short
    few = _round("krr(k=10, epsilon0=1)", reports)
    loss = accountant.privacy_loss(few)
    above = Composition([(LossSpectrum(loss.upper, memory), rounds)], "upper")
    below = Composition([(LossSpectrum(loss.lower, memory), rounds)], "lower")
    for epsilon in (0.0, 0.01, 0.05, 0.15, 0.3):
        exact = accountant.certify_delta({few: rounds}, epsilon=epsilon)
        assert below.delta(epsilon, contour).value <= exact.delta_upper
        assert exact.delta_lower <= above.delta(epsilon, contour).value


def test_nothing_is_nothing() -> None:
    assert Accountant().certify({}, delta=1e-9).epsilon_upper == 0.0
    assert Accountant().certify({_round("krr(k=5, epsilon0=1)", 10): 0}, delta=1e-9).epsilon_upper == 0.0


def test_stored_losses_are_read_back_exactly_or_refused() -> None:
    from shuffle_ledger.accounting import DamagedPrivacyLoss

    loss = Accountant().privacy_loss(_round("generic(epsilon0=1)", 300))
    data = loss.to_bytes()
    again = RoundLoss.from_bytes(data)
    assert again.to_bytes() == data
    assert np.array_equal(again.upper.p, loss.upper.p)
    for position in range(0, len(data), 997):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(DamagedPrivacyLoss):
            RoundLoss.from_bytes(bytes(damaged))
    for length in (0, 10, 40, len(data) - 1):
        with pytest.raises(DamagedPrivacyLoss):
            RoundLoss.from_bytes(data[:length])
    with pytest.raises(DamagedPrivacyLoss):
        RoundLoss.from_bytes(data + b"\0")


@pytest.mark.parametrize(
    ("randomizer", "reports", "rest", "epsilon", "delta"),
    [
        # The mass at infinite loss must be taken off before the lower pair is built.
        (
            "krr(epsilon0=0.1, k=2)",
            16,
            {"sampled_from": 53, "analysis": "strong-adversary"},
            1.6537255926352166,
            9.562770e-07,
        ),
    ],
)
def test_lower_bounds_stay_below_the_mass_at_infinity(
    randomizer: str, reports: int, rest: dict[str, Any], epsilon: float, delta: float
) -> None:
    certificate = Accountant(precision=1e-4).certify_delta(
        {_round(randomizer, reports, **rest): 1}, epsilon=epsilon
    )
    assert certificate.delta_lower <= delta * (1 + 1e-6)
    assert delta * (1 - 1e-6) <= certificate.delta_upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("randomizer", "reports", "rounds"),
    [
        ("krr(k=10, epsilon0=2)", 10, 100_000),
        ("generic(epsilon0=8)", 100, 10_000),
    ],
)
@pytest.mark.parametrize("delta", [1e-30])
def test_sums_of_large_losses_are_as_narrow_as_asked(
    randomizer: str, reports: int, rounds: int, delta: float
) -> None:
    """Totals of thousands of nats, where the smoothing is bounded in nats too; checked by moments."""
    shuffled = _round(randomizer, reports)
    accountant = Accountant()
    certificate = accountant.certify({shuffled: rounds}, delta=delta)
    assert certificate.precise
    mean = accountant.renyi_divergence({shuffled: rounds}, order=1)
    deviation = math.sqrt(rounds * accountant.privacy_loss(shuffled).upper.variance())
    assert certificate.epsilon_upper > mean.lower - 10 * deviation
    # delta(epsilon) <= exp((order - 1) (divergence - epsilon)) for every order above 1.
    orders = 1 + np.geomspace(1e-5, 1, 60)
    bounds = [
        accountant.renyi_divergence({shuffled: rounds}, order=order).upper - math.log(delta) / (order - 1)
        for order in orders
    ]
    assert certificate.epsilon_lower <= min(bounds)


@pytest.mark.parametrize("mass", [0.0, 1e-6, 0.3, 1.0])
def test_a_tail_is_taken_off_each_side_its_way(mass: float) -> None:
    loss = Accountant().privacy_loss(_round("oue(epsilon0=4)", 500, sampled_from=5000))
    epsilons = np.linspace(0, loss.upper.largest_loss, 40)
    for pair, sign in ((loss.upper, 1), (loss.lower, -1)):
        cut = pair.without_tail(mass)
        assert (cut is pair) == (mass == 0)
        assert abs(math.fsum([*cut.p, *cut.q, cut.zero, cut.infinity]) - 1) < 1e-9
        gone = float((pair.p + pair.q)[cut.index.size :].sum())
        assert gone <= mass * (1 + 1e-9)
        for epsilon in epsilons:
            moved = cut.hockey_stick_divergence(epsilon) - pair.hockey_stick_divergence(epsilon)
            assert -1e-15 <= sign * moved <= gone * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("tilt", [-2000, 0, 2000])
def test_absurd_contours_say_nothing_rather_than_nan(tilt: int) -> None:
    loss = Accountant().privacy_loss(_round("generic(epsilon0=8)", 200))
    contour = Contour(tilt, 40.0, 0.01, 2000, short=False)
    for pair in (loss.upper, loss.lower):
        composed = Composition([(LossSpectrum(pair, SpectrumMemory()), 50_000)], pair.side)
        with np.errstate(all="ignore"):
            value = composed.delta(1000.0, contour).value
        assert 0.0 <= value <= 1.0  # which NaN is not
        truth = 1.0  # 50,000 such rounds lose far more than 1,000 nats
        assert value <= truth if pair.side == "lower" else value >= truth * 0.999


def test_sampled_rounds_have_the_slack_of_the_reports_expected_to_be_honest() -> None:
    """`n delta0 (1 + exp(-epsilon0) / 2)`, n the expected number of honest reports, at `1 + exp(epsilon)`."""
    rest: dict[str, Any] = {"sampled_from": 1000, "analysis": "clone"}
    pure = _round("generic(epsilon0=1)", 100, **rest)
    slack = 100 * 1e-9 * (1 + math.exp(-1) / 2)
    impure = _round("generic(epsilon0=1)", 100, delta0=1e-9, **rest)
    assert impure.slack == pytest.approx(slack, rel=1e-12)
    partly = _round("generic(epsilon0=1)", 100, delta0=1e-9, honest_fraction=0.8, **rest)
    assert partly.slack == pytest.approx(0.8 * slack, rel=1e-12)
    accountant = Accountant()
    for epsilon in (0.0, 0.05, 0.5):
        without = accountant.certify_delta({pure: 7}, epsilon=epsilon)
        with_slack = accountant.certify_delta({impure: 7}, epsilon=epsilon)
        cost = (1 + math.exp(epsilon)) * 7 * slack
        assert with_slack.delta_upper <= (without.delta_upper + cost) * (1 + 1e-9)
        assert with_slack.delta_upper >= without.delta_upper + 2 * 7 * slack * (1 - 1e-15)
        if epsilon < 0.5:  # where nothing is gained by a smaller one
            assert with_slack.delta_upper == pytest.approx(without.delta_upper + cost, rel=1e-9)
            assert with_slack.delta_upper >= without.delta_upper + cost * (1 - 1e-15)
    answer = accountant.certify({impure: 7}, delta=1e-5)
    at = accountant.certify_delta({impure: 7}, epsilon=answer.epsilon_upper)
    assert at.delta_lower <= 1e-5
    assert answer.epsilon_upper > accountant.certify({pure: 7}, delta=1e-5).epsilon_upper
    assert math.isinf(accountant.certify({impure: 7}, delta=1e-7).epsilon_upper)


@pytest.mark.slow
def test_answers_are_remembered_until_a_loss_is_replaced() -> None:
    accountant, shuffled = Accountant(), _round("krr(k=2, epsilon0=1)", 50)
    first = accountant.certify({shuffled: 2}, delta=1e-6)
    assert accountant.certify({shuffled: 2, _round("krr(k=3, epsilon0=1)", 9): 0}, delta=1e-6) is first
    assert accountant.certify({shuffled: 3}, delta=1e-6) != first
    accountant.adopt(shuffled, Accountant().privacy_loss(_round("krr(k=2, epsilon0=1)", 5000)))
    assert accountant.certify({shuffled: 2}, delta=1e-6).epsilon_upper < first.epsilon_lower


def test_a_round_in_clear_has_no_finite_bound_and_says_so() -> None:
    in_clear = alike(randomizer=parse_randomizer("table([[1, 0], [0, 1]])"), reports=1)
    hidden = alike(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=1000)
    accountant = Accountant()
    for rounds in ({in_clear: 1}, {in_clear: 2, hidden: 3}):
        assert math.isinf(accountant.certify(rounds, delta=0.5).epsilon_upper)
        certificate = accountant.certify_delta(rounds, epsilon=1.0)
        assert certificate.delta_upper == 1.0
        assert certificate.delta_lower > 0.999


@pytest.mark.parametrize("rounds", [1, 100])
@pytest.mark.parametrize("share", [0.99, 1.0, 1.01])
def test_an_infinite_epsilon_is_precise_where_it_is_certain(rounds: int, share: float) -> None:
    """Mass at infinity beyond delta makes both bounds infinite; short of it, neither."""
    revealed = 1e-3
    question = {
        alike(
            randomizer=parse_randomizer(f"declared(epsilon=0.1, delta={revealed})"),
            reports=1,
        ): rounds
    }
    delta = share * -math.expm1(rounds * math.log1p(-revealed))
    certificate = Accountant().certify(question, delta=delta)
    certain = certificate.epsilon_lower == certificate.epsilon_upper
    assert certificate.precise == (certain or math.isfinite(certificate.epsilon_upper))
    if share < 1:
        assert certificate.epsilon_lower == certificate.epsilon_upper == math.inf
    else:
        assert certificate.epsilon_lower < math.inf
    if share > 1:
        assert certificate.epsilon_upper < math.inf


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("count", [1, 3])
def test_losses_that_are_certain_but_for_a_rounding_are_composed(seed: int, count: int) -> None:
    """A table whose reports all but name the input: of the pair above, all mass is at one loss."""
    weights = (1 + 1e20 * np.eye(6)) * (1 + 1e-3 * np.random.default_rng(seed).uniform(-1, 1, (6, 6)))
    rows = (weights / weights.sum(axis=1, keepdims=True)).tolist()
    shuffled = alike(randomizer=Table(rows=tuple(map(tuple, rows))), reports=13)
    certificate = Accountant().certify({shuffled: count}, delta=1e-6)
    largest = count * shuffled.randomizer.epsilon0
    assert certificate.precise
    assert (
        (1 - 1e-3) * largest
        <= certificate.epsilon_lower
        <= certificate.epsilon_upper
        <= largest * (1 + 1e-12)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("times", "epsilon"), [(2370, 2365.5), (3000, 2990.5)])
def test_what_floats_cannot_hold_is_not_nothing(times: int, epsilon: float) -> None:
    """Products of tiny factors lose digits below 1e-308, then all of them."""
    alone = _round("krr(k=2, epsilon0=1)", 1)
    with mp.workdps(50):
        e = mp.e ** mp.mpf(1)
        exact = mp.fsum(
            mp.binomial(times, more)
            * (e / (1 + e)) ** more
            / (1 + e) ** (times - more)
            * (1 - mp.e ** (mp.mpf(epsilon) - (2 * more - times)))
            for more in range(times - 9, times + 1)
            if 2 * more - times > epsilon
        )
        found = Accountant().certify_delta({alone: times}, epsilon=epsilon)
        assert found.delta_lower <= exact < found.delta_upper < 1e-300


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    atoms=st.integers(1, 40),
    reach=st.integers(1, 10**5),
    nodes=st.integers(1, 3000),
    slow=st.floats(1.0, 1e9),
)
def test_transforms_are_off_by_no_more_than_they_say(
    seed: int, atoms: int, reach: int, nodes: int, slow: float
) -> None:
    """Against one turn for every loss and node, at angles down to next to nothing: there all terms add up."""
    draw = np.random.default_rng(seed)
    index = np.unique(draw.integers(-reach, reach + 1, atoms))
    weights = draw.dirichlet(np.ones(index.size))
    angle = np.uint64(int(2.0**63 / slow))
    values, error = _transformed(index, weights, angle, nodes)
    exact, more = _added_up(index, weights, angle, nodes)
    assert np.abs(values - exact).max() <= error + more + 1e-15
    place, node = draw.integers(index.size), draw.integers(nodes)
    alone = _added_up(index[[place]], np.ones(1), angle, nodes)[0][node]
    turns = 2 * int(index[place]) * int(node) * int(angle) % 2**64
    with mp.workdps(30):
        assert abs(mp.mpc(complex(alone)) - mp.expjpi(mp.mpf(turns) / 2**63)) <= 2e-15


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    tilt=st.floats(-4, 3.5).map(lambda x: 10**x),
    light=st.floats(-14, 0).map(lambda x: 10**x),
)
@settings(deadline=None, max_examples=80)
def test_moments_are_off_by_no_more_than_they_say(seed: int, tilt: float, light: float) -> None:
    """Of few losses with any mass, in 60 digits; also next to none at all, where the logarithm is tiny."""
    draw = np.random.default_rng(seed)
    losses, spacing = int(draw.integers(1, 12)), float(10 ** draw.uniform(-4, -1))
    index = np.sort(draw.choice(np.arange(1, 200), losses, replace=False))
    q = draw.exponential(size=losses) * 10 ** draw.uniform(-12, 0, losses)
    p = q * np.exp(index * spacing)
    share = light / float((p + q).sum())
    p, q = share * p, share * q
    rest = max(1 - float((p + q).sum()), 0.0)
    pair = PrivacyLossDistribution(
        spacing=spacing, index=index, p=p, q=q, zero=rest, infinity=0.0, support=math.inf, side="upper"
    )
    for theta in (tilt, -tilt):
        weights, log_mass, error = _weights(pair, theta)
        with mp.workdps(60):
            x = [mp.mpf(one) for one in pair.losses.tolist()]
            down = [mp.mpf(one) * mp.exp(-theta * at) for one, at in zip(q.tolist(), x, strict=True)]
            up = [mp.mpf(one) * mp.exp(theta * at) for one, at in zip(p.tolist(), x, strict=True)]
            terms = [*down[::-1], mp.mpf(rest), *up]
            total = mp.fsum(terms)
            assert abs(mp.log(total) - log_mass) <= error
            if tilt * pair.losses[-1] < 500:
                units = float(16 + 8 * tilt * x[-1]) * 2.0**-53
                for exact, found in zip(terms, weights.tolist(), strict=True):
                    assert abs(exact / total - found) <= units * exact / total + 1e-300


@pytest.mark.parametrize("steepest", [3.0, 3e5])
def test_moments_of_several_tilts_are_those_of_each(steepest: float) -> None:
    """In every bit, so that answers do not depend on what else was asked; also where terms would overflow."""
    pair = Accountant().privacy_loss(_round("krr(k=10, epsilon0=2)", 1000)).lower
    thetas = (-steepest, -0.7, 0.0, 2.0, steepest)
    alone = [sum(_weights(pair, theta)[1:]) for theta in thetas]
    assert LossSpectrum(pair, SpectrumMemory()).log_masses(thetas) == alone


def test_turns_below_a_unit_of_the_first_are_not_forgotten() -> None:
    """Thousands of masses that adding one by one never sees."""
    weights = np.full(4000, 5.4e-17)
    weights[0] = 1 - math.fsum(weights[1:])
    values, error = _added_up(np.arange(4000), weights, np.uint64(0), 2)
    assert 1e-13 < abs(1 - values[1]) <= error


@pytest.mark.usefixtures("computed_anew")
def test_losses_next_to_nothing_do_not_fill_the_memory() -> None:
    """Two losses a million cells apart were put on all cells between, in eight arrays at once."""
    shuffled = _round("declared(epsilon=0, delta=1e-17)", 1)
    with peak_memory() as peak:
        found = Accountant().certify_delta({shuffled: 1}, epsilon=0.0)
    assert found.delta_lower <= 1e-17 <= found.delta_upper < 1e-15
    assert peak.used < 300 << 20
