"""Rehearsals: the decisions about many rounds, one after the other, without writing to the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger.decisions import (
    open_cohort,
    quote_next,
    views_of,
    with_budgets,
)
from shuffle_ledger.ledger.storage import CohortView, Store, initialise
from shuffle_ledger.ledger.values import Cohort, Quote, RefusalReason, RoundRequest


def rehearsed(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], opening: Sequence[Cohort]
) -> Iterator[Quote]:
    """Yields the answer that each round would get now, if those before it were registered in this order.

    Of a refused round of several cohorts, the reason is the one in the first cohort's entry.

    Args:
        store: the ledger; nothing is written.
        accountant: computes with the ledger's precision.
        requests: new rounds.
        opening: cohorts that are not open yet. They are opened in a temporary ledger.
    """
    new = {cohort.name for cohort in opening}
    with _temporary_ledger(accountant, opening) as temporary:
        views: dict[str, CohortView] = {}
        for request in requests:
            home = temporary if _is_new(request, new) else store
            placed = with_budgets(home, request, is_new=True)
            if not set(placed.cohorts) <= views.keys():
                views = {view.cohort.name: view for view in views_of(home, placed)} | views
            answer, after = quote_next(home, accountant, [views[name] for name in placed.cohorts], placed)
            views |= {view.cohort.name: view for view in after}
            yield _as_decided(placed, answer)


def _as_decided(request: RoundRequest, answer: Quote) -> Quote:
    """Returns a quote with the reason that a decision about its round would name: the first cohort's."""
    refusing = [one.cohort for one in answer.refused_by]
    if not refusing or request.cohorts[0] in refusing:
        return answer
    return replace(answer, reason=RefusalReason.REFUSED_ELSEWHERE)


def _is_new(request: RoundRequest, opening: Collection[str]) -> bool:
    """Returns whether the cohorts of a round are still to be opened; raises BadValue if only some are."""
    new = [name for name in request.members if name in opening]
    if new and len(new) < len(request.members):
        expected = f"cohorts of which all are open, or none: {', '.join(new)} would be opened by this import"
        raise BadValue("audience", ",".join(request.members), f"for --dry-run {expected}")
    return bool(new)


@contextmanager
def _temporary_ledger(accountant: Accountant, opening: Sequence[Cohort]) -> Iterator[Store]:
    with TemporaryDirectory(prefix="shuffle-ledger-") as folder:
        url = f"sqlite:///{Path(folder) / 'rehearsal.db'}"
        initialise(url)
        with Store.connect(url) as temporary:
            for cohort in opening:
                open_cohort(
                    temporary,
                    name=cohort.name,
                    population=cohort.population,
                    epsilon=cohort.epsilon_budget if cohort.has_life else None,
                    delta=cohort.delta_budget if cohort.has_life else None,
                    windows=cohort.windows,
                    policy=cohort.policy,
                    actor="rehearsal",
                    plan=None,
                    accountant=accountant,
                )
            yield temporary
