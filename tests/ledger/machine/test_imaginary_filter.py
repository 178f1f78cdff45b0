"""Lemma 4 of docs/adaptivity.md: a filter that follows the order of its proof never stops where a total
holds, whatever was admitted, released, voided, settled and raised."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from shuffle_ledger.accounting import Charge, DeltaAccounts, FilterSet
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter
from shuffle_ledger.accounting.filters.sliding_reserve import SlidingReserve

RESERVES = (0.0, 1.0, 8.0, 32.0)
LIMIT = 64.0
ACCOUNTS = DeltaAccounts(certain_loss=0.0, slack=0.0, epsilon=1.0)
Costs = tuple[Fraction, ...]


def filters_of(limit: float) -> FilterSet:
    gaussian = GaussianFilter(delta=1e-3, leak_rate=0.0, reserves=RESERVES)
    return FilterSet(gaussian=gaussian, renyi=(), accounts=ACCOUNTS, sliding_limit=limit)


def charge_of(costs: Costs) -> Charge:
    return Charge(gaussian=costs, renyi=(), account=(Fraction(0),) * 2)


def some_costs(draw: random.Random) -> Costs:
    """Costs at the reserves, falling."""
    costs = [Fraction(draw.randint(1, 40), draw.choice([1, 1, 2, 8, 64])) * draw.choice([1, 2, 4, 10])]
    for _ in RESERVES[1:]:
        costs.append(costs[-1] / draw.choice([1, 1, 2, 4]))
    return tuple(costs)


@dataclass(eq=False)
class Round:
    truth: Costs
    charge: Charge
    is_true: bool  # what was declared; whether it is, or seems to be, is known when the round is admitted
    is_waiting: bool = True
    is_closed: bool = False


@dataclass
class Path:
    """The ledger's filters, and the order of the rounds in the proof.

    `limit` is the last one that the budget is raised to; `careless` takes every declaration for the truth.
    """

    limit: float = LIMIT
    careless: bool = False
    filters: FilterSet = field(default_factory=lambda: filters_of(LIMIT))
    spent: Charge = field(default_factory=lambda: filters_of(LIMIT).nothing())
    rounds: list[Round] = field(default_factory=list)
    order: list[Round] = field(default_factory=list)

    def holds(self, spent: Charge) -> bool:
        limit = float(self.filters.sliding_limit or 0.0)
        charged, returned, late = spent.sliding
        fixed = any(w + total <= limit for w, total in zip(RESERVES, spent.gaussian, strict=True))
        return fixed or SlidingReserve(limit=limit, reserves=RESERVES).holds(charged - returned, late)

    def is_intact(self, one: Round, spent: Charge) -> bool:
        """Whether a round's reserve, with the headroom, was left by all that was ever charged: by its
        definition, not by the code that is to follow it."""
        (charged, _, _), (charge, _, _) = spent.sliding, one.charge.sliding
        used = next(w for w, cost in zip(RESERVES, one.charge.gaussian, strict=True) if cost <= charge)
        return not used or charged + Fraction(used) + Fraction(self.limit) / 32 <= self.limit

    def show(self, one: Round) -> None:
        if one not in self.order:
            self.order.append(one)

    def become(self, spent: Charge) -> None:
        """Spends `spent`. Rounds whose reserves this uses come earlier in the order."""
        for one in self.rounds:
            if one.is_waiting and one.is_true and not self.is_intact(one, spent):
                self.show(one)
        self.spent = spent

    def admit(self, declared: Costs, truth: Costs) -> None:
        charge = self.filters.taken(self.spent, charge_of(declared))
        if self.holds(self.spent + charge):
            self.become(self.spent + charge)
            self.rounds.append(Round(truth, charge, self.careless or truth == declared))
            self.become(self.spent)

    def release(self, one: Round) -> None:
        one.is_waiting = False
        self.show(one)

    def void(self, one: Round) -> None:
        one.is_waiting, one.is_closed = False, True
        after = self.filters.given_back(self.spent, one.charge)
        assert after.gaussian == self.spent.gaussian or one not in self.order
        self.spent = after

    def settle(self, one: Round) -> None:
        one.is_waiting, one.is_closed = False, True
        instead = self.filters.taken_instead(self.spent, one.charge, charge_of(one.truth))
        after = self.spent - one.charge + instead
        one.charge = instead
        self.become(after)
        self.show(one)

    @property
    def unsettled(self) -> list[Round]:
        return [one for one in self.rounds if one in self.order and not one.is_waiting and not one.is_closed]

    def is_followed(self) -> bool:
        """Whether the imaginary filter, with the last limit, goes through all that stands."""
        held = Fraction(0)
        for one in self.order:
            within = [
                cost for w, cost in zip(RESERVES, one.truth, strict=True) if w + cost + held <= self.limit
            ]
            if not within:
                return False
            held += min(within)
        return True


def walked(seed: int, *, raised: bool = False, careless: bool = False) -> Path:
    # A history that breaks the lemma can be walked again.
    draw = random.Random(seed)  # noqa: S311 - it need not be a secret
    path = Path(limit=draw.choice([66.0, 80.0, 100.0]) if raised else LIMIT, careless=careless)
    for _ in range(draw.randint(4, 24)):
        waiting = [one for one in path.rounds if one.is_waiting]
        match draw.choice(["admit", "admit", "release", "void", "settle", "settle", "raise"]):
            case "admit" if len(path.rounds) < 7:
                declared = some_costs(draw)
                more = some_costs(draw) if draw.random() < 0.4 else declared
                path.admit(declared, tuple(map(max, declared, more)))
            case "release" if waiting:
                path.release(draw.choice(waiting))
            case "void" if waiting:
                path.void(draw.choice(waiting))
            case "settle" if may_settle := path.unsettled + waiting:
                path.settle(draw.choice(may_settle))
            case "raise" if raised:
                path.filters = filters_of(path.limit)
    for one in path.unsettled:
        path.settle(one)
    path.filters = filters_of(path.limit)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("raised", [False, True])
def test_it_never_stops_where_a_total_holds(raised: bool) -> None:
    paths = [walked(seed, raised=raised) for seed in range(3000)]
    holding = [path for path in paths if path.holds(path.spent)]
    assert len(holding) > 1000
    assert sum(len(path.order) for path in holding) > 3000
    assert all(path.is_followed() for path in holding)


@pytest.mark.slow
def test_it_stops_where_rounds_are_shown_before_they_are_released() -> None:
    """A round that cost more, and was voided before that was told: totals keep what was declared."""
    paths = [walked(seed, careless=True) for seed in range(3000)]
    assert any(path.holds(path.spent) and not path.is_followed() for path in paths)
