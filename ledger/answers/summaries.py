"""A budget in words: the same few phrases on pages, on the command line and in statements."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, POLICY_PLAN, CohortStatus

if TYPE_CHECKING:
    from shuffle_ledger.accounting import LocalRandomizer
    from shuffle_ledger.ledger.answers.budgets import FittingRounds
    from shuffle_ledger.ledger.answers.forecasts import RecentSchedule

BudgetState: TypeAlias = Literal["open", "nearly used up", "used up", "over", "closed", "overspent", "frozen"]

NEARLY_USED_UP: Final = 0.9  # share of a budget
KINDS_SHOWN_MAX: Final = 8  # kinds of rounds that one answer names, the most frequent ones
FITS_IF: Final = "if nothing else is registered and no other cohort or quota refuses"
_NAME_MAX: Final = 60  # characters of a randomizer's name
_EPSILON0 = re.compile(r"(, )?epsilon0=[^,()]+(?(1)|(, )?)")
# Conditions under which each policy keeps its promise, one short sentence each.
ASSUMES: Final[Mapping[str, tuple[str, ...]]] = {
    POLICY_PLAN: (
        "Each round takes a free slot of the plan. Earlier results may guide later rounds.",
        "The plan was fixed before the first round.",
        "The number of reports was fixed before release.",
        "A round that turned out worse than its slot took a slot of the kind that the plan names.",
    ),
    POLICY_ADAPTIVE: (
        "Each round is admitted before its release. Earlier results may guide later rounds.",
        "The number of reports was fixed before release.",
        "A later correction of that number did not depend on results seen meanwhile.",
        "A budget without a ceiling is never changed because of what the data showed.",
    ),
}


def state_in_words(
    status: CohortStatus,
    spent_upper: float,
    budget: float,
    fits: Sequence[FittingRounds] = (),
    *,
    is_over: bool = False,
) -> BudgetState:
    """Returns the state of a budget in words.

    Args:
        status: of the cohort.
        spent_upper: upper bound on the epsilon that is spent.
        budget: its epsilon.
        fits: how many more rounds of the kinds in use fit; empty: not known.
        is_over: whether the days of the budget have passed.
    """
    if status != "open":
        return status
    if is_over:
        return "over"
    if fits and not any(each.rounds_at_least for each in fits):
        return "used up"
    # A kind that does not fit into the larger half of a budget is too large for it, however little is used.
    is_short = spent_upper >= budget / 2 and any(not each.rounds_at_least for each in fits)
    return "nearly used up" if is_short or spent_upper >= NEARLY_USED_UP * budget else "open"


def used_percent(spent_upper: float, budget: float) -> str:
    """Returns the used share of a budget, rounded up to a tenth of a percent: `51.4 %`."""
    if math.isinf(spent_upper):
        return "more than 100 %"
    if 0.999 * budget < spent_upper < budget:
        return "over 99.9 %"
    tenths = math.ceil(1000 * Fraction(spent_upper) / Fraction(budget))
    whole, tenth = divmod(tenths, 10)
    return f"{whole:,}.{tenth} %" if tenth else f"{whole:,} %"


def fits_in_words(fits: Sequence[FittingRounds]) -> tuple[str, ...]:
    """Returns how many more rounds of the kinds in use fit, by randomizer.

    Two lines may be `36 or more of krr(k=96)` and `none of oue(domain=64), rappor(domain=256)`. Kinds of one
    randomizer differ in their reports and their sampling. The number holds for each of them; where some fit
    and others do not, each is named with its number of reports. The order is that of `fits`.
    """
    names = _names(each.round.randomizer for each in fits)
    groups: dict[str, list[FittingRounds]] = defaultdict(list)
    for each in fits:
        groups[names[each.round.randomizer]].append(each)
    some, none = list[str](), list[str]()
    for name, kinds in groups.items():
        least = min(each.rounds_at_least for each in kinds)
        if least or not any(each.rounds_at_least for each in kinds):
            (some if least else none).append(f"{least:,} or more of {name}" if least else name)
            continue
        for each in kinds:
            sampled = each.round.sampled_from
            sized = f"{name} with {each.round.reports:,} reports" + (f" of {sampled:,}" if sampled else "")
            count = each.rounds_at_least
            (some if count else none).append(f"{count:,} or more of {sized}" if count else sized)
    return (*dict.fromkeys(some), *([f"none of {', '.join(dict.fromkeys(none))}"] if none else []))


def pace_in_words(late: RecentSchedule | None) -> str | None:
    """Returns until when a budget is enough at the present pace; None: no pace is recognized."""
    if late is None:
        return None
    if late.ends_on is not None:
        return f"enough until {day_in_words(late.ends_on)}"
    return "no end in sight" if late.periods_at_least else "the next round may not fit"


def pace_detail(late: RecentSchedule) -> str:
    """Returns the pace itself: `every week one each of krr(k=96), oue(domain=64)`."""
    names = _names(kind.randomizer for kind in late.kinds)
    counted = Counter(names[kind.randomizer] for kind in late.kinds)
    listed = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counted.items())
    return f"every {late.every} {'one' if len(late.kinds) == 1 else 'one each'} of {listed}"


def day_in_words(day: date) -> str:
    """Returns a day as people write it: `28 December 2026`."""
    return f"{day.day} {day:%B} {day.year}"


def assumes(policy: str) -> str:
    """Returns the conditions of a policy as one paragraph, as answers in JSON carry them; raises KeyError."""
    return " ".join(ASSUMES[policy])


def _names(randomizers: Iterable[LocalRandomizer]) -> dict[LocalRandomizer, str]:
    """Returns short names of some randomizers: without epsilon0, where that tells them apart."""
    full = {each: each.describe() for each in randomizers}
    short = {each: _EPSILON0.sub("", text).replace("()", "") for each, text in full.items()}
    shared = Counter(short.values())
    names = {each: short[each] if shared[short[each]] == 1 else text for each, text in full.items()}
    return {each: name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}…" for each, name in names.items()}
