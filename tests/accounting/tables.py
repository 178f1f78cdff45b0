"""Randomizers on small domains as tables: chances of every report (columns) under every value (rows)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]


def likelier(hits: Sequence[Sequence[int]], epsilon0: float) -> Rows:
    """Returns reports that are `exp(epsilon0)` times as likely under the values that they support; `hits` has
    a list for each report."""
    weights = np.exp(epsilon0 * np.array(hits, dtype=np.float64)).T
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def response(k: int, epsilon0: float) -> Rows:
    """Returns k-ary randomized response."""
    return likelier(np.eye(k, dtype=np.int64).tolist(), epsilon0)


def hashes(domain: int, g: int, epsilon0: float) -> Rows:
    """Returns every function of the domain to g values, with the value's hash randomized."""
    functions = itertools.product(range(g), repeat=domain)
    return likelier([[int(f[x] == y) for x in range(domain)] for f in functions for y in range(g)], epsilon0)


def subsets(domain: int, size: int, epsilon0: float) -> Rows:
    """Returns every subset of this size, those with the value more likely."""
    chosen = itertools.combinations(range(domain), size)
    return likelier([[int(x in one) for x in range(domain)] for one in chosen], epsilon0)


def hadamard(values: int, blocks: int, outputs: int, epsilon0: float) -> Rows:
    """Returns Hadamard response in blocks of `outputs` reports; row 0 of the matrix belongs to no value."""

    def supports(x: int, block: int, place: int) -> int:
        return int(block == x % blocks and (place & (x // blocks + 1)).bit_count() % 2 == 0)

    places = itertools.product(range(blocks), range(outputs))
    return likelier([[supports(x, *one) for x in range(values)] for one in places], epsilon0)


def bits(values: Sequence[Sequence[int]], size: int, kept: float, flip: float) -> Rows:
    """Returns vectors of `size` bits: those of a value are set with probability `kept`, others with
    `flip`."""
    outputs = np.array(list(itertools.product((0, 1), repeat=size)))
    own = np.array([[place in value for place in range(size)] for value in values])
    chances = np.where(own, kept, flip)[:, None, :]
    return np.asarray(np.where(outputs == 1, chances, 1 - chances).prod(axis=2))


def rappor(domain: int, epsilon0: float) -> Rows:
    """Returns a bit for each value, all flipped alike."""
    root = math.exp(epsilon0 / 2)
    return bits([(x,) for x in range(domain)], domain, root / (root + 1), 1 / (root + 1))


def oue(domain: int, epsilon0: float) -> Rows:
    """Returns a bit for each value, the own one by a fair coin."""
    return bits([(x,) for x in range(domain)], domain, 0.5, 1 / (math.exp(epsilon0) + 1))
