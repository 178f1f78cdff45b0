"""A budget's rules and what its chain says of it, as the exact machine reads them, and what the machine's
postings make of the next entry.

The opening states the rules and the limits. Every entry states the total after it and, of a round, what it
costs and what it is charged; limits that were changed are stated ever after. So the opening and the last
entry alone tell the machine's state.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    AccountsReading,
    FilterReading,
    FilterSet,
    ShuffledRound,
    fits,
    upper_text,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.answers.budgets import SlotReading
from shuffle_ledger.ledger.answers.summaries import assumes
from shuffle_ledger.ledger.errors import Conflict, Damaged, LedgerError
from shuffle_ledger.ledger.machine import (
    DELTA_UNIT,
    LOSS_UNIT,
    BudgetKind,
    Cause,
    Charge,
    Cost,
    Described,
    Level,
    Limits,
    Posting,
    PostingKind,
    Request,
    Round,
    Rules,
    State,
    Total,
    Unchanged,
)
from shuffle_ledger.ledger.policies.base import (
    Effect,
    LossSource,
    accounted_again,
    changed,
    read_once,
    rules_digest,
    slot_of,
    spell_once,
    standing_of,
)
from shuffle_ledger.ledger.policies.numbers import (
    cost_of,
    epsilon_units,
    local_units,
    loss_above,
    read,
    spelled,
    units_above,
    units_below,
)
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, POLICY_PLAN, Cohort

# Part of delta for slots that are declared beside filters.
SLOTS_SHARE = 0.75
# How the machine's reasons to refuse a round are read.
NO_FILTER, NO_LOCAL = "filters", "local epsilon"
SLOTS = "slots"  # the name of their reading
_NAME = "budget"  # of rules that no chain has yet; budgets of one kind share them
_NAMED_RULES_MAX = 8192
_METHODS_MAX = 1024


@dataclass(frozen=True, kw_only=True)
class BudgetPolicy:
    """The rules of one budget: filters, declared slots, or both.

    Attributes:
        filters: its Gaussian and Renyi filters with the accounts of delta; None: slots alone.
        slots_declared: kinds of rounds and how many of each, fixed at the opening; empty: none.
        slots_epsilon: certified bounds on the epsilon of all slots together, at their share of delta.
        delta: of the budget.
        kind: what the budget is for; quotas promise nothing.
        rounds_per_user: in how many admitted rounds a user takes part at most; None: in all.
        approximate_share: part of delta for approximate rounds, of what slots leave of it.
        limits: at the opening.
    """

    filters: FilterSet | None
    slots_declared: tuple[tuple[ShuffledRound, int], ...]
    slots_epsilon: tuple[float, float]  # upper, lower
    delta: float
    kind: BudgetKind
    rounds_per_user: int | None
    approximate_share: float
    limits: Limits

    @classmethod
    def opened(
        cls,
        cohort: Cohort,
        *,
        slots: tuple[tuple[ShuffledRound, int], ...] = (),
        slots_epsilon: tuple[float, float] = (0.0, 0.0),
        approximate_share: float = APPROXIMATE_SHARE,
        filters: FilterSet | None = None,
    ) -> BudgetPolicy:
        """Returns the rules that a new cohort, period or quota is opened with.

        Args:
            cohort: as it would be opened.
            slots: declared kinds of rounds with their numbers.
            slots_epsilon: certified bounds on the epsilon of all of them together, at `share_of_slots`.
            approximate_share: part of delta for approximate rounds.
            filters: those that an opening stated, if it needs some; None: the budget's.

        Raises:
            InvalidParameter: filters cannot share the budget's delta.
        """
        if cohort.policy != POLICY_ADAPTIVE or not cohort.has_life:
            filters = None
        elif filters is None:
            left = cohort.delta_budget * (1 - SLOTS_SHARE if slots else 1.0)
            filters = FilterSet.for_budget(
                epsilon=cohort.epsilon_budget, delta=left, approximate_share=approximate_share
            )
        is_quota = cohort.quota is not None
        promised = cohort.epsilon_budget if cohort.ceiling is None or is_quota else cohort.ceiling
        refuse, promise = level(filters, cohort.epsilon_budget), level(filters, promised)
        is_summed = cohort.rounds_per_user is None
        limits = _limits(filters, _least(refuse, promise), promise, is_summed=is_summed)
        if cohort.local_budget is not None:
            limits = dataclasses.replace(limits, local=epsilon_units(cohort.local_budget))
        return cls(
            filters=filters,
            slots_declared=slots,
            slots_epsilon=slots_epsilon,
            delta=cohort.delta_budget,
            kind=_kind_of(cohort),
            rounds_per_user=cohort.rounds_per_user,
            approximate_share=approximate_share,
            limits=limits,
        )

    @classmethod
    def from_details(cls, name: str, details: Mapping[str, Any]) -> BudgetPolicy:
        """Returns the rules that the first entry's details lay down.

        Raises:
            Damaged, InvalidParameter, AttributeError, KeyError, TypeError: they are not rules.
        """
        rules = details["rules"]
        given = rules.get("slots", {})
        slots = tuple(
            (ShuffledRound.from_mapping(one["round"]), int(one["count"])) for one in given.get("kinds", ())
        )
        has_filters = name == POLICY_ADAPTIVE and rules["kind"] != BudgetKind.RECORD
        if has_filters != ("filters" in rules) or (name == POLICY_PLAN and not slots):
            raise Damaged(f"the rules of the first entry are not those of policy {name}")
        return cls(
            filters=FilterSet.from_mapping(rules["filters"]) if "filters" in rules else None,
            slots_declared=slots,
            slots_epsilon=(float(given.get("epsilon_upper", 0.0)), float(given.get("epsilon_lower", 0.0))),
            delta=float(rules["delta"]),
            kind=BudgetKind(rules["kind"]),
            rounds_per_user=rules.get("rounds_per_user"),
            approximate_share=float(rules.get("approximate_share", APPROXIMATE_SHARE)),
            limits=read(Limits, details["limits"]),
        )

    @functools.cached_property
    def rules(self) -> dict[str, Any]:
        """Returns the rules as the first entry states them."""
        rules: dict[str, Any] = {"delta": self.delta, "kind": str(self.kind)}
        if self.filters is not None:
            rules["filters"] = self.filters.to_mapping()
        if self.slots_declared:
            upper, lower = self.slots_epsilon
            kinds = [{"round": one.to_mapping(), "count": count} for one, count in self.slots_declared]
            rules["slots"] = {"kinds": kinds, "epsilon_upper": upper, "epsilon_lower": lower}
        if self.rounds_per_user is not None:
            rules["rounds_per_user"] = self.rounds_per_user
        if self.approximate_share != APPROXIMATE_SHARE:
            rules["approximate_share"] = self.approximate_share
        return rules

    @functools.cached_property
    def digest(self) -> str:
        """How entries name these rules."""
        return rules_digest(self.rules)

    @functools.cached_property
    def share_of_slots(self) -> float:
        """Returns the part of delta at which the slots are certified."""
        return self.delta * slots_share(POLICY_PLAN if self.filters is None else POLICY_ADAPTIVE)

    @functools.cached_property
    def methods(self) -> tuple[str, ...]:
        """Returns the names of the methods that read the spending, if filters do."""
        filters = self.filters
        if filters is None:
            return ()
        named = [*zip(filters.names, filters.shares(), strict=False)]
        named += [(SLOTS, self.share_of_slots)] if self.slots_declared else []
        return tuple(_method(name, delta) for name, delta in named)

    @functools.cached_property
    def machine_rules(self) -> Rules:
        """Returns the rules in the machine's numbers."""
        filters, shares = self.filters, []
        if filters is not None:
            shares += [units_above(one, DELTA_UNIT) for one in filters.shares()]
        if self.slots_declared:
            shares.append(units_below(self.share_of_slots, DELTA_UNIT))
        reserves = filters.gaussian.reserves if filters is not None else ()
        return Rules(
            name=_NAME,
            cohort=_NAME,
            kind=self.kind,
            delta=units_below(self.delta, DELTA_UNIT),
            shares=tuple(shares),
            reserves=tuple(units_above(one, LOSS_UNIT) for one in reserves),
            orders=filters.names[1:] if filters is not None else (),
            slots=tuple(count for _, count in self.slots_declared),
            slots_epsilon=units_above(Fraction(repr(self.slots_epsilon[0])), machine.EPSILON_UNIT)
            if math.isfinite(self.slots_epsilon[0])
            else machine.UNBOUNDED,
            rounds_per_user=self.rounds_per_user,
        )

    @functools.cached_property
    def _empty(self) -> State:
        return machine.new_state(self.machine_rules, self.limits)

    @property
    def is_record(self) -> bool:
        """Returns whether these are no budget's rules, but those of a cohort that has none of its life."""
        return self.kind is BudgetKind.RECORD

    @property
    def has_slots_alone(self) -> bool:
        """Returns whether rounds are admitted by declared slots, and by nothing else."""
        return self.filters is None and not self.is_record

    @property
    def decided_by(self) -> str:
        """Returns the sentence of statements about the number that decides."""
        if self.is_record:
            return f"the budgets of periods; {assumes(POLICY_ADAPTIVE)}"
        if self.filters is None:
            return f"the composition of the whole plan, made before its first round; {assumes(POLICY_PLAN)}"
        slots = " or the declared slots," if self.slots_declared else ""
        return f"the filter{slots} that holds at the smallest epsilon; {assumes(POLICY_ADAPTIVE)}"

    # The record of a chain.

    def opening(self) -> dict[str, Any]:
        """Returns what the first entry states."""
        rules, limits = self.rules, spelled(self.limits)
        return {"rules": rules, "limits": limits, **self._stated(spelled(self._empty.total), None)}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """Returns what an entry states that changes nothing which the rules know of."""
        state = self.state(view)
        return self._standing(view, state.total, state.limits)

    def state(self, view: CohortView) -> State:
        """Returns the machine's state of the budget by its last entry; raises Damaged."""
        standing = standing_of(view.details, self.digest)
        total, limits = standing.get("total"), standing.get("limits")
        state = dataclasses.replace(
            self._empty,
            rules=_named(self.machine_rules, view.cohort.name, view.cohort.parent or view.cohort.name),
            total=read_once(view, "total", total, lambda: self.read_total(total)),
            is_used=view.is_used,
            is_overspent=view.cohort.status == "overspent",
            is_frozen=view.cohort.status in ("closed", "frozen"),
        )
        if limits is None:
            return state
        stated = read_once(view, "limits", limits, lambda: read(Limits, limits))
        return dataclasses.replace(state, limits=stated)

    def read_total(self, content: object) -> Total:
        """Returns the total that an entry states; raises Damaged."""
        total, empty = read(Total, content), self._empty.total
        if any(
            len(getattr(total, name)) != len(getattr(empty, name))
            for name in ("gaussian", "divergences", "claims")
        ):
            raise Damaged("the last entry states a total of another budget's rules")
        return total

    def state_in(self, details: Mapping[str, Any], *, overspent: bool = False) -> State:
        """Returns the machine's state by an entry's details; raises Damaged."""
        total, limits = self.stated_in(details)
        return dataclasses.replace(self._empty, total=total, limits=limits, is_overspent=overspent)

    def stated_in(self, details: Mapping[str, Any]) -> tuple[Total, Limits]:
        """Returns the total after an entry and the limits in force, by its details; raises Damaged."""
        standing = standing_of(details, self.digest)
        limits = read(Limits, standing["limits"]) if "limits" in standing else self.limits
        return self.read_total(standing.get("total")), limits

    # The numbers for people.

    def slots(self, view: CohortView) -> tuple[SlotReading, ...]:
        """Returns the declared slots, and how many of each are claimed."""
        if not self.slots_declared:
            return ()
        pairs = zip(self.slots_declared, self.state(view).total.claims, strict=True)
        return tuple(SlotReading(round=one, count=count, claimed=taken) for (one, count), taken in pairs)

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """Returns what each filter says, and the slots beside them; nothing of slots alone."""
        return self.readings_of(self.state(view))

    def readings_of(self, state: State, *, deciding: bool = False) -> tuple[FilterReading, ...]:
        """Returns what each filter says of a state, and the slots beside them; nothing of slots alone.

        Args:
            state: the budget.
            deciding: leave filters out that certainly say more than another one.
        """
        if self.filters is None:
            return ()
        total, times = state.total, machine.rounds_of_one_user(state.rules, state.total)
        variance = _variance(state, times)
        found = self.filters.readings(
            variance * LOSS_UNIT,
            [one * times * LOSS_UNIT for one in total.divergences],
            deciding=deciding,
        )
        holds = machine.standing(state.rules, state.limits, total, state.limits.promise)
        sliding = state.limits.sliding
        # The sliding total is read at its limit, which is the smaller answer only above it.
        is_used = holds.filters[-1] and total.sliding > total.returned
        if sliding is not None and variance > sliding and is_used:
            at_limit = self.filters.gaussian_reading(sliding * LOSS_UNIT)
            found = (min(found[0], at_limit, key=lambda one: one.epsilon_upper), *found[1:])
        if not (holds.certain and holds.slack):
            found = tuple(dataclasses.replace(one, epsilon_upper=math.inf) for one in found)
        return (*found, *self._slots_reading(state))

    def confirms(self, state: State, stated: Spending) -> bool:
        """Returns whether the Gaussian filter shows, by two evaluations, that stated bounds are those of the
        filter that reads least in a state. False: all readings must be computed to know."""
        total, limits = state.total, state.limits
        if self.filters is None or self.slots_declared or not stated.rounds:
            return False
        times = machine.rounds_of_one_user(state.rules, total)
        variance = _variance(state, times)
        slides = limits.sliding is not None and variance > limits.sliding
        if slides or total.certain * times > limits.certain or total.slack * times > limits.slack:
            return False
        divergences = [loss_above(one * times) for one in total.divergences]
        bounds = (stated.epsilon_lower, stated.epsilon_upper)
        return self.filters.confirms(loss_above(variance), divergences, *bounds)

    def delta_accounts(self, view: CohortView) -> AccountsReading | None:
        """Returns what approximate rounds have used of delta, if there are filters."""
        return self.accounts_of(self.state(view))

    def accounts_with(self, view: CohortView, posting: Posting) -> AccountsReading:
        """Returns what approximate rounds would have used of delta with a round that was refused."""
        found = self.accounts_of(_with_round(self.state(view), posting))
        if found is None:
            raise AssertionError("only filters have accounts of delta")
        return found

    def accounts_of(self, state: State) -> AccountsReading | None:
        """Returns what approximate rounds have used of delta by a state, if there are filters."""
        if self.filters is None:
            return None
        times = machine.rounds_of_one_user(state.rules, state.total)
        certain, slack = (one * times * DELTA_UNIT for one in (state.total.certain, state.total.slack))
        promised = float(state.limits.promise.epsilon * machine.EPSILON_UNIT)
        limit = state.limits.slack * DELTA_UNIT
        return self.filters.accounts.reading(certain, slack, slack_limit=limit, epsilon=promised)

    def epsilon_of_slack(self, view: CohortView, posting: Posting) -> float | None:
        """Returns an epsilon at whose price slack, with a round that was refused, is within its share; None
        if there is none, or no slack."""
        state = _with_round(self.state(view), posting)
        slack = state.total.slack * machine.rounds_of_one_user(state.rules, state.total) * DELTA_UNIT
        return None if self.filters is None or not slack else self.filters.accounts.epsilon_covering(slack)

    def promised(self, view: CohortView) -> float:
        """Returns the epsilon that must stay within the budget: of slots alone, that of all of them."""
        if self.filters is not None:
            return view.spent.epsilon_upper
        return math.inf if self.state(view).total.unplaced else self.slots_epsilon[0]

    def refuses_all(self, view: CohortView) -> bool:
        """Returns whether slots alone promise more than the budget, which was lowered: then no round is
        admitted, whatever it costs."""
        refuse = self.state(view).limits.refuse
        return self.filters is None and self.machine_rules.slots_epsilon > refuse.epsilon

    def composition(self, losses: LossSource, view: CohortView) -> Spending:
        """Returns the certified composition of what is held."""
        if self.filters is None:
            return view.spent
        return losses.certify(view.held, delta=view.cohort.delta_budget)

    def accounted(self, view: CohortView, described: ShuffledRound) -> ShuffledRound | None:
        """Returns what a round is accounted as: its own slot or, of slots alone, the declared kind that it
        claims; None if no declared kind has a free slot for it."""
        if not self.has_slots_alone:
            return slot_of(described)
        kind = self.free_kind(self.state(view), described)
        return None if kind is None else self.slots_declared[kind][0]

    def free_kind(self, state: State, described: ShuffledRound) -> int | None:
        """Returns the first declared kind that a round fits and that has a free slot; None: there is none."""
        free = (
            kind for kind in self.fitting(described) if state.total.claims[kind] < state.rules.slots[kind]
        )
        return next(free, None)

    # What an event changes.

    def fitting(self, described: ShuffledRound) -> tuple[int, ...]:
        """Returns which declared kinds a round fits: its own first, then in the order of the plan."""
        kinds = [kind for kind, _ in self.slots_declared]
        own = [place for place, kind in enumerate(kinds) if kind == described]
        others = [place for place, kind in enumerate(kinds) if kind != described and fits(described, kind)]
        return (*own, *others)

    def cost(self, losses: LossSource, described: ShuffledRound) -> Cost:
        """Returns what a round costs the budget; computes its privacy loss if it is not known."""
        kinds = self.fitting(described)
        if self.filters is None:
            return Cost(fits=kinds, local=self.local(described))
        charge = losses.charge(slot_of(described), self.filters)
        return cost_of(charge, fits=kinds, local=self.local(described))

    def local(self, described: ShuffledRound) -> int:
        """Returns the local epsilon that a round costs, if there is a limit of it; in `EPSILON_UNIT`."""
        return 0 if self.limits.local is None else local_units(described)

    def is_quick(self, losses: LossSource, accounted: ShuffledRound) -> bool:
        """Returns whether `cost` answers from memory, so that a decision may be awaited."""
        if self.filters is None:
            return self.is_record
        return losses.accountant.remembers_charge(accounted, self.filters)

    def prepare(self, losses: LossSource, accounted: ShuffledRound) -> bool:
        """Computes what `is_quick` misses, where the privacy loss is stored; returns whether that is
        enough."""
        if self.filters is None:
            return self.is_record
        losses.charge(accounted, self.filters)
        return True

    def decided(
        self,
        losses: LossSource,
        view: CohortView,
        state: State,
        described: ShuffledRound,
        *,
        cost: Cost,
        posting: Posting,
    ) -> Effect:
        """Returns what the machine's decision about a round of this cost changes in a state, the view's."""
        accounted = self.accounted(view, described) or slot_of(described)
        return self._step(
            losses,
            view,
            posting,
            shown=_with_round(state, posting),
            changes={accounted: 1},
            cost=cost,
            accounted=accounted,
        )

    def restating(
        self,
        losses: LossSource,
        view: CohortView,
        cause: Cause,
        actual: ShuffledRound | None,
        *,
        last: Mapping[str, Any] | None,
        released_after: int | None = None,
        opened_at: int | None = None,
    ) -> Effect:
        """Returns what it changes that a release turned out otherwise.

        Args:
            losses: where privacy losses come from.
            view: the cohort now.
            cause: why.
            actual: what was released; None: nothing.
            last: details of the entry that says last what the round is charged, or of the one that voided it;
                None: nothing was charged.
            released_after: of an incident, the moment that is attested, as the machine counts moments.
            opened_at: of an incident, when the opening chose the rules; of a period, that of its cohort.
        """
        charge = None if last is None else read(Charge, last["charge"])
        is_incident = cause is Cause.INCIDENT
        before = None if last is None or is_incident else ShuffledRound.from_mapping(last["accounted"])
        state = with_opening(self.state(view), opened_at)
        is_early = is_incident and machine.may_precede_opening(state.rules, released_after)
        cost = None if actual is None or is_early else self._cost_instead(losses, actual, before, last or {})
        described = Described.STATED if cost else Described.UNKNOWN
        if actual is None:
            described = Described.NOTHING
        was = recorded(state, charge, voided=is_incident, released_after=released_after)
        posting = restated(state, was, described, cause, cost)
        accounted = actual and self.accounted_restated(posting, actual, before)
        changes = {} if before is None else {before: -1}
        if accounted is not None:
            changes = changed(changes, {accounted: 1})
        after = machine.fold(state, posting)
        step = self._step(losses, view, posting, shown=after, changes=changes, cost=cost, accounted=accounted)
        if not is_incident:
            return step
        return dataclasses.replace(step, details={**step.details, "chosen_after": is_early})

    def _cost_instead(
        self,
        losses: LossSource,
        actual: ShuffledRound,
        before: ShuffledRound | None,
        last: Mapping[str, Any],
    ) -> Cost:
        """Returns what a restated round costs: as before, if what was accounted dominates the truth."""
        if self.filters is None or before is None:
            return self.cost(losses, actual)
        accounted = accounted_again(before, actual)
        if accounted == before and "cost" in last:
            known = read(Cost, last["cost"])
            return dataclasses.replace(known, fits=self.fitting(actual), local=self.local(actual))
        charge = losses.charge(accounted, self.filters)
        return cost_of(charge, fits=self.fitting(actual), local=self.local(actual))

    def rebudgeted(self, view: CohortView, epsilon: float) -> Effect:
        """Returns what another budget changes.

        Without a ceiling the budget is what is promised, so the promise moves with it.

        Raises:
            Conflict: what is held, or the plan, does not fit the smaller promise; or slack costs more of
                delta at a larger epsilon than its account has: the changed promise would be broken.
        """
        state, has_ceiling = self.state(view), view.cohort.ceiling is not None
        refuse, slack = level(self.filters, epsilon), self._slack(epsilon)
        found = self.moved_to(state, refuse, slack=slack, has_ceiling=has_ceiling)
        if isinstance(found, Unchanged) and "slack" in found.reasons:
            raise Conflict(
                f"at epsilon {epsilon!r} the local deltas of rounds would cost more than the account of delta"
                " that is set aside for them: the budget cannot be raised so far"
            )
        if isinstance(found, Unchanged):
            raise Conflict(
                f"cohort {view.cohort.name!r} has no ceiling, so its budget is what is promised: what it has"
                f" spent or planned, at most {upper_text(self._least_promise(view))}, does not certainly fit"
                f" {epsilon!r}"
            )
        if found.limits is None:
            raise AssertionError("a changed budget has limits")
        after = machine.fold(state, found)
        spent = view.spent if self.filters is None else self.spending(after, rounds=view.spent.rounds)
        return Effect(spent=spent, details=self._standing(view, found.total, found.limits), posting=found)

    def moved_to(self, state: State, refuse: Level, *, slack: int, has_ceiling: bool) -> Posting | Unchanged:
        """Returns what the budget posts when it is moved to a level.

        Args:
            state: the budget.
            refuse: what filters allow at the new epsilon.
            slack: limit of slack at the price of that epsilon.
            has_ceiling: the ceiling is promised, wherever the budget is moved to.
        """
        held = state.limits.promise
        if self.kind is BudgetKind.QUOTA:
            return machine.change_budget(state, refuse, slack=slack)
        if has_ceiling:
            return machine.change_budget(state, _least(refuse, held))
        if refuse.epsilon > held.epsilon:
            return machine.change_budget(state, refuse, _most(refuse, held), slack=slack)
        return machine.change_budget(state, _least(refuse, held), _least(refuse, held))

    def _least_promise(self, view: CohortView) -> float:
        """Returns an upper bound on what is spent or, of slots alone, on what all of them cost."""
        return self.slots_epsilon[0] if self.filters is None else view.spent.epsilon_upper

    def spending(self, state: State, *, rounds: int) -> Spending:
        """Returns the smallest epsilon at which a filter, or the slots, hold, as spending."""
        return spending_of(self.readings_of(state, deciding=True), rounds=rounds, delta=self.delta)

    def epsilon_after(self, state: State, cost: Cost, rounds: int, *, epsilon: float) -> float:
        """Returns an epsilon, within `epsilon` of the budget, that holds after `rounds` more rounds of some
        cost; infinite if one of them would be refused."""
        if machine.room(state, cost).budget < rounds:
            return math.inf
        if self.filters is None:
            return self.slots_epsilon[0]
        after = machine.after(state, [cost], rounds)
        least = min(one.epsilon_upper for one in self.readings_of(after, deciding=True))
        # If the sliding total or the slots decide, they hold at the budget's epsilon or below.
        return min(least, epsilon)

    def accounted_restated(
        self, posting: Posting, actual: ShuffledRound, before: ShuffledRound | None
    ) -> ShuffledRound:
        """Returns what a restated round is accounted as: itself or, of slots alone, the kind in which it
        stands and has room."""
        kind = posting.charge.kind if posting.charge else None
        if not self.has_slots_alone:
            return slot_of(actual) if before is None else accounted_again(before, actual)
        if kind is None or posting.total.claims[kind] > self.machine_rules.slots[kind]:
            return slot_of(actual)
        return self.slots_declared[kind][0]

    def _step(
        self,
        losses: LossSource,
        view: CohortView,
        posting: Posting,
        *,
        shown: State,
        changes: Mapping[ShuffledRound, int],
        cost: Cost | None,
        accounted: ShuffledRound | None,
    ) -> Effect:
        details = self._standing(view, posting.total, shown.limits)
        if posting.charge is not None and cost is not None:
            details = {"cost": spelled(cost), **details}
        if posting.charge is not None:
            details = {"charge": spelled(posting.charge), **details}
        return Effect(
            spent=self._spent(losses, view, shown, changes),
            details=details,
            posting=posting,
            changes=changes,
            accounted=accounted,
        )

    def _spent(
        self, losses: LossSource, view: CohortView, state: State, changes: Mapping[ShuffledRound, int]
    ) -> Spending:
        rounds = view.spent.rounds + sum(changes.values())
        if self.is_record:
            return spending_of_record(rounds)
        if self.filters is not None:
            return self.spending(state, rounds=rounds)
        if not changes:
            return view.spent
        spent = losses.certify(changed(view.held, changes), delta=view.cohort.delta_budget)
        # Where slots cover all that is held, the whole plan's bound is one for it too.
        upper = min(spent.epsilon_upper, self.slots_epsilon[0]) if slots_cover(state) else spent.epsilon_upper
        return dataclasses.replace(spent, epsilon_upper=upper, epsilon_lower=min(spent.epsilon_lower, upper))

    def _slots_reading(self, state: State) -> tuple[FilterReading, ...]:
        if not self.slots_declared:
            return ()
        upper, lower = self.slots_epsilon
        epsilon = upper if slots_cover(state) else math.inf
        return (
            FilterReading(name=SLOTS, delta=self.share_of_slots, epsilon_upper=epsilon, epsilon_lower=lower),
        )

    def _slack(self, epsilon: float) -> int:
        if self.filters is None:
            return 0
        return units_below(self.filters.accounts.limits(epsilon)[1], DELTA_UNIT)

    def standing_after(self, state: State) -> Mapping[str, Any]:
        """Returns what an entry states that leaves a budget in this state."""
        limits = None if state.limits == self.limits else spelled(state.limits)
        standing: Mapping[str, Any] = self._stated(spelled(state.total), limits)["standing"]
        return standing

    def _standing(self, view: CohortView, total: Total, limits: Limits) -> dict[str, Any]:
        """Returns what every entry states after it: the total, and limits that were changed."""
        raised = (
            None if limits == self.limits else spell_once(view, "limits", limits, lambda: spelled(limits))
        )
        return self._stated(spell_once(view, "total", total, lambda: spelled(total)), raised)

    def _stated(self, total: dict[str, Any], limits: dict[str, Any] | None) -> dict[str, Any]:
        return {"standing": {**({"limits": limits} if limits else {}), "rules": self.digest, "total": total}}


def decided(state: State, cost: Cost) -> Posting:
    """Returns what a budget posts when it decides alone about a round of some cost."""
    return decided_together({state.rules.name: state}, {state.rules.name: cost})[state.rules.name]


def decided_together(states: Mapping[str, State], costs: Mapping[str, Cost]) -> dict[str, Posting]:
    """Returns what each budget of a round posts, by its name: all admit it, or none is charged."""
    if not states:
        return {}
    audience = tuple({state.rules.cohort: None for state in states.values()})
    answer = machine.decide(states, Request(audience=audience), costs)
    return {posting.budget: posting for posting in answer.postings}


def _with_round(state: State, posting: Posting) -> State:
    """Returns a state with the round that a posting decides, also if it is refused."""
    if posting.charge is None:
        return state
    is_admitted = posting.kind is PostingKind.ADMITTED
    total = posting.total if is_admitted else machine.added(state.rules, state.total, posting.charge)
    return dataclasses.replace(state, total=total)


def restated(state: State, round_: Round, described: Described, cause: Cause, cost: Cost | None) -> Posting:
    """Returns what a budget posts when a release turned out otherwise."""
    name = state.rules.name
    costs = {} if cost is None else {name: cost}
    (posting,) = machine.restate({name: state}, round_, described, cause, costs)
    return posting


def with_opening(state: State, opened_at: int | None) -> State:
    """Returns a state with the moment of the opening that chose its rules, with which incidents are
    compared."""
    return dataclasses.replace(state, rules=dataclasses.replace(state.rules, opened_at=opened_at))


def recorded(
    state: State, charge: Charge | None, *, voided: bool, released_after: int | None = None
) -> Round:
    """Returns the record of a round in one budget, before it is restated.

    Args:
        state: of the budget.
        charge: what is charged for it now, or what a void left of it; None: nothing was charged.
        voided: of the second.
        released_after: of an incident, the moment that is attested.
    """
    charges = {} if charge is None else {state.rules.name: charge}
    is_voided = voided and charge is not None
    return Round(charges=charges, is_voided=is_voided, released_after=released_after)


@functools.lru_cache(maxsize=_NAMED_RULES_MAX)
def _named(rules: Rules, name: str, cohort: str) -> Rules:
    """Returns the rules of the budget of this name."""
    return dataclasses.replace(rules, name=name, cohort=cohort)


def slots_share(policy: str) -> float:
    """Returns the part of delta that slots have: all of it, or `SLOTS_SHARE` beside filters."""
    return SLOTS_SHARE if policy == POLICY_ADAPTIVE else 1.0


def level(filters: FilterSet | None, epsilon: float) -> Level:
    """Returns an epsilon with what filters allow at it, rounded down."""
    if filters is None:
        return Level(epsilon=epsilon_units(epsilon))
    found = filters.limits(epsilon)
    return Level(
        epsilon=epsilon_units(epsilon),
        gaussian=units_below(found.gaussian, LOSS_UNIT),
        divergences=tuple(units_below(one, LOSS_UNIT) for one in found.renyi),
    )


def spending_of(readings: tuple[FilterReading, ...], *, rounds: int, delta: float) -> Spending:
    """Returns the smallest epsilon at which one of the filters holds, as spending; unbounded above, and below
    only by 0, if none holds: the largest epsilon that filters try says nothing about what was spent.

    Raises:
        LedgerError: a reading cannot be a bound. Unknown is an error, never an admission.
    """
    if rounds == 0:
        return Spending.nothing(delta)
    best = min(readings, key=lambda reading: reading.epsilon_upper)
    upper = best.epsilon_upper
    lower = min(reading.epsilon_lower for reading in readings) if math.isfinite(upper) else 0.0
    if not 0.0 <= lower <= upper:
        raise LedgerError(f"the filters read epsilon in [{lower}, {upper}], which bounds nothing")
    return Spending(
        epsilon_upper=upper,
        epsilon_lower=lower,
        delta=delta,
        rounds=rounds,
        discretization=0.0,
        truncation=0.0,
        round_off=upper - lower if upper < float("inf") else 0.0,
        method=method_of(best),
    )


def spending_of_record(rounds: int) -> Spending:
    """Returns the spending of a record without a budget: unbounded as soon as it holds a round."""
    nothing = Spending.nothing(1.0)
    if rounds == 0:
        return nothing
    return dataclasses.replace(nothing, rounds=rounds, epsilon_upper=math.inf, method="no budget of the life")


def method_of(reading: FilterReading) -> str:
    """Returns the name of the method that read the spending."""
    return _method(reading.name, reading.delta)


@functools.lru_cache(maxsize=_METHODS_MAX)
def _method(name: str, delta: float) -> str:
    return f"{name} filter at delta {upper_text(delta)}"


def _variance(state: State, times: int) -> int:
    """Returns the least total of the Gaussian filter with its reserve, in `LOSS_UNIT`."""
    return min(
        (reserve + used * times if used else 0)
        for reserve, used in zip(state.rules.reserves, state.total.gaussian, strict=True)
    )


def slots_cover(state: State) -> bool:
    """Returns whether declared slots cover all that is held, whatever they cost together."""
    endless = dataclasses.replace(state.limits.promise, epsilon=machine.UNBOUNDED - 1)
    return bool(machine.standing(state.rules, state.limits, state.total, endless).slots)


def _limits(filters: FilterSet | None, refuse: Level, promise: Level, *, is_summed: bool) -> Limits:
    if filters is None:
        return Limits(refuse=refuse, promise=promise)
    certain, slack = filters.accounts.limits(float(promise.epsilon * machine.EPSILON_UNIT))
    return Limits(
        refuse=refuse,
        promise=promise,
        certain=units_below(certain, DELTA_UNIT),
        slack=units_below(slack, DELTA_UNIT),
        sliding=promise.gaussian if is_summed else None,
    )


def _kind_of(cohort: Cohort) -> BudgetKind:
    if cohort.quota is not None:
        return BudgetKind.QUOTA
    if cohort.period is not None:
        return BudgetKind.PERIOD
    return BudgetKind.LIFE if cohort.has_life else BudgetKind.RECORD


def _least(one: Level, other: Level) -> Level:
    return _combined(min, one, other)


def _most(one: Level, other: Level) -> Level:
    return _combined(max, one, other)


def _combined(combine: Any, one: Level, other: Level) -> Level:
    return Level(
        epsilon=combine(one.epsilon, other.epsilon),
        gaussian=combine(one.gaussian, other.gaussian),
        divergences=tuple(map(combine, one.divergences, other.divergences)),
    )
