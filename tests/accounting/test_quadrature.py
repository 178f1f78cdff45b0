"""The quadrature: the terms that it leaves out, and its fallbacks if these are too large."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from shuffle_ledger.accounting import parse_randomizer
from shuffle_ledger.accounting.amplification.blanket import contour, divergence
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.blanket.tilting import Given, Tilt
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes
from shuffle_ledger.accounting.numeric.ramp_kernels import RampKernels

REPORTS = 40
EXCESS = np.expm1(np.linspace(0.0, 0.9, 25))
MASSES = Decomposition(
    np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.25, 0.1])
)  # a quarter of each report, or more, hides nothing


def listed() -> np.ndarray:
    """The exact profile, outcome by outcome."""
    outcomes = enumerate_outcomes(MASSES, REPORTS, limit=10**6)
    assert outcomes is not None
    bounds = outcomes.profile(EXCESS)
    assert np.all(bounds.upper - bounds.lower <= 1e-9 * bounds.upper)
    return bounds.upper


@pytest.mark.parametrize("negligible", [0.5, 2.0, 5.0, 46.0])
def test_nodes_that_are_left_out_are_paid_for(monkeypatch: pytest.MonkeyPatch, negligible: float) -> None:
    """However many nodes count as negligible: what they hold is in the bounds."""
    monkeypatch.setattr(contour, "LEFT_OUT_EXPONENT", negligible)
    bounds, exact = blanket_profile(MASSES, REPORTS, EXCESS, smoothing=0.01), listed()
    assert np.all(bounds.lower <= exact)
    assert np.all(exact <= bounds.upper)
    if negligible == 46.0:
        assert np.all(bounds.upper - bounds.lower <= 5e-2 * exact)


@pytest.mark.parametrize("seed", range(6))
def test_no_node_of_note_is_beyond_the_last_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of laws on few and on many atoms, and of laws on a lattice, whose modulus returns to 1."""
    draw = np.random.default_rng(seed)
    reports, atoms = int(draw.choice([60, 300, 5000])), int(draw.choice([2, 3, 40]))
    a, b = draw.dirichlet(np.ones(atoms), size=2)
    pair = Decomposition(a, b, np.full(atoms, 0.9 / atoms))
    if seed % 3 == 0:
        atoms, pair = 2, Decomposition(np.array([0.7, 0.3]), np.array([0.3, 0.7]), np.array([0.3, 0.3]))
    excess = np.expm1(draw.uniform(0.0, 0.3, 9))
    seen = []
    search = contour.Line.last_of_note

    def watched(line: contour.Line, last: np.ndarray, asked: np.ndarray) -> np.ndarray:
        kept, tilt = search(line, last, asked), line.tilt
        for row, (end, whole) in enumerate(zip(kept, last, strict=True)):
            nodes = np.arange(end + 1, whole + 1)
            turns = np.exp(1j * np.multiply.outer(nodes * line.step[row], tilt.centred[row]))
            power = reports * np.log(np.abs(turns @ tilt.weights[row]) + 1e-300)
            assert np.all(power <= -46 + 1e-6)
            seen.append(end < whole)
        return kept

    monkeypatch.setattr(contour.Line, "last_of_note", watched)
    blanket_profile(pair, reports, excess, smoothing=0.003)
    assert seen
    assert any(seen) or atoms < 40


@pytest.mark.parametrize("overwhelming", [0.5, 2.0])
def test_outcomes_that_hold_too_much_are_not_left_out(
    monkeypatch: pytest.MonkeyPatch, overwhelming: float
) -> None:
    """Where reports that are called overwhelming are not, the law is summed whole, as narrowly as ever."""
    monkeypatch.setattr(divergence, "OVERWHELMING", overwhelming)
    bounds, exact = blanket_profile(MASSES, REPORTS, EXCESS, smoothing=0.01), listed()
    assert np.all(bounds.lower <= exact)
    assert np.all(exact <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= 5e-2 * exact)


@pytest.mark.parametrize("epsilon0", [1e-9, 1e-6])
@pytest.mark.parametrize("reports", [50, 10**6])
def test_nothing_turns_at_the_smallest_epsilon0(epsilon0: float, reports: int) -> None:
    """Hidden halves that differ in the ninth digit: the profile at order 1 is that of a Gaussian, or of a
    few users."""
    gap = np.array([epsilon0, -epsilon0]) / 2
    masses = Decomposition(0.5 + gap / 2, 0.5 - gap / 2, np.array([0.5, 0.5]), gap)
    bounds = blanket_profile(masses, reports, np.zeros(1), smoothing=0.01)
    # The mean distance of a fair walk from where it began, by Stirling's series.
    walk = np.sqrt(2 * reports / np.pi) * (1 - 1 / (4 * reports) + 1 / (32 * reports**2))
    exact = epsilon0 * walk / 2 / reports
    assert bounds.lower[0] <= exact * (1 + 1e-5)
    assert exact * (1 - 1e-5) <= bounds.upper[0]
    assert bounds.upper[0] - bounds.lower[0] <= 1e-2 * exact


@pytest.mark.parametrize("hidden", [1e-12, 1e-4, 0.02])
@pytest.mark.parametrize("reports", [1, 9])
def test_hardly_hidden_reports_are_nearly_bare(hidden: float, reports: int) -> None:
    """Gains of up to `1 / hidden`, where other users almost never hide."""
    draw = np.random.default_rng(reports)
    a, b, c = draw.dirichlet(np.ones(4), size=3)
    masses = Decomposition(a, b, hidden * c)
    excess = np.expm1(np.linspace(0.0, 1.1 * float(np.log((a / b).max())), 40))
    outcomes = enumerate_outcomes(masses, reports, limit=10**6)
    assert outcomes is not None
    exact, bounds = outcomes.profile(excess), blanket_profile(masses, reports, excess, smoothing=0.01)
    assert np.all(bounds.lower <= exact.upper)
    assert np.all(exact.lower <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= max(reports * hidden, 1e-9) * exact.upper + 1e-15)


@pytest.mark.parametrize("lost", [1e-30, 1e-3])
def test_what_is_left_out_does_not_cost_the_rest(monkeypatch: pytest.MonkeyPatch, lost: float) -> None:
    """Single reports that outweigh everything: the sum without them stays a lower bound where they are too
    many for the upper one to pass over."""
    monkeypatch.setattr(divergence, "LEFT_OUT_ALWAYS", lost)
    monkeypatch.setattr(divergence, "LEFT_OUT_AT_MOST", lost)
    masses = Decomposition(np.array([0.4, 0.6, 0.0]), np.array([0.1, 0.2, 0.7]), np.array([0.05, 0.1, 1e-7]))
    excess = np.expm1(np.linspace(0.0, 1.3, 30))
    outcomes = enumerate_outcomes(masses, 30, limit=10**6)
    assert outcomes is not None
    exact, bounds = outcomes.profile(excess), blanket_profile(masses, 30, excess, smoothing=0.002)
    assert np.all(bounds.lower <= exact.upper)
    assert np.all(exact.lower <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= 1e-2 * exact.upper)


@pytest.mark.parametrize("much", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("reports", [1, 12])
def test_few_reports_of_components_are_known(
    monkeypatch: pytest.MonkeyPatch, much: float, reports: int
) -> None:
    """Outcomes with one such report or none, taken out of the sum always, where they are much, or never."""
    monkeypatch.setattr(contour, "EXACT_SHARE", much)
    draw = np.random.default_rng(reports)
    for hidden in (1e-3, 0.03, 0.5):
        a, b, c = draw.dirichlet(np.ones(4), size=3)
        masses = Decomposition(a, b, hidden * c)
        excess = np.expm1(np.linspace(0.0, 1.05 * float(np.log((a / b).max())), 30))
        outcomes = enumerate_outcomes(masses, reports, limit=10**6)
        assert outcomes is not None
        exact = outcomes.profile(excess)
        for smoothing in (0.2, 0.01):
            bounds = blanket_profile(masses, reports, excess, smoothing=smoothing)
            assert np.all(bounds.lower <= exact.upper)
            assert np.all(exact.lower <= bounds.upper)
        if much == 0.3 and hidden < 0.1:
            assert np.all(bounds.upper - bounds.lower <= 2e-3 * exact.upper + 1e-15)


@pytest.mark.parametrize("lobe", [0.05, 0.5, 3.0])
def test_what_is_beyond_the_lobe_is_paid_for(monkeypatch: pytest.MonkeyPatch, lobe: float) -> None:
    """Wherever the middle lobe is cut, of a sum that is nearly Gaussian."""
    monkeypatch.setattr(contour, "LOBE_EXPONENT", lobe)
    masses = Decomposition(np.array([0.55, 0.45]), np.array([0.45, 0.55]), np.array([0.45, 0.45]))
    excess, reports = np.expm1(np.linspace(0.0, 0.02, 5)), 3000
    outcomes = enumerate_outcomes(masses, reports, limit=10**6)
    assert outcomes is not None
    exact, bounds = outcomes.profile(excess), blanket_profile(masses, reports, excess, smoothing=0.05)
    assert np.all(bounds.lower <= exact.upper)
    assert np.all(exact.lower <= bounds.upper)


@pytest.mark.parametrize("loss", [2.9, 3.6])
def test_a_sum_that_hardly_varies_is_known_closely(loss: float) -> None:
    """The sum is positive only without a report of the first component; millions report the second."""
    hidden, shown, reports = 6e-8, 0.024, 10**8
    masses = Decomposition(
        np.array([hidden, 1 - hidden]),
        np.array([1 - shown, shown]),
        np.array([hidden, shown]),
        rest=1 - hidden - shown,
    )
    excess = np.expm1(np.array([loss]))
    bounds = blanket_profile(masses, reports, excess, smoothing=0.012)
    with mpmath.workdps(40):
        a, b, order = 1 - mpmath.mpf(hidden), mpmath.mpf(shown), 1 + mpmath.mpf(excess[0])
        exact = (1 - mpmath.mpf(hidden)) ** (reports - 1) * (a - order * b)
        assert bounds.lower[0] <= exact <= bounds.upper[0]
    assert bounds.upper[0] - bounds.lower[0] <= 1e-4 * bounds.upper[0]


def exactly(masses: Decomposition, order: float) -> Fraction:
    """The divergence of two reports at a float order, in fractions."""
    a, b, c = ([Fraction(float(one)) for one in column] for column in (masses.a, masses.b, masses.c))
    hidden = [place for place, mass in enumerate(c) if mass > 0]
    value = [x - (1 + Fraction(order)) * y for x, y in zip(a, b, strict=True)]
    bare = sum(
        (max(value[place], Fraction(0)) for place in range(len(c)) if place not in hidden), Fraction(0)
    )
    gains = [value[place] / c[place] for place in hidden] + [Fraction(0)]
    weights = [c[place] for place in hidden] + [1 - sum(c)]
    pairs = itertools.product(zip(gains, weights, strict=True), repeat=2)
    return bare + sum((v * w * max(g + h, Fraction(0)) for (g, v), (h, w) in pairs), Fraction(0)) / 2


@pytest.mark.parametrize(
    ("a", "b", "c", "order"),
    [
        (  # a gain whose sign is lost beside one that decides
            [0.48504277883837954, 8.881784197001252e-16, 0.5149572211616196],
            [0.1466512120835537, 0.0, 0.8533487879164463],
            [6.617444900424222e-24, 8.271806125530277e-25, 0.03125],
            2.3074583697407776,
        ),
        (  # a ratio of unhidden probabilities
            [0.9092488503314939, 0.09071285461482148, 3.8295053684578306e-05, 0.0],
            [0.9999831441683114, 1.6855831688644685e-05, 0.0, 0.0],
            [0.22731221258287349, 0.0, 1.6802513683363287e-19, 1.8387470122745644e-08],
            5380.689630653601,
        ),
    ],
)
def test_signs_that_a_rounding_takes_are_given_back(
    a: list[float], b: list[float], c: list[float], order: float
) -> None:
    """At orders that are ratios of masses but for a rounding."""
    masses = Decomposition(np.array(a), np.array(b), np.array(c))
    bounds = blanket_profile(masses, 2, np.array([order]), smoothing=0.01)
    exact = exactly(masses, order)
    assert Fraction(float(bounds.lower[0])) <= exact <= Fraction(float(bounds.upper[0]))


def test_the_last_ratio_is_not_nothing() -> None:
    """Rounded down, it leaves a divergence that rounds to 0."""
    draw, unit, seen = np.random.default_rng(3), 2.0**-40, 0
    for _ in range(100):
        q, p = np.sort(draw.integers(1, 2**40, 2)) * unit
        masses = Decomposition(np.array([p, 1 - p]), np.array([q, 1 - q]), np.array([q / 2, (1 - p) / 8]))
        order = float((p - q) / q)
        exact = exactly(masses, order)
        seen += exact > 0
        bounds = blanket_profile(masses, 2, np.array([order]), smoothing=0.01)
        assert exact <= Fraction(float(bounds.upper[0]))
    assert seen > 10


@pytest.mark.parametrize("reports", [1, 7, 300])
def test_moments_are_known_where_weights_underflow(reports: int) -> None:
    """Losses a million times the gains, as tables of many scales have: the tails of sums with them fade."""
    a, b = np.array([0.85, 0.1, 0.05, 1e-12, 1e-33]), np.array([0.1, 0.399, 0.5, 1e-3, 1e-20])
    pair = Decomposition(a / a.sum(), b / b.sum(), np.array([0.2, 0.1, 1e-3, 1e-9, 1e-30]))
    (_, laws, _), *_ = ListedPairs([pair]).laws(np.array([0]), np.array([0.3]))
    theta = laws.saddle(reports)
    tilt = Tilt.of(laws, reports, theta)
    gains, c = laws.gains[0].tolist(), laws.c[0].tolist()

    def logarithm(at: float) -> mpmath.mpf:
        terms = [z * mpmath.exp(mpmath.mpf(at) * g) for z, g in zip(c, gains, strict=True)]
        return mpmath.log(mpmath.fsum([*terms, float(laws.leftover[0])]))

    with mpmath.workdps(60):
        for share in (-2.0, -0.999, -0.9, -0.5, -0.1, -1e-3, 1e-3, 0.1, 0.9):
            found = float(contour._log_moment(tilt, reports, share * theta)[0])
            exact = reports * (logarithm((1 + share) * theta[0]) - logarithm(theta[0]))
            assert found >= exact - 1e-9 * (1 + abs(exact))
            # Where the mass is not known, it is taken to be 1: not much while something of the tilt is left.
            if share >= -0.9:
                assert found <= exact + 1e-6 * (1 + abs(exact))


@pytest.mark.parametrize("atoms", [3, 200])
def test_bounds_on_tails_contain_the_round_off_that_reports_multiply(atoms: int) -> None:
    """A trillion reports: a unit of the last digit in each one's moment is 1e-4 in the logarithm of all."""
    reports, excess, draw = 10**12, 1e-7, np.random.default_rng(atoms)
    for _ in range(4):
        b = draw.dirichlet(np.full(atoms, 3.0))
        a = np.roll(b, 1)
        c = 0.7 * np.minimum(a, b)
        laws = ListedPairs([Decomposition(a, b, c)]).laws(np.zeros(1, dtype=np.int64), np.array([excess]))
        _, law, _ = next(iter(laws))
        tilt = Tilt.of(law, reports, law.saddle(reports))
        rates = np.array([[0.4], [4.0], [-4.0]]) / tilt.deviation
        found = contour._log_moment(tilt, reports, rates)[:, 0]
        with mpmath.workdps(50):
            order, theta = 1 + mpmath.mpf(excess), mpmath.mpf(float(tilt.theta[0]))
            atoms_of = [
                (z, (float(x) - order * float(y)) / z)
                for x, y, z in zip(a, b, map(mpmath.mpf, c.tolist()), strict=True)
            ]
            plain = _exact_log_mass(atoms_of, theta)
            for rate, bound in zip(rates[:, 0], found, strict=True):
                exact = reports * (_exact_log_mass(atoms_of, theta + float(rate)) - plain)
                assert exact <= bound <= exact + 1e-3 * atoms


def _exact_log_mass(atoms: list[tuple[mpmath.mpf, mpmath.mpf]], theta: mpmath.mpf) -> mpmath.mpf:
    """Logarithm of the mean of `exp(theta G)`, from the masses and gains of all but the leftover."""
    return mpmath.log1p(mpmath.fsum(mass * mpmath.expm1(theta * gain) for mass, gain in atoms))


@pytest.mark.parametrize("seed", range(8))
def test_translates_of_the_ramp_are_paid_for(seed: int) -> None:
    """All of them, outcome by outcome, for short periods and long ones, given reports included."""
    draw = np.random.default_rng(seed)
    atoms, reports, given = 3, int(draw.integers(1, 6)), int(draw.integers(0, 3))
    a, b = draw.dirichlet(np.ones(atoms), size=2)
    pair = Decomposition(a, b, np.minimum(a, b) * draw.uniform(0.05, 0.95, atoms))
    excess = draw.uniform(0.0, 0.8, 1) * np.max(a / b - 1)
    _, law, _ = next(iter(ListedPairs([pair]).laws(np.zeros(1, dtype=np.int64), excess)))
    theta = law.saddle(reports) * draw.choice([0.05, 0.5, 1.0, 3.0])
    tilt = Tilt.of(law, reports, theta)
    fixed = Given.of(law, law.gains > 0, reports + given, theta, number=given) if given else None
    spread = tilt.deviation if fixed is None else np.hypot(tilt.deviation, np.sqrt(fixed.variance))
    tails = contour.Tails.of(tilt, reports, spread, fixed)

    sums, weights = np.zeros(1), np.ones(1)
    own = [(tilt.centred[0] + tilt.mean[0] / reports, tilt.weights[0], reports)]
    if fixed is not None:
        own.append((fixed.centred[0] + fixed.mean[0] / given, fixed.weights[0], given))
    for gains, masses, number in own:
        for _ in range(number):
            sums = np.add.outer(sums, gains[masses > 0]).ravel()
            weights = np.multiply.outer(weights, masses[masses > 0]).ravel()

    def exact(period: float) -> float:
        places = sums[:, None] + period * np.delete(np.arange(-300, 301), 300)
        ramp = np.maximum(places, 0.0) * np.exp(-theta * np.maximum(places, 0.0))
        return float(weights @ ramp.sum(axis=1))

    for share in (1e-2, 0.1, 1.0):
        period = share * spread
        assert exact(period[0]) <= tails.translates(period)[0]
    shortest = 0.0
    for allowed in (1e-2, 1e-6, 1e-12):
        period = tails.period(np.array([allowed]))
        assert period[0] > shortest
        shortest = period[0]
        bound = tails.translates(period)[0]
        assert exact(period[0]) <= bound
        assert bound <= allowed / (1 - np.exp(-tails.rate.min() * period[0])) * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_nodes_beyond_the_lobe_are_paid_for(seed: int) -> None:
    """The sum over them, term by term, for laws of two to five atoms and bands up to where the bound ends."""
    draw = np.random.default_rng(seed)
    atoms, reports = int(draw.integers(2, 6)), int(draw.integers(100, 10**4))
    weights, gains = draw.dirichlet(np.ones(atoms)), draw.normal(size=atoms)
    if seed % 4 == 0:  # the law for which the bound is closest
        reports, weights, gains = 10**5, np.full(2, 0.5), np.arange(2, dtype=np.float64)
    deviation = np.sqrt(reports * weights @ (gains - weights @ gains) ** 2)
    reach, share = np.ptp(gains), 1.0 if seed % 3 == 0 else draw.uniform(0.5, 1.0)
    laws = ListedPairs([MASSES]).laws(np.zeros(1, dtype=np.int64), np.zeros(1))
    law = next(iter(laws))[1]
    tilt = Tilt.of(law, REPORTS, law.saddle(REPORTS))
    tilt = tilt._replace(deviation=np.array([deviation]), reach=np.array([reach]))
    band = share * np.pi / reach * (1 - 1e-9)
    kernels = RampKernels.of(np.ones(1), np.array([2 * np.pi / band]))
    step = 0.02 / deviation
    ended = contour.last_nodes(tilt, kernels, np.array([step]))
    u = np.arange(int(ended.number[0]) + 1, int(band / step) + 1) * step
    modulus = np.abs(np.exp(1j * np.multiply.outer(u, gains)) @ weights) ** reports
    exact = kernels.largest[0] * modulus.sum() * step / np.pi
    assert ended.cut[0]
    assert 0 < exact <= ended.skipped[0]
    assert seed % 4 or exact > 0.5 * ended.skipped[0]


def _exact_components(kind: str, epsilon0: float, k: int) -> list[tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]]:
    """Masses (a, b, c) of a randomizer of few components, in exact arithmetic."""
    e = mpmath.exp(mpmath.mpf(epsilon0))
    if kind == "krr":
        p = 1 / (e + k - 1)
        return [(e * p, p, p), (p, e * p, p), ((k - 2) * p,) * 3]
    x = mpmath.sqrt(e)
    p = 1 / (x + 1) ** 2
    return [(e * p, p, p), (p, e * p, p), (e * p / x, e * p / x, p / x), (x * p, x * p, x * p)]


@pytest.mark.parametrize("kind", ["krr", "rappor"])
def test_gains_means_and_masses_are_rounded_by_no_more_than_is_counted(kind: str) -> None:
    """All errors of the first order together, beside `moved`, and those of the logarithm of the moment."""
    draw = np.random.default_rng(len(kind))
    with mpmath.workdps(50):
        for _ in range(40):
            epsilon0 = float(10 ** draw.uniform(-6, 1))
            k, reports = int(10 ** draw.uniform(0.5, 6)), int(10 ** draw.uniform(2, 12))
            written = f"krr(k={k}, epsilon0={epsilon0!r})" if kind == "krr" else f"rappor({epsilon0=!r})"
            pair = parse_randomizer(written).analysis("blanket").decomposition
            excess = np.expm1([epsilon0 * draw.choice([1e-6, 1e-2, 0.5, 0.999])])
            laws = next(ListedPairs([pair]).laws(np.zeros(1, dtype=np.int64), excess))[1]
            tilt = Tilt.of(laws, reports, laws.saddle(reports) * draw.choice([0.5, 1.0, 2.0]))
            theta, order = mpmath.mpf(tilt.theta[0]), 1 + mpmath.mpf(excess[0])
            exact = [((a - order * b) / c, c) for a, b, c in _exact_components(kind, epsilon0, k)]
            rounded = [tuple(map(mpmath.mpf, one)) for one in zip(laws.gains[0], laws.c[0], strict=True)]
            left = 1 - mpmath.fsum(c for _, c in exact)
            moment = mpmath.fsum(c * mpmath.exp(theta * gain) for gain, c in exact) + left
            shares = [c * mpmath.exp(theta * gain) for gain, c in rounded]
            total = mpmath.fsum(shares) + mpmath.mpf(laws.leftover[0])
            mean = mpmath.fsum(share * gain for share, (gain, _) in zip(shares, rounded, strict=True)) / total
            off = abs(reports * mean - tilt.mean[0])
            for share, (gain, c), (true, mass) in zip(shares, rounded, exact, strict=True):
                off += reports * share / total * (abs(gain - true) + abs(c / mass - 1) * abs(true))
            assert off <= tilt.moved[0]
            doubt = tilt.log_mass_error[0] + tilt.raised[0] + 1e-15 * (8 + abs(tilt.log_mass[0]))
            assert abs(reports * mpmath.log(moment) - tilt.log_mass[0]) <= doubt
