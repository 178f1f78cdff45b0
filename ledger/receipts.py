"""Receipts: the releasers' signed word on what left by a permit; settling by them, and what they prove."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

from shuffle_ledger import gate
from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import record_incident, round_record, settle
from shuffle_ledger.ledger.errors import BadSignature, Conflict, Damaged, NoCohort, NotFound
from shuffle_ledger.ledger.permits import PermitKeys
from shuffle_ledger.ledger.storage import permits as rows
from shuffle_ledger.ledger.storage.permits import StoredReceipt
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import Incident, ReleaseTimes, RoundRequest, Settled

# receipt: the releaser signed the number that is charged; attested: only the actor who settled says it;
# contradicted: a receipt says otherwise; none: no actor and no receipt states a release.
Basis: TypeAlias = Literal["receipt", "attested", "contradicted", "none"]
_RELEASABLE = ("admitted", "settled")


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """A receipt whose signatures hold, with its permit."""

    token: str
    digest: str
    releaser: str
    key: Mapping[str, str]  # which signed it, as a JSON web key
    permit: gate.Permit
    request: RoundRequest  # the round that was released: as permitted, with the number of reports that left
    count: int
    released_at: datetime  # by the releaser's clock
    admitted_at: ReleaseTimes  # nothing left before the admission that the permit names
    batch_sha256: str | None

    def incident_id(self, place: int) -> str:
        """Return the identifier of the incident of one of its cohorts, where the round's own is taken."""
        return f"receipt-{self.digest[:32]}-{place}"

    def agrees(self, charged: int | None) -> bool:
        """Return whether a number of reports is charged that covers it; None: that which was declared."""
        if charged is not None:
            return charged == self.count
        return self.permit.count_min <= self.count <= (self.permit.count_max or self.count)


@dataclass(frozen=True, kw_only=True)
class StatedReceipt:
    """A release of a round, as the releaser signed it."""

    releaser: str
    reports: int
    released_at: datetime
    digest: str


@dataclass(frozen=True, kw_only=True)
class StatedRelease:
    """The evidence of a round's release."""

    permitted_at: datetime | None  # None: no permit was issued
    basis: Basis
    receipts: tuple[StatedReceipt, ...]


def read_receipt(token: str, *, releasers: Mapping[str, Any], permits: Mapping[str, Any]) -> Receipt:
    """Return a receipt whose signature, and that of its permit, holds by keys of these sets.

    Raises:
        BadSignature: a signature does not hold, or the receipt is of another permit than the one in it.
    """
    try:
        claims, key = gate.read_token(token, releasers, kind=gate.RECEIPT)
        permit, releaser, count = gate.read_permit(claims["permit"], permits), key["kid"], claims["count"]
        said = (claims["permit_sha256"], claims["ledger"], claims["round_id"], claims["event"], claims["iss"])
        if said != (permit.digest, permit.ledger, permit.round_id, permit.event, releaser):
            raise BadSignature(
                "the receipt names another permit, ledger, round, event or releaser than it has"
            )
        if permit.releaser not in (None, releaser):
            raise BadSignature(f"the receipt is of {releaser!r}, its permit is for {permit.releaser!r}")
        if claims["batch_sha256"] is not None and not gate.is_sha256(claims["batch_sha256"]):
            raise BadSignature("the receipt names its batch by what is no digest")
        first, last = (
            None if day is None else date.fromisoformat(day)
            for day in (permit.collected_on, permit.collected_until)
        )
        return Receipt(
            token=token.strip(),
            digest=hashlib.sha256(token.strip().encode("ascii")).hexdigest(),
            releaser=releaser,
            key=key,
            permit=permit,
            request=RoundRequest(
                round_id=permit.round_id,
                cohort=permit.cohorts[0],
                audience=permit.cohorts if len(permit.cohorts) > 1 else (),
                round=ShuffledRound.from_mapping({**permit.round, "reports": count}),
                collected_on=first,
                collected_until=last,
            ),
            count=count,
            released_at=datetime.fromtimestamp(claims["iat"], UTC),
            admitted_at=ReleaseTimes(after=datetime.fromisoformat(permit.admitted_at)),
            batch_sha256=claims["batch_sha256"],
        )
    except gate.GateRefused as error:
        raise BadSignature(f"the receipt cannot be relied on: {error}") from error
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadSignature(f"the receipt states what no release is: {error}") from error


def settle_by_receipt(
    store: Store,
    accountant: Accountant,
    keys: PermitKeys,
    token: str,
    *,
    actor: str,
    reaches: Callable[[str], bool] = lambda _: True,
) -> Settled | Incident:
    """Keep a receipt, and settle its round with the number of reports that it states.

    A release without an admission here is recorded as an incident of each cohort: the ledger lacks the round
    or has another under its name, for it was put back; the round was voided or refused; or another receipt of
    its one release came before. The same receipt again gives the same answer.

    Args:
        store: the ledger.
        accountant: what computes.
        keys: those of its settings.
        token: the receipt.
        actor: who tells it.
        reaches: which cohorts the actor may tell of.

    Raises:
        BadSignature: as `read_receipt`, or a receipt of another ledger.
        NotFound: a cohort that the actor may not tell of, or that the ledger has lost.
        Conflict: as `settle`; the receipt is kept, and `permit verify` names what it contradicts.
    """
    receipt = read_receipt(token, releasers=keys.releasers, permits=keys.published)
    permit = receipt.permit
    if permit.ledger != keys.ledger:
        raise BadSignature(f"the receipt is of ledger {permit.ledger}, expected {keys.ledger}")
    for name in permit.cohorts:
        if not reaches(name):
            raise NoCohort(name)
    kept = rows.keep_receipt(
        store.engine,
        StoredReceipt(
            digest=receipt.digest,
            round_id=permit.round_id,
            cohort=permit.cohorts[0],
            token=receipt.token,
            keys=json.dumps({"keys": [receipt.key, permit.key]}, sort_keys=True),
            recorded_by=actor,
            recorded_at=store.now(),
        ),
    )
    first = next(each for each in map(_stored, kept) if each.permit.event == permit.event)
    if _is_same_release(first, receipt) and _admits(store, receipt):
        return settle(store, accountant, permit.round_id, reports=receipt.count, actor=actor)
    return _incident(store, accountant, receipt, actor=actor, reaches=reaches)


def _admits(store: Store, receipt: Receipt) -> bool:
    """Return whether the event of a receipt admitted its round here, and the round was not voided."""
    try:
        stored = store.round(receipt.permit.round_id)
    except NotFound:
        return False
    if stored.outcome_sequence is None or round_record(store, stored.round_id).state not in _RELEASABLE:
        return False
    return store.entry(stored.cohort, stored.outcome_sequence).digest.hex() == receipt.permit.event


def _incident(
    store: Store,
    accountant: Accountant,
    receipt: Receipt,
    *,
    actor: str,
    reaches: Callable[[str], bool],
) -> Incident:
    """Record a release that nothing here admits: under the round's name where that is possible."""
    permit, request, own = receipt.permit, receipt.request, receipt.request.round_id
    fields: dict[str, Any] = {
        "described": request.round,
        "reason": f"receipt {receipt.digest} of {receipt.releaser!r}: {receipt.count} reports of {own!r} were"
        f" released by event {permit.event}, which admits no release here",
        "actor": actor,
        "released": receipt.admitted_at,
        "reaches": reaches,
    }
    with suppress(NotFound, Conflict):  # one entry in each chain of a round that is registered here
        record = round_record(store, own)
        if record.state not in _RELEASABLE and record.request.members == permit.cohorts:
            return record_incident(store, accountant, permit.cohorts[0], round_id=own, **fields)
    fields |= {"collected_on": request.collected_on, "collected_until": request.collected_until}

    def incident(place: int, name: str) -> Incident:
        return record_incident(store, accountant, permit.cohorts[place], round_id=name, **fields)

    try:
        found = [incident(0, own)]
    except Conflict:  # the name is of an admitted round, or of another release
        found = [incident(0, receipt.incident_id(0))]
    found += [incident(place, receipt.incident_id(place)) for place in range(1, len(permit.cohorts))]
    return replace(found[0], overspent=any(each.overspent for each in found))


def stated_releases(store: Store, charged: Mapping[str, int | None]) -> dict[str, StatedRelease]:
    """Return the evidence of each release.

    Args:
        store: the ledger.
        charged: of each admitted round, the reports that it was settled with or corrected to. 0: it was
            voided; None: no number is recorded yet.
    """
    permits = rows.permits_of(store.engine, charged.keys())
    receipts: dict[str, list[Receipt]] = {}
    for each in rows.receipts_of(store.engine, charged.keys()):
        receipts.setdefault(each.round_id, []).append(_stored(each))
    found = {}
    for round_id, reports in charged.items():
        own, permit = receipts.get(round_id, []), permits.get(round_id)
        basis: Basis = "attested" if reports else "none"
        if own:
            agree = all(_admits(store, each) and each.agrees(reports) for each in own)
            is_one = all(_is_same_release(own[0], each) for each in own)
            basis = "receipt" if agree and is_one else "contradicted"
        found[round_id] = StatedRelease(
            permitted_at=permit.issued_at if permit else None,
            basis=basis,
            receipts=tuple(
                StatedReceipt(
                    releaser=each.releaser,
                    reports=each.count,
                    released_at=each.released_at,
                    digest=each.digest,
                )
                for each in own
            ),
        )
    return found


def receipt_problems(
    receipts: Iterable[Receipt],
    entries_about: Callable[[Collection[str], Collection[str]], Sequence[LedgerEntry]],
    cohorts: Collection[str] | None = None,
) -> list[tuple[Receipt, str]]:
    """Return what a chain contradicts of receipts.

    Args:
        receipts: whose signatures hold.
        entries_about: returns the entries about some rounds in the chains of some cohorts, in order.
        cohorts: whose chains there are. None: all. A receipt is compared with the first one of its cohorts
            among them.

    **Guarantee**: it is a problem if no event in the chain admits a release, if one event admits two, and if
    the chain charges another number of reports, unless the chain tells the release as an incident. Which
    event admitted is compared in the chain of the round's first cohort.
    """
    problems, by_event = list[tuple[Receipt, str]](), dict[str, Receipt]()
    for receipt in receipts:
        permit = receipt.permit
        known = [name for name in permit.cohorts if cohorts is None or name in cohorts]
        if not known:
            continue
        place = permit.cohorts.index(known[0])
        entries = entries_about([permit.round_id, receipt.incident_id(place)], known[:1])
        bodies = [entry.content() for entry in entries]
        if any(_tells(body, receipt) for body in bodies):
            continue
        admitting = [
            entry
            for entry, body in zip(entries, bodies, strict=True)
            if body.kind is EntryKind.ADMITTED and (place > 0 or entry.digest.hex() == permit.event)
        ]
        earlier = by_event.setdefault(permit.event, receipt)
        charged = _charged(bodies)
        if not admitting:
            what = (
                f"it rests on event {permit.event}, which is not in the chain: the ledger was put back to an"
                " earlier state, or another ledger signs with its key"
            )
        elif not _is_same_release(earlier, receipt):
            what = f"receipt {earlier.digest} states another release by the same event"
        elif any(body.kind is EntryKind.VOIDED for body in bodies):
            what = "the round is voided: somebody attested that nothing was released"
        elif charged != "unknown" and not receipt.agrees(charged):
            what = f"{receipt.count} reports were released, and the chain charges"
            what += f" {charged}" if charged is not None else f" {permit.count_min}: the round is not settled"
        else:
            continue
        problems.append((receipt, what))
    return problems


def stored_receipts(store: Store, cohorts: Collection[str] | None = None) -> list[Receipt]:
    """Return the receipts that the ledger keeps, of some cohorts or all; raises Damaged."""
    return [_stored(each) for each in rows.receipts_in(store.engine, cohorts)]


def receipts_document(store: Store, cohorts: Collection[str]) -> list[dict[str, Any]]:
    """Return the receipts of cohorts as a bundle has them: each with the keys that it was accepted by."""
    found = rows.receipts_in(store.engine, cohorts)
    return [{"receipt": each.token, "keys": json.loads(each.keys)["keys"]} for each in found]


def receipt_of_document(document: Mapping[str, Any]) -> Receipt:
    """Return a receipt as a bundle has it; raises BadSignature."""
    keys = {"keys": document.get("keys", [])}
    return read_receipt(str(document.get("receipt")), releasers=keys, permits=keys)


def _tells(body: EntryBody, receipt: Receipt) -> bool:
    if body.kind is not EntryKind.INCIDENT or receipt.digest not in str(body.details["reason"]):
        return False
    return body.details["round"] in (None, receipt.request.round.to_mapping())


def _charged(bodies: Sequence[EntryBody]) -> int | Literal["unknown"] | None:
    """Return the number of reports that a chain states for a release, None if it states none yet."""
    for body in reversed(bodies):
        if body.kind is EntryKind.SETTLED:
            return int(body.details["reports"])
        if body.kind in CORRECTED_OR_INCIDENT:
            return int(body.details["round"]["reports"]) if body.details["round"] else "unknown"
    return None


def _is_same_release(one: Receipt, other: Receipt) -> bool:
    if one.digest == other.digest:
        return True
    return one.batch_sha256 is not None and (one.batch_sha256, one.count) == (other.batch_sha256, other.count)


def _stored(stored: StoredReceipt) -> Receipt:
    try:
        return receipt_of_document({"receipt": stored.token, "keys": json.loads(stored.keys)["keys"]})
    except (BadSignature, ValueError, KeyError) as error:
        raise Damaged(f"receipt {stored.digest} of round {stored.round_id!r}: {error}") from error
