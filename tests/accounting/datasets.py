"""All datasets of few users: the laws of their shuffled reports, and how far two of them are apart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@functools.cache
def _places(outputs: int, reports: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns, for each multiset of outputs and each further output, the place of both together."""
    more = itertools.combinations_with_replacement(range(outputs), reports + 1)
    place = {one: number for number, one in enumerate(more)}
    few = itertools.combinations_with_replacement(range(outputs), reports)
    return np.array([[place[tuple(sorted((*one, y)))] for y in range(outputs)] for one in few])


def with_report(law: Array, reports: int, row: Sequence[float] | Array) -> Array:
    """Returns the law of the multiset of `reports` reports and one more; `row` has its masses."""
    both = np.multiply.outer(law, np.asarray(row, dtype=np.float64))
    return np.asarray(np.bincount(_places(both.shape[1], reports).ravel(), both.ravel()), dtype=np.float64)


def shuffled(rows: Sequence[Sequence[float]] | Sequence[Array] | Array) -> Array:
    """Returns the law of the multiset of one report of each row."""
    law = np.ones(1)
    for reports, row in enumerate(rows):
        law = with_report(law, reports, row)
    return law


def divergence(p: Array, q: Array, order: float) -> float:
    """Returns the hockey-stick divergence of two laws."""
    return float(np.maximum(p - order * q, 0).sum())


def largest(laws: Sequence[Array], orders: Sequence[float]) -> Array:
    """Returns the largest divergence of any two of these laws, in both directions, at each order."""
    pairs = list(itertools.permutations(laws, 2))
    return np.array([max(divergence(p, q, order) for p, q in pairs) for order in orders])


def worst(rows: Sequence[Sequence[float]] | Array, users: int, orders: Sequence[float]) -> Array:
    """Returns the largest divergence of two neighbouring datasets, at each order.

    `rows` has the masses of all outputs (columns) under each value (rows). The others hold any values.
    """
    table = np.asarray(rows, dtype=np.float64)
    found = np.zeros(len(orders))
    for others in itertools.combinations_with_replacement(range(len(table)), users - 1):
        law = shuffled(table[list(others)])
        found = np.maximum(found, largest([with_report(law, users - 1, row) for row in table], orders))
    return found
