"""Rehearsals: the decisions about many rounds, one after the other, without writing to the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import open_cohort, quote_next, views_of, with_budgets
from shuffle_ledger.ledger.storage import CohortView, Store, initialise
from shuffle_ledger.ledger.values import Cohort, Quote, RoundRequest


def rehearsed(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], opening: Sequence[Cohort]
) -> Iterator[Quote]:
    """Yields the answer that each round would get now, if those before it were registered in this order.

    Args:
        store: the ledger; nothing is written.
        accountant: computes with the ledger's precision.
        requests: new rounds of one cohort each.
        opening: cohorts that are not open yet. They are opened in a temporary ledger.
    """
    new = {cohort.name for cohort in opening}
    with _temporary_ledger(accountant, opening) as temporary:
        views: dict[str, CohortView] = {}
        for request in requests:
            home = temporary if request.cohort in new else store
            placed = with_budgets(home, request, is_new=True)
            if not set(placed.cohorts) <= views.keys():
                views = {view.cohort.name: view for view in views_of(home, placed)} | views
            answer, after = quote_next(home, accountant, [views[name] for name in placed.cohorts], placed)
            views |= {view.cohort.name: view for view in after}
            yield answer


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
                    epsilon=cohort.epsilon_budget,
                    delta=cohort.delta_budget,
                    policy=cohort.policy,
                    actor="rehearsal",
                    plan=None,
                    accountant=accountant,
                )
            yield temporary
