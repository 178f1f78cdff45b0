"""Decompositions of frequency oracles, against enumerations of every output."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    attack_epsilon,
    fits,
    parse_randomizer,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from tests.accounting.conftest import Oracle
from tests.accounting.tables import Rows, bits, hadamard, hashes, likelier, oue, rappor, response, subsets


def sketch(width: int, epsilon0: float) -> Rows:
    """One hash, under which the values are the places."""
    places = itertools.product(range(width), (0, 1))
    return likelier(
        [[int((row & x).bit_count() % 2 == bit) for x in range(width)] for row, bit in places], epsilon0
    )


def pair_of(rows: Rows, x0: int, x1: int) -> Decomposition:
    return Decomposition(rows[x0], rows[x1], rows.min(axis=0)).merged()


def analysed(written: str) -> Decomposition:
    randomizer = parse_randomizer(written)
    assert isinstance(randomizer, DecomposedRandomizer)
    return randomizer.analysis("blanket").decomposition.merged()


def by_ratio(masses: Decomposition) -> Counter[tuple[float, float]]:
    found: Counter[tuple[float, float]] = Counter()
    for a, b, c in zip(masses.a, masses.b, masses.c, strict=True):
        if c > 1e-15:
            found[round(a / c, 6), round(b / c, 6)] += c
    return found


CASES: list[tuple[str, Callable[[float], Rows]]] = [
    ("olh(epsilon0={e}, g=3, domain=3)", lambda e: hashes(3, 3, e)),
    ("olh(epsilon0={e}, g=4, domain=4)", lambda e: hashes(4, 4, e)),
    ("subset(epsilon0={e}, domain=5, size=2)", lambda e: subsets(5, 2, e)),
    ("subset(epsilon0={e}, domain=4, size=3)", lambda e: subsets(4, 3, e)),
    ("subset(epsilon0={e}, domain=6, size=1)", lambda e: subsets(6, 1, e)),
    ("block_hadamard(epsilon0={e}, domain=6, blocks=2)", lambda e: hadamard(6, 2, 4, e)),
    ("block_hadamard(epsilon0={e}, domain=4, blocks=4)", lambda e: hadamard(4, 4, 2, e)),
    ("block_hadamard(epsilon0={e}, domain=3, blocks=1)", lambda e: hadamard(3, 1, 4, e)),
    ("hcms(epsilon0={e}, domain=4)", lambda e: sketch(4, e)),
    ("hcms(epsilon0={e}, domain=8)", lambda e: sketch(8, e)),
    ("cms(epsilon0={e}, domain=4)", lambda e: rappor(4, e)),
    ("krr(epsilon0={e}, k=2)", lambda e: response(2, e)),
    ("krr(epsilon0={e}, k=5)", lambda e: response(5, e)),
    ("rappor(epsilon0={e}, domain=3)", lambda e: rappor(3, e)),
    ("oue(epsilon0={e}, domain=3)", lambda e: oue(3, e)),
    ("oue(epsilon0={e}, domain=4)", lambda e: oue(4, e)),
    ("blh(epsilon0={e}, domain=4)", lambda e: hashes(4, 2, e)),
    ("hadamard(epsilon0={e}, domain=4)", lambda e: hadamard(3, 1, 4, e)),
    ("hadamard(epsilon0={e}, domain=8)", lambda e: hadamard(7, 1, 8, e)),
]


@pytest.mark.parametrize(("written", "rows"), CASES)
@pytest.mark.parametrize("epsilon0", [2.5])
def test_masses_are_those_of_every_output(
    written: str, rows: Callable[[float], Rows], epsilon0: float, oracle: Oracle
) -> None:
    masses, table = analysed(written.format(e=epsilon0)), rows(epsilon0)
    assert math.isclose(
        float((table.max(axis=0) / table.min(axis=0)).max()), math.exp(epsilon0), rel_tol=1e-9
    )
    # Values 0 and 1 are a worst pair: the masses are theirs, ratio by ratio.
    expected, given = by_ratio(pair_of(table, 0, 1)), by_ratio(masses)
    assert set(expected) == set(given)
    for ratios, mass in expected.items():
        assert math.isclose(mass, given[ratios], rel_tol=1e-6)
    outcomes = oracle.blanket_outcomes(masses, 3)
    for x0, x1 in itertools.permutations(range(len(table)), 2):
        other = oracle.blanket_outcomes(pair_of(table, x0, x1), 3)
        for epsilon in (0.0, 0.2 * epsilon0, 0.7 * epsilon0):
            assert oracle.delta(other, epsilon) <= oracle.delta(outcomes, epsilon) + 1e-12


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "olh(epsilon0={e}, g=5{d})",
            "cms(epsilon0={e}{d})",
            "hcms(epsilon0={e}{d})",
            "blh(epsilon0={e}{d})",
        ),
        *("rappor(epsilon0={e}{d})", "oue(epsilon0={e}{d})", "hadamard(epsilon0={e}{d})"),
    ],
)
def test_the_limit_dominates_every_domain(kind: str, oracle: Oracle) -> None:
    for epsilon0 in (0.5, 3.0):
        limit = oracle.blanket_outcomes(analysed(kind.format(e=epsilon0, d="")), 3)
        for domain in (4, 16):
            finite = oracle.blanket_outcomes(analysed(kind.format(e=epsilon0, d=f", domain={domain}")), 3)
            for epsilon in (0.0, 0.1, 0.6 * epsilon0):
                assert oracle.delta(finite, epsilon) <= oracle.delta(limit, epsilon) * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [None, 0.2])
@pytest.mark.parametrize("epsilon0", [3.0])
def test_bloom_filters_are_bounded_whatever_the_hashes(
    flip: float | None, epsilon0: float, oracle: Oracle
) -> None:
    """Two hashes into five bits: values that set any two bits, or one."""
    p = 1 / (1 + math.exp(epsilon0 / 4)) if flip is None else flip
    odds = math.exp(epsilon0 / 2) * p / (1 - p)
    values = [*itertools.combinations(range(5), 2), (0,), (1,)]
    table = bits(values, 5, odds / (1 + odds), p)
    rest = "" if flip is None else f", flip={flip}"
    masses = analysed(f"bloom_rappor(epsilon0={epsilon0}, hashes=2{rest})")
    assert math.isclose(float(np.log(table.max(axis=0) / table.min(axis=0)).max()), epsilon0, rel_tol=1e-9)
    bound = oracle.blanket_outcomes(masses, 2)
    largest = 0.0
    for x0, x1 in itertools.permutations(range(len(values)), 2):
        found = oracle.blanket_outcomes(pair_of(table, x0, x1), 2)
        for epsilon in (0.0, 0.3 * epsilon0, 0.8 * epsilon0):
            assert oracle.delta(found, epsilon) <= oracle.delta(bound, epsilon) + 1e-12
        largest = max(largest, float(oracle.delta(found, 0.3 * epsilon0)))
    assert largest > 0.85 * float(oracle.delta(bound, 0.3 * epsilon0))


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("olh(epsilon0=1.2, g=3, domain=3)", hashes(3, 3, 1.2)),
        ("subset(epsilon0=1.2, domain=4, size=2)", subsets(4, 2, 1.2)),
        ("block_hadamard(epsilon0=1.2, domain=6, blocks=2)", hadamard(6, 2, 4, 1.2)),
    ],
)
def test_nothing_that_is_shuffled_reveals_more(written: str, rows: Rows) -> None:
    """All neighbouring datasets of two users, and all multisets of their outputs."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=2)
    accountant = Accountant()

    def outputs(one: int, other: int) -> np.ndarray:
        both = np.multiply.outer(rows[one], rows[other])
        found: np.ndarray = np.triu(both + both.T) - np.diag(np.diag(both))
        return found

    worst = 0.0
    for epsilon in (0.2, 0.8):
        delta = max(
            float(np.maximum(outputs(x0, x2) - math.exp(epsilon) * outputs(x1, x2), 0).sum())
            for x0, x1 in itertools.permutations(range(len(rows)), 2)
            for x2 in range(len(rows))
        )
        assert delta <= accountant.certify_delta({shuffled: 1}, epsilon=epsilon).delta_upper
        attack = attack_epsilon(shuffled, delta=delta)
        assert attack is not None
        assert attack <= epsilon * (1 + 1e-9)
        worst = max(worst, attack / epsilon)
    assert worst > 0.9


def test_smaller_epsilons_fit_larger_ones() -> None:
    def at(written: str) -> ShuffledRound:
        return ShuffledRound(randomizer=parse_randomizer(written), reports=1000)

    for written in (
        "olh(epsilon0={e}, g=4)",
        "subset(epsilon0={e}, domain=9, size=2)",
        "block_hadamard(epsilon0={e}, domain=9, blocks=2)",
        "bloom_rappor(epsilon0={e}, hashes=3)",
        "bloom_rappor(epsilon0={e}, hashes=3, flip=0.1)",
        "cms(epsilon0={e}, domain=16)",
        "hcms(epsilon0={e}, domain=16)",
    ):
        assert fits(at(written.format(e=1)), at(written.format(e=2)))
        assert not fits(at(written.format(e=2)), at(written.format(e=1)))
    # Left out, the numbers differ, and nothing is known.
    assert not fits(at("olh(epsilon0=1)"), at("olh(epsilon0=3)"))


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
