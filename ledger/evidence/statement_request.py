"""The request for a statement: the same on the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.errors import DoesNotExtend, NotFound
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import AsOf, Progress, make_statement
from shuffle_ledger.ledger.storage.store import Store


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
        progress: Progress | None = None,
    ) -> Statement:
        """Return the statement, without signed heads.

        Raises:
            DoesNotExtend: a kept head is beyond the end of its chain; or the statement is about all cohorts,
                and the head's chain is not there, or is that of a part of a cohort and has another entry.
            Exception: what `evidence.statement_builder.make_statement` raises.
        """
        names = cohort_names(store, self.cohorts, parts=False)
        self._check_kept(store, names)
        changes = {name: head.sequence for name, head in self.kept}
        return make_statement(
            store,
            accountant,
            names,
            made_at=made_at,
            as_of=self.as_of,
            since=changes if self.since is None else dict.fromkeys(names, self.since),
            kept_heads=self.kept,
            progress=progress,
        )

    def _check_kept(self, store: Store, names: Sequence[str]) -> None:
        """Compare the kept heads with what no statement of a cohort looks at."""
        here = {cohort.name for cohort in store.cohorts_among({name for name, _ in self.kept}, parts=True)}
        stated = set(names)
        for name, head in self.kept:
            message = f"entry {head.sequence} of cohort {name!r} was kept elsewhere as a head,"
            is_stated = name in stated
            if not is_stated and self.cohorts is not None:
                continue
            if name not in here:
                raise DoesNotExtend(f"{message} and this ledger has no such cohort")
            try:
                digest = store.entry(name, head.sequence).digest.hex()
            except NotFound:
                raise DoesNotExtend(f"{message} and its chain ends before it") from None
            if not is_stated and digest != head.digest:
                raise DoesNotExtend(f"{message} and the ledger has another one in its place")


def cohort_names(store: Store, cohorts: tuple[str, ...] | None, *, parts: bool = True) -> tuple[str, ...]:
    """Return the cohorts that are meant; where none is named all, with periods and quotas or without."""
    return tuple(each.name for each in store.cohorts(parts=parts)) if cohorts is None else cohorts
