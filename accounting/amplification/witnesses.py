"""Witnesses: neighbouring datasets whose divergence is known exactly, a lower bound for every analysis.

All users except one hold the same value. Let `a` and `b` be the laws of a report under the two values of the
differing user, and `c` the law under the others' value. Then `(a, b, c)` is a decomposition without any loss:
its blanket pair is the round itself, reduced to the ratios `a : b : c` of the outputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np


def of_response(k: int, epsilon0: float, *, third: bool = True) -> tuple[Decomposition, ...]:
    """Witnesses of k-ary randomized response: the others hold a third value, where there is one that they may
    hold, or the second."""
    least = 1 / (math.exp(epsilon0) + k - 1)
    masses = np.array([least, least, least, (k - 3) * least] if k >= 3 else [least, least])
    hits = np.eye(len(masses), 3)
    return _witnesses(masses, hits, epsilon0, third=third and k >= 3)


def of_signs(epsilon0: float, *, third: bool) -> tuple[Decomposition, ...]:
    """Returns witnesses of mechanisms in which a report agrees with each value by an independent fair sign; a
    report that agrees with the user's value is `exp(epsilon0)` times as likely.

    Source: docs/theory/lower-bounds.md, L2.
    """
    patterns = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)
    return _witnesses(np.full(8, 0.25 / (math.exp(epsilon0) + 1)), patterns, epsilon0, third=third)


def of_rows(epsilon0: float) -> tuple[Decomposition, ...]:
    """Returns witnesses of Hadamard response: the others hold the value whose row is the product of the two
    values' rows.

    An output supports that row if it supports both values or neither. So no other user supports an output
    that tells the two values apart.
    """
    patterns = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=np.float64)
    return _witnesses(np.full(4, 0.5 / (math.exp(epsilon0) + 1)), patterns, epsilon0, third=True)


def of_two_blocks(epsilon0: float) -> tuple[Decomposition, ...]:
    """Returns witnesses of Hadamard response in two blocks: the values are of different blocks, and the
    others hold another value of the first one's block, or the second.

    Source: docs/theory/lower-bounds.md, L2.
    """
    patterns = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=np.float64)
    masses = np.array([0.5, 0.5, 0.5, 0.5, 1.0, 1.0]) / (math.exp(epsilon0) + 3)
    return _witnesses(masses, patterns, epsilon0, third=True)


def of_windows(mass: float, rest: float, epsilon0: float) -> tuple[Decomposition, ...]:
    """Returns witnesses of windows of outputs on a line, which are `e` times as likely: the values are the
    ends, whose windows touch the ends of the line, and the others hold the middle, or the second.

    Args:
        mass: probability of a window under a value whose window shares nothing with it.
        rest: probability of the outputs between the windows of the ends.

    Source: docs/theory/lower-bounds.md, L3.
    """
    covered = min(mass, rest)  # of the outputs between, by the window of the middle
    shared = (mass - covered) / 2  # of either end's window, by that of the middle
    patterns = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=np.float64)
    masses = np.array([mass - shared, mass - shared, shared, shared, covered, rest - covered])
    return _witnesses(masses[masses > 0], patterns[masses > 0], epsilon0, third=True)


def of_disjoint(mass: float, rest: float, epsilon0: float) -> tuple[Decomposition, ...]:
    """Witnesses where some outputs are `e` times as likely under the first value, others under the second.

    Args:
        mass: probability of either value's outputs under the other value; the others hold the second.
        rest: probability of all other outputs.
    """
    masses = np.array([mass, mass, rest] if rest else [mass, mass])
    return _witnesses(masses, np.eye(len(masses), 3), epsilon0, third=False)


def of_supports(masses: Sequence[float], epsilon0: float, *, third: bool) -> tuple[Decomposition, ...]:
    """Witnesses where an output supports each of three values or not, `e` times as likely if it does.

    Args:
        masses: for 0 to 3 of the values: what outputs that support just these hold under none of them.
        third: whether these masses are those of every three values; of two they always are.
    """
    patterns = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)
    every = np.array(masses)[patterns.sum(axis=1).astype(np.int64)]
    return _witnesses(every[every > 0], patterns[every > 0], epsilon0, third=third)


def of_bits(flipped: float, unset: float, epsilon0: float) -> tuple[Decomposition, ...]:
    """Returns witnesses of unary encodings.

    Args:
        flipped: probability that a bit of another value is set.
        unset: probability that the own value's bit is unset, over the probability that another value's bit
            is.
        epsilon0: local privacy: a set bit is `exp(epsilon0)` times as likely as an unset one to be the own.
    """
    patterns = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)
    ones = patterns.sum(axis=1)
    return _witnesses(unset * flipped**ones * (1 - flipped) ** (3 - ones), patterns, epsilon0, third=True)


def _witnesses(
    masses: FloatArray, hits: FloatArray, epsilon0: float, *, third: bool
) -> tuple[Decomposition, ...]:
    """Returns the witnesses of outputs with probability `masses * exp(epsilon0 * hits[:, i])` under value
    i."""
    first, second, other = (masses * np.exp(epsilon0 * hits[:, i]) for i in range(3))
    difference = masses * np.exp(epsilon0 * hits[:, 1]) * np.expm1(epsilon0 * (hits[:, 0] - hits[:, 1]))
    return tuple(
        Decomposition(first, second, law, difference, 0.0) for law in ([other] if third else []) + [second]
    )


def thinned(witness: Decomposition, rate: float) -> Decomposition:
    """Returns the witness of a user who is sampled with probability `rate`, and otherwise replaced by one of
    the others.

    Source: docs/theory/lower-bounds.md, L5.
    """
    if rate == 1.0:
        return witness
    # Outputs that are impossible under both values of the user are those of the replacement.
    a, b, c, difference = (
        np.append(getattr(witness, name), more)
        for name, more in (("a", 0.0), ("b", 0.0), ("c", witness.leftover), ("difference", 0.0))
    )
    a, b = (rate * law + (1 - rate) * c for law in (a, b))
    return Decomposition(a, b, c, rate * difference, 0.0)
