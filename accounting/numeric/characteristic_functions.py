"""Characteristic functions of discrete laws (finitely many atoms) at equally spaced frequencies.

With `e(v) = exp(i v) - 1`, `e(v + w) = e(v) e(w) + e(v) + e(w)`. So one sine for each atom gives all
multiples of its angle by doubling, and N frequencies are one matrix product over the atoms, with about
`sqrt(N)` small and `sqrt(N)` large multiples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, ComplexArray, FloatArray, sine_minus
from shuffle_ledger.accounting.numeric.later import np

# Largest share of a law's variance, and of its mean absolute deviation, that all atoms that are left out have
# together: less than the round-off of the others. Larger: fewer atoms, more error.
_LEFT_OUT_SHARE = 64 * UNIT_ROUND_OFF


def characteristic_less_one(
    weights: FloatArray, centred: FloatArray, step: FloatArray, first: int, count: int
) -> ComplexArray:
    """Returns `E[exp(i u (G - mean))] - 1` at `u = step (first + k)` for every `k < count`, shape (laws,
    count).

    Args:
        weights: masses of the atoms, shape (laws, atoms).
        centred: atoms minus their law's mean, shape (laws, atoms).
        step: distance of the frequencies, shape (laws,).
        first: number of the first frequency, not negative.
        count: number of frequencies.

    Guarantee: values are within `noise` of the exact ones. The mean of `G - mean` is taken as exactly 0: the
    terms `exp(i v) - 1 - i v` are summed, so that small results keep their relative accuracy.
    Source: docs/theory/contour.md, C8.
    """
    weights, centred = _that_count(weights, centred)
    stride = math.isqrt(count - 1) + 1
    angles = step[:, None] * centred
    near = _multiples(weights, angles, stride)
    far = _multiples(weights, stride * angles, -(-count // stride))
    if first:
        start = _multiples(weights, first * angles, 2)
        far = _sums(weights, _Turns(start.terms[:, 1:], start.less[:, 1:]), far)
    products: ComplexArray = np.matmul(far.terms * weights[:, None, :], near.terms.transpose(0, 2, 1))
    products += far.less[:, :, None] + near.less[:, None, :]
    result: ComplexArray = products.reshape(step.size, -1)[:, :count]
    return result


def _that_count(weights: FloatArray, centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the atoms without those that are negligible in every law: a law's variance and its mean
    absolute deviation without them are at least `1 - _LEFT_OUT_SHARE` of what they were."""
    absolute = weights * np.abs(centred)
    square = absolute * np.abs(centred)
    share = _LEFT_OUT_SHARE / weights.shape[1]
    counts = (absolute > share * absolute.sum(axis=1, keepdims=True)) | (
        square > share * square.sum(axis=1, keepdims=True)
    )
    kept = counts.any(axis=0)
    return (weights, centred) if kept.all() else (weights[:, kept], centred[:, kept])


def noise(atoms: int, u: FloatArray, variance: FloatArray, absolute: FloatArray) -> FloatArray:
    """Returns an upper bound on the round-off of `characteristic_less_one`.

    Args:
        atoms: number of atoms of a law.
        u, variance, absolute: frequencies, and the laws' variances and mean absolute deviations, of one
            shape.

    The factors have modulus 1, so their errors add up. A doubling adds at most ten units of a term that is at
    most its angle. A summed term is at most the square of its angle, and at most twice the angle; so are
    those of the atoms that are left out, together 64 units.
    """
    bound: FloatArray = UNIT_ROUND_OFF * (320 + 4 * atoms) * np.minimum(u * u * variance, 2 * u * absolute)
    return bound


def log_modulus(less_one: ComplexArray, least: FloatArray) -> FloatArray:
    """Returns the logarithm of the modulus of `1 + less_one`, or of `least` where that is larger."""
    real, imaginary = less_one.real, less_one.imag
    square = 2 * real + real * real + imaginary * imaginary  # modulus squared, less 1
    near = square > -0.5
    far = np.maximum((1 + real) ** 2 + imaginary * imaginary, least * least)
    doubled = np.where(near, np.log1p(np.where(near, square, 0.0)), np.log(np.where(near, 1.0, far)))
    return np.asarray(doubled / 2, dtype=np.float64)


class _Turns(NamedTuple):
    """`exp(i v) - 1` at several angles v of every atom, shape (laws, angles, atoms), and the mean over the
    atoms of that less `i v`, shape (laws, angles)."""

    terms: ComplexArray
    less: ComplexArray


def _multiples(weights: FloatArray, angles: FloatArray, count: int) -> _Turns:
    """Returns the turns by 0, 1, ..., `count - 1` times the angles."""
    laws, atoms = angles.shape
    turns = _Turns(np.zeros((laws, count, atoms), np.complex128), np.zeros((laws, count), np.complex128))
    if count > 1:
        turns.terms[:, 1], turns.less[:, 1] = _turn(weights, angles)
    known = 1
    while known < count - 1:
        more = min(known, count - 1 - known)
        part = [
            _Turns(turns.terms[:, one], turns.less[:, one])
            for one in (slice(known, known + 1), slice(1, more + 1))
        ]
        turns.terms[:, known + 1 : known + more + 1], turns.less[:, known + 1 : known + more + 1] = _sums(
            weights, *part
        )
        known += more
    return turns


def _turn(weights: FloatArray, angles: FloatArray) -> tuple[ComplexArray, ComplexArray]:
    """Returns the turns by the angles themselves."""
    half = angles / 2
    sine, cosine = np.sin(half), np.cos(half)
    terms = 2 * sine * (1j * cosine - sine)
    small = np.abs(angles) < 0.5
    less = np.where(small, sine_minus(np.where(small, angles, 0.0)), terms.imag - angles)
    return terms, (weights * terms.real).sum(axis=1) + 1j * (weights * less).sum(axis=1)


def _sums(weights: FloatArray, one: _Turns, others: _Turns) -> _Turns:
    """Returns the turns by the sum of one angle and each of the others."""
    products = one.terms * others.terms
    less = np.matmul(products, weights[:, :, None].astype(np.complex128))[:, :, 0]
    less += one.less + others.less
    products += one.terms
    products += others.terms
    return _Turns(products, less)
