"""Certificates and budgets in a notebook: short, and on their safe sides."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shuffle_ledger.accounting import Certificate, ErrorBudget
from shuffle_ledger.cli.commands.budget import budget_facts
from shuffle_ledger.ledger.answers.budgets import BudgetStatement
from tests.cli.conftest import ROUND, Run

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


@pytest.fixture
def statement(phones: Run, monkeypatch: pytest.MonkeyPatch) -> BudgetStatement:
    """Return the budget of a cohort with one round, as `budget` got it from the ledger."""
    seen: list[BudgetStatement] = []

    def facts_of(found: BudgetStatement) -> object:
        seen.append(found)
        return budget_facts(found)

    assert phones("round", "register", "phones", "--id", "first", *ROUND).code == 0
    monkeypatch.setattr("shuffle_ledger.cli.commands.budget.budget_facts", facts_of)
    assert phones("budget", "phones").code == 0
    return seen[0]


@pytest.mark.slow
def test_a_budget_is_short_and_rounds_its_bounds_outwards(statement: BudgetStatement) -> None:
    odd = dataclasses.replace(
        statement,
        cohort="phones of 2026",
        epsilon_spent_lower=0.12345649,
        epsilon_spent_upper=0.12345651,
        epsilon_remaining=0.87654349,
    )
    said = "open: spent at most 0.123457 of 1 at delta 1e-06, left at least 0.876543>"
    assert repr(odd) == f"<BudgetStatement of 'phones of 2026', {said}"
