"""Decompositions, against enumerations of the randomizers themselves."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from shuffle_ledger.accounting import parse_randomizer
from shuffle_ledger.accounting.amplification.decomposition import Decomposition

Table = list[tuple[float, ...]]  # one row for each output: its probability under every input


def _krr(k: int, epsilon0: float) -> Table:
    e = math.exp(epsilon0)
    return [tuple((e if x == y else 1) / (e + k - 1) for x in range(k)) for y in range(k)]


def _unary(domain: int, keep: float, flip: float) -> Table:
    """Every bit vector; the user's own bit is set with probability `keep`, any other with probability
    `flip`."""
    table = []
    for bits in itertools.product((0, 1), repeat=domain):
        row = []
        for x in range(domain):
            ones = [keep if i == x else flip for i in range(domain)]
            row.append(math.prod(one if bit else 1 - one for one, bit in zip(ones, bits, strict=True)))
        table.append(tuple(row))
    return table


def _rappor(domain: int, epsilon0: float) -> Table:
    x = math.exp(epsilon0 / 2)
    return _unary(domain, x / (x + 1), 1 / (x + 1))


def _oue(domain: int, epsilon0: float) -> Table:
    return _unary(domain, 0.5, 1 / (math.exp(epsilon0) + 1))


def _blh(domain: int, epsilon0: float) -> Table:
    """Every hash of the domain to one bit, equally likely, with the randomized bit."""
    e = math.exp(epsilon0)
    hashes = list(itertools.product((0, 1), repeat=domain))
    return [
        tuple((e if h[x] == bit else 1) / (e + 1) / len(hashes) for x in range(domain))
        for h in hashes
        for bit in (0, 1)
    ]


def _hadamard(domain: int, epsilon0: float) -> Table:
    """Outputs where row x of the Sylvester matrix is positive are e times as likely; row 0, all positive,
    belongs to no input."""
    e = math.exp(epsilon0)
    return [
        tuple((1 if (y & x).bit_count() % 2 else e) * 2 / (e + 1) / domain for x in range(1, domain))
        for y in range(domain)
    ]


def _optimal(table: Table, x0: int, x1: int) -> Iterator[tuple[float, float, float]]:
    for row in table:
        yield row[x0], row[x1], min(row)


def _by_ratio(parts: Iterator[tuple[float, float, float]]) -> Counter[tuple[float, float]]:
    """Guaranteed mass c by the ratios a/c and b/c, rounded: components of equal ratios are one."""
    masses: Counter[tuple[float, float]] = Counter()
    for a, b, c in parts:
        masses[round(a / c, 6), round(b / c, 6)] += c  # type: ignore[assignment]
    return masses


CASES = [
    ("krr(k={d}, epsilon0={e})", _krr, (2, 3, 5)),
    ("rappor(domain={d}, epsilon0={e})", _rappor, (3, 4, 6)),
    ("oue(domain={d}, epsilon0={e})", _oue, (3, 4, 6)),
    ("blh(domain={d}, epsilon0={e})", _blh, (3, 4, 6)),
    ("hadamard(domain={d}, epsilon0={e})", _hadamard, (4, 8, 16)),
]


@pytest.mark.parametrize(
    ("written", "table", "domain"), [(w, t, d) for w, t, domains in CASES for d in domains]
)
@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_masses_are_those_of_the_randomizer(
    written: str, table: object, domain: int, epsilon0: float
) -> None:
    randomizer = parse_randomizer(written.format(d=domain, e=epsilon0))
    masses = randomizer.analysis("blanket").decomposition
    built: Table = table(domain, epsilon0)  # type: ignore[operator]
    assert math.isclose(sum(row[0] for row in built), 1)
    ratio = max(max(row) / min(row) for row in built)
    assert math.isclose(ratio, math.exp(epsilon0), rel_tol=1e-9)  # epsilon0 is what it says
    expected = _by_ratio(_optimal(built, 0, 1))
    given = _by_ratio((a, b, c) for a, b, c in zip(masses.a, masses.b, masses.c, strict=True) if c > 1e-15)
    # Outputs alike under both inputs with a/c = b/c = 1 and e: the leftover of c shows nowhere else.
    for ratios, mass in expected.items():
        close = [m for r, m in given.items() if np.allclose(r, ratios, rtol=1e-5)]
        assert close, f"no component with ratios {ratios}"
        assert math.isclose(mass, sum(close), rel_tol=1e-9), ratios


@pytest.mark.parametrize("kind", ["blh", "rappor", "oue", "hadamard"])
@pytest.mark.parametrize("epsilon0", [0.5, 2.0, 8.0])
def test_the_limit_of_large_domains_dominates_every_domain(kind: str, epsilon0: float) -> None:
    from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile

    limit = parse_randomizer(f"{kind}(epsilon0={epsilon0})").analysis("blanket").decomposition
    excess = np.expm1(np.linspace(0, 0.6 * epsilon0, 7))
    above = blanket_profile(limit, 200, excess, smoothing=0.002)
    for domain in (4, 8, 64, 1024):
        finite = (
            parse_randomizer(f"{kind}(epsilon0={epsilon0}, domain={domain})")
            .analysis("blanket")
            .decomposition
        )
        below = blanket_profile(finite, 200, excess, smoothing=0.002)
        assert np.all(below.lower <= above.upper)


@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 4.0])
def test_two_ary_response_meets_the_tight_generic_pair(epsilon0: float) -> None:
    binary = parse_randomizer(f"krr(k=2, epsilon0={epsilon0})").analysis("blanket").decomposition.merged()
    generic = parse_randomizer(f"generic(epsilon0={epsilon0})").analysis("tight").decomposition
    for name in ("a", "b", "c"):
        assert np.allclose(getattr(binary, name), getattr(generic, name), rtol=1e-14)


def test_merging_changes_no_mass() -> None:
    masses = Decomposition(
        np.array([0.2, 0.2, 0.6, 0.0]), np.array([0.1, 0.1, 0.2, 0.6]), np.array([0.1, 0.1, 0.2, 0.0])
    )
    merged = masses.merged()
    assert merged.a.size == 3
    assert math.isclose(merged.a.sum(), 1)
    assert math.isclose(merged.c.sum(), masses.c.sum())
