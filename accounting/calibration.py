"""How much local privacy must be given up, and no more: the largest epsilon0 that meets a target.

Rounds are charged as a ledger charges them: as their slots, by the rule of a cohort's policy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import scipy

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import DEFAULT_PRECISION, Accountant
from shuffle_ledger.accounting.certificate import Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.menu import FilterMenu
from shuffle_ledger.accounting.filters.repetition import REPETITIONS_MAX
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.notation import complete_randomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from shuffle_ledger.accounting.rounds.slots import slot_for

_COARSE = 1e-2
_CLOSE = 2e-3  # how closely the place to begin at is sought, relative
_STEPS = 60
# The policies under which a calibration may hold, as ledgers name them.
_POLICIES = ("fixed", "plan", "adaptive")
# Up to this number of rounds, every smaller number whose bound may be larger is composed too. Of more rounds,
# all together have to stay so far below the budget that no smaller number can have a bound above it.
_LISTED = 1000

#: The epsilon that a policy compares with the target when it decides on the last of the rounds, all described
#: alike; infinite where it would refuse one of them.
Decides = Callable[[ShuffledRound], float]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The largest local privacy parameter that certainly meets a target, to the precision asked for.

    Attributes:
        epsilon0: certainly meets it.
        epsilon0_beyond: the smallest one seen that is not certain to: at most by the precision larger,
            relative to it; None when the largest accepted one still meets the target.
        round: the round at `epsilon0`.
        accounted: its slot, which a ledger charges.
        policy: the policy that admits the rounds.
        epsilon_decided_upper: what that policy compares with the target when it decides on the last round.
        certificate: what the rounds' slots cost together, by composition.
    """

    epsilon0: float
    epsilon0_beyond: float | None
    round: ShuffledRound
    accounted: ShuffledRound
    policy: str
    epsilon_decided_upper: float
    certificate: Certificate


def calibrate(
    described: Mapping[str, object],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    policy: str = "fixed",
    precision: float = DEFAULT_PRECISION,
) -> Calibration:
    """The largest epsilon0 with which a new cohort that has this budget admits `rounds` rounds.

    Args:
        described: a round's JSON form, with a randomizer whose epsilon0 is left out, such as `krr(k=10)`;
            where several parts lack one, they all get the same.
        epsilon: the target, above 0.
        delta: the target.
        rounds: number of such rounds.
        policy: what decides. `fixed`: the composition of the rounds' slots, parameters being fixed in
            advance; `plan`: the same, composed before the first round; `adaptive`: the filters that the first
            round chooses.
        precision: wanted relative width of the answer, and of privacy losses.

    Guarantee: `epsilon_decided_upper` is at most the target, and the policy admits all rounds, one after the
        other, if it computes with this precision. The rounds' slots together are `(epsilon, delta)`-private.

    Raises:
        InvalidParameter: a value is out of range, no epsilon0 is left out, or none meets the target.
    """
    epsilon, delta = _target(epsilon), validation.probability("delta", delta)
    if policy not in _POLICIES:
        raise InvalidParameter("policy", policy, f"one of {', '.join(_POLICIES)}")
    rounds = _number_of(rounds, policy)
    accountant = Accountant(precision=precision)

    def composed(shuffled: ShuffledRound, count: int) -> float:
        return accountant.certify({slot_for(shuffled): count}, delta=delta).epsilon_upper

    def filtered(shuffled: ShuffledRound) -> float:
        slot, menu = slot_for(shuffled), FilterMenu.for_budget(epsilon=epsilon, delta=delta)
        filters = menu.filters(menu.choose(accountant, slot, epsilon=epsilon))
        charge = accountant.charge(slot, filters)
        return filters.epsilon_of(filters.nothing(), charge, rounds, epsilon=epsilon)

    listed = functools.partial(
        decided_by_composition, composed, rounds=rounds, epsilon=epsilon, precision=precision
    )
    at_once = functools.partial(composed, count=rounds)
    rules: dict[str, Decides] = {"fixed": listed, "plan": at_once, "adaptive": filtered}
    return calibrate_by(
        rules[policy],
        described,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        policy=policy,
        accountant=accountant,
        width=precision,
    )


def calibrate_by(
    decides: Decides,
    described: Mapping[str, object],
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    policy: str,
    accountant: Accountant,
    width: float = DEFAULT_PRECISION,
    spent: float = 0.0,
) -> Calibration:
    """The largest epsilon0 with which a policy admits rounds, by what it decides.

    Args:
        decides: what is compared with `epsilon`, for rounds with some epsilon0. It need not rise with that:
            the answer is one for which it was asked.
        described: as for `calibrate`.
        epsilon: the target.
        delta: the target.
        rounds: number of rounds that `decides` is about.
        policy: the policy that decides, for the record.
        accountant: computes the certificate.
        width: wanted relative width of the answer.
        spent: epsilon that other rounds cost before; nothing rests on it but where the search begins.

    Guarantee: `decides` is at most `epsilon` at the answer.

    Raises:
        InvalidParameter: as for `calibrate`.
    """
    if not isinstance(described, Mapping):
        raise InvalidParameter("round", described, "a mapping with a round's fields")
    rounds, epsilon = _number_of(rounds, policy), _target(epsilon)

    @functools.cache
    def decided(epsilon0: float) -> float:
        return decides(_completed(described, epsilon0))

    def is_met(epsilon0: float) -> bool:
        return decided(epsilon0) <= epsilon

    # Without amplification epsilon0 counts in full every time; beyond that, nothing is sure to be enough.
    simple = min(max((epsilon - spent) / rounds, validation.MINIMUM_EPSILON0), validation.MAXIMUM_EPSILON0)
    nearly = max(simple * (1 - 1e-12), validation.MINIMUM_EPSILON0)
    least = next((one for one in (simple, nearly, validation.MINIMUM_EPSILON0) if is_met(one)), None)
    if least is None:
        expected = f"a target that epsilon0 = {exact_text(validation.MINIMUM_EPSILON0)} meets"
        raise InvalidParameter("epsilon", epsilon, expected)
    coarse = Accountant(precision=max(accountant.precision, _COARSE))
    # Variances add up, about.
    target = math.sqrt(max((epsilon - spent) * (epsilon + spent), (epsilon * _COARSE) ** 2))

    def excess(epsilon0: float) -> float:
        """Logarithm of what the rounds cost by themselves in units of the target."""
        slot = slot_for(_completed(described, epsilon0))
        cost = coarse.certify({slot: rounds}, delta=delta).epsilon_upper
        return math.log(min(max(cost, 1e-300), 1e300) / target)

    low, high = _bracket(is_met, least, max(_crossing(excess, least), least), width)
    found = _completed(described, low)
    return Calibration(
        epsilon0=low,
        epsilon0_beyond=high,
        round=found,
        accounted=slot_for(found),
        policy=policy,
        epsilon_decided_upper=decided(low),
        certificate=accountant.certify({slot_for(found): rounds}, delta=delta),
    )


def decided_by_composition(
    composed: Callable[[ShuffledRound, int], float],
    shuffled: ShuffledRound,
    *,
    rounds: int,
    epsilon: float,
    precision: float,
) -> float:
    """The epsilon that a policy compares with the budget when it composes and decides on the last round;
    infinite where it may refuse an earlier one.

    Fewer rounds cost no more, but bounds on their cost are wider or narrower by the precision. So every
    number of rounds whose bound may be as large as epsilon is composed.

    Args:
        composed: the certified epsilon of a number of rounds, together with the rounds held.
        shuffled: the round as declared.
        rounds: how many.
        epsilon: the budget.
        precision: relative width of certified intervals.
    """
    cost = composed(shuffled, rounds)
    far = epsilon * (1 - 2 * precision)
    if cost > epsilon or (rounds > _LISTED and cost > far):
        return max(cost, math.nextafter(epsilon, math.inf))
    below = cost
    for count in range(rounds - 1, 0, -1):
        if below <= far:
            break
        below = composed(shuffled, count)
        if below > epsilon:
            return math.inf
    return cost


def _completed(described: Mapping[str, object], epsilon0: float) -> ShuffledRound:
    randomizer = complete_randomizer(described.get("randomizer"), epsilon0=epsilon0)
    return ShuffledRound.from_mapping({**described, "randomizer": randomizer})


def _number_of(rounds: object, policy: str) -> int:
    most = REPETITIONS_MAX if policy == "adaptive" else validation.MAXIMUM_ROUNDS
    return validation.whole("rounds", rounds, 1, most)


def _target(epsilon: object) -> float:
    expected = f"a number above 0, at most {exact_text(validation.MAXIMUM_EPSILON)}"
    number = validation.real("epsilon", epsilon, expected)
    if 0 < number <= validation.MAXIMUM_EPSILON:
        return number
    raise InvalidParameter("epsilon", epsilon, expected)


def _crossing(excess: Callable[[float], float], least: float) -> float:
    """About where a rising function crosses 0, from `least` on; the largest epsilon0 when it does not."""
    low = high = least
    while excess(high) <= 0:
        if high >= validation.MAXIMUM_EPSILON0:
            return high
        low, high = high, min(high * 2, validation.MAXIMUM_EPSILON0)
    if low == high:
        return low
    found = scipy.optimize.brentq(
        excess, low, high, xtol=_CLOSE * low, rtol=_CLOSE, maxiter=_STEPS, disp=False
    )
    return float(found)


def _bracket(
    is_met: Callable[[float], bool], least: float, about: float, width: float
) -> tuple[float, float | None]:
    """An epsilon0 that meets the target, and a slightly larger one that does not, if there is any; `least`
    meets it."""
    low, high, step = about, about, width / 4
    while low > least and not is_met(low):
        high, low, step = low, max(low * (1 - step), least), 2 * step
    while high < validation.MAXIMUM_EPSILON0 and (high == low or is_met(high)):
        low, high, step = high, min(high * (1 + step), validation.MAXIMUM_EPSILON0), 2 * step
    if is_met(high):
        return high, None
    for _ in range(_STEPS):
        if high - low <= width * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low, high
