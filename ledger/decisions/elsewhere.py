"""Corrections of where a round was collected: on more days, or also from users of other cohorts.

Its own chains charged it; each chain that it lacks gets it as an incident. Source: docs/adaptivity.md,
section 12, and docs/decisions/0014-corrections-and-incidents.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound, fits
from shuffle_ledger.ledger.decisions.corrections import CORRECTABLE, correct
from shuffle_ledger.ledger.decisions.courses import described_now
from shuffle_ledger.ledger.decisions.incidents import check_begun, record_incident, whose
from shuffle_ledger.ledger.decisions.outcomes import round_record, without_lost
from shuffle_ledger.ledger.decisions.strata import refuse_unstated_rate
from shuffle_ledger.ledger.decisions.truths import restated, truth_of
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.policies.base import IN_CLEAR
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    Corrected,
    Incident,
    Member,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
)
from shuffle_ledger.ledger.values.texts import checked_text


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Where a round was truly collected, beside what its registration says."""

    cohorts: tuple[str, ...] = ()  # further ones, whose users sent reports too
    on: date | None = None  # the first day, UTC; None: as registered
    until: date | None = None  # the last one; None: as registered

    def __bool__(self) -> bool:
        return bool(self.cohorts) or self.on is not None or self.until is not None


def correct_everywhere(
    store: Store,
    accountant: Accountant,
    round_id: str,
    changes: Mapping[str, object],
    *,
    collected: Collected,
    reason: str,
    actor: str,
) -> Corrected:
    """Correct a round, and record it in each chain that lacks it, as an incident named `ID+CHAIN`.

    A chain that lacks it is a further cohort, with its periods, or a period of a window of its own cohorts.
    Where such an incident says otherwise, it is corrected, and is told on the days that it lacks. Days that
    were declared too many change nothing: what was charged stays charged. Each chain is one commit: after a
    failure, the same again records what is missing; if another correction or a settlement came between, it
    is a new correction. `not_told` names the chains that an earlier correction told, this one does not, and
    that may be charged too little.

    Args:
        store, accountant, round_id, changes, reason, actor: as of `correct`; `changes` may be empty.
        collected: where it was collected.

    Raises:
        NotFound: no such round or cohort.
        InvalidValue: no cohort or days that there can be; nothing was recorded.
        Conflict: an identifier `ID+CHAIN` is of another round; nothing was recorded.
        What `correct` and `record_incident` raise.
    """
    record = round_record(store, checked_text("round_id", round_id))
    wider = _wider(record.request, collected)
    if record.request.days is None:
        check_begun(store, record.request.cohort, wider.collected_on)
    truth = restated(described_now(record), changes) if record.state in CORRECTABLE else record.request.round
    refuse_unstated_rate(record, truth, changes, collected.cohorts)
    lacking = {
        checked_text("round_id", f"{record.request.round_id}+{chain}"): (chain, cohort)
        for chain, cohort in _lacking(store, record.request, wider, collected.cohorts)
    }
    for name, (chain, cohort) in lacking.items():
        _within(truth, cohort)
        _check_free(store, name, chain)
        with contextlib.suppress(NotFound):  # it was not told there yet
            for further, period in _untold(store, record.request.round_id, name, wider):
                _check_free(store, further, period)
    by: dict[str, str] = {"reason": reason, "actor": actor}
    answer = correct(store, accountant, round_id, changes, **by, may_be_same=bool(collected))
    told_of = record.request.round_id
    others = frozenset(collected.cohorts) - set(record.request.members)
    places = _Places(lacking=lacking, further=others, sampled_from=changes.get("sampled_from"))
    elsewhere = _told_elsewhere(store, accountant, told_of, wider=wider, places=places, by=by)
    overspent = answer.overspent or any(one.overspent for one in elsewhere)
    missed = not_told(store, told_of)
    return replace(answer, overspent=overspent, elsewhere=elsewhere, not_told=missed)


def not_told(store: Store, round_id: str) -> tuple[str, ...]:
    """Return the chains whose incident `ID+CHAIN` of a round may be charged too little for what it is now.

    They were told of it by an earlier correction, which a later one or a settlement does not reach unless it
    names their cohorts and days again.

    Raises:
        NotFound: no such round.
    """
    chains = store.incidents_elsewhere(round_id)
    if not chains:
        return ()
    truth = described_now(round_record(store, round_id))
    return tuple(one.name for one in store.cohorts_named(chains) if not _covers(store, round_id, truth, one))


def _covers(store: Store, round_id: str, truth: ShuffledRound, chain: Cohort) -> bool:
    """Return whether a chain's incident is known to cost no less than the round does."""
    told = described_now(round_record(store, f"{round_id}+{chain.name}"))
    if told == IN_CLEAR:
        return True
    with contextlib.suppress(InvalidValue, InvalidParameter):  # no round of so few users
        return any(fits(_within(each, chain), told) for each in (truth, replace(truth, sampled_from=None)))
    return False


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The chains that lack a round, and whose users they are of, by the names of the incidents."""

    lacking: Mapping[str, tuple[str, Cohort]]
    further: Collection[str]  # the cohorts that the registration does not name
    sampled_from: object  # the population that the correction names for them, too; None: it names none

    def described(self, store: Store, name: str, truth: ShuffledRound) -> ShuffledRound:
        """Return a round as it is told to one of these chains.

        Another person may have corrected it to another sample since, and knew nothing of a further cohort:
        the rate may not be that of its users. They count as asked for certain, unless it was told there.
        """
        _, cohort = self.lacking[name]
        told = _within(truth, cohort)
        is_stated = truth.sampled_from in (None, self.sampled_from) or truth.reports_per_user > 1
        if is_stated or cohort.name not in self.further:
            return told
        with contextlib.suppress(NotFound):
            if described_now(round_record(store, name)) == told:
                return told
        return _within(replace(truth, sampled_from=None), cohort)


def _told_elsewhere(
    store: Store,
    accountant: Accountant,
    round_id: str,
    *,
    wider: RoundRequest,
    places: _Places,
    by: Mapping[str, str],
) -> tuple[Member, ...]:
    """Tell a corrected round to the chains that lack it, and return what that left of their budgets.

    Others may correct the round at the same time, and each of them tells what it knows. So these chains are
    told what the round's own chains say now, and are told again if that changed meanwhile.

    Args:
        store, accountant: as of `correct_everywhere`.
        round_id: the round, which was corrected.
        wider: its request with all its days.
        places: these chains.
        by: the reason and the actor.
    """
    left: dict[str, Member] = {}
    told: ShuffledRound | None = None
    while places.lacking:
        record = round_record(store, round_id)
        truth = described_now(record)
        if truth == told:
            break
        telling = _Telling(record, wider, by)
        for name, (chain, _) in places.lacking.items():
            described = places.described(store, name, truth)
            for member in telling.tell(store, accountant, name, chain, described):
                left[member.cohort] = member
        told = truth
    return tuple(left.values())


@dataclass(frozen=True)
class _Telling:
    """What is told of one round to the chains that lack it."""

    record: RoundRecord
    wider: RoundRequest  # with all its days
    by: Mapping[str, str]  # the reason and the actor

    def tell(
        self, store: Store, accountant: Accountant, name: str, chain: str, described: ShuffledRound
    ) -> Iterator[Member]:
        """Record the round in a chain as an incident of a name, or correct the one that there is.

        The incident may have been told with fewer days: it is also told to the periods that it lacks then.
        """
        first, last = self.wider.collected_on, self.wider.collected_until
        told: dict[str, Any] = {"collected_on": first, "collected_until": last, **self.by}
        told |= {"described": described, "released": self._released(store, name, chain)}
        # No other cohort, if somebody registers a round of several under this name at this moment.
        told |= {"reaches": lambda each: each == chain or each.startswith(f"{chain}@")}
        found: Incident | Corrected | None = None
        _check_free(store, name, chain)
        try:
            found = record_incident(store, accountant, chain, round_id=name, may_begin_later=True, **told)
        except Conflict:
            if round_record(store, name).incident is None:
                raise
        # An incident that was told in these words may have been corrected since.
        if found is None or round_record(store, name).corrections:
            fields = described.to_mapping()
            if "interaction" in fields:  # an older record has neither; others leave out a single report
                fields["reports_per_user"] = described.reports_per_user
            found = correct(store, accountant, name, fields, **self.by, may_be_same=True)
        yield from found.audience or (_member(found),)
        for further, period in _untold(store, self.record.request.round_id, name, self.wider):
            yield from self.tell(store, accountant, further, period, described)

    def _released(self, store: Store, name: str, chain: str) -> ReleaseTimes:
        """Return when the round was released, as it is told to a chain: as it was told before; else no later
        than the clocks of the chain and its periods, one of which may have been set back.
        """
        with contextlib.suppress(NotFound):
            if (incident := round_record(store, name).incident) is not None:
                return incident.released
        owner = whose(store, chain)
        charged = {chain} | {each.name for each in owner.periods(self.wider) if owner.name == chain}
        known = [cohort.name for cohort in store.cohorts(only=charged)]
        clocks = [view.now for view in store.views(known)] if known else []
        now = min(clocks if len(known) == len(charged) else [*clocks, store.now()])  # the others are opened
        released = _released(store, self.record, known)
        before = released.before if released.before is None or released.before <= now else None
        return ReleaseTimes(after=released.after and min(released.after, now), before=before)


def _untold(store: Store, round_id: str, name: str, wider: RoundRequest) -> Iterator[tuple[str, str]]:
    """Yield the periods that an incident of a name lacks of a round's days, and the names of incidents there.

    Raises:
        NotFound: no such incident.
        InvalidValue: a name that is too long.
    """
    request = round_record(store, name).request
    days = Collected(on=wider.collected_on, until=wider.collected_until)
    for period, _ in _lacking(store, request, _wider(request, days), ()):
        yield checked_text("round_id", f"{round_id}+{period}"), period


def _check_free(store: Store, name: str, chain: str) -> None:
    """Raise Conflict if an identifier is of a round that is no incident, or of another chain; which one may
    not be for the caller."""
    try:
        record = round_record(store, name)
    except NotFound:
        return
    if record.request.members != (chain,) or record.incident is None:
        raise Conflict(
            f"round {name!r}: this identifier cannot be used; record an incident of cohort {chain!r} with"
            " another one"
        )


def _member(told: Incident | Corrected) -> Member:
    return Member(
        cohort=told.cohort,
        sequence=told.sequence,
        epsilon_spent_upper=told.epsilon_spent_upper,
        epsilon_remaining=told.epsilon_remaining,
        overspent=told.overspent,
    )


def _wider(request: RoundRequest, collected: Collected) -> RoundRequest:
    """Return the request with all its days and those that were left out; raises InvalidValue."""
    first, last = request.days or (collected.on, collected.on)
    on, until = collected.on or first, collected.until or last
    if on is None or until is None:
        if collected.until is None:
            return request
        expected = "the first day of collection, which the registration does not say"
        raise InvalidValue(field="collected_on", value=None, expected=expected)
    stated = replace(request, collected_on=on, collected_until=None if until == on else until, windows=())
    if first is None or last is None:
        return stated
    on, until = min(on, first), max(until, last)
    return replace(stated, collected_on=on, collected_until=None if until == on else until)


def _lacking(
    store: Store, request: RoundRequest, wider: RoundRequest, further: Sequence[str]
) -> Iterator[tuple[str, Cohort]]:
    """Yield the chains to tell of a round, and whose users they are of; raises NotFound, InvalidValue."""
    for cohort in store.cohorts_named(without_lost(store, request.members)):
        for period in cohort.periods(wider):
            if period.name not in request.windows:
                yield period.name, cohort
    for cohort in store.cohorts_named(sorted(set(further) - set(request.members))):
        if cohort.parent is not None:
            expected = f"{cohort.parent!r}, of which this is a part"
            raise InvalidValue(field="also_cohorts", value=cohort.name, expected=expected)
        cohort.periods(wider)  # it has days, if its windows need them
        yield cohort.name, cohort


def _within(truth: ShuffledRound, cohort: Cohort) -> ShuffledRound:
    """Return a round of no more users than a cohort has, that costs them no less than the one of several.

    Guarantee: it dominates the round, for fewer reports hide less.

    Raises:
        InvalidValue: no such round is known.
    """
    users = cohort.population
    if truth.reports_per_user > 1 and truth.sampled_from is not None and truth.sampled_from > users:
        truth = replace(truth, sampled_from=None)  # with several reports of a user it changes no charge
    reports = min(truth.reports, users * truth.reports_per_user)
    if truth.sampled_from is not None and truth.sampled_from > users:
        reports = min(reports, users * truth.reports // truth.sampled_from)
    if reports == truth.reports:
        return truth
    smaller = truth_of(truth, max(reports, 1))
    if smaller.sampled_from is not None and smaller.sampled_from > users:
        smaller = replace(smaller, sampled_from=users)  # a rate that rises costs no less
    if not fits(truth, smaller):
        expected = (
            f"a round of no more users than cohort {cohort.name!r} has, {users:,}; record an incident there,"
            " with what is known"
        )
        raise InvalidValue(field="reports", value=truth.reports, expected=expected)
    return smaller


def _released(store: Store, record: RoundRecord, chains: Sequence[str]) -> ReleaseTimes:
    """Return when a round was released: as an incident attests, or after the admission that permitted it.

    The moment of the admission says nothing if a clock was set back: if it is not before that of the opening
    that chose the rules of one of the chains, which came later.
    """
    if record.incident is not None:
        return record.incident.released
    if record.outcome is None:
        return ReleaseTimes()
    admitted = store.entry(record.outcome.cohort, record.outcome.sequence)
    after = admitted.content().recorded_at
    owners = {found.parent or found.name for found in map(partial(whose, store), chains)}
    for opened in (store.entry(name, FIRST_SEQUENCE) for name in sorted(owners)):
        if store.is_earlier(admitted, opened) and after >= opened.content().recorded_at:
            return ReleaseTimes()
    return ReleaseTimes(after=after)
