"""Follows a budget through its chain: the exact machine decides again, and every entry is compared with that.

What the accountant computed is taken as stated here: costs, limits, and which slots a round fits. `recompute`
proves that each stated cost is at least what its round costs and each stated limit small enough.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from shuffle_ledger.accounting import (
    AccountsReading,
    FilterCharge,
    FilterReading,
    FilterSet,
    ShuffledRound,
    exact_text,
    lower_text,
)
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions.refusals import reason_of, reason_unseen
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.machine import (
    DELTA_UNIT,
    EPSILON_UNIT,
    LOSS_UNIT,
    Cause,
    Charge,
    Cost,
    Described,
    Level,
    Limits,
    Posting,
    PostingKind,
    State,
    Unchanged,
)
from shuffle_ledger.ledger.policies.base import slot_of
from shuffle_ledger.ledger.policies.numbers import epsilon_units, filter_charge, read, spelled
from shuffle_ledger.ledger.policies.policy import (
    SLOTS,
    BudgetPolicy,
    decided,
    recorded,
    restated,
    slots_share,
    spending_of_record,
)
from shuffle_ledger.ledger.policies.registry import policy_from
from shuffle_ledger.ledger.storage.store import opening_details
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, Spending
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    CohortStatus,
    RefusalReason,
    RoundRequest,
    declared_from,
)
from shuffle_ledger.ledger.values.round_parameters import read_round
from shuffle_ledger.ledger.verification.entry_shapes import differing

_ROUND_OFF = Fraction(1, 2**30)  # of a share of delta, on another computer
# Charges are upper bounds. A ledger's precision is at worst 0.1, and its charges are then too large by about
# as much. That is sound; a larger excess is worth a note.
DEARER_MAX = 0.1
_COMPUTED = ("requested", "privacy_loss")  # where a round's cost is computed
_EPSILONS_MAX = 64  # promised ones that are kept as floats
_CAUSES = {
    EntryKind.SETTLED: Cause.SETTLE,
    EntryKind.CORRECTED: Cause.CORRECT,
    EntryKind.VOIDED: Cause.VOID,
    EntryKind.INCIDENT: Cause.INCIDENT,
}


class ChargeSource(Protocol):
    """Computes what rounds cost filters: from stored privacy losses, or from nothing but parameters."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Return what a round costs each filter."""

    def certify(
        self, held: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Spending:
        """Return the certified composition of rounds, as narrow as tells whether it is within a budget."""


@dataclass
class Trail:
    """The state of a budget while its chain is read from the beginning."""

    policy: BudgetPolicy | None = None  # None before the opening
    state: State | None = None
    frozen: bool = False  # the spending is unknown from here on
    closed: bool = False
    ceiling: float | None = None  # what is promised, wherever the budget is moved to; None: the budget is
    _charges: dict[str, Charge] = field(default_factory=dict)  # of rounds that may be restated
    _costs: dict[str, Cost] = field(default_factory=dict)  # that their entries stated last
    _stated: tuple[ShuffledRound, Cost] | None = None  # to be proven, by the last entry followed
    # Whether a stated cost was proven to cover its round: thousands of entries state the same few.
    _proven: dict[tuple[ShuffledRound, Cost], bool] = field(default_factory=dict)
    _limits: Limits | None = None  # likewise
    _standing: Mapping[str, Any] = field(default_factory=dict)  # after the last entry, as entries spell it
    _opens: bool = False  # the last entry followed opens the budget

    @property
    def decided_by(self) -> str:
        """Return the sentence of statements about the number that decides; empty before the opening."""
        return "" if self.policy is None else self.policy.decided_by

    @property
    def filtered(self) -> bool:
        """Whether filters decide, so that the numbers are theirs and not the composition's."""
        return self.policy is not None and not self.policy.has_slots_alone

    @property
    def status(self) -> CohortStatus:
        """Return the cohort's status after the last entry."""
        if self.frozen:
            return "frozen"
        return "overspent" if self.is_overspent else "closed" if self.closed else "open"

    @property
    def is_overspent(self) -> bool:
        """Whether the promise is broken after the last entry."""
        return self.state is not None and self.state.is_overspent

    @property
    def promised_epsilon(self) -> float:
        """Return the epsilon that is promised after the last entry; infinite where nothing is."""
        if self.state is None or not self.state.rules.promises:
            return math.inf
        return _epsilon(self.state.limits.promise.epsilon)

    def readings(self) -> tuple[FilterReading, ...]:
        """Return what each filter says after the last entry, if filters decide."""
        return () if self.policy is None or self.state is None else self.policy.readings_of(self.state)

    def delta_accounts(self) -> AccountsReading | None:
        """Return what approximate rounds used of delta by the last entry, if there are accounts of it."""
        return None if self.policy is None or self.state is None else self.policy.accounts_of(self.state)

    def rounds_of_one_user(self) -> int | None:
        """Return in how many of the rounds so far one user takes part at most; None without a limit."""
        if self.state is None or self.state.rules.rounds_per_user is None:
            return None
        return machine.rounds_of_one_user(self.state.rules, self.state.total)

    def shares(self) -> Mapping[str, float]:
        """Return the shares of delta of the filters, and of slots beside them, by their names."""
        return {} if self.policy is None else self.policy.named_shares

    def restates(self, body: EntryBody) -> bool:
        """Returns whether the next entry may state a new reading of the spending, although it admits nothing:
        a larger budget raises the limit at which the sliding total is read."""
        return self.filtered and body.kind is EntryKind.BUDGET_CHANGED

    def follow(
        self, body: EntryBody, truth: ShuffledRound | None, request: RoundRequest | None = None
    ) -> Iterator[str]:
        """Apply the next entry, and yield its errors.

        Args:
            body: the entry.
            request: of a decision, what was asked for.
            truth: the round as it was asked for, settled, corrected or told; None: it is about no round, or
                says that nothing was released.
        """
        self.frozen = self.frozen or body.kind is EntryKind.FROZEN
        self.closed = self.closed or body.kind is EntryKind.CLOSED
        self._stated = self._limits = None
        self._opens = body.kind is EntryKind.OPENED
        if body.kind is EntryKind.OPENED:
            yield from self._open(body)
        elif self.policy is not None and self.state is not None:
            yield from self._follow(self.policy, self.state, body, truth, request)

    def recompute(self, losses: ChargeSource, coverage: Coverage) -> Iterator[str]:
        """Prove anew what the last entry states of costs, limits and slots; yield what cannot be proven."""
        if self.policy is None:
            return
        if self._opens and self.policy.slots_declared:
            yield from self._recompute_slots(self.policy, losses)
        filters = self.policy.filters
        if filters is None:
            return
        if self._limits is not None:
            yield from _unproven_limits(filters, self._limits)
        if self._stated is not None:
            accounted, cost = self._stated
            if self._stated not in self._proven:
                losses.charge(accounted, filters)  # from the stored privacy loss, if there is one
                self._proven[self._stated] = coverage.covers(accounted, filters, filter_charge(cost))
            if not self._proven[self._stated]:
                yield (
                    "the charge it states is too small: nothing proves that it covers a round of its"
                    f" parameters, at precisions down to {exact_text(min(coverage.precisions))}"
                )

    def dearer(self, losses: ChargeSource) -> Iterator[str]:
        """Yield which costs of the last entry are more than its round needs: sound, and a waste."""
        if self.policy is None or self.policy.filters is None or self._stated is None:
            return
        accounted, cost = self._stated
        share = _dearer(filter_charge(cost), losses.charge(accounted, self.policy.filters))
        if share > DEARER_MAX:
            more = lower_text(100 * share, digits=3)
            yield f"the charge it states is {more} % more than its round needs: sound, and a waste"

    def _open(self, body: EntryBody) -> Iterator[str]:
        details = body.details
        policy = self.policy = policy_from(str(details.get("policy")), body.to_bytes())
        self.state = machine.new_state(policy.machine_rules, policy.limits)
        self._limits = policy.limits
        self._standing = policy.standing_after(self.state)
        cohort = Cohort(
            name=body.cohort,
            population=details["population"],
            epsilon_budget=body.epsilon_budget,
            delta_budget=body.delta_budget,
            policy=details["policy"],
            **declared_from(details),
        )
        self.ceiling = cohort.ceiling
        again = opening_details(cohort, _opened_again(policy, cohort).opening())
        if cohort.quota is not None and "reason" in details:
            again["reason"] = details["reason"]
        yield from differing("details", details, again)
        if policy.filters is not None:
            yield from _misdivided(policy, policy.filters)
        if policy.filters is None and policy.machine_rules.slots_epsilon > policy.limits.promise.epsilon:
            yield "it opens a cohort with a plan beyond its budget"

    def _follow(
        self,
        policy: BudgetPolicy,
        before: State,
        body: EntryBody,
        truth: ShuffledRound | None,
        request: RoundRequest | None,
    ) -> Iterator[str]:
        details, posting = body.details, None
        if body.kind in CORRECTED_OR_INCIDENT and ("charge" in details) == self.frozen:
            yield "it charges a release although the cohort is frozen, or charges nothing although it is not"
        if request is not None:
            posting = yield from self._decide(policy, before, body, request)
        elif body.kind in _CAUSES and not self.frozen:
            posting = yield from self._restate(policy, before, body, truth)
        elif body.kind is EntryKind.BUDGET_CHANGED:
            posting = yield from self._change(policy, before, body)
        after = before if posting is None else _after(before, posting)
        ended = self.frozen or self.closed
        if after.is_frozen != ended:
            after = dataclasses.replace(after, is_frozen=ended)
        if posting is not None:
            self._standing = policy.standing_after(after)
        self.state = after
        yield from differing("details.standing", details["standing"], self._standing)
        if not self.frozen and policy.filters is not None:
            yield from self._compare(policy, "what is spent", body.spent, after)
        elif not self.frozen:
            yield from _compare_with_plan(policy, after, body)

    def _decide(
        self, policy: BudgetPolicy, before: State, body: EntryBody, request: RoundRequest
    ) -> Generator[str, None, Posting | None]:
        """Decide a round again; yield what the entry says otherwise, and return the posting."""
        details, is_admitted = body.details, body.kind is EntryKind.ADMITTED
        asked = details["requested"]
        written = (details[name] is not None for name in _COMPUTED)
        if len({"cost" in details, "charge" in details, *written}) > 1:
            yield "it states a part of what a decision computes, and not all of it"
        unseen = _unseen(self.status, body, request)
        if unseen is not None and (is_admitted or "cost" in details):
            yield f"it decides by numbers, and the cohort admits nothing any more: {unseen}"
        if "cost" not in details:
            yield from _misjudged(body, unseen or _reason_without_cost(policy, before, body, request))
            yield from _misaccounted(body, slot_of(request.round))
            return None
        cost = read(Cost, details["cost"])
        yield from self._check_fits(policy, cost, request.round)
        open_state = before
        if unseen is not None:
            open_state = dataclasses.replace(before, is_frozen=False, is_overspent=False)
        posting = decided(open_state, cost)
        charge = _taken(posting)
        yield from differing("details.charge", details["charge"], spelled(charge))
        self._stated = (read_round(details["accounted"]), cost)
        claims = policy.has_slots_alone and charge.claimed is not None
        yield from _misaccounted(
            body, policy.slots_declared[charge.claimed or 0][0] if claims else slot_of(request.round)
        )
        if not is_admitted:
            yield from self._compare_refusal(policy, before, posting, body)
            return None
        self._charges[str(body.round_id)], self._costs[str(body.round_id)] = charge, cost
        if asked != body.spent.to_mapping():
            yield "what it says was requested is not what it says is spent"
        if not posting.reasons:
            return posting
        yield "it admits a round beyond the budget, by its own numbers"
        after = machine.added(before.rules, before.total, charge)
        return dataclasses.replace(posting, kind=PostingKind.ADMITTED, total=after)

    def _compare_refusal(
        self, policy: BudgetPolicy, before: State, posting: Posting, body: EntryBody
    ) -> Iterator[str]:
        asked = Spending(**body.details["requested"])
        if not (before.is_frozen or before.is_overspent):
            yield from _misjudged(body, reason_of(policy, posting, asked))
        if policy.filters is not None:
            total = machine.added(before.rules, before.total, _taken(posting))
            state = dataclasses.replace(before, total=total)
            yield from self._compare(policy, "what was requested", asked, state)

    def _restate(
        self, policy: BudgetPolicy, before: State, body: EntryBody, truth: ShuffledRound | None
    ) -> Generator[str, None, Posting | None]:
        """Restate a round again; yield what the entry says otherwise, and return the posting."""
        details, round_id, cause = body.details, str(body.round_id), _CAUSES[body.kind]
        cost = read(Cost, details["cost"]) if "cost" in details else None
        if cost is not None:
            yield from self._check_fits(policy, cost, truth)
        if cause in (Cause.SETTLE, Cause.CORRECT) and cost is None:
            raise Damaged("it charges a release and does not say what that costs")
        if cause is Cause.INCIDENT and (cost is None) != bool(details["chosen_after"]):
            yield "it bounds a release that may have come before the opening, or does not bound a later one"
        described = Described.NOTHING if cause is Cause.VOID else Described.STATED
        if cause is Cause.INCIDENT and cost is None:
            described = Described.UNKNOWN
        known = self._charges.get(round_id)
        round_ = recorded(before, known, voided=cause is Cause.INCIDENT)
        posting = restated(before, round_, described, cause, cost)
        charge = _taken(posting)
        yield from differing("details.charge", details["charge"], spelled(charge))
        if truth is not None:
            known = details.get("accounted_before")
            held = None if known is None else read_round(known)
            yield from _misaccounted(body, policy.accounted_restated(posting, truth, held))
        self._prove(policy, body, cost)
        self._charges[round_id] = charge  # of a voided round, too: it may be told of as an incident
        if cause is Cause.VOID:
            self._costs.pop(round_id, None)
            return posting
        if cost is not None:
            self._costs[round_id] = cost
        return posting

    def _prove(self, policy: BudgetPolicy, body: EntryBody, cost: Cost | None) -> None:
        """Keep a stated cost for its proof, unless it is that of the round before."""
        if cost is None or policy.filters is None:
            return
        accounted = read_round(body.details["accounted"])
        known = self._costs.get(str(body.round_id))
        is_same = body.details.get("accounted_before") == body.details["accounted"]
        same = known and dataclasses.replace(known, fits=cost.fits, local=cost.local)
        if not is_same or same != cost:
            self._stated = (accounted, cost)

    def _change(
        self, policy: BudgetPolicy, before: State, body: EntryBody
    ) -> Generator[str, None, Posting | None]:
        """Change the budget again; yield what the entry says otherwise, and return the posting."""
        stated = policy.state_in(body.details).limits
        self._limits = stated
        given, held = epsilon_units(body.epsilon_budget), before.limits.promise
        if stated.refuse.epsilon != given:
            yield "it refuses rounds at another epsilon than its budget's"
        promise = None if stated.promise == held else stated.promise
        if not before.rules.promises:
            promise = None
            if stated.promise != stated.refuse:
                yield "it promises something of a quota"
        elif self.ceiling is not None and promise is not None:
            yield "it promises another epsilon than its ceiling"
        elif self.ceiling is None and stated.promise.epsilon != given:
            yield "it promises another epsilon than its budget says"
        slack = stated.slack if stated.slack != before.limits.slack or promise is not None else None
        found = machine.change_budget(before, stated.refuse, promise, slack=slack)
        if isinstance(found, Unchanged):
            yield "it changes the budget so that what is held does not fit"
            return None
        return found

    def _check_fits(self, policy: BudgetPolicy, cost: Cost, truth: ShuffledRound | None) -> Iterator[str]:
        if truth is not None and cost.fits != policy.fitting(truth):
            yield "it says that its round fits other slots than it does"
        if truth is not None and cost.local != policy.local(truth):
            yield "it says that its round costs another local epsilon than its reports do"

    def _compare(self, policy: BudgetPolicy, subject: str, stated: Spending, state: State) -> Iterator[str]:
        if policy.confirms(state, stated):
            return
        readings = policy.readings_of(state, deciding=True)
        # What decides is the filter that reads least; how little another one might is no excuse.
        least = min(readings, key=lambda reading: reading.epsilon_upper)
        # A filter is read again, on another computer; the slots' bound is the number that the rules state.
        most = least.epsilon_upper if least.name == SLOTS else least.epsilon_lower
        enough = stated.rounds == 0 or most <= stated.epsilon_upper
        if stated.rounds and math.isinf(least.epsilon_upper):
            enough = math.isinf(stated.epsilon_upper)
        again = least.epsilon_upper if stated.rounds else 0.0
        if not enough or again < stated.epsilon_lower:
            yield (
                f"it says epsilon of {subject} is up to {exact_text(stated.epsilon_upper)}; for its charges"
                f" the filters say {exact_text(again)}"
            )

    def _recompute_slots(self, policy: BudgetPolicy, losses: ChargeSource) -> Iterator[str]:
        upper, lower = policy.slots_epsilon
        again = losses.certify(dict(policy.slots_declared), delta=policy.share_of_slots)
        if lower > again.epsilon_upper:
            yield (
                f"it says the whole plan costs at least {exact_text(lower)}; computed again it is up to"
                f" {exact_text(again.epsilon_upper)}"
            )
        if upper < again.epsilon_lower:
            yield (
                f"it says the whole plan costs up to {exact_text(upper)}; computed again it is at least"
                f" {exact_text(again.epsilon_lower)}"
            )


@functools.lru_cache(maxsize=_EPSILONS_MAX)
def _epsilon(units: int) -> float:
    return float(units * EPSILON_UNIT)


def _after(state: State, posting: Posting) -> State:
    return dataclasses.replace(
        state,
        total=posting.total,
        limits=posting.limits or state.limits,
        is_overspent=state.is_overspent or posting.is_overspent,
    )


def _opened_again(policy: BudgetPolicy, cohort: Cohort) -> BudgetPolicy:
    """Returns the rules that a cohort is opened with, by the filters, slots and amounts that a policy states:
    `recompute` proves those."""
    again = BudgetPolicy.opened(
        cohort,
        slots=policy.slots_declared,
        slots_epsilon=policy.slots_epsilon,
        approximate_share=policy.approximate_share,
        filters=policy.filters,
    )
    stated, limits = policy.limits, again.limits
    if again.filters is None:
        return again
    promise = dataclasses.replace(stated.promise, epsilon=limits.promise.epsilon)
    refuse = dataclasses.replace(stated.refuse, epsilon=limits.refuse.epsilon)
    limits = dataclasses.replace(
        limits,
        promise=promise,
        refuse=promise if refuse.epsilon == promise.epsilon else refuse,
        certain=limits.certain and (stated.certain or limits.certain),
        slack=limits.slack and (stated.slack or limits.slack),
        sliding=None if limits.sliding is None else promise.gaussian,
    )
    return dataclasses.replace(again, limits=limits)


def _misdivided(policy: BudgetPolicy, filters: FilterSet) -> Iterator[str]:
    """Yield how the shares of delta are not those that the rules say."""
    left = policy.delta * (1 - slots_share("adaptive") if policy.slots_declared else 1.0)
    part = Fraction(policy.approximate_share) * Fraction(left) / 2
    if not all(abs(Fraction(each) - part) <= part * _ROUND_OFF for each in filters.shares()[-2:]):
        yield "its accounts have another share of delta than it says"


def _unproven_limits(filters: FilterSet, limits: Limits) -> Iterator[str]:
    """Yield which stated limits are larger than what the filters' shares of delta allow."""
    for one in (limits.refuse, limits.promise):
        if not _is_within(filters, one):
            at = exact_text(float(one.epsilon * EPSILON_UNIT))
            yield f"a limit it states is too large for epsilon {at}"
    certain, slack = filters.accounts.limits(float(limits.promise.epsilon * EPSILON_UNIT))
    if limits.certain * DELTA_UNIT > certain or limits.slack * DELTA_UNIT > slack * (1 + _ROUND_OFF):
        yield "its limits of certain loss or slack are larger than their shares of delta"


def _is_within(filters: FilterSet, level: Level) -> bool:
    """Return whether each filter's reading at its limit is within the level's epsilon."""
    readings = filters.readings(level.gaussian * LOSS_UNIT, [one * LOSS_UNIT for one in level.divergences])
    epsilon = level.epsilon * EPSILON_UNIT
    return all(
        math.isfinite(one.epsilon_upper) and Fraction(one.epsilon_upper) <= epsilon * (1 + _ROUND_OFF)
        for one in readings
    )


def _taken(posting: Posting) -> Charge:
    if posting.charge is None:
        raise AssertionError("the machine charges every round")
    return posting.charge


def _unseen(status: CohortStatus, body: EntryBody, request: RoundRequest) -> RefusalReason | None:
    """Returns why a round is refused whatever it costs, if it is."""
    found = reason_unseen(status, request, body.recorded_at.date())
    # A round may be decided before the midnight after which its entry is recorded.
    is_before = found is RefusalReason.COLLECTION_OVER and body.details.get("reason") != found
    return None if is_before else found


def _reason_without_cost(
    policy: BudgetPolicy, state: State, body: EntryBody, request: RoundRequest
) -> RefusalReason | None:
    """Returns why an open budget refuses a round before its cost is computed, or another budget does."""
    if policy.has_slots_alone and policy.free_kind(state, request.round) is None:
        return RefusalReason.NO_FREE_SLOT
    is_refused_by_others = body.cohort not in body.details.get("refused_by", {body.cohort: None})
    return RefusalReason.REFUSED_ELSEWHERE if is_refused_by_others else None


def _misjudged(body: EntryBody, reason: RefusalReason | None) -> Iterator[str]:
    """Yield how a decision without a cost, or a refusal, is not what the machine says.

    Args:
        body: the entry.
        reason: why the round is refused; None: nothing refuses it.
    """
    if body.kind is EntryKind.ADMITTED:
        yield "it admits a round and does not say what that costs"
    elif body.details["reason"] != reason:
        stated = body.details["reason"]
        yield f"its reason, {stated}, is not the one that its numbers and the budget's state give"


def _misaccounted(body: EntryBody, expected: ShuffledRound) -> Iterator[str]:
    if read_round(body.details["accounted"]) != expected:
        yield "details.accounted does not follow from the entries before it"


def _compare_with_plan(policy: BudgetPolicy, state: State, body: EntryBody) -> Iterator[str]:
    """Yield what an entry says is spent beyond the plan, or of a budget that there is not."""
    if policy.is_record:
        if body.spent != spending_of_record(body.spent.rounds):
            yield "it says what is spent of a budget that there is not"
        return
    is_covered = not state.total.unplaced and all(
        taken <= most for taken, most in zip(state.total.claims, state.rules.slots, strict=True)
    )
    if is_covered and body.spent.epsilon_upper > policy.slots_epsilon[0]:
        yield "it says more is spent than the whole plan costs"


def _dearer(stated: FilterCharge, again: FilterCharge) -> float:
    """By what share of it a charge is larger than another, where it is most."""
    pairs = zip((*stated.gaussian, *stated.renyi), (*again.gaussian, *again.renyi), strict=True)
    return max(float(ours / theirs) - 1 for ours, theirs in pairs)
