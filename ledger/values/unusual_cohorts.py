"""Warnings about a cohort's budget before it is opened: a budget can be raised later, and never unmade.

Source: docs/decisions/0019-warnings.md, with the reason of each threshold.
"""

from __future__ import annotations

from collections.abc import Iterator

from shuffle_ledger.accounting import exact_text
from shuffle_ledger.ledger.errors import UnacceptedWarning
from shuffle_ledger.ledger.values.requests import Cohort, promised_epsilon

EPSILON_USUAL_MAX = 10.0  # of a budget, in nats; a larger one is warned of
POPULATION_USUAL_MIN = 100  # users; a smaller cohort is warned of


def opening_warnings(cohort: Cohort) -> tuple[UnacceptedWarning, ...]:
    """Return what is unusual about a cohort that is to be opened, its windows' budgets included.

    The answer depends on the cohort's parameters alone; none of them is impossible.
    """
    return tuple(_warnings(cohort))


def _warnings(cohort: Cohort) -> Iterator[UnacceptedWarning]:
    users = cohort.population
    if users < POPULATION_USUAL_MIN:
        message = (
            f"the population of {users:,} is below {POPULATION_USUAL_MIN}: a report has few others to hide"
            " among, and no later round may have more reports"
        )
        yield UnacceptedWarning(field="population", message=message)
    if cohort.has_life:
        promised = promised_epsilon(cohort, cohort.epsilon_budget)
        yield from _of_budget("", promised, cohort.delta_budget, users)
    for window in cohort.windows:
        yield from _of_budget(f" of each {window.described}", window.epsilon, window.delta, users)


def _of_budget(of: str, epsilon: float, delta: float, users: int) -> Iterator[UnacceptedWarning]:
    if epsilon > EPSILON_USUAL_MAX:
        message = (
            f"the epsilon{of}, {exact_text(epsilon)}, is above {exact_text(EPSILON_USUAL_MAX)}: outputs may"
            " tell a user's data almost surely"
        )
        yield UnacceptedWarning(field="windows" if of else "epsilon", message=message)
    if delta >= 1 / users:
        message = (
            f"the delta{of}, {exact_text(delta)}, is not below 1 divided by the population of {users:,}: to"
            " publish the data of one user in the clear would be within it"
        )
        yield UnacceptedWarning(field="windows" if of else "delta", message=message)
