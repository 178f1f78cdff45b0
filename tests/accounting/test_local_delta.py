# ruff: noqa: S311 - draws of test cases
"""Local deltas in samples: every sample, report and input of small populations."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, Generic, ShuffledRound

Law = dict[Any, Fraction]
Table = list[list[Fraction]]
ONE = Fraction(1)
E0 = Fraction(2)  # exp(epsilon0)
ORDERS = tuple(Fraction(*one) for one in ((1, 1), (21, 20), (4, 3), (3, 2), (2, 1), (3, 1), (8, 1)))


def divergence(p: Law, q: Law, order: Fraction) -> Fraction:
    return sum((max(mass - order * q.get(y, Fraction(0)), Fraction(0)) for y, mass in p.items()), Fraction(0))


def as_law(row: Sequence[Fraction]) -> Law:
    return dict(enumerate(row))


def local_delta(table: Table) -> Fraction:
    pairs = itertools.permutations(map(as_law, table), 2)
    return max(divergence(p, q, E0) for p, q in pairs)


def mixed(laws: Sequence[tuple[Law, Fraction]]) -> Law:
    total: Counter[Any] = Counter()
    for law, weight in laws:
        for y, mass in law.items():
            total[y] += mass * weight  # type: ignore[assignment]
    return dict(total)


def shuffled(rows: Sequence[Sequence[Fraction]]) -> Law:
    """The multiset of one report from each row."""
    total: Counter[Any] = Counter()
    for reports in itertools.product(range(len(rows[0]) if rows else 0), repeat=len(rows)):
        mass = math.prod((row[y] for row, y in zip(rows, reports, strict=True)), start=ONE)
        total[tuple(sorted(reports))] += mass  # type: ignore[assignment]
    return dict(total) if rows else {(): ONE}


def sampled(table: Table, values: Sequence[int], liars: int, sample: int) -> Law:
    """Law of the honest users' shuffled reports; how many of the sample are honest, their number tells."""
    users = [*values, *[-1] * liars]
    chosen = list(itertools.combinations(users, sample))
    laws = (shuffled([table[x] for x in one if x >= 0]) for one in chosen)
    return mixed([(law, ONE / len(chosen)) for law in laws])


@functools.cache
def clones(reports: int) -> tuple[Law, Law]:
    """The published pair, listed."""
    p: Counter[Any] = Counter()
    q: Counter[Any] = Counter()
    for kinds in itertools.product(
        range(3), repeat=reports - 1
    ):  # clone of the first, of the second, neither
        mass = math.prod((1 / (2 * E0) if kind < 2 else 1 - 1 / E0 for kind in kinds), start=ONE)
        a, b = kinds.count(0), kinds.count(1)
        for own, share in (((1, 0), E0 / (1 + E0)), ((0, 1), 1 / (1 + E0))):
            p[a + own[0], b + own[1]] += mass * share  # type: ignore[assignment]
            q[a + own[1], b + own[0]] += mass * share  # type: ignore[assignment]
    return dict(p), dict(q)


def proven(
    honest: int, liars: int, sample: int, delta0: Fraction, order: Fraction
) -> tuple[Fraction, Fraction]:
    """The bound of the proof, before it is rounded up to `(1 + E) t`: the pure part, and the slack's."""
    pure = slack = Fraction(0)
    total = math.comb(honest + liars, sample)
    for j in range(max(0, sample - liars), min(sample, honest) + 1):
        weight, s = Fraction(math.comb(honest, j) * math.comb(liars, sample - j), total), Fraction(j, honest)
        if j:
            pure += weight * s * divergence(*clones(j), 1 + (order - 1) / s)
            slack += weight * (2 * s + order - 1) * j * delta0 * (1 + 1 / (2 * E0))
    return pure, slack


def random_table(draw: random.Random) -> Table:
    """Three inputs; mostly within ratio 2, but for something that one or two of them may say."""
    rows = []
    for rare in (1, 0, draw.randint(0, 1)):
        row = [*(Fraction(draw.randint(4, 8)) for _ in range(2)), Fraction(rare, 4)]
        rows.append([mass / sum(row) for mass in row])
    return rows


def table_of(*rows: str) -> Table:
    return [[Fraction(mass) for mass in row.split()] for row in rows]


TABLES = (
    table_of("6/10 3/10 1/10", "1/3 2/3 0", "1/2 1/2 0"),  # what one input says alone
    table_of("1/2 1/4 1/4", "1/2 3/8 1/8", "1/2 1/2 0"),  # a third input lacks what two others may say
)


def a_round(honest: int, liars: int, sample: int, delta0: Fraction) -> ShuffledRound | None:
    """The round as it is declared; None if too few of its reports are honest to declare it."""
    if sample * honest < honest + liars:
        return None
    return ShuffledRound(
        randomizer=Generic(epsilon0=math.log(E0)),
        reports=sample,
        sampled_from=honest + liars,
        honest_fraction=min(honest / (honest + liars) + 1e-9, 1.0),  # counts are rounded down
        delta0=float(delta0),
        analysis="clone",
    )


def populations() -> Iterator[tuple[int, int, int]]:
    """Honest users, others, and the sample."""
    for honest, liars in ((1, 1), (2, 0), (2, 1), (3, 0), (3, 1)):
        for sample in range(1, min(honest + liars, 3)):
            yield honest, liars, sample


def exact(table: Table, honest: int, liars: int, sample: int) -> dict[Fraction, Fraction]:
    """The largest divergence at every order, over all inputs of all users."""
    worst = dict.fromkeys(ORDERS, Fraction(0))
    inputs = range(len(table))
    for others in itertools.combinations_with_replacement(inputs, honest - 1):
        laws = [sampled(table, (x, *others), liars, sample) for x in inputs]
        for p, q in itertools.permutations(laws, 2):
            for order in ORDERS:
                worst[order] = max(worst[order], divergence(p, q, order))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("table", [*TABLES, *(random_table(random.Random(seed)) for seed in range(1))])
def test_no_inputs_of_small_samples_tell_more_than_is_proved_and_charged(table: Table) -> None:
    delta0, accountant, beyond = local_delta(table), Accountant(precision=0.1), 0
    assert 0 < delta0 < 1
    for honest, liars, sample in populations():
        described = a_round(honest, liars, sample, delta0)
        for order, told in exact(table, honest, liars, sample).items():
            pure, slack = proven(honest, liars, sample, delta0, order)
            assert told <= pure + slack
            beyond += told > pure
            expected = delta0 * (1 + 1 / (2 * E0)) * sample * honest / (honest + liars)
            assert slack <= (1 + order) * expected
            if described is not None:
                assert described.slack == pytest.approx(float(expected), rel=1e-12)
                charged = accountant.certify_delta({described: 1}, epsilon=math.log(order))
                assert float(told) <= charged.delta_upper * (1 + 1e-12)
    assert beyond > 3  # without the slack the bound would be false


def squared(law: Law) -> Law:
    return {(x, y): a * b for x, a in law.items() for y, b in law.items()}


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_two_rounds_tell_no_more_than_their_slack_adds_up_to(table: Table) -> None:
    honest, liars, sample = 2, 1, 2
    described = a_round(honest, liars, sample, local_delta(table))
    assert described is not None
    charged = {
        order: Accountant(precision=0.1).certify_delta({described: 2}, epsilon=math.log(order)).delta_upper
        for order in ORDERS
    }
    inputs = range(len(table))
    for others in itertools.combinations_with_replacement(inputs, honest - 1):
        laws = [sampled(table, (x, *others), liars, sample) for x in inputs]
        for p, q in itertools.permutations(laws, 2):
            twice_p, twice_q = squared(p), squared(q)
            for order, bound in charged.items():
                assert float(divergence(twice_p, twice_q, order)) <= bound * (1 + 1e-12)
