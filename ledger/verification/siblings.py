"""Rounds of several cohorts: do the chains of all of them say the same?

Each entry about such a round has *siblings*, one in the chain of every other cohort of its audience, written
in the same commit. All siblings state the same round and the same actor. Each states its own chain's budget,
which the replay of that chain checks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.days import microseconds_of
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, FIRST_SEQUENCE, EntryBody, EntryKind
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import (
    ReleaseTimes,
    RoundRequest,
    declared_from,
)
from shuffle_ledger.ledger.values.windows import Period, Window, periods_of

PRECEDES: Final = "it says wrongly whether the release may have come before the cohort was opened"
_DOMAIN: Final = "shuffle-ledger/joint-fact/1"
# What entries of a kind say of the round itself.
_SHARED: Final[Mapping[EntryKind, tuple[str, ...]]] = {
    EntryKind.ADMITTED: ("request",),
    EntryKind.REFUSED: ("request", "refused_by"),
    EntryKind.SETTLED: ("reports",),
    EntryKind.VOIDED: ("reason", "attestation"),
    EntryKind.CORRECTED: ("round", "reason"),
    EntryKind.INCIDENT: ("request", "registered_by", "round", "released", "reason"),
}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What one entry says of a round of several cohorts: equal in all their chains."""

    sequence: int  # in its own chain
    kind: EntryKind
    digest: bytes


@dataclass
class JointRound:
    """What one chain says of a round of several cohorts."""

    audience: tuple[str, ...]
    users: int = 0  # the most that an entry says took part, or were sampled
    reports_per_user: int = 1  # the most, as told last
    facts: list[Fact] = field(default_factory=list)

    def note_users(self, body: EntryBody) -> None:
        """Keep the most users that an entry says took part, or were sampled from."""
        details = body.details
        described = (
            details["round"]
            if body.kind in CORRECTED_OR_INCIDENT
            else details.get("request", {}).get("round")
        )
        if described:
            self.reports_per_user = int(described.get("reports_per_user", 1))
            self.users = max(self.users, int(described["sampled_from"] or 0))
        for said in (described, details):
            if said and said.get("reports") is not None:
                self.users = max(self.users, -(-int(said["reports"]) // self.reports_per_user))


@dataclass
class JointRounds:
    """What one chain says of all its rounds of several cohorts."""

    population: int = 0  # of a window's period or a quota: 0, for its users are those of its cohort
    frozen: bool = False
    windows: tuple[Window, ...] = ()
    period: Period | None = None
    quota: Quota | None = None
    ceiling: float | None = None  # the most that epsilon may be raised to
    local_budget: float | None = None  # of the sum of epsilon0
    budget: tuple[float, float] = (0.0, 0.0)  # epsilon and delta at the opening
    opened_at: datetime | None = None
    # Of a period: its incidents that attest since when, whose time its cohort's opening judges.
    attested: list[tuple[int, ReleaseTimes, bool]] = field(default_factory=list)
    rounds: dict[str, JointRound] = field(default_factory=dict)

    def open(self, body: EntryBody) -> None:
        """Take notice of the entry that opens the chain."""
        found = declared_from(body.details)
        self.windows, self.period, self.quota = found["windows"], found["period"], found["quota"]
        self.ceiling, self.local_budget = found["ceiling"], found["local_budget"]
        self.population = 0 if self.is_part else body.details["population"]
        self.budget = (body.epsilon_budget, body.delta_budget)
        self.opened_at = body.recorded_at

    @property
    def is_part(self) -> bool:
        """Whether the chain is of a window's period, or of a team's quota."""
        return self.period is not None or self.quota is not None

    @property
    def has_life(self) -> bool:
        """Whether the chain is of a budget: else only the periods of its cohort limit and promise."""
        return self.budget[0] != math.inf

    def may_precede(self, sequence: int, released: ReleaseTimes, *, said: bool) -> bool:
        """Return whether a release may have come before the opening that chose the rules.

        Of a period of a window that is its cohort's opening: what the entry says is kept for `undeclared`.

        Args:
            sequence: of the entry that tells of the release.
            released: what it attests.
            said: what it says.
        """
        if self.period is None or released.after is None:
            return not released.is_after_opening(self.opened_at)
        self.attested.append((sequence, released, said))
        return said

    def opening_of(self, released_after: int | None, *, is_early: bool) -> int | None:
        """Return the opening that the machine compares an incident with, as it counts moments.

        Of a period it is that of its cohort, which this chain does not state: one that leads to what the
        entry says, and `undeclared` compares that.
        """
        if self.period is None:
            return microseconds_of(self.opened_at)
        return None if is_early or released_after is None else released_after - 1

    def misplaced(self, body: EntryBody, request: RoundRequest) -> Iterator[str]:
        """Yield why a round does not belong into this chain, or lacks a chain that it belongs into.

        Args:
            body: an entry of this chain about the round.
            request: what it quotes.
        """
        if self.quota is not None:
            yield from _outside_quota(body, request, self.quota)
            return
        if self.period is not None:
            yield from _outside_period(body, request, self.period)
            return
        expected = {""}  # no name: a cohort with windows whose round has no days, or too many
        with contextlib.suppress(InvalidValue):
            if not self.windows:
                expected = set()
            elif request.days is not None:
                expected = {each.name for each in periods_of(self.windows, body.cohort, *request.days)}
        if body.cohort not in request.members or not expected <= set(request.windows):
            yield "its round is not charged to every period of the cohort's windows that it was collected in"

    def see(self, body: EntryBody, request: RoundRequest | None) -> None:
        """Take notice of an entry about a round.

        Args:
            body: the entry.
            request: what it quotes, if it does.
        """
        found = self.rounds.get(str(body.round_id))
        if found is None and request is not None and len(request.cohorts) > 1:
            found = JointRound(audience=request.cohorts)
        if found is not None:
            found.facts.append(fact_of(body))  # first: of an entry that lacks what is read, nothing is kept
            self.rounds[str(body.round_id)] = found
            found.note_users(body)


def _outside_quota(body: EntryBody, request: RoundRequest, quota: Quota) -> Iterator[str]:
    if body.cohort not in request.quotas or quota.cohort not in request.members:
        yield "its round is not charged to the cohort whose quota this is"
    elif quota.team != request.team:
        yield "its round is not of the team whose quota this is"


def _outside_period(body: EntryBody, request: RoundRequest, period: Period) -> Iterator[str]:
    first, last = request.days or (date.max, date.min)
    # Of an incident alone, the cohort may know the round, with other days.
    is_alone = request.cohorts == (body.cohort,) and body.kind in CORRECTED_OR_INCIDENT
    if not is_alone and (body.cohort not in request.windows or period.cohort not in request.members):
        yield "its round is not charged to the cohort whose window this is"
    elif period.first > last or period.last < first:
        yield "its round was not collected in this period of the window"


def fact_of(body: EntryBody) -> Fact:
    """Return what an entry says of a round that its siblings say, too; raises KeyError if it lacks some."""
    said = {name: body.details[name] for name in _SHARED[body.kind]}
    spelled = canonical.encode([str(body.kind), body.round_id, body.actor, said])
    digest = canonical.framed_digest(_DOMAIN, spelled)
    return Fact(sequence=body.sequence, kind=body.kind, digest=digest)


def undeclared(cohort: str, chains: Mapping[str, JointRounds]) -> Iterator[tuple[int, str]]:
    """Yield how a chain differs from what its name says, or a period's from what its cohort declared, and
    the sequence of the entry.

    A cohort does not declare quotas: they only refuse more, and change when somebody says so.
    """
    chain = chains[cohort]
    if chain.quota is not None and chain.quota.name != cohort:
        yield FIRST_SEQUENCE, "its name is not that of the quota that it declares"
    part = chain.period or chain.quota
    parent = chains.get(part.cohort) if part is not None else None
    if parent is None:
        return
    if parent.opened_at is not None and chain.opened_at is not None and chain.opened_at < parent.opened_at:
        yield FIRST_SEQUENCE, "its cohort was opened again after it, which no cohort with parts is"
    if chain.period is None:
        return
    for sequence, released, said in chain.attested:
        if said == released.is_after_opening(parent.opened_at):
            yield sequence, PRECEDES
    for window in parent.windows:
        same = window.kind == chain.period.kind and (window.epsilon, window.delta) == chain.budget
        same = same and window.local_budget == chain.local_budget
        days = (chain.period.first, chain.period.first)
        if (
            same
            and chain.period in window.periods(chain.period.cohort, *days)
            and chain.period.name == cohort
        ):
            return
    what = f"cohort {chain.period.cohort!r} declared no window with such a period and such a budget"
    yield FIRST_SEQUENCE, what


def disagreements(
    cohort: str, chains: Mapping[str, JointRounds], *, only: str | None = None
) -> Iterator[tuple[str, int, str]]:
    """Yield where a chain says otherwise of rounds than the chains of the other cohorts of their audience.

    A frozen chain has lost entries: of what it still has, each must be in the others' chains.

    Args:
        cohort: the chain that is judged.
        chains: what all chains say that are known, this one among them.
        only: the one round that is looked at; all if None.

    Yields the round, the entry's sequence and what is wrong.
    """
    own = chains[cohort]
    for round_id, said in own.rounds.items() if only is None else [(only, own.rounds[only])]:
        known = [name for name in said.audience if name in chains]
        # If each says what one of them says, and that one what each says, all say the same.
        one = next((name for name in known if not chains[name].frozen), None)
        for name in known if one == cohort else [one] if one is not None else []:
            if name == cohort or chains[name].frozen:
                continue  # a frozen chain is judged from its own side
            what = _difference(said, chains[name].rounds.get(round_id), is_frozen=own.frozen)
            if what is not None:
                yield round_id, what[0], f"round {round_id!r}: {what[1]} the chain of cohort {name!r}"
        population = sum(chains[name].population for name in known)
        if len(known) == len(said.audience) and said.users > population:
            yield round_id, said.facts[0].sequence, "it is about more users than its cohorts have together"


def _difference(own: JointRound, other: JointRound | None, *, is_frozen: bool) -> tuple[int, str] | None:
    """Return the first of a chain's facts that another chain lacks, or the last one if that has more.

    Args:
        own: what the chain says.
        other: what the other one says, if anything.
        is_frozen: the chain has lost entries, so that the other may have more.
    """
    theirs = [fact.digest for fact in other.facts] if other is not None else []
    position = 0
    for fact in own.facts:
        if is_frozen and fact.digest in theirs[position:]:
            position = theirs.index(fact.digest, position) + 1
        elif not is_frozen and theirs[position : position + 1] == [fact.digest]:
            position += 1
        else:
            is_missing = other is None or position >= len(theirs)
            return fact.sequence, "no sibling of this entry is in" if is_missing else "it says otherwise than"
    if not is_frozen and position < len(theirs):
        return own.facts[-1].sequence, "a later entry has no sibling here, and is in"
    return None
