"""Attacks from the worst datasets: against all datasets of few users, and next to the bound for many."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    parse_randomizer,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.randomizers import DecomposedRandomizer, Laplace
from tests.accounting.datasets import Array, largest, shuffled, worst

Rows = list[list[float]]
THEORY = Path(__file__).parents[2] / "docs" / "theory" / "lower-bounds.md"


def _round(written: str, users: int) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(written), reports=users)


def _normed(weights: Rows) -> Rows:
    return [[one / math.fsum(row) for one in row] for row in weights]


def _matrix(values: tuple[int, ...], order: int, epsilon0: float) -> Rows:
    """Hadamard response of values that have these rows."""
    e = math.exp(epsilon0)
    return _normed([[1 if (x & y).bit_count() % 2 else e for y in range(order)] for x in values])


def _two_blocks(epsilon0: float) -> Rows:
    """The first five of eight categories in two blocks of eight outputs."""
    e = math.exp(epsilon0)

    def weight(v: int, block: int, place: int) -> float:
        return e if block == v % 2 and not (place & (v // 2 + 1)).bit_count() % 2 else 1.0

    places = list(itertools.product(range(2), range(8)))
    return _normed([[weight(v, *one) for one in places] for v in range(5)])


def _windows(epsilon0: float) -> Rows:
    """The piecewise mechanism on five values, between all ends of their windows."""
    root, e = math.exp(epsilon0 / 2), math.exp(epsilon0)
    end = (root + 1) / (root - 1)
    lows = [(end + 1) / 2 * x - (end - 1) / 2 for x in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    cuts = np.unique(np.round([-end, end, *lows, *(low + end - 1 for low in lows)], 12))
    middles, sizes = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    return _normed(
        [list(sizes * np.where(abs(middles - low - end / 2 + 0.5) < end / 2 - 0.5, e, 1)) for low in lows]
    )


def _bits(kept: float, stray: float) -> Rows:
    """Three categories as bits."""
    outputs = list(itertools.product((0, 1), repeat=3))
    chances = [[kept if place == x else stray for place in range(3)] for x in range(3)]
    return [
        [math.prod(c if bit else 1 - c for c, bit in zip(row, bits, strict=True)) for bits in outputs]
        for row in chances
    ]


def _parities(epsilon0: float) -> Rows:
    """Hashing of three values to the parities of random masks: a linear family, pairwise independent."""
    e, outputs = math.exp(epsilon0), list(itertools.product(range(4), (0, 1)))
    return _normed([[e if (r & x).bit_count() % 2 == bit else 1 for r, bit in outputs] for x in (1, 2, 3)])


def _subsets(epsilon0: float) -> Rows:
    """Pairs of four categories."""
    pairs = list(itertools.combinations(range(4), 2))
    return _normed([[math.exp(epsilon0) if x in one else 1 for one in pairs] for x in range(4)])


def _joined(rows: Rows) -> Rows:
    """Outputs that are equally likely under all values, as one: their counts tell nothing more."""
    columns: defaultdict[tuple[float, ...], float] = defaultdict(float)
    for column in zip(*rows, strict=True):
        columns[tuple(round(one / math.fsum(column), 12) for one in column)] += math.fsum(column)
    return [[ratios[x] * mass for ratios, mass in columns.items()] for x in range(len(rows))]


def _supremum(rows: Rows, users: int, epsilons: tuple[float, ...]) -> Array:
    """The largest divergence of any two neighbouring datasets, whatever the others hold."""
    return worst(_joined(rows), users, np.exp(epsilons).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("users", [2, 3, 4])
@pytest.mark.parametrize("epsilon0", [1.0, 2.5])
@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("order 4", 0.97),
        ("order 8", 0.97),
        ("two blocks", 0.85),
        ("windows", 0.85),
        ("rappor", 0.97),
        ("oue", 0.97),
        ("subset", 0.97),
        ("linear hashes", 0.97),
    ],
)
def test_no_attack_beats_the_worst_of_all_datasets(
    kind: str, least: float, users: int, epsilon0: float
) -> None:
    half = 1 / (1 + math.exp(-epsilon0 / 2))
    written, rows = {
        "order 4": (f"hadamard(epsilon0={epsilon0}, domain=4)", _matrix((1, 2, 3), 4, epsilon0)),
        "order 8": (f"hadamard(epsilon0={epsilon0}, domain=8)", _matrix((1, 2, 3, 4), 8, epsilon0)),
        "two blocks": (f"block_hadamard(epsilon0={epsilon0}, domain=8, blocks=2)", _two_blocks(epsilon0)),
        "rappor": (f"rappor(epsilon0={epsilon0}, domain=3)", _bits(half, 1 - half)),
        "oue": (f"oue(epsilon0={epsilon0}, domain=3)", _bits(0.5, 1 / (math.exp(epsilon0) + 1))),
        "subset": (f"subset(epsilon0={epsilon0}, domain=4, size=2)", _subsets(epsilon0)),
        # With the reported bit the supports of three values are independent, as under random hashes.
        "linear hashes": (f"blh(epsilon0={epsilon0}, domain=3)", _parities(epsilon0)),
        "windows": (f"piecewise(epsilon0={epsilon0})", _windows(epsilon0)),
    }[kind]
    epsilons = (0.0, 0.2 * epsilon0, 0.5 * epsilon0)
    for epsilon, most in zip(epsilons, _supremum(rows, users, epsilons), strict=True):
        found = attack_delta(_round(written, users), epsilon=epsilon)
        assert found is not None
        assert least * most <= found <= most * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("reports", [1000, 20_000, 100_000])
@pytest.mark.parametrize(
    ("written", "least_reports"),
    [
        ("hadamard(epsilon0=1)", 1000),
        ("hadamard(epsilon0=1, domain=64)", 1000),
        ("hadamard(epsilon0=2)", 20_000),
        ("hadamard(epsilon0=4)", 100_000),
        ("block_hadamard(epsilon0=1, domain=64, blocks=1)", 1000),
        ("piecewise(epsilon0=1.4)", 1000),
        ("piecewise(epsilon0=2)", 1000),
        ("piecewise(epsilon0=4)", 1000),
    ],
)
@pytest.mark.parametrize("delta", [1e-6, 1e-8])
def test_attacks_of_the_worst_dataset_are_next_to_the_bound(
    written: str, least_reports: int, reports: int, delta: float
) -> None:
    described = _round(written, reports)
    above = Accountant(precision=1e-3).certify({described: 1}, delta=delta).epsilon_upper
    found = attack_epsilon(described, delta=delta)
    assert found is not None
    assert found <= above
    if reports >= least_reports:
        assert above <= 1.02 * found


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon0", "ratio"), [(2.2, 1.032), (3, 1.092), (4.5, 3.19)])
def test_few_reports_of_hadamard_response_are_far_from_the_limit(epsilon0: float, ratio: float) -> None:
    """The theory's table of 1,000 reports, rounded up."""
    described = _round(f"hadamard(epsilon0={epsilon0})", 1000)
    above = Accountant().certify({described: 1}, delta=1e-6).epsilon_upper
    found = attack_epsilon(described, delta=1e-6)
    assert found is not None
    assert ratio - 0.001 <= above / found <= ratio


def test_the_middle_is_attacked_as_exactly_as_the_ends_are_bounded() -> None:
    found = attack_epsilon(_round("piecewise(epsilon0=2)", 100_000), delta=1e-8)
    assert found == pytest.approx(0.03961, abs=1e-5)


def _distance(masses: Decomposition) -> float:
    """The square root of `sum (a - b)^2 / c`."""
    seen = masses.c > 0
    return math.sqrt(math.fsum(masses.difference[seen] ** 2 / masses.c[seen]))


def _share(written: str) -> float:
    """The bound over the attack in the limit of many reports."""
    randomizer = parse_randomizer(written)
    assert isinstance(randomizer, DecomposedRandomizer)
    above = max(_distance(one.above) for one in randomizer.analysis("blanket").brackets)
    if isinstance(randomizer, Laplace):  # bits beside blanks, by the law of all others
        above = math.sqrt(randomizer.bit_share) * 2 * math.sinh(randomizer.epsilon0 / 2)
    below = max(_distance(way) for one in randomizer.witnesses() for way in (one, one.swapped()))
    return above / below


def _published() -> list[tuple[str, list[float]]]:
    """The rows of the theory's table of limits, by how a randomizer is written."""
    page = (
        THEORY.read_text("utf-8")
        .split("### L4. How far apart bound and attack stay")[1]
        .split("*Attacked by*")[0]
    )
    found = re.findall(r"^\| `([a-z_]+\(.*\))` \|((?: [0-9.]+ \|){3})$", page, re.MULTILINE)
    return [(name, [float(one) for one in cells.split("|")[:-1]]) for name, cells in found]


def test_the_limits_of_the_theory_are_those_of_the_decompositions() -> None:
    table = _published()
    kinds = {parse_randomizer(name.replace("=x", "=1")).kind for name, _ in table}
    assert {
        "laplace",
        "bounded_laplace",
        "rappor",
        "oue",
        "subset",
        "blh",
        "olh",
        "hadamard",
        "piecewise",
    } <= kinds
    for name, limits in table:
        for epsilon0, limit in zip((1, 2, 3), limits, strict=True):
            assert _share(name.replace("=x", f"={epsilon0}")) == pytest.approx(limit, abs=1.5e-3), (
                name,
                epsilon0,
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "near"),
    [("laplace(epsilon0=2)", 0.02), ("rappor(epsilon0=1, domain=64)", 0.01), ("blh(epsilon0=1)", 0.01)],
)
def test_many_reports_come_next_to_the_limit(written: str, near: float) -> None:
    described = _round(written, 100_000)
    above = Accountant(precision=1e-3).certify({described: 1}, delta=1e-8).epsilon_upper
    found = attack_epsilon(described, delta=1e-8)
    assert found is not None
    assert above / found == pytest.approx(_share(written), rel=near)


def _integral(function: Callable[[float], float], cuts: list[float]) -> float:
    return math.fsum(quad(function, *pair, epsabs=1e-12)[0] for pair in itertools.pairwise(cuts))


def _limit_of_laplace(epsilon0: float, *, interval: bool) -> float:
    """The limit from densities: all others at one value, against the least density of all values, or, on a
    bit, against binary responses."""
    far = 60 / epsilon0

    def density(y: float) -> float:
        return epsilon0 / 2 * math.exp(-epsilon0 * abs(y))

    def squared(y: float) -> float:
        return (density(y) - density(y - 1)) ** 2

    def hidden(y: float) -> float:
        return (math.exp(min(1.0, 1 - y) * epsilon0) - 1) * (density(y) - density(y - 1))

    def attack(x: float) -> float:
        return _integral(lambda y: squared(y) / density(y - x), sorted({-far, 0, x, 0.5, 1, 1 + far}))

    if interval:  # the components of "Noise on an interval"
        return math.sqrt(2 * _integral(hidden, [-far, 0, 0.5]) / max(map(attack, np.linspace(0, 1, 11))))
    # A share of the reports is a binary response of the same total variation distance.
    apart = _integral(lambda y: density(y) - density(y - 1), [-far, 0, 0.5])
    response = math.tanh(epsilon0 / 2)
    bits = apart / response * 2 * response**2 / (1 - response**2) * 2
    return math.sqrt(bits / max(attack(0), attack(1)))


def _limit_of_bits(kept: float, stray: float) -> float:
    """The limit of unary encodings, from the bits of the user's two categories and of a third one."""
    only, other = kept * (1 - stray), stray * (1 - kept)
    third = 2 / (stray * (1 - stray)) * (stray**2 / kept + (1 - stray) ** 2 / (1 - kept))
    return math.sqrt(2 / other / max(third, 1 / only + 1 / other))


def _limit_of_subsets(epsilon0: float, domain: int) -> float:
    """The limit from counts of subsets that have one of the user's categories, with or without a third."""
    e = math.exp(epsilon0)
    size = max(1, round(domain / (e + 1)))
    with_one = math.comb(domain - 2, size - 1)
    third = (math.comb(domain - 3, size - 2) / e if size > 1 else 0.0) + math.comb(domain - 3, size - 1)
    return math.sqrt(2 * with_one / max(2 * third, with_one * (1 + 1 / e)))


LIMITS: dict[str, Callable[[float], float]] = {
    "laplace": functools.partial(_limit_of_laplace, interval=False),
    "bounded_laplace": functools.partial(_limit_of_laplace, interval=True),
    "rappor": lambda epsilon0: _limit_of_bits(*(1 / (1 + math.exp(one * epsilon0 / 2)) for one in (-1, 1))),
    "oue": lambda epsilon0: _limit_of_bits(0.5, 1 / (math.exp(epsilon0) + 1)),
    "subset": lambda epsilon0: _limit_of_subsets(epsilon0, 64),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_what_users_lose_is_what_densities_and_counts_say(kind: str) -> None:
    """The table of limits and the paragraph of each kind, from the mechanisms' definitions alone."""
    published = {name.split("(")[0]: row for name, row in _published()}
    page = THEORY.read_text("utf-8")
    said = re.search(
        rf"^- `{kind}`.*: (\d+) percent at epsilon0 1, (\d+) at 2 and (\d+) at 3", page, re.MULTILINE
    )
    assert said is not None
    for epsilon0, cell, percent in zip((1, 2, 3), published[kind], said.groups(), strict=True):
        limit = LIMITS[kind](epsilon0)
        assert cell == pytest.approx(limit, abs=6e-4)
        assert int(percent) == round(100 * (limit - 1))


def test_large_local_epsilons_lose_the_root_of_one_and_a_half_and_half() -> None:
    assert LIMITS["laplace"](16.0) == pytest.approx(math.sqrt(1.5), abs=1e-3)
    assert LIMITS["bounded_laplace"](16.0) == pytest.approx(1.5, abs=1e-3)


def _cells(values: tuple[float, ...], epsilon0: float) -> Rows:
    """Laplace noise on values, seen in six cells of its outputs."""

    def below(z: float) -> float:
        return math.exp(epsilon0 * z) / 2 if z < 0 else 1 - math.exp(-epsilon0 * z) / 2

    cuts = [-math.inf, *np.linspace(0, 1, 5).tolist(), math.inf]
    return [[below(high - x) - below(low - x) for low, high in itertools.pairwise(cuts)] for x in values]


@pytest.mark.slow
@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.5, 1.0)])
@pytest.mark.parametrize("users", [2, 3, 4])
@pytest.mark.parametrize("epsilon0", [1.0, 2.0, 4.0])
def test_few_users_with_laplace_noise_are_worst_off_beside_one_end(
    values: tuple[float, ...], users: int, epsilon0: float
) -> None:
    """All others at one end are worst at positive epsilons; at 0, by some percent, a mixture may be."""
    rows, epsilons = _cells(values, epsilon0), (0.0, 0.2 * epsilon0, 0.5 * epsilon0)
    orders = np.exp(epsilons).tolist()
    ends = [[shuffled([end] * (users - 1) + [row]) for row in rows] for end in (rows[0], rows[-1])]
    found = np.maximum(*(largest(laws, orders) for laws in ends))
    for epsilon, one, most in zip(epsilons, found, _supremum(rows, users, epsilons), strict=True):
        assert one >= most * (1 - 1e-9 if epsilon > 0 else 0.95)
