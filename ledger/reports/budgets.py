"""What an analyst or an auditor reads: a cohort's budget, its history, the heads of all chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from shuffle_ledger.accounting import (
    Accountant,
    FilterReading,
    ShuffledRound,
)
from shuffle_ledger.ledger.answers.budgets import (
    BudgetStatement,
    Closure,
    PromiseReading,
    WindowReading,
)
from shuffle_ledger.ledger.answers.heads import Head, StoredHead
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.decisions.windows import views_booked, views_on, why_refused_on
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.reports.forecasts import by_frequency, what_fits
from shuffle_ledger.ledger.reports.listing import closure_of, view_now
from shuffle_ledger.ledger.reports.promises import promise_reading, renewals
from shuffle_ledger.ledger.storage.rows import CohortView, StoredHolding
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import Cohort, openness
from shuffle_ledger.ledger.values.saved_heads import HEADS_FORMAT
from shuffle_ledger.ledger.values.texts import checked_text

HEADS_AT_ONCE = 1000  # that are read at a time to find those that a reader may know of


@dataclass(frozen=True, kw_only=True)
class HistoryPoint:
    """One entry, with the running total: what a plot of a cohort over time needs."""

    sequence: int
    kind: EntryKind
    round_id: str | None
    actor: str
    recorded_at: datetime
    collected_on: date | None  # of admitted and refused rounds, if it was given
    use_case: str | None
    epsilon_spent_upper: float  # after the entry
    epsilon_spent_lower: float
    epsilon_requested_upper: float | None  # of a refused round: the total it asked for
    reason: str | None  # of a refused or voided round


def budget(
    store: Store, accountant: Accountant, cohort_name: str, *, on: date | None = None
) -> BudgetStatement:
    """Return the budgets of a cohort for a round that is collected on a day (in UTC; None: today).

    The spending is that of the last entries. If filters decide, the composition of the rounds held is
    computed too, for comparison. Local sums run over every admitted round, voided ones included: their
    reports may have been sent.

    Raises:
        NotFound: no such cohort.
        InvalidValue: no window has a period on that day.
        BehindCheckpoint: more was spent than the ledger knows.
    """
    name = checked_text("cohort", cohort_name)
    view, closure = _view_now(store, name)
    today, day = view.now.date(), on or view.now.date()
    periods = _now(_periods_on(store, view, day), closure)
    binding = [*([view] if view.cohort.has_life else []), *periods]
    least = _least(binding)
    kinds = store.count_entries(name)
    seen = {_round(item): item.local_count for item in store.holdings(name)}
    local_epsilon_upper, local_delta_upper = local_bounds(seen.items())
    cohort, spent = view.cohort, least.spent
    policy, deciding = (registry.policy_of(store, each) for each in (view, least))
    losses = LossSource(store=store, accountant=accountant, keep=False)
    composed = deciding.composition(losses, least)
    found = BudgetStatement(
        cohort=cohort.name,
        population=cohort.population,
        policy=cohort.policy,
        status=cohort.status,
        budget=least.cohort.name,
        epsilon_budget=least.cohort.epsilon_budget,
        delta_budget=least.cohort.delta_budget,
        epsilon_spent_upper=spent.epsilon_upper,
        epsilon_spent_lower=spent.epsilon_lower,
        epsilon_remaining=_remaining(least),
        epsilon_error_discretization=spent.discretization,
        epsilon_error_truncation=spent.truncation,
        epsilon_error_round_off=spent.round_off,
        method=spent.method,
        decided_by=deciding.decided_by,
        slots=policy.slots(view),
        epsilon_promised_upper=policy.promised(view) if policy.slots(view) else None,
        filters=deciding.readings(least),
        delta_accounts=deciding.delta_accounts(least),
        composition_epsilon_upper=composed.epsilon_upper,
        composition_epsilon_lower=composed.epsilon_lower,
        promises=_promises(store, view.cohort, [each for each in binding if each.cohort.quota is None]),
        on=day,
        booked=_promises(store, view.cohort, _now(views_booked(store, view, max(day, today)), closure)),
        windows=_windows(view.cohort, periods),
        fits=what_fits(losses, view, by_frequency(seen), on=day),
        numerical_policy=store.entry(name, view.head_sequence).content().numerical_policy,
        local_epsilon_upper=local_epsilon_upper,
        local_delta_upper=local_delta_upper,
        local_budget=cohort.local_budget,
        rounds_admitted=kinds.get(EntryKind.ADMITTED, 0),
        rounds_refused=kinds.get(EntryKind.REFUSED, 0),
        rounds_settled=kinds.get(EntryKind.SETTLED, 0),
        rounds_voided=kinds.get(EntryKind.VOIDED, 0),
        rounds_pending=store.count_pending(name),
        opened_at=_opened(cohort.opened_at),
        head=Head(sequence=view.head_sequence, digest=view.head_digest.hex()),
        closure=closure,
        today=today,
        on_refused=why_refused_on(day, today) if cohort.windows else None,
    )
    return _of_lost(found) if cohort.status == "frozen" else found


def _periods_on(store: Store, view: CohortView, day: date) -> list[CohortView]:
    """Return the periods of a cohort's windows on a day; raises InvalidValue, about `on`."""
    try:
        return views_on(store, view, day)
    except InvalidValue as error:
        raise InvalidValue(field="on", value=day.isoformat(), expected=error.expected) from error


def _view_now(store: Store, name: str) -> tuple[CohortView, Closure | None]:
    view = store.view(name)
    closure = closure_of(store, view.cohort)
    store.check_anchor()  # now: the connection may have been opened for this
    return _now([view], closure)[0], closure


def _now(views: Sequence[CohortView], closure: Closure | None) -> list[CohortView]:
    return [view_now(view, is_closed=closure is not None) for view in views]


def _of_lost(found: BudgetStatement) -> BudgetStatement:
    """Return the budget of a cohort that lost entries: no number that leaves out what was lost is a bound."""
    return replace(
        found,
        filters=unknown_readings(found.filters),
        delta_accounts=None,
        composition_epsilon_upper=math.inf,
        local_epsilon_upper=math.inf,
        local_delta_upper=1.0,
    )


def unknown_readings(filters: Iterable[FilterReading]) -> tuple[FilterReading, ...]:
    """Return what filters say of a chain that lost entries: they hold at no epsilon that is known."""
    return tuple(replace(each, epsilon_upper=math.inf) for each in filters)


def _promises(store: Store, cohort: Cohort, views: Sequence[CohortView]) -> tuple[PromiseReading, ...]:
    """Return what is used and left of a cohort's life and periods, given their views."""
    declared = (
        store.cohort(cohort.parent) if cohort.parent else cohort
    )  # a period has the windows of its cohort
    windows = {window.kind: window for window in declared.windows}
    periods = [each.cohort.period for each in views if each.cohort.period is not None]
    renews = renewals(store, [(windows[each.kind], each) for each in periods])
    return tuple(_promise(each, renews.get(each.cohort.name)) for each in views)


def _promise(view: CohortView, renews: date | None) -> PromiseReading:
    cohort = view.cohort
    return promise_reading(
        budget=cohort.name,
        period=cohort.period,
        status=cohort.status,
        epsilon_budget=cohort.epsilon_budget,
        delta_budget=cohort.delta_budget,
        epsilon_spent_upper=view.spent.epsilon_upper,
        renews=renews,
    )


def _windows(cohort: Cohort, views: Sequence[CohortView]) -> tuple[WindowReading, ...]:
    """Return what is spent and left of each window of a cohort, given the views of a day's periods."""
    found = []
    for window in cohort.windows:
        of_kind = [each for each in views if each.cohort.period and each.cohort.period.kind == window.kind]
        least = _least(of_kind)
        if least.cohort.period is None:
            raise AssertionError("a view of a period")
        found.append(
            WindowReading(
                window=window,
                period=least.cohort.period,
                status=least.cohort.status,
                epsilon_spent_upper=least.spent.epsilon_upper,
                epsilon_remaining=_remaining(least),
            )
        )
    return tuple(found)


def _least(views: Sequence[CohortView]) -> CohortView:
    """Return the chain whose budget has the least left; of several with nothing left, the one with the worst
    status."""
    return min(views, key=lambda view: (_remaining(view), openness(view.cohort.status)))


def _remaining(view: CohortView) -> float:
    """Return what a chain's budget has left: nothing, where it admits nothing any more."""
    return view.cohort.remaining(view.spent.epsilon_upper) if view.cohort.status == "open" else 0.0


def history(store: Store, cohort_name: str) -> Iterator[HistoryPoint]:
    """Yield a cohort's entries in order, with the running total; raises NotFound, Damaged."""
    for entry in store.entries_of(store.cohort(checked_text("cohort", cohort_name)).name):
        yield history_point(entry.content())


def history_point(body: EntryBody) -> HistoryPoint:
    """Return one entry as `history` lists it."""
    details = body.details
    requested = details.get("requested") if body.kind is EntryKind.REFUSED else None
    return HistoryPoint(
        sequence=body.sequence,
        kind=body.kind,
        round_id=body.round_id,
        actor=body.actor,
        recorded_at=body.recorded_at,
        collected_on=collected_on(body),
        use_case=details.get("request", {}).get("use_case"),
        epsilon_spent_upper=body.spent.epsilon_upper,
        epsilon_spent_lower=body.spent.epsilon_lower,
        epsilon_requested_upper=requested["epsilon_upper"] if requested else None,
        reason=details.get("reason"),
    )


def heads(store: Store) -> dict[str, Any]:
    """Return the heads of all cohorts as a JSON-able value to keep elsewhere (`audit verify --against`)."""
    return _heads_document(store.heads())


def heads_page(
    store: Store, *, after: str, limit: int, sees: Callable[[str], bool] | None = None
) -> dict[str, Any]:
    """Return a page of what `heads` returns, and `after`: the name to go on behind, None at the end.

    Args:
        store: the ledger. Each page is of another moment.
        after: only cohorts whose names are behind this one.
        limit: how many at most.
        sees: whether the reader may know of a cohort; others are left out. None: of every one.
    """
    size, found = (limit + 1 if sees is None else HEADS_AT_ONCE), list[StoredHead]()
    while len(found) <= limit:
        page = store.heads(after=after, limit=size)
        found += page if sees is None else (head for head in page if sees(head.cohort))
        if len(page) < size:
            break
        after = page[-1].cohort
    more = found[limit - 1].cohort if len(found) > limit else None
    return {**_heads_document(found[:limit]), "after": more}


def _heads_document(found: Iterable[StoredHead]) -> dict[str, Any]:
    listed = [
        {"cohort": head.cohort, "sequence": head.sequence, "digest": head.digest.hex()} for head in found
    ]
    return {"format": HEADS_FORMAT, "heads": listed}


def _round(item: StoredHolding) -> ShuffledRound:
    return ShuffledRound.from_mapping(canonical.decode(item.parameters))


def _opened(moment: datetime | None) -> datetime:
    if moment is None:
        raise AssertionError("a stored cohort has the moment it was opened")
    return moment
