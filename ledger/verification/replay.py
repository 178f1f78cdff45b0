"""Replaying one cohort's chain: does each entry follow from those before it and from the tables?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shuffle_ledger.accounting import (
    AccountingError,
    ShuffledRound,
    charged_as,
    is_known_policy,
)
from shuffle_ledger.ledger.decisions.descriptions import local_kind, with_reports
from shuffle_ledger.ledger.errors import Damaged, LedgerError
from shuffle_ledger.ledger.policies.base import IN_CLEAR, slot_of
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.entries import (
    CORRECTED_OR_INCIDENT,
    FIRST_SEQUENCE,
    GENESIS_DIGEST,
    EntryBody,
    EntryKind,
    LedgerEntry,
    Spending,
)
from shuffle_ledger.ledger.values.requests import (
    DECLARED,
    POLICY_ADAPTIVE,
    CohortStatus,
    ReleaseTimes,
    RoundRequest,
)
from shuffle_ledger.ledger.values.round_parameters import read_round
from shuffle_ledger.ledger.values.saved_heads import SavedHead
from shuffle_ledger.ledger.verification.budget_trail import Trail
from shuffle_ledger.ledger.verification.entry_shapes import misshapen, written_moment
from shuffle_ledger.ledger.verification.siblings import PRECEDES, JointRounds, misjudged
from shuffle_ledger.ledger.verification.stated_spending import unfounded

PROBLEMS_MAX = 100  # per cohort; the first ones matter
# What applying an entry may raise that says something else than the ledger writes.
_NOT_FOLLOWING = (
    LedgerError,
    AccountingError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
# What follows one of these may hold less than what came before.
ALTERS = (EntryKind.SETTLED, EntryKind.VOIDED, EntryKind.CORRECTED, EntryKind.INCIDENT)
# A window may give this to its periods beside a budget.
_OF_PARTS = frozenset({"local_budget"})
_CARRIES_SPENDING = (EntryKind.OPENED, EntryKind.REFUSED, EntryKind.BUDGET_CHANGED, EntryKind.CLOSED)


class EntrySource(Protocol):
    """Where a chain is read from: the ledger's database, or a bundle on another computer."""

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        """Yield a cohort's entries in order."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is not as the ledger promises."""

    sequence: int | None  # the entry it is about; None when it is about the cohort or a table
    what: str


@dataclass(frozen=True, kw_only=True)
class ReplayedEntry:
    """The state after an entry, for the check of its numbers."""

    sequence: int
    body: EntryBody
    held: Mapping[ShuffledRound, int]  # as `of_one_user`
    candidate: Mapping[ShuffledRound, int] | None  # of a refused round: what was asked for
    promised: float  # the epsilon that must hold
    filtered: bool = False  # filters decided: what is spent is their reading, not the composition of `held`


def of_one_user(held: Mapping[ShuffledRound, int], most: int | None) -> dict[ShuffledRound, int]:
    """Return rounds that one user may have taken part in, of those that are held: those with fewest reports,
    up to `most`. None: all of them."""
    if most is None:
        return {kind: count for kind, count in held.items() if count > 0}
    found: dict[ShuffledRound, int] = {}
    left = most
    for kind in sorted(held, key=lambda kind: (kind.reports, -kind.randomizer.epsilon0)):
        count = min(held[kind], left)
        left -= max(count, 0)
        if count > 0:
            found[kind] = count
    return found


@dataclass
class Replay:
    """The state while reading a chain from its beginning. `steps` must be used up before the rest is read."""

    store: EntrySource
    cohort: str
    problems: list[Problem] = field(default_factory=list)
    entries: int = 0
    head_sequence: int = 0
    head_digest: bytes = GENESIS_DIGEST
    head_body: EntryBody | None = None
    held: Counter[ShuffledRound] = field(default_factory=Counter)
    local: Counter[ShuffledRound] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)  # how many entries there are of each
    overspent: bool = False
    frozen: bool = False
    readable: bool = True  # every body so far could be read and applied, so `held` means something
    opened: EntryBody | None = None
    outcomes: dict[str, int] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)  # digest of the quoted request, and who made it
    registered: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # its number and moment, as quoted
    of_several: set[str] = field(default_factory=set)  # rounds of several cohorts
    closings: dict[str, int] = field(default_factory=dict)
    charged: dict[str, ShuffledRound] = field(default_factory=dict)  # what may have been released
    declared: dict[str, ShuffledRound] = field(default_factory=dict)  # what is open, as it was told last
    local_kinds: dict[str, ShuffledRound] = field(default_factory=dict)  # as which each counts locally
    joint: JointRounds = field(default_factory=JointRounds)  # rounds of several cohorts
    losses: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # loss key -> entry, digest it names
    trail: Trail = field(default_factory=Trail)  # of the policy
    kept: Iterable[SavedHead] = ()  # elsewhere, which the chain must contain
    _truth: ShuffledRound | None = None  # the round that the entry at hand says was released
    _request: RoundRequest | None = None  # what the entry at hand decides

    @property
    def status(self) -> CohortStatus:
        """The cohort's status after the last entry."""
        return self.trail.status

    def blame(self, sequence: int | None, what: str) -> None:
        """Note a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(sequence=sequence, what=what))

    def steps(self, chain: Iterable[LedgerEntry] | None = None) -> Iterator[ReplayedEntry]:
        """Yield the state after every entry that could be read and applied.

        Args:
            chain: the entries behind the last one that was replayed; None: all that the source has.
        """
        for entry in self.store.entries_of(self.cohort) if chain is None else chain:
            if not _is_typed(entry):
                self.blame(None, f"the row of entry {entry.sequence!r} holds values of other types")
                self.readable, self.head_body = False, None
                continue
            self._check_link(entry)
            previous = self.head_body
            try:
                body = entry.content()
            except Damaged as error:
                self.blame(entry.sequence, f"the body cannot be read: {error}")
                body = None
            self.entries += 1
            self.kinds[entry.kind] += 1
            self.head_sequence, self.head_digest = entry.sequence, entry.digest
            self.head_body = body
            self._compare_kept(entry)
            if body is None:
                self.readable = False
                continue
            self._check_columns(entry, body)
            try:
                self._check_shape(body)
                self._check_carried(body, previous)
                if not self.readable:
                    continue
                step = self._apply(body, previous)
            except _NOT_FOLLOWING as error:
                self.blame(entry.sequence, f"the entry does not follow from those before it: {error}")
                self.readable = False
                continue
            yield step

    def miss_kept(self) -> None:
        """Blame the chain, read to its end, for the heads beyond it that were kept elsewhere."""
        for head in self.kept:
            if head.sequence > self.head_sequence:
                ends = f"the chain now ends at {self.head_sequence}"
                self.blame(head.sequence, f"it was saved as a head and is missing: {ends}")

    def _compare_kept(self, entry: LedgerEntry) -> None:
        here = [head for head in self.kept if head.sequence == entry.sequence]
        if any(head.digest != entry.digest.hex() for head in here):
            self.blame(entry.sequence, "it differs from the head that was saved: the chain was rewritten")

    def _check_signed(self, body: EntryBody) -> None:
        for head in self.kept:
            signed_at = head.signed_at if head.sequence == body.sequence else None
            if signed_at is not None and body.recorded_at > signed_at:
                recorded, signed = map(canonical.spelled_moment, (body.recorded_at, signed_at))
                what = f"it was recorded at {recorded}, after its head was signed, at {signed}"
                self.blame(body.sequence, what)

    def _check_link(self, entry: LedgerEntry) -> None:
        expected = self.head_sequence + 1
        if entry.sequence != expected:
            self.blame(entry.sequence, f"entries {expected} to {entry.sequence - 1} are missing before it")
        elif entry.previous_digest != self.head_digest:
            self.blame(entry.sequence, "it does not continue from the digest of the entry before it")
        digest = entries.entry_digest(
            cohort=entry.cohort,
            sequence=entry.sequence,
            previous_digest=entry.previous_digest,
            body=entry.body,
        )
        if digest != entry.digest:
            self.blame(entry.sequence, "its digest is not that of its content: the entry was changed")

    def _check_columns(self, entry: LedgerEntry, body: EntryBody) -> None:
        stated = (body.cohort, body.sequence, str(body.kind), body.round_id)
        if stated != (entry.cohort, entry.sequence, entry.kind, entry.round_id):
            self.blame(entry.sequence, "its columns (cohort, sequence, kind, round) differ from its body")

    def _check_shape(self, body: EntryBody) -> None:
        wrong = list(misshapen(body))
        for what in wrong:
            self.blame(body.sequence, what)
        self.readable = self.readable and not wrong

    def _check_carried(self, body: EntryBody, previous: EntryBody | None) -> None:
        if not _has_known_policy(body):
            self.blame(body.sequence, f"no version known here has numerical policy {body.numerical_policy!r}")
        self._check_signed(body)
        if body.kind is EntryKind.OPENED:
            self._check_opening(body)
        elif body.sequence == FIRST_SEQUENCE:
            self.blame(body.sequence, "a chain begins with the entry that opened the cohort")
        if previous is not None and body.recorded_at < previous.recorded_at:
            self.blame(body.sequence, "it was recorded before the entry before it: time goes backwards")
        if body.kind is EntryKind.OPENED:
            expected = Spending.nothing(body.delta_budget)
        elif previous is None:
            return
        else:
            expected = previous.spent
            changes = body.kind is EntryKind.BUDGET_CHANGED
            before = body.details.get("epsilon_before") if changes else body.epsilon_budget
            if (before, body.delta_budget) != (previous.epsilon_budget, previous.delta_budget):
                self.blame(body.sequence, "the budget differs from that of the entry before it")
        restated = self.trail.restates(body)
        carries = body.kind in _CARRIES_SPENDING or (self.frozen and body.kind in CORRECTED_OR_INCIDENT)
        if carries and body.spent != expected and not restated:
            self.blame(body.sequence, "it changes what is spent, although it admits nothing")

    def _check_opening(self, body: EntryBody) -> None:
        """Check that a cohort is opened again later, and only while nothing was decided or recorded."""
        if self.opened is None:
            return
        if set(self.kinds) - {EntryKind.OPENED, EntryKind.BUDGET_CHANGED}:
            self.blame(body.sequence, "it opens the cohort again, although something was decided or recorded")
        if self.joint.is_part or {"period", "quota"} & set(body.details):
            self.blame(body.sequence, "it opens a part of a cohort again")
        if body.recorded_at <= self.opened.recorded_at:
            self.blame(body.sequence, "it opens the cohort again, and not later than before")

    def _apply(self, body: EntryBody, previous: EntryBody | None) -> ReplayedEntry:
        self._truth = self._request = None
        candidate: Counter[ShuffledRound] | None = None
        match body.kind:
            case EntryKind.OPENED:
                self.opened = body
                self.joint.open(body)
                self._check_part(body)
            case EntryKind.ADMITTED | EntryKind.REFUSED:
                candidate = self._apply_decision(body)
            case EntryKind.SETTLED | EntryKind.VOIDED:
                self._apply_closing(body)
            case EntryKind.CORRECTED | EntryKind.INCIDENT:
                self._apply_restated(body)
            case EntryKind.BUDGET_CHANGED:
                self._apply_budget(body)
            case EntryKind.CLOSED | EntryKind.FROZEN:
                self._apply_end(body)
        self._compare_counts(body)
        for what in self.trail.follow(body, self._truth, self._request):
            self.blame(body.sequence, what)
        self._compare_status(body)
        if previous is not None:
            for what in unfounded(body, previous, self.trail.shares()):
                self.blame(body.sequence, what)
        refused = body.kind is EntryKind.REFUSED and body.details["requested"] and not self.trail.filtered
        return ReplayedEntry(
            sequence=body.sequence,
            body=body,
            held=of_one_user(self.held, self.trail.rounds_of_one_user()),
            candidate=candidate if refused else None,
            filtered=self.trail.filtered,
            promised=self.trail.promised_epsilon,
        )

    def _apply_budget(self, body: EntryBody) -> None:
        if self.joint.period is not None or not self.joint.has_life:
            self.blame(body.sequence, "it changes the budget of a window, or one that there is not")
        if self.joint.ceiling is not None and body.epsilon_budget > self.joint.ceiling:
            self.blame(body.sequence, "the budget is above the ceiling that the cohort was opened with")

    def _check_part(self, body: EntryBody) -> None:
        part = {"period", "quota"} & set(body.details)
        if part and (len(part) > 1 or {*DECLARED} & set(body.details) - part - _OF_PARTS):
            self.blame(body.sequence, "it declares more than a part of a cohort has")
        if "period" in part and body.details["policy"] != POLICY_ADAPTIVE:
            self.blame(body.sequence, "a period of a window has another policy than adaptive")

    def _compare_status(self, body: EntryBody) -> None:
        """Compare whether the promise is said to be broken with what the machine says."""
        self.overspent = self.trail.is_overspent
        if body.details.get("overspent", self.overspent) != self.overspent and not self.frozen:
            self.blame(body.sequence, "it says wrongly whether the cohort is overspent")

    def _compare_counts(self, body: EntryBody) -> None:
        """Compare how many rounds the numbers are said to be of with how many are held."""
        held = sum(self.held.values())
        if body.spent.rounds != held and not self.frozen:
            self.blame(body.sequence, f"it says what {body.spent.rounds} rounds spent, and {held} are held")
        requested = body.details.get("requested") if body.kind is EntryKind.REFUSED else None
        if requested is not None and requested["rounds"] != held + 1:
            self.blame(body.sequence, "what it says was requested is not of one round more than are held")

    def _apply_end(self, body: EntryBody) -> None:
        if body.kind is EntryKind.CLOSED:
            if self.status != "open" or self.joint.is_part:
                self.blame(body.sequence, "it closes a cohort that is not open, or a part of one")
            return
        self.frozen = self.joint.frozen = True
        if body.spent.epsilon_upper_or_none is not None:
            self.blame(body.sequence, "it freezes the cohort, and states what is spent, which nobody knows")

    def _apply_decision(self, body: EntryBody) -> Counter[ShuffledRound] | None:
        round_id = str(body.round_id)
        if round_id in self.outcomes:
            self.blame(
                body.sequence, f"round {round_id!r} was decided before, by entry {self.outcomes[round_id]}"
            )
        self.outcomes[round_id] = body.sequence
        content = canonical.encode(body.details["request"])
        self.requests[round_id] = request_and_actor(content, body.actor)
        details = body.details
        self.registered[round_id] = (details.get("registration"), details.get("registered_at"))
        request = RoundRequest.from_mapping(details["request"])
        self._request = request
        self._check_named(body, request)
        for what in misjudged(body, request):
            self.blame(body.sequence, what)
        self.joint.see(body, request)
        self._note_members(body, request)
        registered_at = written_moment(details.get("registered_at"))
        if registered_at is not None and registered_at > body.recorded_at:
            self.blame(body.sequence, "its round was registered after it was decided: time goes backwards")
        self._check_size(body, _users(request.round))
        accounted = read_round(details["accounted"])
        self._note_loss(body, accounted)
        if body.kind is not EntryKind.ADMITTED:
            return self.held + Counter({accounted: 1})
        self.held[accounted] += 1
        self.charged[round_id] = accounted
        self.declared[round_id] = request.round
        self._count_locally(round_id, accounted)
        return None

    def _apply_closing(self, body: EntryBody) -> None:
        round_id = str(body.round_id)
        if self.frozen:
            self.blame(body.sequence, "it closes a round although the cohort is frozen")
        if round_id not in self.declared:
            self.blame(body.sequence, f"it closes round {round_id!r}, which is not admitted and open")
        self.joint.see(body, None)
        settles = body.kind is EntryKind.SETTLED
        before = read_round(body.details["accounted_before" if settles else "accounted"])
        if self.charged.pop(round_id, before) != before:
            self.blame(body.sequence, "it releases another charge than the round had")
        self.closings[round_id] = body.sequence
        declared = self.declared.pop(round_id, before)
        self.held -= Counter({before: 1})
        if settles:
            accounted = read_round(body.details["accounted"])
            self._check_settled(body, declared)
            self.charged[round_id] = accounted
            self._charge(body, accounted)

    def _charge(self, body: EntryBody, accounted: ShuffledRound) -> None:
        """Hold what a released round is charged as."""
        self._note_loss(body, accounted)
        self.held[accounted] += 1

    def _apply_restated(self, body: EntryBody) -> None:
        if body.kind is EntryKind.CORRECTED:
            self._apply_correction(body)
        else:
            self._apply_incident(body)

    def _apply_correction(self, body: EntryBody) -> None:
        round_id, details = str(body.round_id), body.details
        before, accounted, truth = (
            read_round(details[name]) for name in ("accounted_before", "accounted", "round")
        )
        self._truth = truth
        self.joint.see(body, None)
        if self.charged.get(round_id) != before:
            self.blame(body.sequence, "it corrects a round that was not charged as it says")
        self._check_restated(body, truth)
        if round_id in self.declared:
            self.declared[round_id] = truth
        if self.frozen:
            self._check_only_restated(body, is_kept=accounted == before)
            return
        self.charged[round_id] = accounted
        local = self.local_kinds.get(round_id, before)  # before: a chain that was damaged
        self.local_kinds[round_id] = moved = local_kind((local, accounted))
        self.local.update({moved: 1})
        self.local.subtract({local: 1})
        self.held -= Counter({before: 1})
        self._charge(body, accounted)

    def _apply_incident(self, body: EntryBody) -> None:
        round_id, details = str(body.round_id), body.details
        if round_id in self.charged:
            self.blame(body.sequence, f"it tells as an incident round {round_id!r}, which was charged before")
        self._check_registered(body)
        truth = IN_CLEAR if details["round"] is None else read_round(details["round"])
        self._truth = truth
        self._note_members(body, RoundRequest.from_mapping(details["request"]))
        self._check_restated(body, truth)
        accounted = read_round(details["accounted"])
        self.charged[round_id] = accounted
        released = ReleaseTimes.from_mapping(details["released"])
        if any(moment and moment > body.recorded_at for moment in (released.after, released.before)):
            self.blame(body.sequence, "it tells a release that was yet to come")
        if self.frozen:
            is_kept = accounted == slot_of(truth)
            self._check_only_restated(body, is_kept=is_kept)
            return
        chosen_after = details["chosen_after"]
        chooses = self.joint.quota is None
        if chosen_after != (chooses and self.joint.may_precede(body.sequence, released, said=chosen_after)):
            self.blame(body.sequence, PRECEDES)
        self._count_locally(round_id, accounted)
        self._charge(body, accounted)

    def _count_locally(self, round_id: str, accounted: ShuffledRound) -> None:
        """Count a round without the shuffler: as it was first accounted, whatever it is settled as."""
        self.local[accounted] += 1
        self.local_kinds[round_id] = accounted

    def _check_only_restated(self, body: EntryBody, *, is_kept: bool) -> None:
        """Checks a correction or an incident of a frozen cohort: it must charge nothing."""
        details = body.details
        charged = "charge" in details or details["privacy_loss"] is not None
        if charged or not is_kept or details["overspent"] != self.overspent or details.get("chosen_after"):
            self.blame(body.sequence, "it charges what it is told, although the cohort is frozen")

    def _check_registered(self, body: EntryBody) -> None:
        """Compare the request that an incident quotes with the decided one, if its round was decided."""
        round_id, details = str(body.round_id), body.details
        content = canonical.encode(details["request"])
        quoted = request_and_actor(content, details["registered_by"])
        moment = (details["registration"], details["registered_at"])
        request = RoundRequest.from_mapping(details["request"])
        self._check_named(body, request)
        self.joint.see(body, request)
        self.outcomes.setdefault(round_id, body.sequence)
        known = self.registered.setdefault(round_id, moment)
        if self.requests.setdefault(round_id, quoted) != quoted or known not in (moment, (None, None)):
            self.blame(body.sequence, "the request it quotes is not the one that was decided before")

    def _check_settled(self, body: EntryBody, declared: ShuffledRound) -> None:
        reports = body.details["reports"]
        if type(reports) is not int or reports < 1:
            self.blame(
                body.sequence, f"it settles a round with {reports!r} reports: there must be at least 1"
            )
            return
        self._check_size(body, -(-reports // declared.reports_per_user))
        is_sampled = declared.sampled_from is not None and declared.reports_per_user == 1
        if body.round_id in self.of_several and is_sampled and reports > declared.reports:
            self.blame(body.sequence, "it settles a round with more reports than its cohorts' samples have")
        self._truth = with_reports(declared, reports)

    def _check_named(self, body: EntryBody, request: RoundRequest) -> None:
        if request.round_id != body.round_id or body.cohort not in request.cohorts:
            self.blame(body.sequence, "the request it quotes is of another round or cohort")
        for what in self.joint.misplaced(body, request):
            self.blame(body.sequence, what)

    def _note_members(self, body: EntryBody, request: RoundRequest) -> None:
        if len(request.members) > 1:
            self.of_several.add(str(body.round_id))

    def _check_restated(self, body: EntryBody, truth: ShuffledRound) -> None:
        """Check what a correction or an incident says was released, whatever it is charged."""
        self._check_size(body, _users(truth))

    def _check_size(self, body: EntryBody, users: int) -> None:
        if str(body.round_id) in self.joint.rounds:
            return  # compared with all of its cohorts together
        if self.opened is not None and users > self.opened.details["population"]:
            self.blame(body.sequence, "it is about more users than the cohort has")

    def _note_loss(self, body: EntryBody, accounted: ShuffledRound) -> None:
        digest = body.details["privacy_loss"]
        if digest is not None:
            single, _ = charged_as(accounted)
            key = entries.loss_key(entries.round_bytes(single), body.numerical_policy)
            sequence, known = self.losses.setdefault(key, (body.sequence, digest))
            if known != digest:
                self.blame(
                    body.sequence, f"it names another privacy loss than entry {sequence} for the same round"
                )


def _users(described: ShuffledRound) -> int:
    """Return the least number of users that a round needs."""
    return max(described.fewest_users, described.sampled_from or 0)


def _has_known_policy(body: EntryBody) -> bool:
    return type(body.numerical_policy) is str and is_known_policy(body.numerical_policy)


def _is_typed(entry: LedgerEntry) -> bool:
    """Whether a row's values have their columns' types: SQLite takes any value in any column."""
    values: dict[str, Any] = dict(vars(entry))
    expected = {"sequence": int, "cohort": str, "kind": str, "round_id": str | None}
    return all(isinstance(value, expected.get(name, bytes)) for name, value in values.items())


def request_and_actor(content: bytes, actor: str) -> bytes:
    """Return a digest of a request's canonical bytes and of the person or program that made it."""
    return canonical.framed_digest("shuffle-ledger/request-and-actor/1", content, actor.encode("utf-8"))
