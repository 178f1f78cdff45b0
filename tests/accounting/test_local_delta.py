# ruff: noqa: S311 - draws of test cases
"""Local deltas in samples: every sample, report and input of small populations, and the proof's own steps."""

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
@pytest.mark.parametrize("table", [*TABLES, *(random_table(random.Random(seed)) for seed in range(3))])
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


def replaced(first: Law, second: Law) -> tuple[Law, Law]:
    """The two laws within ratio e of each other that the proof makes of a user's two."""
    p, q = dict(first), dict(second)
    moved = [Fraction(0), Fraction(0)]
    for y in first:
        for place, (one, other) in enumerate(((p, q), (q, p))):
            if one[y] > E0 * other[y]:
                both = one[y] + other[y]
                moved[place] += one[y] - E0 * both / (1 + E0)
                one[y], other[y] = E0 * both / (1 + E0), both / (1 + E0)
    lacks, has = (p, q) if moved[0] >= moved[1] else (q, p)
    missing = abs(moved[0] - moved[1])
    surplus = sum(((has[y] - lacks[y]) for y in first if has[y] > lacks[y]), Fraction(0))
    if missing:
        assert surplus >= 2 * missing
        for y in [y for y in first if has[y] > lacks[y]]:
            share = (has[y] - lacks[y]) * missing / surplus
            has[y], lacks[y] = has[y] - share, lacks[y] + share
    return p, q


@pytest.mark.parametrize("seed", range(30))
def test_a_users_two_laws_are_replaced_by_near_ones_within_the_ratio(seed: int) -> None:
    draw = random.Random(seed)
    rows = [[Fraction(draw.randint(0, 9)) for _ in range(4)] for _ in range(3)]
    laws = [as_law([(mass + (y == 0)) / (sum(row) + 1) for y, mass in enumerate(row)]) for row in rows]
    delta0 = max(divergence(p, q, E0) for p, q in itertools.permutations(laws, 2))
    for first, second, third in itertools.permutations(laws):
        p, q = replaced(first, second)
        assert sum(p.values()) == sum(q.values()) == 1
        assert divergence(p, q, E0) == divergence(q, p, E0) == 0
        moved = max(divergence(first, p, ONE), divergence(second, q, ONE))
        assert moved <= delta0 / (1 + E0)
        lacking = divergence({y: (p[y] + q[y]) / (2 * E0) for y in p}, third, ONE)
        assert lacking <= (delta0 + moved) / E0


def test_what_serves_two_inputs_need_not_serve_a_third() -> None:
    """The differing user's replaced law beside that of a user who stands in for it in the sample."""
    first, second, third = map(as_law, TABLES[1])
    p, q = replaced(first, second)
    assert (p, q) == (first, second)  # they are within the ratio as they are
    held = {y: (p[y] + q[y]) / (2 * E0) for y in p}
    lacking = divergence(held, third, ONE)
    surplus = {y: max(third[y] - held[y], Fraction(0)) for y in p}
    left = 1 - lacking / sum(surplus.values())
    stand_in = {y: max(held[y], third[y]) if third[y] < held[y] else held[y] + surplus[y] * left for y in p}
    assert sum(stand_in.values()) == 1
    assert divergence(p, stand_in, E0) > 0


def emptied(one: Law, other: Law, mass: Fraction) -> list[Any]:
    """Outcomes of this mass under `one` with the smallest ratio of `one` to `other`; splits the last one."""
    found = []
    for y in sorted((y for y in one if 0 < one[y] < other[y]), key=lambda y: one[y] / other[y]):
        if not mass:
            break
        share = min(mass / one[y], ONE)
        mass -= share * one[y]
        for law in (one, other):
            law[y, "lost"], law[y] = share * law[y], (1 - share) * law[y]
        found.append((y, "lost"))
    assert mass == 0
    return found


@pytest.mark.parametrize("seed", range(30))
def test_slack_of_a_profile_is_a_pair_near_the_pure_one(seed: int) -> None:
    """The lemma's pair: its distance, and its profile, order by order."""
    draw = random.Random(seed)
    # A symmetric pair: outcome (y, 0) of one law is as likely as (y, 1) of the other.
    halves = [Fraction(draw.randint(0, 9), draw.randint(1, 9)) for _ in range(5)]
    others = [Fraction(draw.randint(0, 9), draw.randint(1, 9)) + Fraction(1, 11) for _ in range(5)]
    total = sum(halves) + sum(others)
    p: Law = {(y, side): (halves, others)[side][y] / total for y in range(5) for side in (0, 1)}
    q: Law = {(y, side): p[y, 1 - side] for y, side in p}
    slack = (1 - divergence(p, q, ONE)) / 2 * Fraction(draw.randint(0, 9), 10)
    from_p, from_q = emptied(p, q, slack), emptied(q, p, slack)
    far_p: Law = {y: Fraction(0) if y in from_p else mass for y, mass in p.items()} | {"first": slack}
    far_q: Law = {y: Fraction(0) if y in from_q else mass for y, mass in q.items()} | {"second": slack}
    assert sum(far_p.values()) == sum(far_q.values()) == 1
    assert divergence(p, far_p, ONE) <= slack
    assert divergence(q, far_q, ONE) <= slack
    turns = [p[y] / q[y] for y in p if q[y] and p[y] > q[y]]
    for order in (*ORDERS, *turns):
        candidates = [order, ONE, *(one for one in turns if one <= order)]
        least = min(divergence(p, q, one) + (1 + one) * slack for one in candidates)
        assert divergence(far_p, far_q, order) == divergence(far_q, far_p, order) == least
