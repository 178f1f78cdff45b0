"""Randomizers of two inputs: hidden components have the ratios `exp(t) : 1 : 1` or `1 : exp(t) : 1`. Many
components, or a continuum, are put on a grid of t, from above and from below."""

from __future__ import annotations

import math

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import Bracket

# Numbers of cells that are tried in turn, until the grid adds at most this share of the variance. Smaller:
# closer bounds, more components.
_NUMBERS_OF_CELLS = (32, 40, 48, 56, 64, 80, 96, 128, 192)
_ADDED_VARIANCE = 5e-5
# A grid is used if it has at most this share of the components.
_GRID_SHARE = 0.4
# Parts of the range for which the density of cells is computed.
_DENSITY_PARTS = 256


def grid(largest: float, density: FloatArray, cells: int) -> FloatArray:
    """Returns the ends of cells of t, ascending from 0 to `largest`: half of them evenly spread, half in
    proportion to `density`, which is given for equal parts of the range."""
    share = np.linspace(0.0, 1.0, density.size + 1) + np.append(0.0, np.cumsum(density) / density.sum())
    points = np.linspace(0.0, largest, density.size + 1)
    ends: FloatArray = np.interp(np.linspace(0.0, 2.0, cells + 1), share, points)
    ends[0], ends[-1] = 0.0, largest
    return ends


def bracketed(pair: Decomposition) -> Bracket:
    """Returns the bracket of a pair of a randomizer of two inputs: exact, or on grids if it has many
    components.

    For components with larger a, `a/c` is `1 + gain` and `b/c` is 1. In every cell of gains the mass moves to
    the two ends, which keeps its mean (above), or to the mean (below); for components with larger b,
    likewise.

    Source: docs/theory/randomizers.md, R10.
    """
    hidden = pair.c > 0
    gains, c = pair.difference[hidden] / pair.c[hidden], pair.c[hidden]
    above: list[FloatArray] = []
    below: list[FloatArray] = []
    for sign, arm in ((1.0, gains > 0), (-1.0, gains <= 0)):
        ends = _ends(sign * gains[arm], c[arm])
        above.append(_columns(sign, *_at_ends(sign * gains[arm], c[arm], ends)))
        below.append(_columns(sign, *_at_means(sign * gains[arm], c[arm], ends)))
    if sum(one.shape[1] for one in above) > _GRID_SHARE * gains.size:
        return Bracket.exact(pair)
    bare = np.array([column[~hidden] for column in (pair.a, pair.b, pair.c, pair.difference)])
    made = []
    for side in (above, below):
        a, b, c, difference = np.hstack([*side, bare])
        made.append(Decomposition(a, b, c, difference, pair.rest).merged())
    return Bracket(*made)


def _ends(gains: FloatArray, c: FloatArray) -> FloatArray:
    """Returns the ends of cells of gains, ascending from 0 to the largest."""
    largest = float(gains.max(initial=0.0))
    if largest == 0:
        return np.zeros(1)
    # Cells of width w add about `mass (1 + gain)^2 w^2` in all. For a given number of cells that is least if
    # the number of cells is in proportion to the cube root of `mass (1 + gain)^2`.
    limit = math.log1p(largest)
    part = np.minimum(np.log1p(gains) / limit * _DENSITY_PARTS, _DENSITY_PARTS - 1).astype(np.int64)
    density = np.cbrt(np.bincount(part, weights=c * (1 + gains) ** 2, minlength=_DENSITY_PARTS))

    def divided(cells: int) -> FloatArray:
        ends: FloatArray = np.expm1(grid(limit, density, cells))
        ends[-1] = largest
        return ends

    enough = (1 + _ADDED_VARIANCE) * float((c * gains**2).sum())
    for cells in _NUMBERS_OF_CELLS[:-1]:
        at, masses = _at_ends(gains, c, divided(cells))
        if float((masses * at**2).sum()) <= enough:
            return divided(cells)
    return divided(_NUMBERS_OF_CELLS[-1])


def _at_ends(gains: FloatArray, c: FloatArray, ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns gains and masses after every mass was split between the ends of its cell."""
    if ends.size == 1:
        return ends, np.array([c.sum()])
    cell = np.clip(np.searchsorted(ends, gains) - 1, 0, ends.size - 2)
    share = np.clip((gains - ends[cell]) / (ends[cell + 1] - ends[cell]), 0.0, 1.0)
    masses = np.bincount(cell, weights=c * (1 - share), minlength=ends.size)
    masses += np.bincount(cell + 1, weights=c * share, minlength=ends.size)
    return ends, np.asarray(masses, dtype=np.float64)


def _at_means(gains: FloatArray, c: FloatArray, ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns gains and masses after the masses of every cell were moved to their mean."""
    cell = np.searchsorted(ends, gains)
    masses, sums = (np.bincount(cell, weights=one, minlength=1) for one in (c, c * gains))
    kept = masses > 0
    return np.asarray(sums[kept] / masses[kept]), np.asarray(masses[kept], dtype=np.float64)


def _columns(sign: float, gains: FloatArray, c: FloatArray) -> FloatArray:
    """Returns a, b, c and a - b of components with these gains of one input over the other, shape (4,
    components)."""
    larger, gap = c * (1 + gains), sign * c * gains
    return np.array([larger, c, c, gap] if sign > 0 else [c, larger, c, gap])
