"""Verification: replays every chain, computes the numbers again, and reports what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeAlias

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.errors import Damaged, LedgerError, TryAgain, Unavailable
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import CohortStatus
from shuffle_ledger.ledger.values.saved_heads import SavedHead, SavedHeads, Signature, heads_by_cohort
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.verification.feed_order import moved_ahead
from shuffle_ledger.ledger.verification.number_checks import NumberChecks, Numbers
from shuffle_ledger.ledger.verification.replay import PROBLEMS_MAX, Problem, Replay
from shuffle_ledger.ledger.verification.sibling_chains import siblings_in
from shuffle_ledger.ledger.verification.siblings import JointRounds
from shuffle_ledger.ledger.verification.table_comparison import compare_tables

LOSSES_NAMED_MAX = 20  # stored privacy losses that were changed
TELL_EVERY = 500  # entries between two words about how far a replay is

Tell: TypeAlias = Callable[[str, int, int], None]  # what, how many are done, of how many


@dataclass(frozen=True, kw_only=True)
class CohortVerification:
    """What verification found in one cohort."""

    cohort: str
    ok: bool
    entries: int
    head_sequence: int
    head_digest: str  # hexadecimal
    numbers_checked: int  # entries whose certificate was computed again
    problems: tuple[Problem, ...]  # the first bad entry first
    status: (
        CohortStatus | None
    )  # by the chain's entries; overspent is no problem of the chain; None: unreadable


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The heads with which the chains were compared."""

    heads: int
    signature: Signature
    public_key: str | None  # hexadecimal; None: the heads are not signed
    ledger_id: str | None
    created_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class VerificationReport:
    """What verification found."""

    ok: bool
    problems: tuple[str, ...]  # of the ledger as a whole
    cohorts: tuple[CohortVerification, ...]
    against: Comparison | None


def verify(
    store: Store,
    accountant: Accountant,
    cohort: str | None = None,
    *,
    against: SavedHeads | None = None,
    numbers: Numbers = "sampled",
    progress: Tell | None = None,
) -> VerificationReport:
    """Replay the chains of one cohort or of all, and compute their numbers again.

    Always checked: every digest, link and column, holdings, rounds, stored losses, and the certificate at
    every point where a cohort's spending was largest (before a round is closed or corrected, and at the end).
    With `numbers="all"` every certificate is computed again, else also an even sample.

    **Guarantee**: a change to any byte of any entry, an entry removed, added or moved, is named, unless the
    rest of the chain was rewritten to fit; of a round of several cohorts, unless the chains of all of them
    were. Heads kept elsewhere (`against`, see `values.saved_heads`)
    name that too, and a database that was put back to an earlier state. A verification of all cohorts also
    names decisions and incidents that were moved far ahead in the feed, see `feed_order`.

    `progress` gets the chain that is replayed with the number of its replayed entries, the number of chains
    that are done, and the number of all chains.

    Raises:
        NotFound: no such cohort.
        TryAgain, Unavailable: the database cannot be read now, which says nothing about the ledger.
    """
    saved = heads_by_cohort(against)
    if cohort is not None:
        names = [store.cohort(checked_text("cohort", cohort)).name]
        saved = {name: heads for name, heads in saved.items() if name in names}
    else:
        names = store.cohort_names()
    chains: dict[str, JointRounds] = {}
    found = []
    for place, name in enumerate(names):
        tell = None if progress is None else partial(_tell, progress, name, place, len(names))
        run = _ChainVerification(store=store, accountant=accountant, numbers=numbers, tell=tell)
        found.append(run.judged(name, saved.get(name, ()), chains))
    found = [_with_siblings(store, each, chains) for each in found]
    found += [_missing(name) for name in sorted(set(saved) - set(names))]
    problems = tuple(_problems_of_the_whole(store, against))
    if cohort is None:
        problems += tuple(_changed_losses(store))
        problems += tuple(moved_ahead(store))
    return VerificationReport(
        ok=not problems and all(each.ok for each in found),
        problems=problems,
        cohorts=tuple(found),
        against=_comparison(against) if against else None,
    )


def without_names(problem: str) -> str:
    """Return what was found in a chain; where it names a cohort, only at which of the chain's entries."""
    names_one = any(f"cohort {quote}" in problem for quote in "'\"")
    return problem.partition(": ")[0] if names_one else problem


def _tell(progress: Tell, name: str, place: int, count: int, replayed: int) -> None:
    progress(f"{name}: {replayed:,} entries replayed", place, count)


def _problems_of_the_whole(store: Store, against: SavedHeads | None) -> Iterator[str]:
    try:
        ledger_id = store.ledger_id()
    except (TryAgain, Unavailable):
        raise
    except LedgerError as error:
        yield str(error)
        return
    if against and against.checkpoint and against.checkpoint.ledger_id != ledger_id:
        yield f"the checkpoint is of ledger {against.checkpoint.ledger_id}, this is ledger {ledger_id}"


def _changed_losses(store: Store) -> Iterator[str]:
    """Yield which stored privacy losses no longer have the bytes that they were stored with.

    A planted one whose digest fits is found by the entry that names it, if any does, and every decision that
    reads it leaves it out.
    """
    found = 0
    for stored in store.losses():
        try:
            loss_cache.checked(stored)
        except (Damaged, TypeError) as error:
            found += 1
            if found > LOSSES_NAMED_MAX:
                return
            yield str(error)


def _comparison(against: SavedHeads) -> Comparison:
    checkpoint = against.checkpoint
    return Comparison(
        heads=len(against.heads),
        signature=against.signature,
        public_key=checkpoint.public_key.hex() if checkpoint else None,
        ledger_id=checkpoint.ledger_id if checkpoint else None,
        created_at=checkpoint.created_at if checkpoint else None,
    )


def _with_siblings(
    store: Store, found: CohortVerification, chains: Mapping[str, JointRounds]
) -> CohortVerification:
    """Return what was found of a cohort, with what its chain says otherwise than those of the same rounds."""
    if found.cohort not in chains:
        return found
    problems = found.problems + tuple(siblings_in(store, found.cohort, chains))
    return replace(found, ok=not problems, problems=problems[:PROBLEMS_MAX])


@dataclass(frozen=True, kw_only=True)
class _ChainVerification:
    """The verification of one cohort."""

    store: Store
    accountant: Accountant
    numbers: Numbers
    tell: Callable[[int], None] | None = None  # how many entries were replayed

    def judged(
        self, name: str, saved: Iterable[SavedHead], chains: dict[str, JointRounds]
    ) -> CohortVerification:
        """Return what was found; adds the chain to `chains`."""
        try:
            return self._verified(name, saved, chains)
        except (TryAgain, Unavailable):
            raise  # says nothing about the cohort
        except (LedgerError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # SQLite accepts any value in any column, so reading can fail anywhere. All that is known of this
            # cohort is that it was damaged.
            return _unreadable(name, f"its rows cannot be read: {error}")

    def _verified(
        self, name: str, saved: Iterable[SavedHead], chains: dict[str, JointRounds]
    ) -> CohortVerification:
        replay = Replay(store=self.store, cohort=name, kept=saved)
        checker = NumberChecks(
            replay=replay,
            losses=LossSource(store=self.store, accountant=self.accountant, keep=False),
            accountant=self.accountant,
            numbers=self.numbers,
            length=sum(self.store.count_entries(name).values()),
        )
        for number, step in enumerate(replay.steps(self.store.entries_of(name))):
            if self.tell is not None and number % TELL_EVERY == 0:
                self.tell(number)
            checker.see(step)
        # Entries may have been written meanwhile: the last ones are read with the tables, of one moment.
        beside = self.store.beside(name, after=replay.head_sequence)
        for step in replay.steps(beside.entries):
            checker.see(step)
        checker.finish()
        compare_tables(replay, self.store, beside)
        chains[name] = replay.fold.joint
        replay.miss_kept()
        problems = tuple(sorted(replay.problems, key=lambda problem: problem.sequence or math.inf))
        return CohortVerification(
            cohort=name,
            ok=not problems,
            entries=replay.entries,
            head_sequence=replay.head_sequence,
            head_digest=replay.head_digest.hex(),
            numbers_checked=checker.checked,
            problems=problems,
            status=replay.fold.status,
        )


def _missing(name: str) -> CohortVerification:
    return _unreadable(name, "a head was saved of this cohort, which is missing")


def _unreadable(name: str, what: str) -> CohortVerification:
    problem = Problem(sequence=None, what=what)
    return CohortVerification(
        cohort=name,
        ok=False,
        entries=0,
        head_sequence=0,
        head_digest="",
        numbers_checked=0,
        problems=(problem,),
        status=None,
    )
