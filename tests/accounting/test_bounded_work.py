"""Questions at the edges of what is accepted: their work and memory are bounded, and their bounds hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Certificate,
    InvalidParameter,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT, counted, spend
from shuffle_ledger.accounting.pld import tilting
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution, Side
from shuffle_ledger.accounting.pld.inversion import delta_interval, epsilon_interval, most_work
from shuffle_ledger.accounting.pld.pair_bounds import RoundLoss
from shuffle_ledger.accounting.pld.rare_losses import RareLosses
from shuffle_ledger.accounting.pld.tilting import Contour, LossSpectrum, SpectrumMemory
from tests.accounting.memory import peak_memory

MOST_BYTES = 500 << 20


def _round(text: str, reports: int = 1000, **rest: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(text), reports=reports, **rest)


@pytest.fixture
def compositions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Composition]]:
    """All compositions that were asked for a delta."""
    seen: dict[int, Composition] = {}
    delta = Composition.delta

    def noted(self: Composition, epsilon: float, contour: Contour) -> Any:
        seen[id(self)] = self
        return delta(self, epsilon, contour)

    monkeypatch.setattr(Composition, "delta", noted)
    found: list[Composition] = []
    yield found
    found.extend(seen.values())


def _pair(draw: np.random.Generator, *, bits: int, side: Side = "upper") -> PrivacyLossDistribution:
    """A symmetric pair on a graded lattice, with spacings that double from run to run."""
    runs = [(1 << bit) * np.arange(8 * (bit > 0) + 1, 17) for bit in range(bits)]
    index = np.unique(np.concatenate(runs)).astype(np.int64)
    spacing = 3.0 / float(index[-1])
    q = draw.dirichlet(np.full(index.size, 0.5))
    p = q * np.exp(index * spacing)
    total = float(p.sum() + q.sum()) * 1.25
    p, q = p / total, q / total
    rest = 1.0 - math.fsum([*p, *q])
    return PrivacyLossDistribution(
        spacing=spacing, index=index, p=p, q=q, zero=rest, infinity=0.0, support=math.inf, side=side
    )


@pytest.mark.parametrize("bits", [1, 14])
def test_runs_of_a_graded_lattice_add_up_to_its_characteristic_function(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """Against sums in which each angle is reduced exactly."""
    monkeypatch.setattr(tilting, "CUT_FROM", 0)
    pair = _pair(np.random.default_rng(bits), bits=bits)
    for contour in (Contour(3, 40.0, 0.1, 300, short=False), Contour(-20, 7.0, 0.1, 33, short=False)):
        found = LossSpectrum(pair, SpectrumMemory()).on(contour)
        positions = np.concatenate([-pair.index[::-1], [0], pair.index])
        masses = np.concatenate([pair.q[::-1], [pair.zero], pair.p])
        masses = masses * np.exp(contour.theta * positions * pair.spacing)
        masses /= masses.sum()
        turn = Fraction(pair.spacing) / Fraction(contour.period)
        for node in (0, 1, 2, contour.nodes // 2, contour.nodes - 1):
            angles = [float(int(at) * node * turn % 1) * 2 * math.pi for at in positions]
            value = complex(masses @ np.cos(angles), masses @ np.sin(angles))
            said = np.exp(found.log_modulus[node] + 1j * found.phase[node])
            assert abs(said - value) <= 2 * found.noise
        assert found.noise < 1e-10


def test_a_graded_lattice_takes_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes one point for each of its strides, not for each unit."""
    pair = _pair(np.random.default_rng(1), bits=20)
    assert pair.index[-1] > 1 << 22
    found = LossSpectrum(pair, SpectrumMemory()).on(Contour(0, 40.0, 0.1, 4000, short=False))
    assert found.work < 1 << 18


HANGS: list[Any] = [
    # name, rounds, count, delta, and an interval that was found before work was limited
    ("declared(rho=50)", {"sampled_from": 10**9}, 10**6, 1e-9, (547.338282, 548.756568)),
    ("declared(renyi=[[1.0001,1e-9],[1e6,100]])", {}, 10**6, 1e-9, (99.967587, 141.949804)),
    ("krr(k=1000000000000, epsilon0=5)", {}, 2, 1e-9, (0.0, 0.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "rest", "count", "delta", "known"), HANGS)
def test_a_composition_does_bounded_work(
    compositions: list[Composition],
    text: str,
    rest: dict[str, Any],
    count: int,
    delta: float,
    known: tuple[float, float],
) -> None:
    one, accountant = _round(text, **rest), Accountant()
    accountant.privacy_loss(one)
    with peak_memory() as peak:
        found = accountant.certify({one: count}, delta=delta)
    assert peak.used < MOST_BYTES
    _overlaps(found, known)
    # The work above the limit is the last contour's.
    assert sum(one.work for one in compositions) < 3 * most_work(1)


def _overlaps(found: Certificate, known: tuple[float, float]) -> None:
    """Both intervals contain the exact epsilon."""
    assert found.epsilon_lower <= known[1] * (1 + 1e-6)
    assert found.epsilon_upper >= known[0] * (1 - 1e-6)
    width = found.epsilon_upper - found.epsilon_lower
    assert width <= 1.1 * (known[1] - known[0]) + 2e-3 * found.epsilon_upper


def test_what_cuts_the_work_keeps_the_sides() -> None:
    """With no work left, bounds still hold: they are those of the first contour."""
    accountant = Accountant()
    one = _round("krr(k=10, epsilon0=2)", 10_000)
    exact = accountant.certify({one: 100}, delta=1e-6)
    loss = accountant.privacy_loss(one)
    above, below = (
        Composition([(LossSpectrum(loss.side(side), SpectrumMemory()), 100)], side)
        for side in ("upper", "lower")
    )
    found = epsilon_interval(above, below, 1e-6, 1e-3, most=0.0)
    assert found.lower <= exact.epsilon_lower
    assert exact.epsilon_upper <= found.upper * (1 + 1e-3)
    delta, _ = delta_interval(above, below, exact.epsilon_upper, 1e-3, most=0.0)
    assert delta.lower <= 1e-6 * (1 + 1e-9)
    assert delta.upper >= 1e-6 * 0.98


def _rare(draw: np.random.Generator, side: Side, rarely: float) -> PrivacyLossDistribution:
    size = int(draw.integers(1, 4))
    index = np.sort(draw.choice(np.arange(1, 9), size, replace=False)).astype(np.int64)
    q = draw.dirichlet(np.ones(size)) * rarely
    p = q * np.exp(index * 0.25)
    infinity = float(draw.choice([0.0, rarely / 3]))
    rest = 1.0 - math.fsum([*p, *q, infinity])
    return PrivacyLossDistribution(
        spacing=0.25, index=index, p=p, q=q, zero=rest, infinity=infinity, support=math.inf, side=side
    )


@pytest.mark.parametrize("seed", range(6))
def test_rare_losses_enclose_the_product_of_all_outcomes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rarely = 10.0 ** -draw.uniform(1, 6)
    parts = [(_rare(draw, "upper", rarely), int(draw.integers(1, 3))) for _ in range(2)]
    found = RareLosses([(RoundLoss(upper=one, lower=one), count) for one, count in parts])
    rounds = [one for one, count in parts for _ in range(count)]
    outcomes = [
        [
            (0.0, one.zero),
            (math.inf, one.infinity),
            *zip(one.losses.tolist(), one.p.tolist(), strict=True),
            *zip((-one.losses).tolist(), one.q.tolist(), strict=True),
        ]
        for one in rounds
    ]
    for epsilon in (0.0, 0.1, 0.25, 0.9, 2.0, 5.0):
        terms = []
        for chosen in itertools.product(*outcomes):
            loss = sum(one for one, _ in chosen)
            if loss > epsilon:
                terms.append(math.prod(mass for _, mass in chosen) * -math.expm1(epsilon - loss))
        exact = math.fsum(terms)
        bounds = found.delta(epsilon)
        assert bounds.lower <= exact * (1 + 1e-10)
        assert exact * (1 - 1e-10) <= bounds.upper
        together = len(rounds) * rarely * 12
        assert bounds.upper - bounds.lower <= together * exact + together**2
        if exact > 0:
            at = found.epsilon(exact)
            assert at.lower <= epsilon + 1e-9
            assert epsilon - 1e-9 <= at.upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "epsilon0", "reports", "count"),
    [
        (10**12, 0.3268, 13, 1000),
        (10**6, 0.3268, 13, 2),
    ],
)
def test_outcomes_of_a_huge_domain_are_told_apart_as_rarely_as_they_are(
    k: int, epsilon0: float, reports: int, count: int
) -> None:
    """Delta at epsilon 0 is the total variation distance, which is at most a sum over rounds, and at least
    that sum times the probability that no other round says anything."""
    accountant, one = Accountant(), _round(f"krr(k={k}, epsilon0={epsilon0})", reports)
    single = accountant.certify_delta({one: 1}, epsilon=0.0)
    found = accountant.certify_delta({one: count}, epsilon=0.0)
    # Another value than 0 is sent, or received in place of it, with about this probability.
    told = count * reports * 4 * math.exp(epsilon0) / k
    assert found.delta_lower <= count * single.delta_upper
    assert found.delta_upper >= count * single.delta_lower * (1 - told)
    assert found.delta_upper - found.delta_lower <= 0.01 * found.delta_upper
    assert accountant.certify({one: count}, delta=2 * count * single.delta_upper).epsilon_upper == 0


SLOW_LOSSES: list[Any] = [
    # randomizer, round, and an interval of epsilon at 1e-6 that was found before work was limited
    (
        "olh(epsilon0=20, g=2, domain=3)",
        10_000,
        {"sampled_from": 100_000, "honest_fraction": 0.9},
        (10.0298, 10.0335),
    ),
    (
        "joint(laplace(epsilon0=1), laplace(epsilon0=2), bounded_laplace(epsilon0=1))",
        10_000,
        {},
        (0.22677, 0.22786),
    ),
    # Many orders of a law of few components: they meet the limit, here a tenth of the usual one.
    ("joint(bounded_laplace(epsilon0=0.5), krr(k=1000000, epsilon0=20))", 3000, {}, (20.49974, 20.49976)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "reports", "rest", "known"), SLOW_LOSSES)
@pytest.mark.usefixtures("computed_anew")
def test_a_privacy_loss_takes_bounded_effort(
    text: str, reports: int, rest: dict[str, Any], known: tuple[float, float]
) -> None:
    """It is wider at most; both intervals contain the exact epsilon."""
    one = _round(text, reports, **rest)
    share = 0.1 if "krr" in text else 1.0
    with peak_memory() as peak, counted() as effort:
        found = Accountant(effort=share).certify({one: 1}, delta=1e-6)
    assert peak.used < MOST_BYTES
    assert effort.spent < 2.5 * MOST_EFFORT * share
    assert found.epsilon_lower <= known[1]
    assert found.epsilon_upper >= known[0]
    assert found.precise == (found.epsilon_upper - found.epsilon_lower <= 1e-3 * found.epsilon_upper)
    # Three parts on grids have few components each.
    widest = 0.25 if text.startswith("joint") else 0.1
    assert found.epsilon_upper - found.epsilon_lower <= widest * found.epsilon_upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("krr(k=10, epsilon0=2)", {"sampled_from": 10_000, "honest_fraction": 0.9}),
        ("laplace(epsilon0=2)", {}),
    ],
)
def test_less_effort_makes_intervals_wider_on_both_sides(text: str, rest: dict[str, Any]) -> None:
    one, usual = _round(text, **rest), Accountant()
    frugal = [Accountant(effort=effort) for effort in (0.05, 1e-6)]
    for count, delta in ((1, 1e-6), (50, 1e-6)):
        exact = usual.certify({one: count}, delta=delta)
        assert exact.epsilon_upper <= 1.05 * exact.epsilon_lower
        for found in (each.certify({one: count}, delta=delta) for each in frugal):
            assert found.epsilon_lower <= exact.epsilon_upper
            assert exact.epsilon_lower <= found.epsilon_upper


def test_an_outer_count_includes_an_inner_one_and_nothing_counts_outside() -> None:
    spend(5)
    with counted() as outer:
        spend(1)
        with counted() as inner:
            spend(2)
        spend(4)
    spend(8)
    assert (outer.spent, inner.spent) == (7, 2)


@pytest.mark.parametrize("effort", [0, -1.0, math.inf, math.nan, "much"])
def test_an_effort_is_a_finite_number_above_0(effort: Any) -> None:
    with pytest.raises(InvalidParameter, match="effort"):
        Accountant(effort=effort)
