"""Reference mechanisms: reports follow the accountant's probabilities, and estimates are unbiased."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from shuffle_ledger.accounting import (
    BinomialHistogram,
    BinomialSum,
    DiscreteGaussian,
    DistinctElements,
    InvalidParameter,
    Mechanism,
    Table,
    UniformityTester,
    frequency_error,
    mechanism_of,
    parse_randomizer,
)
from shuffle_ledger.accounting.amplification.noise_pairs import (
    Pair,
    poisson_masses,
    shifted_binomial,
    shifted_discrete_gaussian,
)
from shuffle_ledger.accounting.mechanisms.frequency_oracles import FrequencyOracle
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer

# Seeds are fixed, so a right mechanism passes always; a wrong one has a p-value next to 0.
LEAST_P = 1e-3


def generator(seed: int = 20) -> np.random.Generator:
    return np.random.default_rng(seed)


def fits_to(counts: np.ndarray, masses: np.ndarray) -> bool:
    """Pearson's test; cells of few expected counts are put together."""
    expected = masses * counts.sum()
    assert not np.any(counts[masses == 0])
    small = (expected < 10) & (expected > 0)
    kept = expected >= 10
    cells = [(counts[kept], expected[kept])]
    if small.any() and expected[small].sum() >= 1:
        cells.append((counts[small].sum(keepdims=True), expected[small].sum(keepdims=True)))
    observed, due = (np.concatenate(one) for one in zip(*cells, strict=True))
    due *= observed.sum() / due.sum()
    return float(scipy.stats.chisquare(observed, due).pvalue) > LEAST_P


def oracle_of(written: str, categories: int | None = None) -> FrequencyOracle:
    found = mechanism_of(parse_randomizer(written), categories=categories)
    assert isinstance(found, FrequencyOracle)
    return found


ORACLES = [
    "krr(k=2, epsilon0={e})",
    "krr(k=5, epsilon0={e})",
    "blh(epsilon0={e}, domain=4)",
    "rappor(epsilon0={e}, domain=4)",
    "oue(epsilon0={e}, domain=4)",
    "hadamard(epsilon0={e}, domain=4)",
    "hadamard(epsilon0={e}, domain=8)",
    "olh(epsilon0={e}, g=3, domain=4)",
    "subset(epsilon0={e}, domain=6, size=2)",
    "subset(epsilon0={e}, domain=5, size=4)",
    "block_hadamard(epsilon0={e}, domain=6, blocks=2)",
    "block_hadamard(epsilon0={e}, domain=3, blocks=1)",
    "cms(epsilon0={e}, domain=4)",
    "hcms(epsilon0={e}, domain=8)",
]


@pytest.mark.parametrize("written", ORACLES)
def test_reports_fall_into_the_components_of_the_accountant(written: str) -> None:
    """Those that support the first of two values only, the second only, both but not all, and the others."""
    users = 20_000
    for epsilon0 in (0.7, 2.5):
        text = written.format(e=epsilon0)
        mechanism, randomizer = oracle_of(text), parse_randomizer(text)
        assert isinstance(randomizer, DecomposedRandomizer)
        masses = randomizer.analysis("blanket").decomposition
        for value, law in ((0, masses.a), (1, masses.b)):
            reports = mechanism.encode(np.full(users, value), generator(value))
            support = mechanism.supports(reports)
            both = support[:, 0] & support[:, 1] & ~support.all(axis=1)
            first, second = support[:, 0] & ~support[:, 1], support[:, 1] & ~support[:, 0]
            counts = np.array([first.sum(), second.sum(), both.sum()])
            if law.size == 3:  # k-ary response: no report supports two values
                assert counts[2] == 0
                counts = counts[:2]
            assert fits_to(np.append(counts, users - counts.sum()), law)


@pytest.mark.parametrize("written", [one for one in ORACLES if not one.startswith(("rappor", "oue", "cms"))])
def test_reports_that_support_alike_are_alike_likely(written: str) -> None:
    epsilon0 = 1.2
    mechanism = oracle_of(written.format(e=epsilon0))
    reports = mechanism.encode(np.full(60_000, 2 % mechanism.categories), generator())
    outputs, counts = np.unique(reports, axis=0, return_counts=True)
    weights = np.exp(epsilon0 * mechanism.supports(outputs)[:, 2 % mechanism.categories])
    assert fits_to(counts, weights / weights.sum())


def test_bits_of_a_filter_fall_into_its_components() -> None:
    for written in ("bloom_rappor(epsilon0=2)", "bloom_rappor(epsilon0=1.5, hashes=3, flip=0.2)"):
        randomizer = parse_randomizer(written)
        assert isinstance(randomizer, DecomposedRandomizer)
        masses = randomizer.components().unequal[0].above
        hashes = round(masses.a.size**0.5) - 1
        mechanism = mechanism_of(randomizer, categories=2 * hashes)
        value = np.repeat([1, 0], hashes)  # the other value sets the other half
        reports = mechanism.encode(np.tile(value, (20_000, 1)), generator())
        own, other = reports[:, :hashes].sum(axis=1), reports[:, hashes:].sum(axis=1)
        counts = np.bincount(own * (hashes + 1) + other, minlength=masses.a.size)
        assert fits_to(counts, masses.a)


def test_outputs_of_a_table_follow_its_rows() -> None:
    rows = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.0, 0.25, 0.5]]
    mechanism = mechanism_of(Table(rows=rows))  # type: ignore[arg-type]  # lists are made tuples
    for value, row in enumerate(rows):
        reports = mechanism.encode(np.full(20_000, value), generator())
        assert fits_to(np.bincount(reports, minlength=4), np.array(row))


def test_noise_on_numbers_follows_the_witness_and_the_windows() -> None:
    users, epsilon0 = 30_000, 1.3
    for kind in ("laplace", "bounded_laplace"):
        randomizer = parse_randomizer(f"{kind}(epsilon0={epsilon0})")
        witness, cells = randomizer.witnesses()[0], np.linspace(0, 1, 65)[:-1]
        ends = np.append(cells, 1.0)
        for value, law in ((0, witness.a), (1, witness.b)):
            reports = mechanism_of(randomizer).encode(np.full(users, value), generator(value))
            assert fits_to(np.bincount(np.searchsorted(ends, reports), minlength=66), law)
    for kind in ("duchi", "piecewise"):
        randomizer = parse_randomizer(f"{kind}(epsilon0={epsilon0})")
        assert isinstance(randomizer, DecomposedRandomizer)
        masses = randomizer.analysis("blanket").decomposition
        for end, law in ((1.0, masses.a), (-1.0, masses.b)):
            reports = mechanism_of(randomizer).encode(np.full(users, end), generator())
            # The windows of the two ends begin at 1 and end at -1.
            low, high = (reports < -1, reports > 1) if kind == "piecewise" else (reports == 0, reports == 1)
            counts = np.array([high.sum(), low.sum(), users - high.sum() - low.sum()])
            assert fits_to(counts[: law.size] if law[2] else counts[:2], law[law > 0])


def test_a_window_of_the_piecewise_mechanism_is_around_the_value() -> None:
    epsilon0, value, users = 2.0, 0.3, 40_000
    reports = mechanism_of(parse_randomizer(f"piecewise(epsilon0={epsilon0})")).encode(
        np.full(users, value), generator()
    )
    largest = 1 / np.tanh(epsilon0 / 4)
    start = (largest + 1) / 2 * value - (largest - 1) / 2
    stop = start + largest - 1
    ends = np.concatenate(
        [
            np.linspace(-largest, start, 9),
            np.linspace(start, stop, 9)[1:],
            np.linspace(stop, largest, 9)[1:],
        ]
    )
    widths = np.diff(ends) * np.repeat([1.0, np.exp(epsilon0), 1.0], 8)
    assert fits_to(np.histogram(reports, ends)[0], widths / widths.sum())
    exact = mechanism_of(parse_randomizer(f"piecewise(epsilon0={epsilon0})")).variance([value])
    assert np.isclose(reports.var(), exact, rtol=0.03)


def totals(held: int, size: int) -> np.ndarray:
    """The law of P of the pair of counts: of 6 noise bits, and the bit that is held."""
    pair: Pair = shifted_binomial(6, 0.3, up=held == 1)
    law = pair.q * (1 + pair.x)
    # Only P has the largest count if a bit is held, and the count 0 if not.
    law = np.append(law, pair.infinite) if held else np.append(pair.infinite, law)
    return np.pad(law, (0, size))[:size]


def test_counts_of_protocols_are_those_of_the_pairs() -> None:
    rounds, users = 20_000, 3
    bits = BinomialSum(p=0.3, bits=2)
    for held in (0, 1):
        values = np.zeros((rounds, users), dtype=int)
        values[:, 0] = held
        counts = mechanism_of(bits).encode(values, generator(held)).sum(axis=(1, 2))
        assert fits_to(np.bincount(counts, minlength=8), totals(held, 8))
        # One user holds category 0 or 1, the others hold category 2.
        values[:, 1:] = 2
        histogram = mechanism_of(BinomialHistogram(p=0.3, bits=2), categories=3)
        both = histogram.encode(values, generator(held)).sum(axis=1)
        cells = np.bincount(both[:, 1] * 10 + both[:, 0], minlength=100)
        assert fits_to(cells, np.multiply.outer(totals(held, 10), totals(1 - held, 10)).ravel())


def test_labels_of_protocols_have_the_laws_of_the_pairs() -> None:
    rounds, users = 20_000, 4
    values = np.zeros((rounds, users), dtype=int)
    tester = mechanism_of(UniformityTester(noise=0.5), categories=2)
    sums = tester.encode(values, generator()).sum(axis=1)
    noise = poisson_masses(0.5 * users / 2).values[:12]
    alone, shifted = np.pad(noise, (0, 4)), np.pad(noise, (4, 0))
    for label, laws in ((0, (shifted, alone)), (1, (alone, shifted))):  # ones and zeros
        cells = np.bincount(sums[:, label, 0] * 16 + sums[:, label, 1], minlength=256)[:256]
        assert fits_to(cells, np.multiply.outer(*laws).ravel())
    distinct = DistinctElements(p=0.1)
    values[:, 1:] = 2  # one user holds label 0, none label 1
    parity = mechanism_of(distinct, categories=3).encode(values, generator()).sum(axis=1) % 2
    unheld = distinct._fair_against_biased(users)[0].q
    assert fits_to(np.bincount(parity[:, 1], minlength=2), unheld)
    assert fits_to(np.bincount(parity[:, 0], minlength=2), np.full(2, 0.5))


def test_central_noise_is_that_of_the_pairs() -> None:
    drawn = mechanism_of(DiscreteGaussian(sigma=2.5)).encode(np.full(20_000, 7), generator()) - 7
    pair = shifted_discrete_gaussian(2.5, 1)
    half = (len(pair.q) - 2) // 2
    assert fits_to(np.bincount(drawn + half, minlength=len(pair.q)), pair.q)
    for written, law in (
        ("gaussian(sigma=3)", scipy.stats.norm(scale=3)),
        ("central_laplace(scale=3)", scipy.stats.laplace(scale=3)),
    ):
        noise = mechanism_of(parse_randomizer(written)).encode(np.zeros(5000), generator())
        assert scipy.stats.kstest(noise, law.cdf).pvalue > LEAST_P


CATEGORIES = np.array([0] * 12 + [1] * 6 + [2] * 22)
UNIT, SYMMETRIC = np.linspace(0, 1, 40), np.linspace(-1, 1, 40) ** 3
ESTIMATED: list[tuple[str, int | None, np.ndarray, object]] = [
    *[(one.format(e=1.1), None, CATEGORIES % 3, None) for one in ORACLES[1:]],
    ("krr(k=2, epsilon0=0.4)", None, CATEGORIES % 2, None),
    ("hadamard(epsilon0=1)", 5, CATEGORIES, None),
    ("table([[0.6, 0.3, 0.1, 0], [0.1, 0.2, 0.3, 0.4], [0.1, 0.6, 0.2, 0.1]])", None, CATEGORIES, None),
    (
        "bloom_rappor(epsilon0=3)",
        4,
        np.array([[1, 1, 0, 0]] * 15 + [[0, 1, 0, 1]] * 25),
        [0.375, 1, 0, 0.625],
    ),
    ("laplace(epsilon0=1)", None, CATEGORIES % 2, 0.15),
    ("bounded_laplace(epsilon0=1)", None, UNIT, UNIT.mean()),
    ("duchi(epsilon0=1)", None, SYMMETRIC, SYMMETRIC.mean()),
    ("piecewise(epsilon0=1)", None, SYMMETRIC, SYMMETRIC.mean()),
    ("binomial_sum(p=0.3, bits=3)", None, CATEGORIES % 2, 0.15),
    ("binomial_histogram(p=0.3, bits=3)", 4, CATEGORIES, None),
    ("uniformity_tester(noise=0.5)", 4, CATEGORIES, None),
    ("distinct_elements(p=0.005)", 10, CATEGORIES, 3.0),
    ("gaussian(sigma=3)", None, UNIT, UNIT.mean()),
    ("local_gaussian(sigma=3, delta0=1e-6)", None, UNIT, UNIT.mean()),
    ("discrete_gaussian(sigma=3)", None, CATEGORIES, CATEGORIES.mean()),
    ("central_laplace(scale=3)", None, UNIT, UNIT.mean()),
]


@pytest.mark.parametrize(("written", "categories", "values", "truth"), ESTIMATED)
def test_estimates_are_unbiased_with_their_variance(
    written: str, categories: int | None, values: np.ndarray, truth: object
) -> None:
    mechanism, rounds = mechanism_of(parse_randomizer(written), categories=categories), 400
    reports = mechanism.encode(np.repeat(values[None], rounds, axis=0), generator())
    found = [mechanism.estimate(one) for one in reports]
    estimates = np.array([one.values for one in found])
    exact = mechanism.variance(values)
    assert estimates.shape[1:] == exact.shape
    if truth is None:
        truth = np.bincount(values, minlength=len(exact)) / len(values)
    assert np.all(np.abs(estimates.mean(axis=0) - truth) < 4 * np.sqrt(exact / rounds))
    # A sample variance of 400 estimates is off by 7 % or so.
    assert np.all(np.abs(estimates.var(axis=0) / exact - 1) < 0.35)
    # The variance that reports show is no smaller on average, and that of a population of such users.
    shown = np.mean([one.variance for one in found], axis=0)
    assert np.all(shown > 0.9 * exact)
    if not written.startswith("distinct"):
        alone = mechanism.encode(np.repeat(values[:1], 4000, axis=0), generator())
        assert np.allclose(
            mechanism.estimate(alone).variance, mechanism.variance(values[:1]) / 4000, rtol=0.2
        )


def test_the_variance_without_users_is_the_error_of_the_calibration() -> None:
    for written in ORACLES[1:12]:
        randomizer = parse_randomizer(written.format(e=0.9))
        error = frequency_error(randomizer, 50)
        assert error is not None
        exact = mechanism_of(randomizer).variance(np.zeros(50, dtype=int))
        assert np.isclose(exact[1:].max(), error.per_category)
        if "block" not in written:
            assert error.squared_l2 is not None
            assert np.isclose(exact.sum(), error.squared_l2)


@pytest.mark.parametrize("epsilon0", [1e-9, 30.0])
@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("krr(k=2, epsilon0={e})", [0, 1]),
        ("olh(epsilon0={e}, g=4, domain=3)", [0, 2]),
        ("hcms(epsilon0={e}, domain=4)", [0, 3]),
        ("block_hadamard(epsilon0={e}, domain=5)", [0, 4]),
        ("rappor(epsilon0={e}, domain=3)", [0, 2]),
        ("laplace(epsilon0={e})", [0, 1]),
        ("duchi(epsilon0={e})", [-1.0, 1.0]),
        ("piecewise(epsilon0={e})", [-1.0, 1.0]),
    ],
)
def test_extreme_epsilons_are_finite_and_right(written: str, values: list[float], epsilon0: float) -> None:
    mechanism = mechanism_of(parse_randomizer(written.format(e=epsilon0)))
    users = np.repeat(values, 500)
    found = mechanism.estimate(mechanism.encode(users, generator()))
    truth = users.mean() if found.values.ndim == 0 else np.bincount(users, minlength=found.values.size) / 1000
    deviation = np.sqrt(mechanism.variance(users))
    assert np.all(np.isfinite(found.variance))
    assert np.all(np.abs(found.values - truth) <= 4.5 * deviation + 1e-6)


REFUSED: list[tuple[str, int | None, object, str]] = [
    ("krr(k=3, epsilon0=1)", None, 3, "values: got 3, expected whole numbers from 0 to 2"),
    ("krr(k=3, epsilon0=1)", None, [0, -1], "values: got -1"),
    ("krr(k=3, epsilon0=1)", None, [0.5], "values: got 'type float64'"),
    ("krr(k=3, epsilon0=1)", None, [True], "values: got 'type bool'"),
    ("duchi(epsilon0=1)", None, [1.5], "values: got 1.5, expected numbers from -1.0 to 1.0"),
    ("bounded_laplace(epsilon0=1)", None, [np.nan], "values: got nan"),
    ("gaussian(sigma=1)", None, [np.inf], "expected finite numbers"),
    ("bloom_rappor(epsilon0=1)", 4, [[1, 1, 1, 0]], "bits that a value sets: got 3"),
    ("bloom_rappor(epsilon0=1)", 4, [[1, 1, 1]], "a shape that ends with"),
    ("rappor(epsilon0=1, domain=1000)", None, np.zeros(10**5, dtype=int), "at most 67108 "),
]


@pytest.mark.parametrize(("written", "categories", "values", "message"), REFUSED)
def test_bad_values_are_refused(written: str, categories: int | None, values: object, message: str) -> None:
    mechanism = mechanism_of(parse_randomizer(written), categories=categories)
    with pytest.raises(InvalidParameter, match=message.rstrip()):
        mechanism.encode(values, generator())  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize(
    ("written", "categories", "message"),
    [
        ("generic(epsilon0=1)", None, "randomizer: got 'generic'"),
        ("declared(epsilon=1)", None, "randomizer: got 'declared'"),
        ("joint(krr(k=2, epsilon0=1), krr(k=2, epsilon0=1))", None, "each part by itself"),
        ("rappor(epsilon0=1)", None, "categories: is missing"),
        ("rappor(epsilon0=1, domain=4)", 4, "categories: got 4, expected nothing"),
        ("uniformity_tester(noise=1)", None, "categories: is missing"),
        ("krr(k=10000000, epsilon0=1)", None, "k: got 10000000"),
        ("block_hadamard(epsilon0=1, domain=3, blocks=8388608)", None, "outputs"),
    ],
)
def test_randomizers_without_a_mechanism_are_named(
    written: str, categories: int | None, message: str
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        mechanism_of(parse_randomizer(written), categories=categories)


def test_bad_reports_are_refused() -> None:
    subset: Mechanism = mechanism_of(parse_randomizer("subset(epsilon0=1, domain=6, size=2)"))
    for reports, message in (
        (np.zeros((0, 2), dtype=int), "at least one report"),
        ([[1, 2, 3]], "a shape that ends with"),
        ([[2, 2]], "each once"),
        ([[0, 6]], "got 6"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            subset.estimate(reports)
    alike = mechanism_of(parse_randomizer("table([[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]])"))
    with pytest.raises(InvalidParameter, match="linearly independent"):
        alike.estimate([0, 1])
    with pytest.raises(InvalidParameter, match="less noise"):
        mechanism_of(DistinctElements(p=0.5), categories=3).estimate([[0, 1, 0], [1, 1, 0]])
    with pytest.raises(InvalidParameter, match="default_rng"):
        subset.encode(1, None)  # type: ignore[arg-type]  # what is refused
