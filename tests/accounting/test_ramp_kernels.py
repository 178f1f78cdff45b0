"""The kernels next to the tilted ramp, against their own series in sixty digits."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from shuffle_ledger.accounting.numeric.ramp_kernels import RampKernels

TILTS = (1e-6, 1e-3, 0.2, 1.0, 3.0, 9.0, 24.0)


def nodes(tilt: mpmath.mpf, first: mpmath.mpf) -> list[mpmath.mpf]:
    """Nodes up to where nothing is left."""
    return [first + place for place in range(int(160 / tilt) + 2)]


def exact(tilt: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The upper kernel's offset and the lower one's slope at the kink."""
    t = mpmath.mpf(tilt)
    q = mpmath.exp(-t)
    return 1 / t - 1 / mpmath.expm1(t), 1 - (1 - q - t * q) / (1 - q) ** 2


def ramp(tilt: mpmath.mpf, x: mpmath.mpf) -> mpmath.mpf:
    """The tilted ramp."""
    return x * mpmath.exp(-tilt * x) if x > 0 else mpmath.mpf(0)


def slope(tilt: mpmath.mpf, x: mpmath.mpf) -> mpmath.mpf:
    """Its slope beyond the kink."""
    return (1 - tilt * x) * mpmath.exp(-tilt * x)


def upper(tilt: mpmath.mpf) -> Callable[[mpmath.mpf], mpmath.mpf]:
    """The upper kernel, spacing 1."""
    offset, _ = exact(tilt)

    def kernel(x: mpmath.mpf) -> mpmath.mpf:
        terms = (ramp(tilt, y) / (x - y) ** 2 + slope(tilt, y) / (x - y) for y in nodes(tilt, offset))
        return (mpmath.sin(mpmath.pi * (x - offset)) / mpmath.pi) ** 2 * mpmath.fsum(terms)

    return kernel


def lower(tilt: mpmath.mpf) -> Callable[[mpmath.mpf], mpmath.mpf]:
    """The lower kernel, spacing 1."""
    _, kink = exact(tilt)

    def kernel(x: mpmath.mpf) -> mpmath.mpf:
        terms = (ramp(tilt, y) / (x - y) ** 2 + slope(tilt, y) / (x - y) for y in nodes(tilt, mpmath.mpf(1)))
        return (mpmath.sin(mpmath.pi * x) / mpmath.pi) ** 2 * (kink / x + mpmath.fsum(terms))

    return kernel


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [1.0, 3.0, 9.0, 24.0])
def test_kernels_are_on_either_side_of_the_ramp(tilt: float) -> None:
    draw = np.random.default_rng(int(10 * tilt))
    near, far = draw.uniform(-3, 6, 30), draw.uniform(-60, 60, 15)
    with mpmath.workdps(60):
        t = mpmath.mpf(tilt)
        above, below = upper(t), lower(t)
        for x in (mpmath.mpf(one) for one in np.concatenate([near, far])):
            assert below(x) <= ramp(t, x) + mpmath.mpf("1e-45")
            assert ramp(t, x) <= above(x) + mpmath.mpf("1e-45")


@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.parametrize("spacing", [1e-3, 1.0, 50.0])
def test_transforms_are_those_of_the_kernels(tilt: float, spacing: float) -> None:
    """At the middle, near it, and up to the band's end: within the round-off, and no larger than said."""
    kernels = RampKernels.of(np.array([tilt / spacing]), np.array([spacing]))
    with mpmath.workdps(60):
        t = mpmath.mpf(float(kernels.tilt[0]))
        offset, kink = exact(t)
        for share in (0.0, 1e-12, 1e-6, 0.01, 0.3, 0.5, 0.77, 0.999, 1 - 1e-9, 1.0):
            u = float(kernels.band[0]) * share
            angle = mpmath.mpf(u) * mpmath.mpf(spacing)
            w = t + 1j * angle
            ratio, step = mpmath.exp(-w), 1 - angle / (2 * mpmath.pi)
            # Sums over the nodes of the ramp and of its slope, geometric ones.
            at_kink = ratio / (1 - ratio) ** 2
            shifted = mpmath.exp(-w * offset) * (offset / (1 - ratio) + at_kink)
            slopes = kink + ratio / (1 - ratio) - t * at_kink
            shifted_slopes = mpmath.exp(-w * offset) / (1 - ratio) - t * shifted
            turn = mpmath.mpc(0, 1) / (2 * mpmath.pi)
            above = (step * shifted - turn * shifted_slopes) * spacing**2
            below = (step * at_kink - turn * slopes) * spacing**2
            assert max(abs(above), abs(below)) <= kernels.largest[0]
            for phase, size in ((0.0, 1.0), (1.0, 1e-9), (-np.pi / 2, 0.3), (1e4, 1.0)):
                value = np.exp(1j * phase) * size
                found = kernels.times(np.array([0]), np.array([u]), np.array([value]))
                exact_value = mpmath.mpc(value)
                assert abs((exact_value * above).real - found.upper[0]) <= found.round_off[0]
                assert abs((exact_value * below).real - found.lower[0]) <= found.round_off[0]
                assert max(abs(above), abs(below)) <= found.modulus[0] * (1 + 1e-9)


@pytest.mark.parametrize("tilt", [0.2, 1.0, 3.0, 9.0])
def test_what_the_upper_kernel_is_at_the_kink(tilt: float) -> None:
    kernels = RampKernels.of(np.array([tilt]), np.array([1.0]))
    with mpmath.workdps(60):
        there = upper(mpmath.mpf(tilt))(mpmath.mpf("1e-30"))
        assert kernels.at_kink[0] <= there
        assert kernels.at_kink[0] >= there * (1 - 1e-10)


@pytest.mark.parametrize("tilt", TILTS)
def test_kernels_are_as_near_each_other_as_said(tilt: float) -> None:
    """An eighth of the spacing's square, as an integral, where the ramp is long; less elsewhere."""
    kernels = RampKernels.of(np.array([tilt]), np.array([1.0]))
    found = kernels.times(np.array([0]), np.zeros(1), np.ones(1, dtype=np.complex128))
    apart = found.upper[0] - found.lower[0]
    room = 4 * found.round_off[0]
    assert 0 < apart <= 0.125 + room
    if tilt <= 0.2:
        assert apart >= 0.1245 - room
