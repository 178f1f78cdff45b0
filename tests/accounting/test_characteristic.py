"""Characteristic functions at points of a line, against sums in 50 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting.numeric.characteristic_functions import (
    characteristic_less_one,
    log_modulus,
    noise,
)


def _exactly_centred(weights: np.ndarray, values: np.ndarray) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Weights that sum to 1 and values of mean 0; each is moved by at most one rounding."""
    w = [mpmath.mpf(float(one)) for one in weights]
    w = [one / mpmath.fsum(w) for one in w]
    mean = mpmath.fsum(one * mpmath.mpf(float(x)) for one, x in zip(w, values, strict=True))
    return [(one, mpmath.mpf(float(x)) - mean) for one, x in zip(w, values, strict=True)]


@settings(max_examples=60, deadline=None)
@example(seed=85, atoms=2, first=0, count=15, log_step=2.0)
@example(seed=2221, atoms=2, first=1, count=126, log_step=1.739)
@given(
    seed=st.integers(0, 2**32 - 1),
    atoms=st.integers(2, 7),
    first=st.sampled_from([0, 0, 1, 37, 4096]),
    count=st.integers(1, 200),
    log_step=st.floats(-9.0, 2.0),
)
def test_values_are_within_their_noise(
    seed: int, atoms: int, first: int, count: int, log_step: float
) -> None:
    """Near 0 that means far more digits than 1 has: values less one are of the order of `u^2`."""
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet(np.ones(atoms))
    centred = draw.normal(size=atoms)
    # The second time by no more than is rounded off values that may be much smaller now.
    for _ in range(2):
        centred -= (weights * centred).sum()
    step = 10.0**log_step
    found = characteristic_less_one(weights[None, :], centred[None, :], np.array([step]), first, count)[0]
    variance, absolute = (weights * centred**2).sum(), (weights * np.abs(centred)).sum()
    with mpmath.workdps(50):
        law = _exactly_centred(weights, centred)
        for k in {0, count // 3, count - 1}:
            u = mpmath.mpf(step) * (first + k)
            exact = mpmath.fsum(w * (mpmath.expj(u * x) - 1) for w, x in law)
            bound = noise(atoms, *(np.array([float(one)]) for one in (u, variance, absolute)))[0]
            assert abs(exact - mpmath.mpc(found[k])) <= bound
            assert bound <= 1e-12 * float(u) * max(1.0, float(u)) * float(absolute + variance)


@pytest.mark.parametrize("modulus", [1e-9, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-12])
def test_the_modulus_of_numbers_near_one_and_near_nothing(modulus: float) -> None:
    less_one = np.array([modulus * np.exp(0.3j) - 1])
    with mpmath.workdps(40):
        exact = float(mpmath.log(abs(1 + mpmath.mpc(less_one[0]))))
    assert log_modulus(less_one, np.array([1e-12]))[0] == pytest.approx(exact, rel=1e-13, abs=1e-16)
    assert log_modulus(less_one, np.array([1e-6]))[0] == pytest.approx(max(exact, np.log(1e-6)))
