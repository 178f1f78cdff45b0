"""A naive model of budgets: it keeps a list of what happened and works everything out anew for each question.

Written from the design (limits and filters, restatements, budgets) and `docs/adaptivity.md`, with fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from shuffle_ledger.ledger.machine import UNBOUNDED, Cost, Limits, Rules

HEADROOM, TOLERANCE = Fraction(1, 32), Fraction(1, 512)


@dataclass
class Noted:
    """One round as the model remembers it."""

    local: Fraction
    certain: Fraction
    slack: Fraction
    variances: list[Fraction]
    divergences: list[Fraction]
    parts: int
    slots: int | None  # the kind it stands in
    claimed: int | None
    slides: Fraction = Fraction(0)
    reserve: Fraction = Fraction(0)
    late: Fraction = Fraction(0)
    is_incident: bool = False
    is_voided: bool = False
    is_raised: bool = False  # in a Gaussian coordinate, after its admission
    stands: bool = True  # in a slot, or for want of one in none


def noted(cost: Cost, kind: int | None, claimed: int | None) -> Noted:
    n = cost.parts
    return Noted(
        local=Fraction(cost.local),
        certain=Fraction(n * cost.certain),
        slack=Fraction(n * cost.slack),
        variances=[Fraction(n * one) for one in cost.gaussian],
        divergences=[Fraction(n * one) for one in cost.divergences],
        parts=n,
        slots=kind,
        claimed=claimed,
    )


@dataclass
class Model:
    """One budget."""

    rules: Rules
    opening: Limits
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def after(self, *more: tuple[Any, ...]) -> Replay:
        replay = Replay(self.rules, self.opening)
        for event in [*self.events, *more]:
            replay.happen(*event)
        return replay

    def refuses(self, name: str, cost: Cost) -> bool:
        now, then = self.after(), self.after(("admitted", name, cost))
        return now.is_overspent or now.is_frozen or not (then.is_local_kept() and then.holds(decides=True))


class Replay:
    """The state after a list of events."""

    def __init__(self, rules: Rules, limits: Limits) -> None:
        self.rules, self.limits = rules, limits
        self.rounds: dict[str, Noted] = {}
        self.ever = Fraction(0)  # all variance that the sliding total was ever charged
        self.is_overspent = self.is_frozen = False

    def happen(self, what: str, *details: Any) -> None:
        getattr(self, what)(*details)
        if self.rules.kind != "quota" and not self.holds(decides=False):
            self.is_overspent = self.is_overspent or what != "admitted"

    def admitted(self, name: str, cost: Cost) -> None:
        free = [k for k in cost.fits if self.claims(k) + cost.parts <= self.rules.slots[k]]
        kind = next(iter(free or cost.fits), None)
        one = noted(cost, kind, kind)
        one.slides, one.reserve = self.smoothed(one.variances, self.held())
        self.ever += one.slides
        self.rounds[name] = one

    def told(self, name: str, cost: Cost) -> None:
        """A release turned out to cost this."""
        old = self.rounds.get(name)
        if old is None or old.is_voided:
            claimed = None
            if old is not None:  # what is left of it stays; the release is another round
                self.rounds[f"{name}, voided"], claimed = old, old.claimed
            zero = Cost(gaussian=(0,) * len(cost.gaussian), divergences=(0,) * len(cost.divergences))
            old = noted(zero, None, claimed)
            old.is_incident = True
        others = self.held() - old.slides
        kind = old.claimed if old.claimed in cost.fits else next(iter(cost.fits), None)
        new = noted(cost, kind, old.claimed)
        for coordinate in ("local", "certain", "slack"):
            setattr(new, coordinate, max(getattr(old, coordinate), getattr(new, coordinate)))
        new.divergences = [max(pair) for pair in zip(old.divergences, new.divergences, strict=True)]
        new.variances = [max(pair) for pair in zip(old.variances, new.variances, strict=True)]
        new.slides, new.reserve, new.is_incident = old.slides, old.reserve, old.is_incident
        new.is_raised = old.is_raised or new.variances != old.variances
        if new.variances != old.variances:
            wanted = [max(one, old.slides) for one in new.variances]
            new.slides, new.reserve = self.smoothed(wanted, others)
        new.late = old.late + (new.slides - old.slides)
        self.ever += new.slides - old.slides
        self.rounds[name] = new

    def voided(self, name: str) -> None:
        one = self.rounds[name]
        one.is_voided = True
        if self.rules.rounds_per_user is not None:
            return
        limit = self.limits.sliding
        intact = not one.is_raised
        if limit is not None and one.reserve:
            intact = intact and self.ever + one.reserve + limit * HEADROOM <= limit
        one.certain = one.slack = Fraction(0)
        one.divergences = [Fraction(0) for _ in one.divergences]
        one.stands = False
        if intact:
            one.variances = [Fraction(0) for _ in one.variances]
            one.slides = one.late = one.reserve = Fraction(0)

    def changed(self, limits: Limits) -> None:
        self.limits = limits

    def frozen(self) -> None:
        self.is_frozen = True

    def held(self) -> Fraction:
        return sum((one.slides for one in self.rounds.values()), Fraction(0))

    def claims(self, kind: int | None) -> int:
        return sum(one.parts for one in self.rounds.values() if one.stands and one.slots == kind)

    def smoothed(self, costs: Sequence[Fraction], held: Fraction) -> tuple[Fraction, Fraction]:
        """The sliding charge, and the reserve that it rests on."""
        if self.limits.sliding is None:
            return Fraction(0), Fraction(0)
        left = self.limits.sliding - held
        room = self.limits.sliding * HEADROOM
        fitting = {
            Fraction(w): c
            for w, c in zip(self.rules.reserves, costs, strict=True)
            if c + w + (room if w else 0) <= left
        }
        if not fitting:
            return costs[0], Fraction(0)
        enough = (1 + TOLERANCE) * min(fitting.values())
        reserve = min(w for w, c in fitting.items() if c <= enough)
        return fitting[reserve], reserve

    def sums(self) -> Mapping[str, Any]:
        """Each coordinate, as one user may have it."""
        rounds = list(self.rounds.values())
        most = self.rules.rounds_per_user

        def add(values: list[Fraction]) -> Fraction:
            if most is None:
                return sum(values, Fraction(0))
            n, i = len(values), sum(one.is_incident for one in rounds)
            return min(n, most + i) * max(values, default=Fraction(0))

        return {
            "certain": add([one.certain for one in rounds]),
            "slack": add([one.slack for one in rounds]),
            "variances": [add([one.variances[j] for one in rounds]) for j in range(len(self.rules.reserves))],
            "divergences": [
                add([one.divergences[j] for one in rounds]) for j in range(len(self.rules.orders))
            ],
        }

    def local(self) -> Fraction:
        return sum((one.local for one in self.rounds.values()), Fraction(0))

    def is_local_kept(self) -> bool:
        return self.limits.local is None or self.local() <= self.limits.local

    def late(self) -> Fraction:
        return sum((one.late for one in self.rounds.values()), Fraction(0))

    def needs_sliding(self) -> bool:
        """Whether nothing but the sliding total holds what is promised."""
        kept, self.limits = self.limits, replace(self.limits, sliding=None)
        without, self.limits = self.holds(decides=False), kept
        return self.holds(decides=False) and not without

    def holds(self, *, decides: bool) -> bool:
        level = self.limits.refuse if decides else self.limits.promise
        slots = self.rules.slots
        free = all(self.claims(k) <= n for k, n in enumerate(slots)) and self.claims(None) == 0
        if slots and self.rules.slots_epsilon <= level.epsilon and free:
            return True
        sums = self.sums()
        if sums["certain"] > self.limits.certain or sums["slack"] > self.limits.slack:
            return False
        ways = [w + s <= level.gaussian for w, s in zip(self.rules.reserves, sums["variances"], strict=True)]
        ways += [s <= most for s, most in zip(sums["divergences"], level.divergences, strict=True)]
        limit = self.limits.sliding
        if limit is not None and limit <= level.gaussian:
            ways.append(self.held() <= limit and self.late() <= limit * HEADROOM)
        return any(ways)


def unrandomized(rules: Rules) -> Cost:
    endless = (UNBOUNDED,)
    return Cost(
        local=UNBOUNDED, gaussian=endless * len(rules.reserves), divergences=endless * len(rules.orders)
    )
