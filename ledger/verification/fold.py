"""Folds a chain: says each entry again, by the functions that write entries, given what is before it.

The fold takes from an entry the words of people, and the accountant's numbers: costs, limits, bounds on the
spending, digests of privacy losses. `proofs` proves costs and limits. Every other byte follows.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from shuffle_ledger.accounting import ShuffledRound, charged_as, exact_text
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions.descriptions import local_kind, with_reports
from shuffle_ledger.ledger.decisions.refusals import reason_of, reason_unseen
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.machine import Cause, Charge, Cost, Described, Limits, Posting, State, Unchanged
from shuffle_ledger.ledger.policies.base import in_clear, slot_of
from shuffle_ledger.ledger.policies.numbers import epsilon_units, read, spelled
from shuffle_ledger.ledger.policies.policy import (
    SLOTS,
    BudgetPolicy,
    decided,
    recorded,
    restated,
    slots_cover,
    spending_of_record,
    with_opening,
)
from shuffle_ledger.ledger.policies.registry import policy_from
from shuffle_ledger.ledger.storage.store import opening_details
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.days import microseconds_of
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, Spending
from shuffle_ledger.ledger.values.requests import (
    DECLARED,
    POLICY_ADAPTIVE,
    VOID_ATTESTATION,
    Cohort,
    CohortStatus,
    RefusalReason,
    ReleaseTimes,
    RoundRequest,
    checked_epsilon,
    declared_from,
)
from shuffle_ledger.ledger.values.round_parameters import read_round
from shuffle_ledger.ledger.verification.siblings import PRECEDES, JointRounds
from shuffle_ledger.ledger.verification.stated import (
    check_bounds,
    misdivided,
    stated,
    stated_spending,
    with_stated_amounts,
)

_EPSILONS_MAX = 64  # promised ones that are kept as floats
_SPELLED_MAX = 4096  # rounds, costs and charges of which thousands of entries have the same few
_CAUSES = {
    EntryKind.SETTLED: Cause.SETTLE,
    EntryKind.CORRECTED: Cause.CORRECT,
    EntryKind.VOIDED: Cause.VOID,
    EntryKind.INCIDENT: Cause.INCIDENT,
}
_OF_OPENINGS = (EntryKind.OPENED, EntryKind.BUDGET_CHANGED)
# A window may give this to its periods beside a budget.
_OF_PARTS = frozenset({"local_budget"})


@dataclass
class SeenRound:
    """The state of one round by the entries of a chain so far."""

    sequence: int  # of the entry that decides it, or told of it first
    quoted: bytes  # digest of its request and of its author
    registered: tuple[Any, Any]  # its number and moment
    declared: ShuffledRound  # as told last
    is_of_several: bool = False  # cohorts
    is_open: bool = False  # admitted, and neither settled nor voided
    closed_by: int | None = None
    accounted: ShuffledRound | None = None  # None: nothing is charged
    local: ShuffledRound | None = None  # as which it counts without the shuffler
    charge: Charge | None = None  # of a voided round, what is left of it
    cost: Cost | None = None  # that an entry stated last


@dataclass
class Fold:
    """The state of a chain after each of its entries."""

    wrong: list[str] = field(default_factory=list)  # what the entry at hand says wrongly
    opened: EntryBody | None = None
    policy: BudgetPolicy | None = None  # None before the opening
    state: State | None = None
    frozen: bool = False  # the spending is unknown from here on
    closed: bool = False
    held: Counter[ShuffledRound] = field(default_factory=Counter)
    local: Counter[ShuffledRound] = field(default_factory=Counter)
    rounds: dict[str, SeenRound] = field(default_factory=dict)
    joint: JointRounds = field(default_factory=JointRounds)  # rounds of several cohorts
    losses: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # loss key -> entry, digest it names
    # To be proven, of the last entry.
    stated_cost: tuple[ShuffledRound, Cost] | None = None
    stated_limits: Limits | None = None
    asked: ShuffledRound | None = None  # what the last entry refuses by numbers
    _is_used: bool = False  # something was decided or recorded

    @property
    def filtered(self) -> bool:
        """Whether filters decide, so that the numbers are theirs and not the composition's."""
        return self.policy is not None and not self.policy.has_slots_alone

    @property
    def status(self) -> CohortStatus:
        """The cohort's status after the last entry."""
        if self.frozen:
            return "frozen"
        return "overspent" if self.overspent else "closed" if self.closed else "open"

    @property
    def overspent(self) -> bool:
        """Whether the promise is broken after the last entry."""
        return self.state is not None and self.state.is_overspent

    @property
    def promised_epsilon(self) -> float:
        """The epsilon that is promised after the last entry; infinite where nothing is."""
        if self.state is None or not self.state.rules.promises:
            return math.inf
        return _epsilon(self.state.limits.promise.epsilon)

    @property
    def budget(self) -> tuple[BudgetPolicy, State]:
        """The rules and the state after the last entry; raises Damaged before the opening."""
        if self.policy is None or self.state is None:
            raise Damaged("nothing has opened the cohort")
        return self.policy, self.state

    def rounds_of_one_user(self) -> int | None:
        """Return in how many of the rounds so far one user takes part at most; None without a limit."""
        if self.state is None or self.state.rules.rounds_per_user is None:
            return None
        return machine.rounds_of_one_user(self.state.rules, self.state.total)

    def follow(self, body: EntryBody, previous: EntryBody | None) -> EntryBody:
        """Apply the next entry, and return what it must say; `wrong` gets what else is wrong with it.

        Raises:
            What reading values that no ledger writes may raise: nothing follows from them.
        """
        self.wrong.clear()
        self.stated_cost = self.stated_limits = self.asked = None
        if body.kind is EntryKind.OPENED:
            return self._open(body)
        if previous is None:
            raise Damaged("a chain begins with the entry that opened the cohort")
        if self.frozen and body.kind not in (EntryKind.REFUSED, *CORRECTED_OR_INCIDENT):
            self.wrong.append(
                "it follows a freeze, after which a cohort only refuses, and records what it is told"
            )
        self._is_used = self._is_used or body.kind not in _OF_OPENINGS
        epsilon, spent = previous.epsilon_budget, previous.spent
        if body.kind in _CAUSES:
            details, spent = self._restate(body, spent)
        elif body.kind is EntryKind.BUDGET_CHANGED:
            epsilon = checked_epsilon(body.epsilon_budget)
            details, spent = self._change(body, previous)
        elif body.kind is EntryKind.CLOSED:
            if self.status != "open" or self.joint.is_part:
                self.wrong.append("it closes a cohort that is not open, or a part of one")
            self.closed = True
            details = stated(body, "reason")
        elif body.kind is EntryKind.FROZEN:
            self.frozen = self.joint.frozen = True
            spent = spent.unknown_after(previous.sequence)
            details = stated(body, "reason", "checkpoint", "nothing_later", "last_known")
        else:
            details, spent = self._decide(body, spent)
        policy, after = self.budget
        ended = self.frozen or self.closed
        if after.is_frozen != ended:
            self.state = after = replace(after, is_frozen=ended)
        details["standing"] = policy.standing_after(after)
        return replace(
            body,
            epsilon_budget=epsilon,
            delta_budget=previous.delta_budget,
            spent=spent,
            details=details,
        )

    # Openings, and what changes a budget.

    def _open(self, body: EntryBody) -> EntryBody:
        details = body.details
        if self.opened is not None:
            self._open_again(body, self.opened)
        self.opened = body
        self.joint.open(body)
        part = {"period", "quota"} & set(details)
        if part and (len(part) > 1 or {*DECLARED} & set(details) - part - _OF_PARTS):
            self.wrong.append("it declares more than a part of a cohort has")
        if "period" in part and details["policy"] != POLICY_ADAPTIVE:
            self.wrong.append("a period of a window has another policy than adaptive")
        policy = self.policy = policy_from(str(details.get("policy")), body.to_bytes())
        self.state = machine.new_state(policy.machine_rules, policy.limits)
        self.stated_limits = policy.limits
        cohort = Cohort(
            name=body.cohort,
            population=details["population"],
            epsilon_budget=body.epsilon_budget,
            delta_budget=body.delta_budget,
            policy=details["policy"],
            **declared_from(details),
        )
        again = opening_details(cohort, with_stated_amounts(policy, cohort).opening())
        if cohort.quota is not None and "reason" in details:
            again |= stated(body, "reason")
        self.wrong += misdivided(policy)
        return replace(
            body,
            epsilon_budget=cohort.epsilon_budget,
            delta_budget=cohort.delta_budget,
            spent=Spending.nothing(cohort.delta_budget),
            details=again,
        )

    def _open_again(self, body: EntryBody, before: EntryBody) -> None:
        """Check that a cohort is opened again later, and only while nothing was decided or recorded."""
        if self._is_used:
            self.wrong.append("it opens the cohort again, although something was decided or recorded")
        if self.joint.is_part or {"period", "quota"} & set(body.details):
            self.wrong.append("it opens a part of a cohort again")
        if body.recorded_at <= before.recorded_at:
            self.wrong.append("it opens the cohort again, and not later than before")

    def _change(self, body: EntryBody, previous: EntryBody) -> tuple[dict[str, Any], Spending]:
        policy, before = self.budget
        epsilon, ceiling = checked_epsilon(body.epsilon_budget), self.joint.ceiling
        if self.joint.period is not None or not self.joint.has_life:
            self.wrong.append("it changes the budget of a window, or one that there is not")
        if ceiling is not None and epsilon > ceiling:
            self.wrong.append("the budget is above the ceiling that the cohort was opened with")
        if epsilon == previous.epsilon_budget:
            self.wrong.append("it changes the budget to what it was")
        limits = self.stated_limits = policy.stated_in(body.details)[1]
        refuse = replace(limits.refuse, epsilon=epsilon_units(epsilon))
        found = policy.moved_to(before, refuse, slack=limits.slack, has_ceiling=ceiling is not None)
        if isinstance(found, Unchanged):
            self.wrong.append("it changes the budget so that what is held does not fit")
        else:
            self.state = machine.fold(before, found)
        details = {**stated(body, "reason"), "epsilon_before": previous.epsilon_budget}
        return details, self._spent(body) if policy.filters else previous.spent

    # Decisions.

    def _decide(self, body: EntryBody, spent: Spending) -> tuple[dict[str, Any], Spending]:
        """Return the details of a decision, and what is spent after it."""
        policy, before = self.budget
        round_id, is_admitted = str(body.round_id), body.kind is EntryKind.ADMITTED
        if round_id in self.rounds:
            earlier = self.rounds[round_id].sequence
            self.wrong.append(f"round {round_id!r} was decided before, by entry {earlier}")
        seen, asked, request = self._registered(body, body.actor)
        self.rounds[round_id] = seen
        again = stated(body, "registration", "registered_at")
        if datetime.fromisoformat(again["registered_at"]) > body.recorded_at:
            self.wrong.append("its round was registered after it was decided: time goes backwards")
        self._check_size(body, asked.round)
        again["request"] = request
        accounted, requested, loss = slot_of(asked.round), None, None
        reason = self._reason_unseen(body, asked)
        if reason is None:
            cost = self._stated_cost(body, asked.round)
            posting = decided(before, cost)
            charge = _taken(posting)
            if policy.has_slots_alone and charge.claimed is not None:
                accounted = policy.slots_declared[charge.claimed][0]
            self.stated_cost, loss = (accounted, cost), self._loss(body, accounted)
            total = machine.added(before.rules, before.total, charge) if posting.reasons else posting.total
            after = replace(before, total=total)
            if is_admitted:
                self._hold(body, seen, accounted, charge, cost)
                seen.is_open, self.state = True, after
                spent = requested = self._computed(body, body.spent, after, "what is spent")
            else:
                requested = self._computed(body, stated_spending(body), after, "what was requested", more=1)
                self.asked = accounted
            reason = reason_of(policy, posting, requested)
            again |= {"cost": _said(cost), "charge": _said(charge)}
        if is_admitted and reason is not None:
            self.wrong.append(f"it admits a round beyond the budget, by its own numbers: {reason}")
        if not is_admitted and reason is None:
            self.wrong.append("it refuses a round that the budget admits, by its own numbers")
        again |= {"accounted": _round(accounted), "privacy_loss": loss}
        again["requested"] = None if requested is None else requested.to_mapping()
        if not is_admitted:
            again |= {"reason": reason, **stated(body, "message")}
            again |= _refused_by(body, asked, reason, spent, requested)
        return again, spent

    def _registered(self, body: EntryBody, author: str) -> tuple[SeenRound, RoundRequest, dict[str, Any]]:
        """Return a round as an entry quotes its registration, its request, and how entries spell that."""
        request = RoundRequest.from_mapping(body.details["request"])
        if request.round_id != body.round_id or body.cohort not in request.cohorts:
            self.wrong.append("the request it quotes is of another round or cohort")
        self.wrong += self.joint.misplaced(body, request)
        self.joint.see(body, request)
        written = {**request.beside_round(), "round": _round(request.round)}
        seen = SeenRound(
            sequence=body.sequence,
            quoted=request_and_actor(canonical.encode(written), author),
            registered=(body.details["registration"], body.details["registered_at"]),
            declared=request.round,
            is_of_several=len(request.members) > 1,
        )
        return seen, request, written

    def _reason_unseen(self, body: EntryBody, request: RoundRequest) -> RefusalReason | None:
        """Return why a round is refused before its cost is computed, or whatever it is, if it is."""
        policy, before = self.budget
        given = body.details.get("reason")
        found = reason_unseen(self.status, request, body.recorded_at.date())
        # A round may be decided before the midnight after which its entry is recorded.
        if found is not None and (found is not RefusalReason.COLLECTION_OVER or given == found):
            return found
        if policy.has_slots_alone and policy.free_kind(before, request.round) is None:
            return RefusalReason.NO_FREE_SLOT
        is_by_another = body.cohort not in body.details.get("refused_by", {body.cohort: None})
        return RefusalReason.REFUSED_ELSEWHERE if is_by_another else None

    # What turned out otherwise.

    def _restate(self, body: EntryBody, spent: Spending) -> tuple[dict[str, Any], Spending]:
        """Return the details of a settlement, a void, a correction or an incident, and what is spent then."""
        policy, before = self.budget
        cause, seen, actual, again = self._restatement(body)
        held = None if cause is Cause.INCIDENT else seen.accounted
        if held is not None and actual is not None:
            again["accounted_before"] = _round(held)
        if cause is Cause.INCIDENT:
            again["chosen_after"] = False
        if self.frozen:
            seen.accounted = held or slot_of(actual or seen.declared)
            again |= {"accounted": _round(seen.accounted), "privacy_loss": None}
            again["overspent"] = False
            return again, spent
        is_early = cause is Cause.INCIDENT and self._is_early(body)
        cost = None if actual is None or is_early else self._stated_cost(body, actual)
        described = Described.NOTHING if actual is None else Described.STATED if cost else Described.UNKNOWN
        after = _released_after(body) if cause is Cause.INCIDENT else None
        judged = with_opening(before, self.joint.opening_of(after, is_early=is_early))
        was = recorded(judged, seen.charge, voided=cause is Cause.INCIDENT, released_after=after)
        posting = restated(judged, was, described, cause, cost)
        charge = _taken(posting)
        accounted = held if actual is None else policy.accounted_restated(posting, actual, held)
        if accounted is None:
            raise Damaged("it closes a round that is charged nothing")
        self.state, overspent = machine.fold(before, posting), posting.is_overspent
        again |= {"accounted": _round(accounted), "charge": _said(charge)}
        again |= {} if cost is None else {"cost": _said(cost)}
        again |= {"chosen_after": is_early} if cause is Cause.INCIDENT else {}
        if actual is not None:
            again |= {"overspent": overspent, "privacy_loss": self._loss(body, accounted)}
        self._prove_restated(seen, accounted, cost)
        if held is not None:
            self.held -= Counter({held: 1})
        if actual is None:
            seen.charge, seen.accounted, seen.cost = charge, None, None
        else:
            self._hold(body, seen, accounted, charge, cost)
        is_carried = not policy.filters and accounted == held and actual is not None
        return again, spent if is_carried else self._spent(body)

    def _restatement(self, body: EntryBody) -> tuple[Cause, SeenRound, ShuffledRound | None, dict[str, Any]]:
        """Return why a round is restated, what was known of it, what was released, and what people stated."""
        cause, round_id = _CAUSES[body.kind], str(body.round_id)
        if cause is Cause.INCIDENT:
            return cause, *self._incident(body)
        self.joint.see(body, None)
        seen = self.rounds.get(round_id)
        if seen is None or seen.accounted is None:
            raise Damaged(f"round {round_id!r} is charged nothing that it could change")
        if cause is Cause.CORRECT:
            seen.declared = read_round(body.details["round"])
            self._check_size(body, seen.declared)
            return cause, seen, seen.declared, {"round": seen.declared.to_mapping(), **stated(body, "reason")}
        if not seen.is_open:
            self.wrong.append(f"it closes round {round_id!r}, which is not admitted and open")
        seen.is_open, seen.closed_by = False, body.sequence
        if cause is Cause.VOID:
            return cause, seen, None, {**stated(body, "reason"), "attestation": VOID_ATTESTATION}
        again, declared = stated(body, "reports"), seen.declared
        reports = again["reports"]
        self._check_users(body, -(-reports // declared.reports_per_user))
        is_sampled = declared.sampled_from is not None and declared.reports_per_user == 1
        if seen.is_of_several and is_sampled and reports > declared.reports:
            self.wrong.append("it settles a round with more reports than its cohorts' samples have")
        return cause, seen, with_reports(declared, reports), again

    def _incident(self, body: EntryBody) -> tuple[SeenRound, ShuffledRound, dict[str, Any]]:
        details, round_id = body.details, str(body.round_id)
        quoted, _, request = self._registered(body, details["registered_by"])
        seen = self.rounds.setdefault(round_id, quoted)
        if (seen.quoted, seen.registered) != (quoted.quoted, quoted.registered):
            self.wrong.append("the request it quotes is not the one that was decided before")
        if seen.accounted is not None:
            self.wrong.append(f"it tells as an incident round {round_id!r}, which was charged before")
        actual = in_clear() if details["round"] is None else read_round(details["round"])
        seen.declared, seen.is_of_several = actual, quoted.is_of_several
        self._check_size(body, actual)
        released = ReleaseTimes.from_mapping(details["released"])
        if any(moment and moment > body.recorded_at for moment in (released.after, released.before)):
            self.wrong.append("it tells a release that was yet to come")
        again = {
            "request": request,
            "round": None if details["round"] is None else actual.to_mapping(),
            "released": released.to_mapping(),
            **stated(body, "registration", "registered_at", "registered_by", "reason"),
        }
        return seen, actual, again

    def _is_early(self, body: EntryBody) -> bool:
        """Return whether an incident may have come before the opening that chose the rules."""
        said = stated(body, "chosen_after")["chosen_after"]
        released = ReleaseTimes.from_mapping(body.details["released"])
        chooses = self.joint.quota is None
        expected = chooses and self.joint.may_precede(body.sequence, released, said=said)
        if said is not expected:
            self.wrong.append(PRECEDES)
        return expected

    def _prove_restated(self, seen: SeenRound, accounted: ShuffledRound, cost: Cost | None) -> None:
        """Keep a stated cost for its proof, unless it is that of the round before."""
        if cost is None:
            return
        known = seen.cost and replace(seen.cost, fits=cost.fits, local=cost.local)
        if seen.accounted != accounted or known != cost:
            self.stated_cost = (accounted, cost)

    def _hold(
        self, body: EntryBody, seen: SeenRound, accounted: ShuffledRound, charge: Charge, cost: Cost | None
    ) -> None:
        """Hold a round as it is charged now.

        Without the shuffler it counts as it was first accounted, or as it was corrected to if that says more.
        """
        self.held[accounted] += 1
        seen.accounted, seen.charge, seen.cost = accounted, charge, cost or seen.cost
        if body.kind is EntryKind.SETTLED:
            return
        counted = accounted
        if body.kind is EntryKind.CORRECTED and seen.local is not None:
            counted = local_kind((seen.local, accounted))
            self.local[seen.local] -= 1
        self.local[counted] += 1
        seen.local = counted

    # Numbers that entries of several kinds state.

    def _stated_cost(self, body: EntryBody, actual: ShuffledRound) -> Cost:
        """Return the cost that an entry states, with what of it follows from the round."""
        policy, _ = self.budget
        if "cost" not in body.details:
            raise Damaged("it does not say what its round costs")
        cost = read(Cost, body.details["cost"])
        fits, local = policy.fitting(actual), policy.local(actual)
        return cost if (cost.fits, cost.local) == (fits, local) else replace(cost, fits=fits, local=local)

    def _spent(self, body: EntryBody) -> Spending:
        """Return what an entry must say is spent, by the bounds that it states."""
        return self._computed(body, body.spent, self.budget[1], "what is spent")

    def _computed(
        self, body: EntryBody, said: Spending, state: State, subject: str, *, more: int = 0
    ) -> Spending:
        """Return what an entry must say of a state, by the bounds that it states.

        Args:
            body: the entry.
            said: what it says, with the bounds.
            state: of the budget.
            subject: of a sentence about it.
            more: rounds of the state beside those that are held.
        """
        (policy, _), rounds = self.budget, sum(self.held.values()) + more
        if policy.is_record:
            return spending_of_record(rounds)
        if rounds == 0:
            nothing = Spending.nothing(policy.delta)
            return nothing if policy.filters else replace(nothing, method=body.numerical_policy)
        check_bounds(said)
        if policy.filters is None:
            slots = policy.slots_epsilon[0]
            if not more and said.epsilon_upper > slots and slots_cover(state):
                self.wrong.append("it says more is spent than the whole plan costs")
            # How the width divides by cause rests on the computation.
            return replace(said, delta=policy.delta, rounds=rounds, method=body.numerical_policy)
        self._compare_reading(policy, said, state, subject)
        width = said.epsilon_upper - said.epsilon_lower if math.isfinite(said.epsilon_upper) else 0.0
        return Spending(
            epsilon_upper=said.epsilon_upper,
            epsilon_lower=said.epsilon_lower,
            delta=policy.delta,
            rounds=rounds,
            discretization=0.0,
            truncation=0.0,
            round_off=width,
            method=said.method if said.method in policy.methods else policy.methods[0],
        )

    def _compare_reading(self, policy: BudgetPolicy, said: Spending, state: State, subject: str) -> None:
        if policy.confirms(state, said):
            return
        # What decides is the filter that reads least; how little another one might is no excuse.
        readings = policy.readings_of(state, deciding=True)
        least = min(readings, key=lambda reading: reading.epsilon_upper)
        # A filter is read again, on another computer; the slots' bound is the number that the rules state.
        most = least.epsilon_upper if least.name == SLOTS else least.epsilon_lower
        enough = most <= said.epsilon_upper
        if math.isinf(least.epsilon_upper):
            enough = math.isinf(said.epsilon_upper)
        if not enough or least.epsilon_upper < said.epsilon_lower:
            self.wrong.append(
                f"it says epsilon of {subject} is up to {exact_text(said.epsilon_upper)}; for its charges"
                f" the filters say {exact_text(least.epsilon_upper)}"
            )

    def _loss(self, body: EntryBody, accounted: ShuffledRound) -> str:
        """Return the digest of a privacy loss that an entry names: the same as others of the same round."""
        digest = str(stated(body, "privacy_loss")["privacy_loss"])
        single, _ = charged_as(accounted)
        key = entries.loss_key(entries.round_bytes(single), body.numerical_policy)
        sequence, known = self.losses.setdefault(key, (body.sequence, digest))
        if known != digest:
            self.wrong.append(f"it names another privacy loss than entry {sequence} for the same round")
        return digest

    def _check_size(self, body: EntryBody, described: ShuffledRound) -> None:
        self._check_users(body, max(described.fewest_users, described.sampled_from or 0))

    def _check_users(self, body: EntryBody, users: int) -> None:
        if str(body.round_id) in self.joint.rounds:
            return  # compared with all of its cohorts together
        if self.opened is not None and users > self.opened.details["population"]:
            self.wrong.append("it is about more users than the cohort has")


@functools.lru_cache(maxsize=_EPSILONS_MAX)
def _epsilon(units: int) -> float:
    return float(units * machine.EPSILON_UNIT)


@functools.lru_cache(maxsize=_SPELLED_MAX)
def _round(described: ShuffledRound) -> Mapping[str, Any]:
    return described.to_mapping()


@functools.lru_cache(maxsize=_SPELLED_MAX)
def _said(value: Charge | Cost) -> Mapping[str, Any]:
    return spelled(value)


def _released_after(body: EntryBody) -> int | None:
    """Return the moment that an incident attests, as the machine counts moments."""
    return microseconds_of(ReleaseTimes.from_mapping(body.details["released"]).after)


def _taken(posting: Posting) -> Charge:
    if posting.charge is None:
        raise AssertionError("the machine charges every round")
    return posting.charge


def _refused_by(
    body: EntryBody,
    request: RoundRequest,
    reason: RefusalReason | None,
    spent: Spending,
    requested: Spending | None,
) -> dict[str, Any]:
    """Return what a refusal says of which chains refused its round, if it is of several: its own numbers."""
    if len(request.cohorts) == 1:
        return {}
    said = stated(body, "refused_by")["refused_by"]
    again = {name: said[name] for name in said if name in request.cohorts and name != body.cohort}
    if reason is not RefusalReason.REFUSED_ELSEWHERE:
        again[body.cohort] = {
            "reason": reason,
            "epsilon_spent_upper": spent.epsilon_upper,
            "epsilon_requested_upper": None if requested is None else requested.epsilon_upper_or_none,
            "epsilon_budget": body.epsilon_budget,
            "delta_budget": body.delta_budget,
        }
    return {"refused_by": again}


def request_and_actor(content: bytes, actor: str) -> bytes:
    """Return a digest of a request's canonical bytes and of the person or program that made it."""
    return canonical.framed_digest("shuffle-ledger/request-and-actor/1", content, actor.encode("utf-8"))
