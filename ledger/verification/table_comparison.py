"""Compares what a chain implies with the tables that are kept beside it."""

from __future__ import annotations

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.errors import LedgerError, NotFound
from shuffle_ledger.ledger.storage.rows import Beside, CohortView, StoredRound, declared_bytes
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import DECLARED, RoundRequest, request_digest
from shuffle_ledger.ledger.verification.fold import request_and_actor
from shuffle_ledger.ledger.verification.replay import Replay

MISPLACED_MAX = 20  # entries that are named


def compare_tables(replay: Replay, store: Store, beside: Beside) -> None:
    """Compare what the chain implies with the tables kept beside it.

    Args:
        replay: of the whole chain, up to the last of the entries in `beside`.
        store: the ledger.
        beside: the chain's head and holdings, of the moment of its last entry.
    """
    _compare_head(replay, beside.view)
    _compare_clock(replay, store, beside.view)
    for sequence in store.positions.misplaced(replay.cohort, limit=MISPLACED_MAX):
        replay.blame(sequence, "its place in the feed of events is not behind that of the entry before it")
    if replay.head_body and beside.used_share != _used_share(replay.head_body):
        replay.blame(None, "the head says another used share of the budget than its last entry")
    counts = dict(beside.counts)
    if replay.readable and counts != dict(replay.kinds):
        replay.blame(None, f"the head counts {counts}, its entries are {dict(replay.kinds)}")
    if replay.readable:
        _compare_holdings(replay, beside)
        _compare_rounds(replay, store)
    _compare_losses(replay, store)


def _used_share(body: EntryBody) -> float | None:
    """Return the used share that an entry says; None if its numbers have none."""
    try:
        return body.used_share
    except (TypeError, ZeroDivisionError):
        return None


def _compare_rounds(replay: Replay, store: Store) -> None:
    seen, folded = set(), replay.fold.rounds
    for stored in store.rounds_of(replay.cohort):
        seen.add(stored.round_id)
        _compare_round(replay, store, stored)
    missing = store.missing_rounds(replay.cohort)
    for round_id in missing.unlisted:
        replay.blame(None, f"round {round_id!r}: it is not in the list of registrations, or differs there")
    for round_id in missing.rows:
        if round_id not in folded:
            replay.blame(None, f"round {round_id!r}: it was registered, pending, and its row is missing")
    for round_id in sorted(set(replay.fold.rounds) - seen):
        replay.blame(
            replay.fold.rounds[round_id].sequence, f"round {round_id!r}: its registered row is missing"
        )


def _compare_head(replay: Replay, view: CohortView | LedgerError) -> None:
    if isinstance(view, LedgerError):
        replay.blame(None, f"the head cannot be read: {view}")
        return
    if (view.head_sequence, view.head_digest) != (replay.head_sequence, replay.head_digest):
        replay.blame(
            None,
            f"the head names entry {view.head_sequence}, the chain ends with entry {replay.head_sequence}",
        )
    cohort, body = view.cohort, replay.head_body
    if body and (cohort.epsilon_budget, cohort.delta_budget) != (body.epsilon_budget, body.delta_budget):
        replay.blame(None, "the cohort's row has another budget than its last entry")
    if replay.fold.opened is not None:
        details = replay.fold.opened.details
        stated = (details.get("population"), details.get("policy"), replay.fold.opened.recorded_at)
        is_same = stated == (cohort.population, cohort.policy, cohort.opened_at)
        declared = {name: canonical.encode(details[name]) for name in DECLARED if name in details}
        if not is_same or declared != declared_bytes(cohort):
            replay.blame(None, "the cohort's row differs from the entry that opened it")
    if replay.readable and cohort.status != replay.fold.status:
        replay.blame(None, f"the cohort's row says {cohort.status!r}, its entries do not")


def _compare_clock(replay: Replay, store: Store, view: CohortView | LedgerError) -> None:
    """Blame the last entry if it is of a moment to come, which no clock that was right has shown."""
    if isinstance(view, LedgerError):
        return
    if said := store.clocks.behind(view.at, view.recorded_at, what="the chain"):
        replay.blame(replay.head_sequence, f"it was recorded at a moment to come: {said}")


def _compare_holdings(replay: Replay, beside: Beside) -> None:
    expected = {
        entries.round_digest(entries.round_bytes(accounted)): (replay.fold.held[accounted], count)
        for accounted, count in _with_held(replay).items()
    }
    for item in beside.holdings:
        if entries.round_digest(item.parameters) != item.accounted_digest:
            replay.blame(None, f"accounted round {item.accounted_digest.hex()}: its parameters were changed")
        if expected.pop(item.accounted_digest, (0, 0)) != (item.count, item.local_count):
            replay.blame(None, f"holding {item.accounted_digest.hex()} is not what the entries add up to")
    for digest, counts in expected.items():
        if counts != (0, 0):
            replay.blame(None, f"holding {digest.hex()} is missing")


def _with_held(replay: Replay) -> dict[ShuffledRound, int]:
    return {accounted: replay.fold.local[accounted] for accounted in {*replay.fold.local, *replay.fold.held}}


def _compare_round(replay: Replay, store: Store, stored: StoredRound) -> None:
    name = f"round {stored.round_id!r}"
    if request_digest(stored.content) != stored.content_digest:
        replay.blame(stored.outcome_sequence, f"{name}: its registered content was changed")
    quoted = request_and_actor(stored.content, stored.registered_by)
    folded = replay.fold.rounds.get(stored.round_id)
    is_quoted = folded is not None and folded.quoted == quoted
    _compare_shared(replay, store, stored, name, is_quoted=is_quoted)
    linked: tuple[int | None, int | None] = (stored.outcome_sequence, stored.closing_sequence)
    expected = (None, None) if folded is None else (folded.sequence, folded.closed_by)
    if linked != expected:
        linked = _without_newer(linked, store, replay, stored.round_id)
    if linked != expected:
        replay.blame(None, f"{name}: its row refers to entries {linked}, the chain has {expected}")
    if folded is None or linked != expected:
        return
    if not is_quoted:
        replay.blame(stored.outcome_sequence, f"{name}: its entry quotes another request than was registered")
    if folded.registered != (stored.registration, canonical.spelled_moment(stored.registered_at)):
        replay.blame(stored.outcome_sequence, f"{name}: its row says otherwise when it was registered")


def _compare_shared(replay: Replay, store: Store, stored: StoredRound, name: str, *, is_quoted: bool) -> None:
    """Blame a row that says wrongly whether the round is listed by another row, of its first cohort.

    Args:
        replay: of the chain.
        store: the ledger.
        stored: the row.
        name: of the round.
        is_quoted: an entry quotes the row's request, so that it can be read.
    """
    if is_quoted and stored.round_id not in replay.fold.joint.rounds and not stored.shared:
        return  # of one chain: its only cohort is the first
    try:
        first = RoundRequest.from_bytes(stored.content).cohort
    except LedgerError as error:
        replay.blame(stored.outcome_sequence, f"{name}: its registered content cannot be read: {error}")
        return
    is_first = stored.cohort == first
    if is_first is not stored.shared:
        return
    # Where the first cohort was lost, the row of another one is the first that there is.
    if is_first or _has_row(store, first, stored.round_id):
        replay.blame(
            stored.outcome_sequence, f"{name}: its row says wrongly whether lists have it from another row"
        )


def _has_row(store: Store, cohort: str, round_id: str) -> bool:
    try:
        store.round_in(cohort, round_id)
    except NotFound:
        return False
    return True


def _without_newer(
    linked: tuple[int | None, int | None], store: Store, replay: Replay, round_id: str
) -> tuple[int | None, int | None]:
    """Return a row's links without those to entries that were written after the last replayed one."""

    def is_newer(sequence: int | None) -> bool:
        if not isinstance(sequence, int) or sequence <= replay.head_sequence:
            return False
        try:
            return store.entry(replay.cohort, sequence).round_id == round_id
        except NotFound:
            return False

    outcome, closing = (None if is_newer(sequence) else sequence for sequence in linked)
    return outcome, closing


def _compare_losses(replay: Replay, store: Store) -> None:
    for key, (sequence, digest) in replay.fold.losses.items():
        stored = store.loss(key)
        if stored is None:
            continue  # only a saving: without it the numbers are computed from the parameters
        actual = entries.loss_digest(stored.blob)
        if actual != stored.digest or actual.hex() != digest:
            replay.blame(sequence, "the stored privacy loss it was decided with was changed afterwards")
