"""Going on from a verified position: its state, and what earlier entries say of the rounds that come again.

The state does not grow with the number of rounds. So what a chain says of single rounds is not part of it: an
entry about a round makes the replay read the earlier entries about that round, which an index finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.descriptions import local_kind
from shuffle_ledger.ledger.errors import Damaged, NotFound
from shuffle_ledger.ledger.policies.base import IN_CLEAR
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE, EntryBody, EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.round_parameters import read_round
from shuffle_ledger.ledger.values.verified_position import VerifiedPosition
from shuffle_ledger.ledger.verification.budget_trail import Trail
from shuffle_ledger.ledger.verification.replay import Replay, request_and_actor

# The state names what later entries are judged by; another version of this program may need more.
SOFTWARE = f"shuffle-ledger {version('shuffle-ledger')}"


def state_of(replay: Replay) -> Mapping[str, Any] | None:
    """Return what a replay of later entries needs of a verified chain; None: it must begin with the first.

    A chain that has a problem or that was frozen is always replayed as a whole.
    """
    is_plain = replay.readable and not replay.problems and not replay.frozen and replay.trail.is_resumable
    if not is_plain or replay.opened is None or replay.opened_digest is None:
        return None
    kinds = {*replay.local, *replay.held}
    holdings = [(_spelled(kind), replay.held[kind], replay.local[kind]) for kind in kinds]
    return {
        "opened": replay.opened_digest.hex(),
        "kinds": {str(kind): count for kind, count in replay.kinds.items()},
        "holdings": sorted([list(each) for each in holdings if each[1:] != (0, 0)]),
        "losses": sorted([key.hex(), *named] for key, named in replay.losses.items()),
        "overspent": replay.overspent,
    }


def resumed(store: Store, position: VerifiedPosition) -> Replay | None:
    """Return a replay that goes on behind a verified position; None if the chain differs from it there."""
    state, cohort = position.state, position.cohort
    opened = _body_at(store, cohort, FIRST_SEQUENCE, state["opened"])
    last = _body_at(store, cohort, position.sequence, position.digest_hex)
    if opened is None or last is None:
        return None
    held: Counter[ShuffledRound] = Counter()
    local: Counter[ShuffledRound] = Counter()
    for spelled, count, local_count in state["holdings"]:
        kind = read_round(canonical.decode(spelled.encode("utf-8")))
        held[kind], local[kind] = count, local_count
    replay = Replay(
        store=store,
        cohort=cohort,
        entries=position.sequence,
        head_sequence=position.sequence,
        head_digest=bytes.fromhex(position.digest_hex),
        head_body=last,
        held=held,
        local=local,
        kinds=Counter(state["kinds"]),
        overspent=state["overspent"],
        opened=opened,
        opened_digest=bytes.fromhex(state["opened"]),
        losses={bytes.fromhex(key): (sequence, digest) for key, sequence, digest in state["losses"]},
        trail=Trail.resumed(opened, last, overspent=state["overspent"]),
        began_after=position.sequence,
        recall=partial(_recall, store, position.sequence),
    )
    replay.joint.open(opened)
    return replay


def _spelled(kind: ShuffledRound) -> str:
    return entries.round_bytes(kind).decode("utf-8")


def _body_at(store: Store, cohort: str, sequence: int, digest_hex: str) -> EntryBody | None:
    """Return the body of an entry, if the entry is the one with this digest."""
    try:
        entry = store.entry(cohort, sequence)
        return entry.content() if _digest_of(entry).hex() == digest_hex else None
    except (Damaged, NotFound):
        return None


def _digest_of(entry: LedgerEntry) -> bytes:
    return entries.entry_digest(
        cohort=entry.cohort,
        sequence=entry.sequence,
        previous_digest=entry.previous_digest,
        body=entry.body,
    )


def _recall(store: Store, up_to: int, replay: Replay, round_id: str) -> None:
    """Bring back what the entries up to a position say of a round. Their links are checked by whole replays
    alone, their own digests here, too."""
    for entry in store.entries_about([round_id], [replay.cohort]):
        if entry.sequence > up_to:
            break
        if _digest_of(entry) != entry.digest:
            replay.blame(entry.sequence, "its digest is not that of its content: the entry was changed")
        _remember(replay, entry.content())


def _remember(replay: Replay, body: EntryBody) -> None:
    round_id, details = str(body.round_id), body.details
    quoted = details.get("request")
    request = None if quoted is None else RoundRequest.from_mapping(quoted)
    replay.joint.see(body, request)
    replay.trail.recall(body)
    if request is not None:
        _remember_request(replay, body, canonical.encode(quoted))
        if len(request.members) > 1:
            replay.of_several.add(round_id)
    match body.kind:
        case EntryKind.ADMITTED if request is not None:
            replay.charged[round_id] = replay.local_kinds[round_id] = _accounted(body)
            replay.declared[round_id] = request.round
        case EntryKind.SETTLED | EntryKind.VOIDED:
            replay.closings[round_id] = body.sequence
            replay.declared.pop(round_id, None)
            replay.charged.pop(round_id, None)
            if body.kind is EntryKind.SETTLED:
                replay.charged[round_id] = _accounted(body)
        case EntryKind.CORRECTED:
            before = replay.local_kinds.get(round_id, read_round(details["accounted_before"]))
            replay.charged[round_id] = _accounted(body)
            replay.local_kinds[round_id] = local_kind((before, _accounted(body)))
            if round_id in replay.declared:
                said = details["round"]
                replay.declared[round_id] = IN_CLEAR if said is None else read_round(said)
        case EntryKind.INCIDENT:
            replay.charged[round_id] = replay.local_kinds[round_id] = _accounted(body)


def _remember_request(replay: Replay, body: EntryBody, content: bytes) -> None:
    round_id, details = str(body.round_id), body.details
    actor = details["registered_by"] if body.kind is EntryKind.INCIDENT else body.actor
    replay.outcomes.setdefault(round_id, body.sequence)
    replay.requests.setdefault(round_id, request_and_actor(content, actor))
    moment = (details.get("registration"), details.get("registered_at"))
    replay.registered.setdefault(round_id, moment)


def _accounted(body: EntryBody) -> ShuffledRound:
    return read_round(body.details["accounted"])
