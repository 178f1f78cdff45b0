"""Larger hashes, subsets, blocks, Bloom filters and sketches, against enumerations of every output."""

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

Rows = np.ndarray  # probabilities of outputs, one row for each value


def supports(hits: list[list[int]], epsilon0: float) -> Rows:
    """Outputs that are `e` times as likely under the values that they support: one list for each output."""
    weights = np.exp(epsilon0 * np.array(hits, dtype=float)).T
    found: Rows = weights / weights.sum(axis=1, keepdims=True)
    return found


def olh(domain: int, g: int, epsilon0: float) -> Rows:
    hashes = itertools.product(range(g), repeat=domain)
    return supports([[int(one[x] == b) for x in range(domain)] for one in hashes for b in range(g)], epsilon0)


def subset(domain: int, size: int, epsilon0: float) -> Rows:
    chosen = itertools.combinations(range(domain), size)
    return supports([[int(x in one) for x in range(domain)] for one in chosen], epsilon0)


def in_blocks(domain: int, blocks: int, outputs: int, epsilon0: float) -> Rows:
    places = [(x % blocks, x // blocks + 1) for x in range(domain)]
    return supports(
        [
            [int(block == own and not (y & row).bit_count() % 2) for own, row in places]
            for block in range(blocks)
            for y in range(outputs)
        ],
        epsilon0,
    )


def hcms(width: int, epsilon0: float) -> Rows:
    """One hash, under which the values are the places."""
    return supports(
        [
            [int((row & x).bit_count() % 2 == bit) for x in range(width)]
            for row in range(width)
            for bit in (0, 1)
        ],
        epsilon0,
    )


def bits(values: list[tuple[int, ...]], size: int, kept: float, flip: float) -> Rows:
    rows = []
    for value in values:
        ones = [kept if place in value else flip for place in range(size)]
        outputs = itertools.product((0, 1), repeat=size)
        rows.append([math.prod(p if b else 1 - p for p, b in zip(ones, y, strict=True)) for y in outputs])
    return np.array(rows)


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
    ("olh(epsilon0={e}, g=3, domain=3)", lambda e: olh(3, 3, e)),
    ("olh(epsilon0={e}, g=4, domain=4)", lambda e: olh(4, 4, e)),
    ("subset(epsilon0={e}, domain=5, size=2)", lambda e: subset(5, 2, e)),
    ("subset(epsilon0={e}, domain=4, size=3)", lambda e: subset(4, 3, e)),
    ("subset(epsilon0={e}, domain=6, size=1)", lambda e: subset(6, 1, e)),
    ("block_hadamard(epsilon0={e}, domain=6, blocks=2)", lambda e: in_blocks(6, 2, 4, e)[[0, 1, 2, 3, 4, 5]]),
    ("block_hadamard(epsilon0={e}, domain=4, blocks=4)", lambda e: in_blocks(4, 4, 2, e)),
    ("block_hadamard(epsilon0={e}, domain=3, blocks=1)", lambda e: in_blocks(3, 1, 4, e)),
    ("hcms(epsilon0={e}, domain=4)", lambda e: hcms(4, e)),
    ("hcms(epsilon0={e}, domain=8)", lambda e: hcms(8, e)),
    (
        "cms(epsilon0={e}, domain=4)",
        lambda e: bits([(x,) for x in range(4)], 4, 1 / (1 + math.exp(-e / 2)), 1 / (1 + math.exp(e / 2))),
    ),
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
    "kind", ["olh(epsilon0={e}, g=5{d})", "cms(epsilon0={e}{d})", "hcms(epsilon0={e}{d})"]
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
        ("olh(epsilon0=1.2, g=3, domain=3)", olh(3, 3, 1.2)),
        ("subset(epsilon0=1.2, domain=4, size=2)", subset(4, 2, 1.2)),
        ("block_hadamard(epsilon0=1.2, domain=6, blocks=2)", in_blocks(6, 2, 4, 1.2)),
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
