"""Band-limited functions above and below the tilted ramp `exp(-theta x) x_+`.

Both interpolate the ramp and its slope at equally spaced nodes: the lower one at the kink and every spacing
beyond it, the upper one about half a spacing further. Their transforms vanish from the frequency `2 pi /
spacing` on, so that a sum over frequencies ends there; the integral of their distance is about an eighth of
the spacing's square. `docs/theory.md`, "Kernels", has the proofs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    ComplexArray,
    FloatArray,
    IndexArray,
    circle,
    expm1_minus,
)

_TURN = 2 * np.pi


class Products(NamedTuple):
    """Real parts of the kernels' transforms times complex values; arrays of one shape.

    Attributes:
        upper, lower: the real parts.
        modulus: bound on either transform's modulus.
        round_off: bound on either product's round-off, but for the value's.
    """

    upper: FloatArray
    lower: FloatArray
    modulus: FloatArray
    round_off: FloatArray


class Transforms(NamedTuple):
    """The kernels' transforms; arrays of one shape.

    Attributes:
        upper, lower: their values.
        modulus: bound on either one's modulus.
        round_off: bound on that of either one's round-off.
    """

    upper: ComplexArray
    lower: ComplexArray
    modulus: FloatArray
    round_off: FloatArray


class RampKernels(NamedTuple):
    """The kernels of several ramps; arrays of shape (ramps,).

    Attributes:
        spacing: distance of the nodes.
        tilt: theta in units of one over the spacing, positive.
        offset: of the upper kernel's first node from the kink, in spacings.
        slope: of the lower kernel at the kink.

    Guarantee: `lower(x) <= exp(-theta x) x_+ <= upper(x)` at every x, and `upper >= 0`.
    Source: Graham and Vaaler, "A class of extremal functions for the Fourier transform", has the method.
    """

    spacing: FloatArray
    tilt: FloatArray
    offset: FloatArray
    slope: FloatArray

    @classmethod
    def of(cls, theta: FloatArray, spacing: FloatArray) -> RampKernels:
        """The kernels of the ramps of these tilts, theta times the spacing at most some hundred."""
        tilt = theta * spacing
        growth, beyond = np.expm1(tilt), expm1_minus(tilt)
        return cls(spacing, tilt, beyond / (tilt * growth), 1 - (1 + growth) * beyond / growth**2)

    def at(self, rows: IndexArray) -> RampKernels:
        """The kernels of some of the ramps."""
        return RampKernels(*(column[rows] for column in self))

    @property
    def band(self) -> FloatArray:
        """The frequency from which on the transforms are 0."""
        return np.asarray(_TURN / self.spacing)

    @property
    def above(self) -> FloatArray:
        """The integral of the upper kernel."""
        rest = -np.expm1(-self.tilt)
        return np.asarray(self.spacing**2 * np.exp(-self.tilt * self.offset) / (self.tilt * rest))

    @property
    def largest(self) -> FloatArray:
        """Bound on both transforms' moduli: the integral of the upper kernel, and that of the lower one's."""
        ramp = (self.spacing / self.tilt) ** 2
        below = self.spacing**2 * np.exp(-self.tilt) / np.expm1(-self.tilt) ** 2
        return np.asarray(np.maximum(self.above, 2 * ramp - below) * (1 + 1e-12))

    @property
    def at_kink(self) -> FloatArray:
        """The upper kernel at the kink, where the ramp and the lower one are 0; a little less."""
        sine = np.sin(np.pi * self.offset) / np.pi
        return np.asarray(sine**2 * self.tilt**2 * self.above / self.spacing * (1 - 1e-12))

    def transforms(self, ramp: IndexArray, u: FloatArray) -> Transforms:
        """The Fourier transforms of the kernels of the ramps `ramp[i]` at the frequencies `0 <= u[i] <=
        band`."""
        one = np.ones(u.size, dtype=np.complex128)
        real, imaginary = self.times(ramp, u, one), self.times(ramp, u, -1j * one)
        upper, lower = (
            np.asarray(getattr(real, side) + 1j * getattr(imaginary, side)) for side in ("upper", "lower")
        )
        return Transforms(upper, lower, real.modulus, real.round_off + imaginary.round_off)

    def times(self, ramp: IndexArray, u: FloatArray, value: ComplexArray) -> Products:
        """The Fourier transforms of the kernels of the ramps `ramp[i]` at the frequencies `0 <= u[i] <=
        band`, times the values."""
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
        # The angle's own rounding moves the ratios by as much as they are large.
        doubt = UNIT_ROUND_OFF * (64 + (8 * self.tilt)[ramp] + 8 * angle * root) * size * most
        doubt *= np.abs(value.real) + np.abs(value.imag)
        return Products(upper, lower, (size / 4 + root / 2) * most, doubt)
