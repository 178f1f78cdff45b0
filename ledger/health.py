"""Upkeep: verification a little at a time, and what an operator must know: does everything go its way?"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.checkpoints.saved_heads import SavedHeads
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX, StoredVerification
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.documents import Json, document_of
from shuffle_ledger.ledger.values.requests import Cohort
from shuffle_ledger.ledger.verification.verifier import verify

NAMED_MAX = 20  # rounds and cohorts that an alarm names
WAITING_ALARM_SECONDS = 900.0  # three sweeps of an overdue round
VERIFIED_ALARM_SECONDS = 7 * 86_400.0
_NEVER = datetime.min.replace(tzinfo=UTC)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Health:
    """What an operator looks at. Empty `alarms`: nothing to do."""

    at: datetime  # the database's clock
    alarms: tuple[str, ...]  # sentences, each beginning with a word of docs/operations.md
    rounds_pending: int  # without stuck ones
    rounds_stuck: int
    longest_wait_seconds: float
    cohorts: int
    cohorts_unverified: int  # not within the last week
    cohorts_broken: int  # the last verification found something
    cohorts_overspent: int  # their promise is broken
    cohorts_frozen: int  # what they have spent is unknown
    checkpointed_at: datetime | None  # the last checkpoint on a schedule; None: none, or there is no schedule
    queues: Mapping[str, int] | None = (
        None  # messages at the broker; None: there is no broker, or it was not asked
    )


def health(store: Store, checkpoints: ScheduledCheckpoints | None = None) -> Health:
    """Return the state of decisions, verification and checkpoints, with an alarm for what needs somebody."""
    waiting = store.waiting()
    cohorts = store.cohorts()
    verified = store.verifications()
    broken = [found for found in verified.values() if found.problem is not None]
    unverified = [
        cohort.name
        for cohort in cohorts
        if _seconds_unverified(cohort, verified.get(cohort.name), waiting.at) > VERIFIED_ALARM_SECONDS
    ]
    overspent = [cohort.name for cohort in cohorts if cohort.status == "overspent"]
    frozen = [cohort.name for cohort in cohorts if cohort.status == "frozen"]
    alarms = [f"BROKEN {found.cohort}: {found.problem}" for found in broken[:NAMED_MAX]]
    alarms += _named("OVERSPENT {}: the budget was exceeded; nothing is admitted any more", overspent)
    alarms += _named("FROZEN {}: entries were lost, and what was spent is unknown", frozen)
    alarms += [
        f"STUCK {stuck.round_id} after {stuck.attempts} attempts: {stuck.last_error}"
        for stuck in store.stuck(limit=NAMED_MAX)
    ]
    if waiting.longest_seconds > WAITING_ALARM_SECONDS:
        alarms.append(
            f"WAITING {waiting.pending} rounds, the first for {waiting.longest_seconds:.0f} seconds"
        )
    if unverified:
        alarms.append(f"UNVERIFIED {len(unverified)} cohorts: {', '.join(unverified[:NAMED_MAX])}")
    checkpointed_at, wrong = checkpoints.look(store, waiting.at) if checkpoints else (None, [])
    alarms += [f"CHECKPOINT {what}" for what in wrong]
    return Health(
        at=waiting.at,
        alarms=tuple(alarms),
        rounds_pending=waiting.pending,
        rounds_stuck=waiting.stuck,
        longest_wait_seconds=waiting.longest_seconds,
        cohorts=len(cohorts),
        cohorts_unverified=len(unverified),
        cohorts_broken=len(broken),
        cohorts_overspent=len(overspent),
        cohorts_frozen=len(frozen),
        checkpointed_at=checkpointed_at,
    )


def verify_oldest(store: Store, accountant: Accountant, *, enough: Callable[[], bool]) -> list[str]:
    """Verify cohorts, those whose verification is oldest first, until `enough()`; return their names.

    At least one is verified, each at most once. The chain is replayed whole, numbers are sampled, and the
    head that was good the last time must still be part of the chain. The findings are stored and logged.
    """
    known = store.verifications()
    names = {cohort.name for cohort in store.cohorts()} | set(known)
    done: list[str] = []
    for name in sorted(names, key=lambda name: (known[name].verified_at if name in known else _NEVER, name)):
        _verify_one(store, accountant, name, known.get(name))
        done.append(name)
        if enough():
            break
    return done


def health_document(found: Health) -> dict[str, Json]:
    """Returns the state of a ledger, preceded by whether it is healthy (no alarm)."""
    fields = {field.name: document_of(getattr(found, field.name)) for field in dataclasses.fields(found)}
    return {"healthy": not found.alarms, **fields}


def retry(store: Store, round_id: str) -> None:
    """Let a stuck round be tried again, with all its attempts; raises NotFound."""
    if store.round(round_id).attempts >= ATTEMPTS_MAX:
        store.forget_failures(round_id)


def _named(sentence: str, cohorts: list[str]) -> list[str]:
    """Return an alarm for each of the first cohorts, and one that counts the others."""
    others = [f"{len(cohorts) - NAMED_MAX} more cohorts"] if len(cohorts) > NAMED_MAX else []
    return [sentence.format(name) for name in [*cohorts[:NAMED_MAX], *others]]


def _seconds_unverified(cohort: Cohort, last: StoredVerification | None, now: datetime) -> float:
    since = last.verified_at if last is not None else cohort.opened_at
    return (now - (since or _NEVER)).total_seconds()


def _verify_one(store: Store, accountant: Accountant, name: str, last: StoredVerification | None) -> None:
    good = (last.head_sequence, last.head_digest) if last is not None else (0, "")
    against = None
    if good[0]:
        head = CheckpointHead(cohort=name, sequence=good[0], digest_hex=good[1])
        against = SavedHeads(heads=(head,), signature="none", checkpoint=None)
    numbers_checked, problem = 0, None
    try:
        (found,) = verify(store, accountant, name, against=against).cohorts
    except NotFound:
        problem = "the cohort is missing"
    else:
        numbers_checked = found.numbers_checked
        if found.ok:
            good = (found.head_sequence, found.head_digest)
        else:
            first = found.problems[0]
            problem = f"entry {first.sequence}: {first.what}" if first.sequence else first.what
    # On failure the last good head stays, so that the next verification finds the same again.
    store.record_verification(name, head=good, numbers_checked=numbers_checked, problem=problem)
    if problem is not None:
        _log.critical("verification of cohort %s FAILED: %s", name, problem)
