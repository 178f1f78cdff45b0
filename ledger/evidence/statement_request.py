"""The request for a statement: the same on the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.errors import DoesNotExtend
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import AsOf, Progress, make_statement
from shuffle_ledger.ledger.reports.budgets import Head
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class StatementWanted:
    """Which cohorts, as of when, and what changed since which entry."""

    cohorts: tuple[str, ...] | None  # None: all
    as_of: AsOf = None
    since: int | None = None  # None: since the kept heads, where there are any
    kept: tuple[tuple[str, Head], ...] = ()  # heads that earlier statements or checkpoints were about

    def made(
        self,
        store: Store,
        accountant: Accountant,
        *,
        made_at: datetime,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Statement:
        """Return the statement.

        Raises:
            DoesNotExtend: it is about all cohorts, and one of the kept heads is of none of them.
            Exception: what `evidence.statement_builder.make_statement` raises.
        """
        names = cohort_names(store, self.cohorts, parts=False)
        if self.cohorts is None:
            _refuse_vanished(store, self.kept)
        changes = {name: head.sequence for name, head in self.kept}
        return make_statement(
            store,
            accountant,
            names,
            made_at=made_at,
            as_of=self.as_of,
            since=changes if self.since is None else dict.fromkeys(names, self.since),
            kept_heads=self.kept,
            checkpoint=checkpoint.to_json() if checkpoint is not None else None,
            progress=progress,
        )


def _refuse_vanished(store: Store, kept: Sequence[tuple[str, Head]]) -> None:
    sequences = {cohort: head.sequence for cohort, head in kept}
    here = {cohort.name for cohort in store.cohorts_among(sequences, parts=True)}
    for name in sorted(sequences.keys() - here):
        message = f"entry {sequences[name]} of cohort {name!r} was kept elsewhere as a head,"
        raise DoesNotExtend(f"{message} and this ledger has no such cohort")


def cohort_names(store: Store, cohorts: tuple[str, ...] | None, *, parts: bool = True) -> tuple[str, ...]:
    """Return the cohorts that are meant; where none is named all, with periods and quotas or without."""
    return tuple(each.name for each in store.cohorts(parts=parts)) if cohorts is None else cohorts
