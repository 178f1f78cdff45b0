"""Upkeep: verification of chains in turn, and the health of the ledger for operators."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints
from shuffle_ledger.ledger.errors import BehindCheckpoint, Damaged, NotFound, TryAgain, Unavailable
from shuffle_ledger.ledger.files import shortage
from shuffle_ledger.ledger.storage.census import (
    census,
    clock_problems,
    complete_unverified,
    still_acknowledged,
    verified_before,
    write_problem,
)
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX, StoredVerification
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import webhook_counts
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.documents import Json, document_of
from shuffle_ledger.ledger.values.saved_heads import SavedHeads
from shuffle_ledger.ledger.verification.verifier import CohortVerification, verify

# The first word of every alarm, those of the broker included: docs/operations.md says what to do about each.
ALARMS = (
    "BROKEN",
    "OVERSPENT",
    "FROZEN",
    "STUCK",
    "WAITING",
    "UNVERIFIED",
    "CHECKPOINT",
    "DISK",
    "CLOCK",
    "BROKER",
    "WORKERS",
    "DEAD",
    "WEBHOOK",
)
NAMED_MAX = 20  # rounds and cohorts that an alarm names
CHAINS_NAMED_MAX = 3  # chains of one cohort that an alarm names: its own, and those of periods and quotas
WAITING_ALARM_SECONDS = 900.0  # three sweeps of an overdue round
WEBHOOK_ALARM_SECONDS = 900.0  # from the first of the failed attempts
VERIFIED_ALARM_SECONDS = 7 * 86_400.0  # since the last verification of a chain
# A second verifies thousands of entries, so a long chain takes 2 to 5 percent of the time of one core.
ENTRIES_PER_SECOND_OF_REST = 100
VERIFIED_AT_ONCE = 100  # cohorts whose names are read at a time
_OVERSPENT = (
    "OVERSPENT {}: the budget did not cover what was released or promised; nothing is admitted any more"
)
_FROZEN = "FROZEN {}: entries were lost, and what was spent is unknown"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Health:
    """What an operator looks at. Empty `alarms`: nothing to do."""

    at: datetime  # the database's clock
    alarms: tuple[str, ...]  # sentences, each beginning with a word of docs/operations.md
    rounds_pending: int  # without stuck ones
    rounds_stuck: int
    longest_wait_seconds: float
    cohorts: int  # without their periods and quotas
    cohorts_unverified: int  # not within the last week; periods and quotas, which have chains, count too
    cohorts_broken: int  # the last verification found something; likewise
    cohorts_overspent: int  # their promise is broken, or that of a period; each counts once
    cohorts_frozen: int  # what they have spent is unknown
    checkpointed_at: datetime | None  # the last checkpoint on a schedule; None: none, or there is no schedule
    webhooks_paused: int = 0  # subscriptions to which a message failed too often
    webhooks_failing: int = 0  # those, and subscriptions to which nothing could be sent for 15 minutes
    acknowledged: tuple[str, ...] = ()  # alarms that the operator's settings acknowledge
    workers: int | None = None  # workers that take rounds from the broker; None as for `queues`
    queues: Mapping[str, int] | None = None  # messages at the broker; None: no broker, or not asked


def health(
    store: Store,
    checkpoints: ScheduledCheckpoints | None = None,
    *,
    acknowledged: Mapping[str, int] | None = None,
) -> Health:
    """Return the state of decisions, verification, checkpoints and disks, with an alarm for each fault.

    Its cost does not grow with the length of any history.

    Args:
        store: the ledger.
        checkpoints: where checkpoints are written on a schedule; None: they are not looked at.
        acknowledged: the last entry that the operator knows of, by overspent or frozen cohort. Such a cohort
            is no alarm until it gets a later entry that is neither a refusal nor a void.
    """
    waiting = store.waiting()
    found = census(store.engine, unverified_seconds=VERIFIED_ALARM_SECONDS, names_max=NAMED_MAX)
    known = still_acknowledged(store.engine, acknowledged or {})
    alarms = [f"BROKEN {each.cohort}: {each.problem}" for each in found.broken]
    alarms += _of_status(_OVERSPENT, found.overspent, known)
    alarms += _of_status(_FROZEN, found.frozen, known)
    alarms += [
        f"STUCK {stuck.round_id} after {stuck.attempts} attempts: {stuck.last_error}"
        for stuck in store.stuck(limit=NAMED_MAX)
    ]
    if waiting.longest_seconds > WAITING_ALARM_SECONDS:
        alarms.append(
            f"WAITING {waiting.pending} rounds, the first for {waiting.longest_seconds:.0f} seconds"
        )
    if found.unverified.count:
        alarms.append(f"UNVERIFIED {found.unverified.count} cohorts: {', '.join(found.unverified.names)}")
    checkpointed_at, wrong = checkpoints.look(store, waiting.at) if checkpoints else (None, [])
    alarms += [f"CHECKPOINT {what}" for what in (*wrong, *_behind_anchor(store))]
    alarms += [f"DISK {what}" for what in _full_disks(store, checkpoints)]
    alarms += [f"CLOCK {what}" for what in _wrong_clocks(store)]
    webhooks = webhook_counts(store.engine, failing_seconds=WEBHOOK_ALARM_SECONDS)
    if webhooks.failing:
        paused = f", and {webhooks.paused} of them are paused" if webhooks.paused else ""
        alarms.append(f"WEBHOOK {webhooks.failing} subscriptions get nothing{paused}: webhook list says why")
    return Health(
        at=waiting.at,
        alarms=tuple(alarms),
        rounds_pending=waiting.pending,
        rounds_stuck=waiting.stuck,
        longest_wait_seconds=waiting.longest_seconds,
        cohorts=found.cohorts,
        cohorts_unverified=found.unverified.count,
        cohorts_broken=found.broken_count,
        cohorts_overspent=len(found.overspent),
        cohorts_frozen=len(found.frozen),
        checkpointed_at=checkpointed_at,
        webhooks_paused=webhooks.paused,
        webhooks_failing=webhooks.failing,
        acknowledged=tuple(f"{status.upper()} {name}" for name, status in sorted(known.items())),
    )


def verify_oldest(
    store: Store,
    accountant: Accountant,
    *,
    enough: Callable[[], bool],
) -> list[str]:
    """Verify cohorts, those whose verification is oldest first, until `enough()`; return their names.

    Each is verified at most once, its whole chain with a sample of its numbers, and the head that was good
    the last time must still be part of it. The findings are stored and logged. A chain that was good rests
    for a second for every `ENTRIES_PER_SECOND_OF_REST` entries, so that a long one takes a bounded share of
    the scheduler's time.

    Args:
        store: the ledger.
        accountant: computes numbers again.
        enough: whether no further cohort is begun.
    """
    complete_unverified(store.engine)
    began = store.now()
    done: list[str] = []
    while names := verified_before(store.engine, began, limit=VERIFIED_AT_ONCE):
        before = len(done)
        for name in names:
            last = _last_verification(store, name)
            if last is not None and _rests(last, began):
                continue
            _verify_one(store, accountant, name, last)
            done.append(name)
            if enough():
                return done
        if len(done) == before:
            break  # the chains that wait longest are long ones, and rest
    return done


def health_document(found: Health) -> dict[str, Json]:
    """Returns the state of a ledger, preceded by whether it is healthy (no alarm)."""
    fields = {field.name: document_of(getattr(found, field.name)) for field in dataclasses.fields(found)}
    return {"healthy": not found.alarms, **fields}


def retry(store: Store, round_id: str) -> None:
    """Let a stuck round be tried again, with all its attempts; raises NotFound."""
    if store.round(round_id).attempts >= ATTEMPTS_MAX:
        store.forget_failures(round_id)


def _of_status(sentence: str, found: Mapping[str, tuple[str, ...]], known: Collection[str]) -> list[str]:
    """Return an alarm for each of the first cohorts of a status, which names its chains that are not known,
    and one that counts the other cohorts."""
    unknown = [[chain for chain in chains if chain not in known] for chains in found.values()]
    named = [_named(chains) for chains in unknown if chains]
    more = [f"{len(named) - NAMED_MAX} more cohorts"] if len(named) > NAMED_MAX else []
    return [sentence.format(names) for names in [*named[:NAMED_MAX], *more]]


def _named(chains: Sequence[str]) -> str:
    """Return the first names of the chains of one cohort, and how many more there are."""
    more = len(chains) - CHAINS_NAMED_MAX
    listed = ", ".join(chains[:CHAINS_NAMED_MAX])
    return f"{listed} and {more} more of this cohort" if more > 0 else listed


def _behind_anchor(store: Store) -> list[str]:
    """Return why nothing is written, if the ledger lacks what its anchor has seen."""
    try:
        store.check_anchor()
    except BehindCheckpoint as error:
        return [str(error)]
    return []


def _wrong_clocks(store: Store) -> list[str]:
    """Return why nothing is written, of the first cohorts whose last moment is ahead of the clock."""
    found = clock_problems(store.engine, store.clocks)
    more = [f"{len(found) - NAMED_MAX} more cohorts"] if len(found) > NAMED_MAX else []
    return [*found[:NAMED_MAX], *more]


def _full_disks(store: Store, checkpoints: ScheduledCheckpoints | None) -> list[str]:
    """Return what keeps the database from being written, and which file systems here are nearly full."""
    refused = write_problem(store.engine)
    places = {checkpoints.directory.absolute()} if checkpoints else set()
    file = store.engine.url.database
    if store.engine.dialect.name == "sqlite" and file is not None:
        places.add(Path(file.removeprefix("file:").partition("?")[0]).absolute().parent)
    full = [shortage(place) for place in sorted(places)]
    return [what for what in (refused, *full) if what is not None]


def _last_verification(store: Store, name: str) -> StoredVerification | None:
    try:
        return store.verifications(only=[name]).get(name)
    except Damaged as error:  # SQLite takes any value: it must not keep other cohorts waiting
        _log.warning("what the last verification of cohort %s found cannot be read: %s", name, error)
        return None


def _rests(last: StoredVerification, now: datetime) -> bool:
    """Returns whether a good chain was verified so recently that it is not verified again now."""
    rest = timedelta(seconds=last.head_sequence // ENTRIES_PER_SECOND_OF_REST)
    return last.problem is None and timedelta() <= now - last.verified_at < rest


def _verify_one(store: Store, accountant: Accountant, name: str, last: StoredVerification | None) -> None:
    """Verify one cohort, and record and log what was found."""
    # On failure the last good head stays, so that the next verification finds the same again.
    head = (last.head_sequence, last.head_digest) if last is not None else (0, "")
    found, problem = _verified(store, accountant, name, last)
    if found is not None and found.ok:
        head = (found.head_sequence, found.head_digest)
    store.record_verification(
        name,
        head=head,
        numbers_checked=0 if found is None else found.numbers_checked,
        problem=problem,
    )
    if problem is not None:
        _log.critical("verification of cohort %s FAILED: %s", name, problem)


def _verified(
    store: Store, accountant: Accountant, name: str, last: StoredVerification | None
) -> tuple[CohortVerification | None, str | None]:
    """Return what a verification found, None if it could not be made, and the first problem in words."""
    saved = None
    if last is not None and last.head_sequence:
        head = CheckpointHead(cohort=name, sequence=last.head_sequence, digest_hex=last.head_digest)
        saved = SavedHeads(heads=(head,), checkpoint=None, signature="none")
    try:
        (found,) = verify(store, accountant, name, against=saved).cohorts
    except NotFound:
        return None, "the cohort is missing"
    except (TryAgain, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a chain makes of it must not keep others waiting
        _log.exception("cohort %s could not be verified", name)
        return None, f"it cannot be verified: {type(error).__name__}: {error}"
    if found.ok:
        return found, None
    first = found.problems[0]
    return found, f"entry {first.sequence}: {first.what}" if first.sequence else first.what
