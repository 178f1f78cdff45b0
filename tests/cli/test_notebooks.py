"""Certificates and budgets in a notebook: short, and on their safe sides."""

from __future__ import annotations

import dataclasses
import math

from shuffle_ledger.accounting import Certificate, ErrorBudget

CERTIFICATE = Certificate(
    epsilon_upper=0.10028612345,
    epsilon_lower=0.10028499999,
    delta_upper=1e-6,
    delta_lower=1e-6,
    rounds=52,
    error=ErrorBudget(discretization=1e-6, truncation=0.0, round_off=0.0),
    precise=True,
)


def test_a_certificate_is_short_and_rounds_its_bounds_outwards() -> None:
    assert repr(CERTIFICATE) == "<Certificate: epsilon 0.100284 to 0.100287, delta 1e-06, rounds 52>"
    open_ended = dataclasses.replace(CERTIFICATE, epsilon_upper=math.inf, precise=False)
    assert "epsilon at least 0.100284," in repr(open_ended)
    assert "wider than asked" in repr(open_ended)
