"""Band-limited functions above and below the tilted ramp `exp(-theta x) x_+`.

Both functions (kernels) interpolate the ramp and its slope at equally spaced nodes. The lower kernel has its
nodes at the kink and at multiples of the spacing beyond it; the upper one about half a spacing further. Their
Fourier transforms are 0 from the frequency `2 pi / spacing` on, so a sum over frequencies ends there. The
integral of their distance is about an eighth of the spacing's square. The proofs are in
docs/theory/contour.md, C2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    ComplexArray,
    FloatArray,
    IndexArray,
    circle,
    expm1_minus,
)
from shuffle_ledger.accounting.numeric.later import np

_TURN = 2 * math.pi  # radians


class Products(NamedTuple):
    """Real parts of the products of the kernels' transforms and complex values; arrays of one shape.

    Attributes:
        upper, lower: the real parts, for the upper and the lower kernel.
        modulus: upper bound on the modulus of either transform.
        round_off: upper bound on the round-off of either product, without the round-off of the value.
    """

    upper: FloatArray
    lower: FloatArray
    modulus: FloatArray
    round_off: FloatArray


class RampKernels(NamedTuple):
    """The kernels of several ramps; arrays of shape (ramps,).

    Attributes:
        spacing: distance of the nodes.
        tilt: theta times the spacing, positive.
        offset: distance of the upper kernel's first node from the kink, in spacings.
        slope: slope of the lower kernel at the kink.

    Guarantee: `lower(x) <= exp(-theta x) x_+ <= upper(x)` at every x, and `upper >= 0`.
    Source: Graham and Vaaler, "A class of extremal functions for the Fourier transform", has the method.
    """

    spacing: FloatArray
    tilt: FloatArray
    offset: FloatArray
    slope: FloatArray

    @classmethod
    def of(cls, theta: FloatArray, spacing: FloatArray) -> RampKernels:
        """Makes the kernels of ramps with these tilts; theta times the spacing must be at most a few
        hundred."""
        tilt = theta * spacing
        growth, beyond = np.expm1(tilt), expm1_minus(tilt)
        return cls(spacing, tilt, beyond / (tilt * growth), 1 - (1 + growth) * beyond / growth**2)

    def at(self, rows: IndexArray) -> RampKernels:
        """Returns the kernels of some of the ramps."""
        return RampKernels(*(column[rows] for column in self))

    @property
    def band(self) -> FloatArray:
        """Returns the frequency from which on the transforms are 0, shape (ramps,)."""
        return np.asarray(_TURN / self.spacing)

    @property
    def above(self) -> FloatArray:
        """Returns the integral of the upper kernel, shape (ramps,)."""
        rest = -np.expm1(-self.tilt)
        return np.asarray(self.spacing**2 * np.exp(-self.tilt * self.offset) / (self.tilt * rest))

    @property
    def largest(self) -> FloatArray:
        """Returns an upper bound on the moduli of both transforms at all frequencies, shape (ramps,): the
        larger of the integral of the upper kernel and a bound on that of the lower kernel's modulus."""
        ramp = (self.spacing / self.tilt) ** 2
        below = self.spacing**2 * np.exp(-self.tilt) / np.expm1(-self.tilt) ** 2
        return np.asarray(np.maximum(self.above, 2 * ramp - below) * (1 + 1e-12))

    @property
    def at_kink(self) -> FloatArray:
        """Returns a lower bound, close to the value, on the upper kernel at the kink, where the ramp and the
        lower kernel are 0; shape (ramps,)."""
        sine = np.sin(np.pi * self.offset) / np.pi
        return np.asarray(sine**2 * self.tilt**2 * self.above / self.spacing * (1 - 1e-12))

    def times(self, ramp: IndexArray, u: FloatArray, value: ComplexArray) -> Products:
        """Returns the real parts of `value[i]` times the Fourier transforms of the kernels of the ramps
        `ramp[i]` at the frequencies `0 <= u[i] <= band`, shape (nodes,)."""
        # With w = tilt + i angle, coth(w/2) = p - i g; sums over the nodes are functions of it.
        sinh, rest, scale = np.sinh(self.tilt / 2), self.tilt / _TURN, self.spacing**2
        size, p = (sinh * sinh)[ramp], (sinh * np.cosh(self.tilt / 2))[ramp]
        angle, rest, offset = u * self.spacing[ramp], rest[ramp], self.offset[ramp]
        tangent = np.tan(angle / 2)
        square = tangent * tangent
        below = size * (1 + square) + square
        p *= (1 + square) / below
        g = tangent / below
        share = 1 - angle / _TURN
        size, product, square = p * p, p * g, g * g
        curved = size - square - 1
        size += square + 1
        real = curved * share / 4 + product * rest / 2 - g / (2 * _TURN)
        imaginary = curved * rest / 4 - product * share / 2 - p / (2 * _TURN)
        lower = value.real * real - value.imag * (imaginary - ((self.slope - 0.5) / _TURN)[ramp])
        p += 1
        half = offset / 2
        real += half * (p * share + g * rest)
        imaginary += half * (p * rest - g * share) - 0.5 / _TURN
        cosine, sine = circle(offset * angle)
        upper = (value.real * cosine + value.imag * sine) * real
        upper -= (value.imag * cosine - value.real * sine) * imaginary
        upper *= (scale * np.exp(-self.tilt * self.offset))[ramp]
        lower *= scale[ramp]
        root, most = np.sqrt(size), (scale * (1 + self.tilt / _TURN))[ramp]
        # The angle's round-off changes the ratios in proportion to their size.
        doubt = UNIT_ROUND_OFF * (64 + (8 * self.tilt)[ramp] + 8 * angle * root) * size * most
        doubt *= np.abs(value.real) + np.abs(value.imag)
        return Products(upper, lower, (size / 4 + root / 2) * most, doubt)
