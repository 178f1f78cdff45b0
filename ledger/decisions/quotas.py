"""Quotas: what a team's rounds may use of a cohort's budget, decided like the budget itself.

A quota is a chain beside its cohort's, of policy `adaptive`, with the quota as epsilon and the cohort's
delta. A team's round is charged to its cohorts and to the quotas that its team has in them, in one commit.
That refuses more, and admits nothing that the cohort's own budget would not, so the cohort's promise does not
rest on it. Source: docs/decisions/0018-quotas-and-ceilings.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from shuffle_ledger.accounting import NUMERICAL_POLICY, share_of_budget
from shuffle_ledger.ledger.answers.budgets import QuotaReading
from shuffle_ledger.ledger.decisions.budget_changes import change_budget, check_quota
from shuffle_ledger.ledger.decisions.windows import NOTHING_KNOWN, with_windows
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.quotas import Quota, has_room
from shuffle_ledger.ledger.values.requests import (
    POLICY_ADAPTIVE,
    REASON_LENGTH_MAX,
    Cohort,
    RoundRequest,
    checked_epsilon,
    epsilon_left,
)
from shuffle_ledger.ledger.values.texts import checked_text


def with_budgets(
    store: Store,
    request: RoundRequest,
    *,
    is_new: bool = False,
    known: Mapping[str, CohortView] = NOTHING_KNOWN,
) -> RoundRequest:
    """Return a request with all that it is charged to beside its cohorts: periods of windows, and quotas.

    Opens nothing. A request that is repeated is charged to what it was registered with. Arguments, and
    errors, are those of `with_windows`.
    """
    if request.team is not None:
        request = _with_quotas(store, request, is_new=is_new, known=known)
    return with_windows(store, request, is_new=is_new, known=known)


def set_quota(
    store: Store, cohort: str, *, team: str, epsilon: float, reason: str, actor: str
) -> QuotaReading:
    """Set what a team's rounds may use of a cohort's budget from now on; return what of it is used.

    The team's rounds so far count if it had a quota before; a first quota begins with the next round. A quota
    below what is used refuses all that costs anything.

    Raises:
        NotFound: no such cohort.
        InvalidValue: a team, reason or epsilon that cannot be one, or more than the cohort's budget; or the
            cohort is itself a part of one.
        Conflict: the cohort has no budget of its life.
        TryAgain, Unavailable: as `change_budget`.
    """
    actor = checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    epsilon = checked_epsilon(epsilon)
    parent = store.cohort(checked_text("cohort", cohort))
    if parent.parent is not None:
        raise InvalidValue(
            field="cohort", value=cohort, expected=f"{parent.parent!r}, of which this is a part"
        )
    quota = Quota(cohort=parent.name, team=team)
    check_quota(parent, epsilon)
    try:
        now = store.cohort(quota.name)
    except NotFound:
        _open(store, parent, quota, epsilon, reason=reason, actor=actor)
        return _reading(store, parent, quota)
    if now.epsilon_budget != epsilon:
        change_budget(store, quota.name, epsilon=epsilon, reason=reason, actor=actor)
    return _reading(store, parent, quota)


def quotas_of(store: Store, cohort: str) -> tuple[QuotaReading, ...]:
    """Return the quotas that teams have in a cohort, in the order of the teams; raises NotFound."""
    parent = store.cohort(checked_text("cohort", cohort))
    return tuple(_reading(store, parent, quota) for quota in store.quotas_of(parent.name))


def _with_quotas(
    store: Store, request: RoundRequest, *, is_new: bool, known: Mapping[str, CohortView]
) -> RoundRequest:
    if not is_new:
        with contextlib.suppress(NotFound):
            registered = RoundRequest.from_bytes(store.round(request.round_id).content)
            if registered.team in (None, request.team):
                return dataclasses.replace(request, team=registered.team, quotas=registered.quotas)
    team = request.team or ""
    # Cohorts that are not stored have no quotas.
    stored = [name for name in request.members if name not in known or known[name].cohort.opened_at]
    wanted = [Quota(cohort=name, team=team).name for name in stored if has_room(name, team)]
    found = store.cohorts(only=wanted) if wanted else []
    return dataclasses.replace(request, quotas=tuple(each.name for each in found))


def _open(store: Store, parent: Cohort, quota: Quota, epsilon: float, *, reason: str, actor: str) -> None:
    cohort = Cohort(
        name=quota.name,
        population=parent.population,
        epsilon_budget=epsilon,
        delta_budget=parent.delta_budget,
        policy=POLICY_ADAPTIVE,
        quota=quota,
    )
    share = registry.approximate_share_of(store.opening(parent))
    rules = {"reason": reason, **registry.policy_for(cohort, approximate_share=share).opening()}
    store.open_cohorts([(cohort, rules)], actor=actor, numerical_policy=NUMERICAL_POLICY, parents=[parent])


def _reading(store: Store, parent: Cohort, quota: Quota) -> QuotaReading:
    view = store.view(quota.name)
    epsilon, used = view.cohort.epsilon_budget, view.spent.epsilon_upper
    is_open = parent.status == view.cohort.status == "open"
    return QuotaReading(
        team=quota.team,
        budget=quota.name,
        epsilon=epsilon,
        epsilon_used_upper=used,
        epsilon_remaining=epsilon_left(epsilon, used) if is_open else 0.0,
        rounds=view.spent.rounds,
        share=share_of_budget(epsilon, whole=parent.epsilon_budget, delta=parent.delta_budget),
    )
