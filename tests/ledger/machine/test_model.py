"""The machine beside a naive model, over random histories of several budgets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from shuffle_ledger.ledger.machine import (
    BudgetKind,
    Cause,
    Charge,
    Cost,
    Described,
    InvalidStep,
    Level,
    Limits,
    Posting,
    Request,
    Round,
    Rules,
    State,
    Unchanged,
    after,
    change_budget,
    decide,
    fold,
    new_state,
    restate,
    room,
)
from tests.ledger.machine.model import Model, unrandomized

OPENED = 100
COUNTED_MAX = 40  # rounds that are decided one by one, beside a forecast


def long_budget(name: str, cohort: str, kind: BudgetKind) -> tuple[Rules, Limits]:
    """A budget of many rounds, in which the sliding total decides in the end."""
    level = Level(epsilon=10, gaussian=1024)
    rules = Rules(
        name=name,
        cohort=cohort,
        kind=kind,
        opened_at=OPENED,
        delta=3,
        shares=(1, 1, 1),
        reserves=(0, 256, 512),
    )
    return rules, Limits(refuse=level, promise=level, certain=8, slack=8, sliding=1024)


def some_budget(draw: random.Random, name: str, cohort: str, kind: BudgetKind) -> tuple[Rules, Limits]:
    capped = draw.random() < 0.15
    slots = () if capped else draw.choice([(), (), (), (3,), (2, 4)])
    filtered = not slots or draw.random() < 0.7
    certificate = draw.choice([5, 10])
    orders = draw.choice([(), (), ("3", "inf")]) if filtered else ()
    rules = Rules(
        name=name,
        cohort=cohort,
        kind=kind,
        opened_at=OPENED,
        delta=100,
        shares=(1,) * ((3 + len(orders)) * filtered + bool(slots)),
        reserves=draw.choice([(0,), (0, 32, 128), (0, 64, 256, 512)]) if filtered else (),
        orders=orders,
        slots=slots,
        slots_epsilon=certificate,
        rounds_per_user=draw.choice([1, 2, 4]) if capped else None,
    )

    def level(epsilon: int, gaussian: int) -> Level:
        divergences = tuple(gaussian // 3 for _ in rules.orders)
        return Level(epsilon=epsilon, gaussian=gaussian if filtered else 0, divergences=divergences)

    promise = level(10, 1024)
    refuse = draw.choice([promise, promise, promise, level(5, 640)])
    limits = Limits(
        refuse=refuse,
        promise=refuse if kind is BudgetKind.QUOTA else promise,
        certain=8 if filtered else 0,
        slack=8 if filtered else 0,
        sliding=None if capped or not filtered or draw.random() < 0.2 else 1024,
        local=draw.choice([None, 40, 60]),
    )
    if kind is BudgetKind.QUOTA and limits.sliding is not None:
        limits = replace(limits, sliding=limits.refuse.gaussian // 32 * 32)
    return rules, limits


def some_cost(draw: random.Random, rules: Rules, *, is_long: bool) -> Cost:
    if is_long:
        gaussian = draw.choice([(400, 100, 50), (300, 300, 40), (40, 40, 40), (60, 55, 50), (8, 8, 7)])
        return Cost(gaussian=gaussian, certain=draw.choice([0] * 30 + [1]))
    first = draw.choice([1, 8, 20, 60, 150, 400, 600])
    variances = [first]
    while len(variances) < len(rules.reserves):
        variances.append(variances[-1] * draw.choice([1, 2, 4]) // 4)
    return Cost(
        local=draw.choice([0, 1, 3, 10]),
        certain=draw.choice([0, 0, 0, 1, 4]),
        slack=draw.choice([0, 0, 0, 1, 5]),
        gaussian=tuple(variances[: len(rules.reserves)]),
        divergences=tuple(draw.choice([5, 30, 200]) for _ in rules.orders),
        fits=tuple(kind for kind in range(len(rules.slots)) if draw.random() < 0.8),
        parts=draw.choice([1, 1, 1, 2, 3]),
    )


@dataclass
class Known:
    charges: dict[str, Charge] = field(default_factory=dict)
    budgets: tuple[str, ...] = ()
    is_closed: bool = False
    is_voided: bool = False


class History:
    """Random events to the machine and to one model for each budget."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - it need not be a secret
        named = [
            ("a", "a", BudgetKind.LIFE),
            ("a@2026-W48", "a", BudgetKind.PERIOD),
            ("a@team=x", "a", BudgetKind.QUOTA),
            ("b", "b", BudgetKind.LIFE),
        ]
        self.is_long = self.draw.random() < 0.3
        made = [long_budget(*one) if self.is_long else some_budget(self.draw, *one) for one in named]
        self.states: dict[str, State] = {rules.name: new_state(rules, limits) for rules, limits in made}
        self.models = {rules.name: Model(rules, limits) for rules, limits in made}
        self.rounds: dict[str, Known] = {}
        self.seen: dict[str, int] = {}
        self.steps = 0

    def step(self) -> None:
        waiting = [name for name, one in self.rounds.items() if one.charges and not one.is_closed]
        charged = [name for name, one in self.rounds.items() if one.charges and not one.is_voided]
        others = [name for name, one in self.rounds.items() if not one.charges or one.is_voided]
        moves = ["settle", "correct", "void", "void", "incident", "change", "change", *(["ask"] * 4)]
        match self.draw.choice(["ask"] * 8 + ["void", "settle"] if self.is_long else moves):
            case "settle" if waiting:
                self.tell(self.draw.choice(waiting), Cause.SETTLE)
            case "correct" if charged:
                self.tell(self.draw.choice(charged), Cause.CORRECT)
            case "void" if waiting:
                self.tell(self.draw.choice(waiting), Cause.VOID)
            case "incident":
                if self.draw.random() < 0.5 or not others:
                    others = [f"r{len(self.rounds)}"]
                    self.rounds[others[0]] = Known(budgets=self.some_budgets())
                self.tell(self.draw.choice(others), Cause.INCIDENT)
            case "change":
                self.change()
            case _:
                self.ask()
        self.steps += 1
        if not self.is_long or self.steps % 8 == 0:
            self.compare()

    def some_budgets(self) -> tuple[str, ...]:
        names = list(self.states)
        return tuple(self.draw.choice([names, names[:2], names[:3], names[3:], names[:1]]))

    def costs(self, names: tuple[str, ...]) -> dict[str, Cost]:
        return {name: some_cost(self.draw, self.states[name].rules, is_long=self.is_long) for name in names}

    def ask(self) -> None:
        names, asked = self.some_budgets(), f"r{len(self.rounds)}"
        costs = self.costs(names)
        states = {name: self.states[name] for name in names}
        request = Request(audience=tuple(sorted({one.rules.cohort for one in states.values()})))
        decided = decide(states, request, costs)
        expected = tuple(name for name in names if self.models[name].refuses(asked, costs[name]))
        assert decided.refused_by == expected
        assert decided.is_admitted is not bool(expected)
        assert tuple(one.budget for one in decided.postings if one.reasons) == expected
        assert min(room_of_all(states, costs), COUNTED_MAX) == one_by_one(states, request, costs)
        self.look_ahead(self.draw.choice(names))
        self.rounds[asked] = Known(budgets=names)
        for posting in decided.postings:
            self.take(posting)
            if decided.is_admitted:
                self.models[posting.budget].events.append(("admitted", asked, costs[posting.budget]))
                assert posting.charge is not None
                self.rounds[asked].charges[posting.budget] = posting.charge
        self.note("admitted" if decided.is_admitted else "refused")

    def look_ahead(self, name: str) -> None:
        """Compare turns of some rounds that are counted at once with those that are decided one by one."""
        state = self.states[name]
        kinds = [
            some_cost(self.draw, state.rules, is_long=self.is_long) for _ in range(self.draw.randint(1, 3))
        ]
        found = room_of_all({name: state}, *({name: kind} for kind in kinds))
        turns, then = in_turns(state, kinds)
        assert min(found, COUNTED_MAX) == turns
        assert after(state, kinds, turns).total == then.total
        self.note("turns" if turns else "no turn")

    def tell(self, name: str, cause: Cause) -> None:
        known = self.rounds[name]
        costs = {} if cause is Cause.VOID else self.costs(known.budgets)
        described = Described.NOTHING if cause is Cause.VOID else Described.STATED
        after = self.draw.choice([None, OPENED, *(8 * [OPENED + 1])])
        if cause is Cause.INCIDENT and self.draw.random() < 0.05:
            described, costs = Described.UNKNOWN, {}
        round_ = Round(
            charges=known.charges,
            is_closed=known.is_closed,
            is_voided=known.is_voided,
            released_after=after,
        )
        states = {one: self.states[one] for one in known.budgets}
        postings = restate(states, round_, described, cause, costs)
        for posting in postings:
            rules, model = self.states[posting.budget].rules, self.models[posting.budget]
            early = after != OPENED + 1 and rules.kind is not BudgetKind.QUOTA
            clear = described is Described.UNKNOWN or (cause is Cause.INCIDENT and early)
            truth = unrandomized(rules) if clear else costs.get(posting.budget)
            model.events.append(("voided", name) if truth is None else ("told", name, truth))
            self.take(posting)
            assert posting.charge is not None
            known.charges[posting.budget] = posting.charge
        known.is_closed = known.is_closed or cause is not Cause.CORRECT
        known.is_voided = cause is Cause.VOID
        self.note(cause)

    def change(self) -> None:
        name = self.draw.choice(list(self.states))
        state, model = self.states[name], self.models[name]
        if self.draw.random() < 0.05:
            self.states[name] = replace(state, is_frozen=True)
            model.events.append(("frozen",))
            return
        epsilon, gaussian = self.draw.choice([(4, 512), (5, 640), (10, 1024), (12, 1600), (12, 1600)])
        gaussian = gaussian if state.rules.reserves else 0
        level = Level(
            epsilon=epsilon, gaussian=gaussian, divergences=(gaussian // 3,) * len(state.rules.orders)
        )
        slack = self.draw.choice([2, 5, 8]) if epsilon == 12 else None
        promise = level if self.draw.random() < 0.4 and state.rules.promises else None
        try:
            posting = change_budget(state, level, promise, slack=slack)
        except InvalidStep:
            assert not level.is_within(promise or state.limits.promise) or (
                promise is not None and not promise.is_within(state.limits.promise)
            )
            return
        raised = promise is not None and not promise.is_within(state.limits.promise)
        promised = promise or (state.limits.promise if state.rules.promises else level)
        limits = replace(state.limits, refuse=level, promise=promised)
        if slack is not None:
            limits = replace(limits, slack=min(limits.slack, slack) if state.rules.promises else slack)
        if limits.sliding is not None:
            limits = replace(limits, sliding=max(limits.sliding, limits.promise.gaussian))
        then = model.after(("changed", limits))
        breaks = raised and bool(state.rules.reserves) and then.sums()["slack"] > limits.slack
        refused = (
            state.rules.promises and not state.is_overspent and (breaks or not then.holds(decides=False))
        )
        assert isinstance(posting, Unchanged) is refused
        if isinstance(posting, Posting):
            assert posting.limits == limits
            model.events.append(("changed", limits))
            self.take(posting)
            self.note("raised" if raised else "changed")

    def take(self, posting: Posting) -> None:
        self.states[posting.budget] = fold(self.states[posting.budget], posting)

    def note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def compare(self) -> None:
        for name, state in self.states.items():
            found, total = self.models[name].after(), state.total
            assert state.is_overspent == found.is_overspent
            assert state.is_frozen == found.is_frozen
            assert total.local == found.local()
            if state.rules.rounds_per_user is not None:
                assert total.rounds == len(found.rounds)
                assert total.incidents == sum(one.is_incident for one in found.rounds.values())
            else:
                self.note("sliding alone" if found.needs_sliding() else "others")
                sums = found.sums()
                assert (total.certain, total.slack) == (sums["certain"], sums["slack"])
                assert list(total.gaussian) == sums["variances"]
                assert list(total.divergences) == sums["divergences"]
            assert total.sliding == found.ever
            assert total.late == found.late()
            assert total.sliding - total.returned == found.held()
            assert total.claims == tuple(map(found.claims, range(len(state.rules.slots))))


def room_of_all(states: Mapping[str, State], *turn: Mapping[str, Cost]) -> int:
    if any(state.is_frozen or state.is_overspent for state in states.values()):
        return 0
    return min(room(state, *(costs[name] for costs in turn)).budget for name, state in states.items())


def one_by_one(states: Mapping[str, State], request: Request, costs: Mapping[str, Cost]) -> int:
    states, count = dict(states), 0
    while count < COUNTED_MAX:
        decided = decide(states, request, costs)
        if not decided.is_admitted:
            return count
        count += 1
        states = {one.budget: fold(states[one.budget], one) for one in decided.postings}
    return count


def in_turns(state: State, kinds: list[Cost]) -> tuple[int, State]:
    """Return how many turns one budget admits, decided one by one, and its state after them."""
    name, now = state.rules.name, state
    request = Request(audience=(state.rules.cohort,))
    for turn in range(COUNTED_MAX):
        for cost in kinds:
            decided = decide({name: now}, request, {name: cost})
            if not decided.is_admitted:
                return turn, state
            now = fold(now, decided.postings[0])
        state = now
    return COUNTED_MAX, state


def walk(seeds: range) -> dict[str, int]:
    seen: dict[str, int] = {}
    for seed in seeds:
        history = History(seed)
        for _ in range(50 if history.is_long else history.draw.randint(5, 30)):
            history.step()
        for what, count in history.seen.items():
            seen[what] = seen.get(what, 0) + count
        seen["overspent"] = seen.get("overspent", 0) + any(s.is_overspent for s in history.states.values())
    return seen


@pytest.mark.slow
def test_the_machine_says_what_a_naive_model_says() -> None:
    seen = walk(range(50))
    wanted = (
        "sliding alone",
        "admitted",
        "refused",
        "settle",
        "correct",
        "void",
        "incident",
        "changed",
        "raised",
        "overspent",
        "turns",
        "no turn",
    )
    assert all(seen.get(what, 0) > 5 for what in wanted), seen
