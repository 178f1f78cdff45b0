"""`cohort plan`: what declared rounds cost together before the first of them; and what of a plan is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shuffle_ledger import accounting
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.rendering.present import bounds, lower, shown
from shuffle_ledger.ledger.answers import SlotReading


@dataclass(frozen=True, kw_only=True)
class PlanQuote:
    """The cost of a plan, whether it fits a budget, and the largest epsilon0 that would."""

    fits: bool
    rounds: int
    kinds: int
    epsilon_upper: float
    epsilon_lower: float
    epsilon_budget: float
    delta_budget: float
    largest_common_epsilon0: float | None  # with which all its rounds together would fit; None: with none


def quote_plan(path: Path, *, epsilon: float, delta: float) -> PlanQuote:
    """Returns what the rounds of a file cost together, and whether that fits; leaves no trace."""
    if not epsilon > 0:
        raise BadValue("epsilon", epsilon, "a number above 0")
    from shuffle_ledger.cli.files.round_files import read_composition  # noqa: PLC0415 - few commands read plans

    plan, accountant = read_composition(path), accounting.Accountant()
    whole = accountant.certify(plan, delta=delta, budget=epsilon)
    return PlanQuote(
        fits=whole.epsilon_upper <= epsilon,
        rounds=sum(plan.values()),
        kinds=len(plan),
        epsilon_upper=whole.epsilon_upper,
        epsilon_lower=whole.epsilon_lower,
        epsilon_budget=epsilon,
        delta_budget=delta,
        largest_common_epsilon0=accounting.largest_common_epsilon0(
            accountant, plan, epsilon=epsilon, delta=delta
        ),
    )


def plan_facts(quote: PlanQuote) -> Mapping[str, object]:
    """Returns a plan's quote for people."""
    common = quote.largest_common_epsilon0
    return {
        "rounds": f"{shown(quote.rounds)} of {shown(quote.kinds)} kinds",
        "epsilon": bounds(quote.epsilon_lower, quote.epsilon_upper),
        "budget": f"epsilon {shown(quote.epsilon_budget)} at delta {shown(quote.delta_budget)}",
        "fits": "yes" if quote.fits else "no",
        "largest common epsilon0": None if common is None else lower(common),
    }


def slot_facts(slots: Sequence[SlotReading]) -> dict[str, str]:
    """Returns what of each slot of a plan is free, and of what, for people."""
    return {f"  slot {number}": _slot_text(slot) for number, slot in enumerate(slots, start=1)}


def _slot_text(slot: SlotReading) -> str:
    free = f"{shown(slot.count - slot.claimed)} of {shown(slot.count)} free"
    return f"{free}: {slot.round.in_words}"
