"""The privacy profile of what a cohort holds: delta as a function of epsilon, as points to draw."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store

POINTS = 17  # over the whole width, and as many where delta falls


@dataclass(frozen=True, kw_only=True)
class ProfilePoint:
    """One point of a privacy profile."""

    epsilon: float
    delta_upper: float
    delta_lower: float


def profile_of(store: Store, accountant: Accountant, view: CohortView) -> tuple[ProfilePoint, ...]:
    """Return the certified profile of the composition of everything held, up to beyond budget and spending.

    Under every policy this is the exact composition of the rounds held now. It is valid only for rounds fixed
    in advance. Of a frozen cohort nothing is known: there are no points.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    if not view.held or view.cohort.status == "frozen":  # what was lost is in no such composition
        return ()
    loss_cache.recall(store, accountant, view.held)
    end = 1.25 * view.cohort.epsilon_budget
    near = min(end, 2.0 * view.spent.epsilon_upper)  # where delta falls; beyond, little happens
    epsilons = sorted({to * step / (POINTS - 1) for to in (near, end) for step in range(POINTS)})
    return tuple(
        ProfilePoint(epsilon=epsilon, delta_upper=found.delta_upper, delta_lower=found.delta_lower)
        for epsilon, found in zip(epsilons, accountant.profile(view.held, epsilons=epsilons), strict=True)
    )
