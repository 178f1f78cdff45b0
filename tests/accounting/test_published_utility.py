"""Published errors of frequency estimates, by simulation with the reference mechanism."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from shuffle_ledger.accounting import KaryRandomizedResponse, frequency_error

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "utility.py"))


@pytest.mark.parametrize(("epsilon0", "published"), EXAMPLE["PUBLISHED"].values())
def test_errors_of_the_table_are_simulated(epsilon0: float, published: float) -> None:
    """Table 4 of Su, Cheng, Wang; the paper does not say how often it repeated the experiment."""
    found = EXAMPLE["simulated_error"](epsilon0, np.random.default_rng(5), 300)
    assert abs(found - published) <= 0.05 * published + 0.0005
    error = frequency_error(KaryRandomizedResponse(k=10, epsilon0=epsilon0), 1000)
    assert error is not None
    assert error.l2 is not None
    assert 0.94 * error.l2 < found < error.l2
