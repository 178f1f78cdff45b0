"""Games against the machine: the largest delta that any adaptive analyst reaches with rounds that it admits.

Computed by dynamic programming, not sampled. Rounds are small discrete mechanisms whose losses lie on a
lattice; nothing is rounded but sums of floats. Costs and limits are computed here, from the formulas of
`docs/adaptivity.md`, so that no code is shared with the accountant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from shuffle_ledger.ledger.machine import (
    DELTA_UNIT,
    LOSS_UNIT,
    Cause,
    Charge,
    Cost,
    Described,
    Level,
    Limits,
    Posting,
    Request,
    Round,
    Rules,
    State,
    budgets,
    change_budget,
    decide,
    fold,
    new_state,
    restate,
)

STEP = 0.1
REACH = 400  # losses beyond 40 do not occur below
CHANGES_MAX = 2  # of budgets on one path
ORDERS = np.linspace(0.0, 12.0, 1201)  # at which profiles are compared
Masses = Mapping[int, float]  # under P, by position; losses are positions * STEP
Array = np.ndarray[tuple[int], np.dtype[np.float64]]
States = tuple[State, ...]
LOST = np.zeros(2 * REACH + 1)  # of paths on which the promise ended: they are not among the events

# Mechanisms ---------------------------------------------------------------------------------------------


def coin(size: int, rate: float = 1.0) -> Masses:
    """Binary randomized response of epsilon0 = size * STEP, asked with probability `rate`, which all see."""
    kept = rate / (1 + math.exp(-size * STEP))
    return {size: kept, -size: rate - kept, 0: 1 - rate}


@functools.cache
def coins(rounds: int, size: int = 1) -> Masses:
    """So many coins together, without what is too rare to matter."""
    law = np.array([1.0])
    one = np.zeros(2 * size + 1)
    one[-1], one[0] = coin(size)[size], coin(size)[-size]
    for _ in range(rounds):
        law = np.convolve(law, one)
    ahead = {i - rounds * size: m for i, m in enumerate(law) if i > rounds * size and m > 1e-25}
    behind = {-place: mass * math.exp(-place * STEP) for place, mass in ahead.items()}
    return {**ahead, **behind, 0: max(0.0, 1 - sum(ahead.values()) - sum(behind.values()))}


def reveal(probability: float) -> Masses:
    """Reveals everything with this probability, else nothing: loss 1000 stands for infinity."""
    return {10 * REACH: probability, 0: 1 - probability}


@functools.cache
def gains(epsilon: float) -> Array:
    """What each final loss contributes to delta: `(1 - exp(epsilon - loss))_+`."""
    losses = (np.arange(2 * REACH + 1) - REACH) * STEP
    values: Array = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
    return values


def expected(values: Array, masses: Masses) -> Array:
    """The mean of values after one more mechanism, for every loss before it."""
    reach = min(max(map(abs, masses)), 2 * REACH)
    kernel = np.zeros(2 * reach + 1)
    for position, mass in masses.items():
        kernel[reach - min(position, reach)] += mass
    padded = np.concatenate([np.full(reach, values[0]), values, np.full(reach, values[-1])])
    means: Array = np.convolve(padded, kernel, mode="valid")
    return means


def delta_of(rounds: Sequence[Masses], epsilon: float) -> float:
    """The delta of rounds that are fixed in advance."""
    values = gains(epsilon)
    for masses in rounds:
        values = expected(values, masses)
    return float(values[REACH])


# Costs and limits ---------------------------------------------------------------------------------------


def gaussian_delta(variance: float, epsilon: Array) -> Array:
    mu = math.sqrt(variance)
    above: Array = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return above


def _profile(masses: Masses, noise: float) -> Array:
    """Delta at `ORDERS` of a mechanism together with a Gaussian one."""
    found = np.zeros_like(ORDERS)
    for position, mass in masses.items():
        rest = ORDERS - position * STEP
        found += mass * (
            gaussian_delta(noise, rest) if noise else np.maximum(0.0, -np.expm1(np.minimum(rest, 0)))
        )
    return found


@functools.lru_cache(maxsize=4096)
def _variance(masses: tuple[tuple[int, float], ...], reserve: float) -> int:
    """The charge at a reserve, a thousandth above what the orders ask for, rounded up."""
    wanted = _profile(dict(masses), reserve) - 1e-13
    low, high = 0.0, 1e-9
    while np.any(gaussian_delta(reserve + high, ORDERS) < wanted):
        low, high = high, 2 * high
    for _ in range(15):  # to much less than the thousandth
        middle = (low + high) / 2
        enough = bool(np.all(gaussian_delta(reserve + middle, ORDERS) >= wanted))
        low, high = (low, middle) if enough else (middle, high)
    return math.ceil(high * 1.001 / LOSS_UNIT)


def variance_of(epsilon: float, share: float) -> float:
    """V: the largest variance whose delta is at most a share."""
    low, high = 1e-9, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        within = float(gaussian_delta(middle, np.array([epsilon]))[0]) <= share
        low, high = (middle, high) if within else (low, middle)
    return low


def divergence_limit(epsilon: float, share: float, order: float) -> float:
    theta = order - 1
    return epsilon + (math.log(share) - theta * math.log(theta) + order * math.log(order)) / theta


def divergence(masses: Masses, order: float) -> float:
    if math.isinf(order):
        return max(position for position, mass in masses.items() if mass) * STEP
    theta = order - 1
    return math.log(sum(mass * math.exp(theta * place * STEP) for place, mass in masses.items())) / theta


def epsilon_units(epsilon: float) -> int:
    return round(epsilon * 10**6) * 10**24


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a budget of a game is opened. Shares are parts of delta."""

    epsilon: float = 6.0
    refuse: float | None = None  # None: as epsilon
    delta: float = 1e-2
    gaussian: float = 1.0
    orders: tuple[float, ...] = ()
    renyi: float = 0.0  # of each order
    certain: float = 0.0
    slack: float = 0.0
    slots: float = 0.0
    parts: tuple[float, ...] = (0.0, 1 / 64, 1 / 16, 1 / 5, 1 / 2)  # of V, as reserves
    has_sliding: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the rules

    @functools.cached_property
    def variance(self) -> float:
        return variance_of(self.epsilon, self.gaussian * self.delta) if self.parts else 0.0

    def level(self, epsilon: float) -> Level:
        variance = variance_of(epsilon, self.gaussian * self.delta) if self.parts else 0.0
        most = [
            epsilon if math.isinf(one) else divergence_limit(epsilon, self.renyi * self.delta, one)
            for one in self.orders
        ]
        return Level(
            epsilon=epsilon_units(epsilon),
            gaussian=math.floor(variance / LOSS_UNIT),
            divergences=tuple(math.floor(max(one, 0.0) / LOSS_UNIT) for one in most),
        )

    def slack_limit(self, epsilon: float) -> int:
        return math.floor(self.slack * self.delta / (1 + math.exp(epsilon)) / DELTA_UNIT)

    def state(self, name: str = "a") -> State:
        return new_state(*self.rules_and_limits_of(name))

    @property
    def rules_and_limits(self) -> tuple[Rules, Limits]:
        return self.rules_and_limits_of()

    def rules_and_limits_of(self, name: str = "a") -> tuple[Rules, Limits]:
        filtered = (self.gaussian, *(self.renyi for _ in self.orders), self.certain, self.slack)
        shares = (*(filtered if self.parts else ()), *([self.slots] if self.slots else []))
        fields: dict[str, Any] = {
            "name": name,
            "cohort": name.split("@", maxsplit=1)[0],
            "delta": math.ceil(self.delta / DELTA_UNIT),
            "opened_at": 0,
            "shares": tuple(math.floor(one * self.delta / DELTA_UNIT) for one in shares),
            "reserves": tuple(math.floor(one * self.variance / LOSS_UNIT) for one in self.parts),
            "orders": tuple(map(str, self.orders)),
        }
        rules = Rules(**{**fields, **self.changes})
        promise = self.level(self.epsilon)
        limits = Limits(
            refuse=promise if self.refuse is None else self.level(self.refuse),
            promise=promise,
            certain=math.floor(self.certain * self.delta / DELTA_UNIT),
            slack=self.slack_limit(self.epsilon),
            sliding=promise.gaussian if self.has_sliding and self.parts else None,
        )
        return rules, limits

    def cost(self, masses: Masses, **others: Any) -> Cost:
        """The cost of a round whose pure version is this mechanism."""
        return Cost(
            gaussian=tuple(
                _variance(tuple(sorted(masses.items())), one * self.variance) for one in self.parts
            ),
            divergences=tuple(math.ceil(divergence(masses, one) / LOSS_UNIT) for one in self.orders),
            **others,
        )


# The game -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of rounds.

    `costs` are what is asked for, for each budget that the round is charged to; `masses` are what its
    release reveals to the neighbours of the game. `truths`: what its release truly cost, which must be
    recorded before the end; if there are several, the analyst chooses. `retold`: what a correction may say
    of it, which need not be so. `is_asked`: False for releases that nothing admits.
    """

    masses: Masses
    costs: Mapping[str, Cost]
    truths: Mapping[str, Cost] | Sequence[Mapping[str, Cost]] | None = None
    is_asked: bool = True
    is_mine: bool = False  # of the neighbours' user, although the budget of the game is not charged
    may_be_voided: bool = True
    retold: Sequence[Mapping[str, Cost]] = ()
    may_be_hidden: bool = False  # voided although it is or was released, and told of later as an incident
    times: int = 9

    def told(self) -> Sequence[Mapping[str, Cost]]:
        if self.truths is None:
            return []
        return [self.truths] if isinstance(self.truths, Mapping) else self.truths


@dataclass(frozen=True)
class Open:
    """A round that waits for its release, or whose truth is not recorded yet."""

    kind: int
    charges: tuple[tuple[str, Charge], ...]
    released_after: int = 0
    is_told: bool = False
    is_voided: bool = False


Step = Callable[[States], States | None]
Place = tuple[States, tuple[Open, ...], tuple[Open, ...], tuple[int, ...], int]


@dataclass(kw_only=True)
class Game:
    """All analysts who ask, release, void, tell and change budgets in any order, up to some rounds.

    `promised` is the epsilon that the final states promise. `changes` are further moves of the analyst.
    `joins`: in how many of the admitted rounds the differing user takes part at most; the analyst says in
    which.
    """

    kinds: Sequence[Kind]
    states: Mapping[str, State]
    promised: Callable[[Mapping[str, State]], float]
    rounds: int = 4
    changes: Sequence[Step] = ()
    admits: Callable[[Mapping[str, State], Mapping[str, Cost]], tuple[Posting, ...]] | None = None
    mine: str = "a"  # the budget whose neighbours these are
    joins: int = 99
    known: dict[Place, Array] = field(default_factory=dict)

    def value(self) -> float:
        """The supremum of delta over all analysts."""
        none = (0,) * (len(self.kinds) + 1)  # how often each kind was asked for, and changes were made
        return float(self.at(tuple(self.states.values()), (), (), none, self.joins)[REACH])

    def at(self, *place: *Place) -> Array:
        """The supremum from here on, for every loss so far."""
        if place not in self.known:
            self.known[place] = self._best(*place)
        return self.known[place]

    def _best(
        self,
        states: States,
        waiting: tuple[Open, ...],
        untold: tuple[Open, ...],
        asked: tuple[int, ...],
        joins: int,
    ) -> Array:
        named = {state.rules.name: state for state in states}
        if named[self.mine].is_overspent:
            return LOST
        best = LOST if untold else gains(self.promised(named))
        for change in self.changes if asked[-1] < CHANGES_MAX else ():
            moved = change(states)
            if moved is not None:
                more = (*asked[:-1], asked[-1] + 1)
                best = np.maximum(best, self.at(moved, waiting, untold, more, joins))
        for place, kind in enumerate(self.kinds):
            if sum(asked[:-1]) < self.rounds and asked[place] < kind.times:
                more = tuple(n + (i == place) for i, n in enumerate(asked))
                best = np.maximum(best, self._asked(named, waiting, untold, (place, more, joins)))
        return np.maximum(best, self._went_on(states, waiting, untold, asked, joins))

    def _went_on(
        self,
        states: States,
        waiting: tuple[Open, ...],
        untold: tuple[Open, ...],
        asked: tuple[int, ...],
        joins: int,
    ) -> Array:
        """The best of releasing, voiding, correcting or telling one of the rounds there are."""
        named, best = {state.rules.name: state for state in states}, LOST
        for one, rest in _each(waiting):
            kind = self.kinds[one.kind]
            open_ = untold if kind.truths is None or one.is_told else _sorted((*untold, one))
            best = np.maximum(best, self._released(kind, (states, rest, open_, asked, joins)))
            if kind.may_be_voided:
                left, voided = self._told(named, one, Cause.VOID, None)
                best = np.maximum(best, self.at(left, rest, untold, asked, joins))
                if kind.may_be_hidden:
                    open_ = _sorted((*untold, voided))
                    best = np.maximum(best, self._released(kind, (left, rest, open_, asked, joins)))
            for truths in () if one.is_told else (*kind.told(), *kind.retold):
                left, told = self._told(named, one, Cause.CORRECT, truths)
                best = np.maximum(best, self.at(left, _sorted((*rest, told)), untold, asked, joins))
        for one, rest in _each(untold):
            cause = Cause.SETTLE if one.charges and not one.is_voided else Cause.INCIDENT
            for truths in self.kinds[one.kind].told() or [self.kinds[one.kind].costs]:
                left, _ = self._told(named, one, cause, truths)
                best = np.maximum(best, self.at(left, waiting, rest, asked, joins))
            if self.kinds[one.kind].may_be_hidden and cause is Cause.SETTLE:
                left, voided = self._told(named, one, Cause.VOID, None)
                best = np.maximum(best, self.at(left, waiting, _sorted((*rest, voided)), asked, joins))
        return best

    def _asked(
        self,
        named: Mapping[str, State],
        waiting: tuple[Open, ...],
        untold: tuple[Open, ...],
        which: tuple[int, tuple[int, ...], int],
    ) -> Array:
        place, asked, joins = which
        kind = self.kinds[place]
        if not kind.is_asked:  # a release that nothing admits; the user need not have counted it
            told = _sorted((*untold, Open(place, (), after_opening(named[self.mine]))))
            return self._joined(kind, (tuple(named.values()), waiting, told, asked, joins))
        postings = (self.admits or admitted)({name: named[name] for name in kind.costs}, kind.costs)
        if not postings:
            return LOST
        charges = tuple((one.budget, one.charge) for one in postings if one.charge)
        return self.at(
            folded(named, postings), _sorted((*waiting, Open(place, charges))), untold, asked, joins
        )

    def _released(self, kind: Kind, place: Place) -> Array:
        states, waiting, untold, asked, joins = place
        if self.mine not in kind.costs and not kind.is_mine:
            return self.at(*place)
        best = self._joined(kind, (states, waiting, untold, asked, joins - 1)) if joins else LOST
        return best if self.joins == 99 else np.maximum(best, self.at(*place))

    def _joined(self, kind: Kind, place: Place) -> Array:
        after = self.at(*place)
        return LOST if after is LOST else expected(after, kind.masses)

    def _told(
        self, named: Mapping[str, State], one: Open, cause: Cause, truths: Mapping[str, Cost] | None
    ) -> tuple[States, Open]:
        """The states, and the round, after a restatement."""
        round_ = Round(
            charges=dict(one.charges),
            is_closed=one.is_voided,
            is_voided=one.is_voided,
            released_after=after_opening(named[self.mine]) if one.charges else one.released_after,
        )
        described = Described.NOTHING if truths is None else Described.STATED
        touched = {name: named[name] for name in self.kinds[one.kind].costs}
        postings = restate(touched, round_, described, cause, truths or {})
        charges = tuple((posting.budget, posting.charge) for posting in postings if posting.charge)
        told = replace(one, charges=charges, is_told=True, is_voided=cause is Cause.VOID)
        return folded(named, postings), told


def after_opening(state: State) -> int:
    """The first moment that is later than a budget's opening."""
    assert state.rules.opened_at is not None
    return state.rules.opened_at + 1


def admitted(states: Mapping[str, State], costs: Mapping[str, Cost]) -> tuple[Posting, ...]:
    """The postings of a round that is admitted; none if it is refused."""
    audience = tuple({state.rules.cohort: None for state in states.values()})
    decided = decide(states, Request(audience=audience), costs)
    return decided.postings if decided.is_admitted else ()


def folded(named: Mapping[str, State], postings: Sequence[Posting]) -> States:
    after = dict(named)
    for posting in postings:
        after[posting.budget] = fold(named[posting.budget], posting)
    return tuple(after.values())


def change_to(name: str, refuse: Level, promise: Level | None = None, **others: int) -> Step:
    """The analyst's move of a budget's levels."""

    def step(states: States) -> States | None:
        named = {state.rules.name: state for state in states}
        posting = change_budget(named[name], refuse, promise, **others)
        return folded(named, [posting]) if isinstance(posting, Posting) else None

    return step


def open_again(rules: Rules, limits: Limits) -> Step:
    """The analyst's opening of a budget in place of the present one, at a later time."""

    def step(states: States) -> States | None:
        named = {state.rules.name: state for state in states}
        later = replace(rules, opened_at=after_opening(named[rules.name]))
        if not all(map(budgets.may_open_again, states)):
            return None
        return tuple({**named, rules.name: new_state(later, limits)}.values())

    return step


def _each(rounds: tuple[Open, ...]) -> list[tuple[Open, tuple[Open, ...]]]:
    return [
        (one, rounds[:place] + rounds[place + 1 :])
        for place, one in enumerate(rounds)
        if one not in rounds[:place]
    ]


def _sorted(rounds: tuple[Open, ...]) -> tuple[Open, ...]:
    return tuple(sorted(rounds, key=repr))
