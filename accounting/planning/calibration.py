"""Calibration: the largest local epsilon0, the least common noise, or the least number of dummies, with which
rounds meet a target.

Rounds are charged as a ledger charges them: as their slots, by their composition or by the rule of a
cohort's policy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.certificate import DEFAULT_PRECISION, Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.bracketing import least_true
from shuffle_ledger.accounting.numeric.later import scipy
from shuffle_ledger.accounting.planning.dummies import least_dummies
from shuffle_ledger.accounting.planning.questions import counted, form_of
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import RANDOMIZERS
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet
from shuffle_ledger.accounting.randomizers.notation import (
    complete_randomizer,
    open_noise,
    randomizer_with,
)
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from shuffle_ledger.accounting.rounds.slots import slot_for

# Precision of the accountant that finds the place where the search begins, and relative precision of that
# place.
_COARSE_PRECISION = 1e-2
_START_PRECISION = 2e-3
_MOST_STEPS = 60
# Steps that guess the least noise, the largest change of its logarithm in one of them, and the least relative
# cost that they see. They affect only where the search begins.
_MOST_GUESSES = 12
_MOST_MOVE = 3.0
_LEAST_COST = 1e-9
# Smallest epsilon that is aimed at: its square is far from underflow.
_LEAST_TARGET = 1e-100
# The rules of a calibration: the composition of rounds fixed in advance, and policies of ledgers.
CALIBRATION_POLICIES = ("composition", "plan", "adaptive")  # the default one first
_COMPOSED = CALIBRATION_POLICIES[:2]
_ADAPTIVE_ROUNDS_MAX = 10**6  # more are not counted
# Up to this number of rounds, every smaller number whose bound may be larger is composed too. More rounds
# must stay so far below the budget that no smaller number can have a bound above it.
_MOST_CHECKED_ROUNDS = 1000

#: Returns the epsilon that a policy compares with the target when it decides on the last of the rounds, all
#: with the same description; infinite if the policy would refuse one of them.
Decides = Callable[[ShuffledRound], float]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The parameter with the least noise that certainly meets a target, up to the precision.

    Attributes:
        parameter: its name: `epsilon0`; of a protocol with common noise `p`, `bits` or `noise`; of a mixed
            fleet `epsilon0` or `dummies`.
        value: the parameter; it certainly meets the target.
        value_beyond: the nearest value with less noise that was tried and is not certain to meet the target.
            It differs by one in `bits`; by one or one percent in `dummies`, or by more if certificates are
            slow; otherwise relatively by at most the precision. None if the value with the least noise that
            is accepted meets the target.
        epsilon0: local privacy of the randomizer found; infinite if a single report hides nothing.
        epsilon0_beyond: `value_beyond` if the parameter is epsilon0, otherwise None.
        round: the round with `value`.
        accounted: its slot, which a ledger charges.
        policy: the policy that admits the rounds.
        epsilon_decided_upper: the epsilon that the policy compares with the target when it decides on the
            last round.
        certificate: epsilon of the rounds' slots together, by composition.
    """

    parameter: str
    value: float
    value_beyond: float | None
    epsilon0: float
    epsilon0_beyond: float | None
    round: ShuffledRound
    accounted: ShuffledRound
    policy: str
    epsilon_decided_upper: float
    certificate: Certificate


def calibrate(
    described: object,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    policy: str = CALIBRATION_POLICIES[0],
    precision: float = DEFAULT_PRECISION,
    **fields: object,
) -> Calibration:
    """Returns the largest epsilon0, the least common noise, or the least number of dummies, with which
    `rounds` rounds meet a target: with a policy, so that a new cohort with this budget admits them.

    Args:
        described: a round's JSON form, or its randomizer, without epsilon0, such as `krr(k=10)`; several
            parts without one all get the same. A protocol with common noise leaves out one parameter of it:
            `p` or `bits` of `binomial_sum` and `binomial_histogram`, `noise` of `uniformity_tester`, `p` of
            `distinct_elements`. A mixed fleet that has every epsilon0 leaves out the dummies of each round:
            `mixed((500, krr(k=10, epsilon0=2)))`. Or a list of such rounds that are all alike, or a mapping
            from one to its number; `rounds` multiplies it.
        epsilon, delta: the target, epsilon at least 1e-100.
        rounds: number of such rounds.
        policy: what decides. `composition`: the composition of the rounds' slots, with parameters fixed in
            advance, without a ledger. `plan`: the same, composed before the first round. No cohort takes a
            mixed fleet, so it needs `composition`.
        precision: wanted relative width of the answer, and of privacy losses.
        **fields: fields of the round, such as `reports`, that `described` does not name.

    Guarantee: `epsilon_decided_upper` is at most the target, and a policy admits all rounds, one after the
        other, if it computes with this precision. The rounds' slots together are `(epsilon, delta)`-private.

    Raises:
        InvalidParameter: a value is out of range, no parameter or several are left out, no value meets the
            target, or a policy is of cohorts, which do not take the rounds.
    """
    epsilon, delta = _target(epsilon), validation.probability("delta", delta)
    if policy not in _COMPOSED:
        raise InvalidParameter("policy", policy, f"one of {', '.join(_COMPOSED)}")
    form, count = alike_rounds(described, fields)
    rounds = _number_of(_number_of(rounds, policy) * count, policy)
    accountant = Accountant(precision=precision)

    def composed(shuffled: ShuffledRound, count: int) -> float:
        return accountant.certify({slot_for(shuffled): count}, delta=delta).epsilon_upper

    listed = functools.partial(
        decided_by_composition, composed, rounds=rounds, epsilon=epsilon, precision=precision
    )
    at_once = functools.partial(composed, count=rounds)
    rules: dict[str, Decides] = {"composition": listed, "plan": at_once}
    return calibrate_by(
        rules[policy],
        form,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        policy=policy,
        accountant=accountant,
        width=precision,
    )


def alike_rounds(described: object, fields: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Returns the JSON form of the rounds of a question, which must all be alike, and their number."""
    if isinstance(described, ShuffledRound):
        raise InvalidParameter(
            "round", described.describe(), "a randomizer without epsilon0, such as krr(k=10)"
        )
    found = [(form_of(one, fields), count) for one, count in counted(described)]
    if not found or any(form != found[0][0] for form, _ in found):
        expected = "rounds that are all alike; largest_common_epsilon0 answers for a plan of several kinds"
        raise InvalidParameter("rounds", described, expected)
    return found[0][0], sum(count for _, count in found)


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
    """Returns the largest epsilon0, the least common noise, or the least number of dummies, with which a
    policy admits rounds, given the policy's decision as a function.

    Args:
        decides: returns the epsilon that is compared with `epsilon`, for a round with some value of the
            parameter. It need not be monotone: the answer is one of the values that were tried.
        described: as of `calibrate`.
        epsilon, delta: the target.
        rounds: number of rounds that `decides` is about.
        policy: name of the policy, for the record.
        accountant: computes the certificate.
        width: wanted relative width of the answer.
        spent: epsilon that earlier rounds cost; it affects only where the search begins.

    Guarantee: `decides` is at most `epsilon` at the answer.

    Raises:
        InvalidParameter: as of `calibrate`.
    """
    if not isinstance(described, Mapping):
        raise InvalidParameter("round", described, "a mapping with a round's fields")
    rounds, epsilon = _number_of(rounds, policy), _target(epsilon)
    name = open_noise(described.get("randomizer"))
    completed = functools.partial(_completed, described, name, policy)

    @functools.cache
    def decided(value: float) -> float:
        return decides(completed(value))

    target: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    target |= {"accountant": accountant, "width": width}
    if name is None:
        value, beyond = _largest_epsilon0(
            lambda value: decided(value) <= epsilon, completed, spent=spent, **target
        )
    elif name == "dummies":
        completed(1)  # refuses randomizers whose dummies have no law
        value, beyond = least_dummies(decided, reports=completed(0).reports, epsilon=epsilon)
    else:
        value, beyond = _least_noise(decided, completed, name, **target)
    shuffled = completed(value)
    return Calibration(
        parameter=name or "epsilon0",
        value=value,
        value_beyond=beyond,
        epsilon0=shuffled.randomizer.epsilon0 if name else value,
        epsilon0_beyond=None if name else beyond,
        round=shuffled,
        accounted=slot_for(shuffled),
        policy=policy,
        epsilon_decided_upper=decided(value),
        certificate=accountant.certify({slot_for(shuffled): rounds}, delta=delta),
    )


def _least_noise(
    decided: Callable[[float], float],
    completed: Callable[[float], ShuffledRound],
    name: str,
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    accountant: Accountant,
    width: float,
) -> tuple[float, float | None]:
    """Returns the least value of a parameter of common noise that meets the target, and the next smaller one
    that was tried and does not."""
    kind = RANDOMIZERS[completed(0.5 if name == "p" else 1.0).randomizer.kind]
    least, most = kind.noise_ranges[name]
    # Gaussian noise of this variance would do, approximately; all honest users share it.
    variance = rounds * 2 * math.log(1.25 / delta) / epsilon**2
    start, is_whole = variance / max(completed(most).honest_reports, 1), name == "bits"

    def alone(value: float) -> float:
        """Returns the rounds' cost alone in units of the target. A filter's reading is not as smooth."""
        cost = accountant.certify({slot_for(completed(value)): rounds}, delta=delta).epsilon_upper
        return cost / epsilon

    bracket = least_true(
        lambda value: decided(value) <= epsilon,
        start=_about(alone, start, least, most, whole=is_whole),
        least=least,
        most=most,
        step=width,
        width=width,
        whole=is_whole,
    )
    if bracket is None:
        expected = f"a target that {name} = {exact_text(most)} meets"
        raise InvalidParameter("epsilon", epsilon, expected)
    return bracket


def _about(cost: Callable[[float], float], start: float, least: float, most: float, *, whole: bool) -> float:
    """Returns about where a falling cost is 1, by the secant method on a log-log scale."""

    def kept(value: float) -> float:
        return min(max(float(round(value)) if whole else value, least), most)

    here, slope = kept(start), -0.5
    there = math.log(max(cost(here), _LEAST_COST))
    for _ in range(_MOST_GUESSES):
        if abs(there) < _START_PRECISION:
            break
        # An infinite cost says nothing about the distance.
        move = math.exp(min(max(-there / slope, -_MOST_MOVE), _MOST_MOVE))
        following = kept(here * move)
        if following == here:
            break
        cost_there = math.log(max(cost(following), _LEAST_COST))
        if math.isfinite(cost_there) and math.isfinite(there):
            seen = (cost_there - there) / math.log(following / here)
            slope = seen if seen < 0 else slope
        here, there = following, cost_there
    return here


def _largest_epsilon0(
    is_met: Callable[[float], bool],
    completed: Callable[[float], ShuffledRound],
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    accountant: Accountant,
    width: float,
    spent: float,
) -> tuple[float, float | None]:
    """Returns the largest epsilon0 that meets the target, and the next larger one that was tried and does
    not."""
    # Without amplification every round costs epsilon0; this much is always enough, up to round-off.
    simple = min(max((epsilon - spent) / rounds, validation.MINIMUM_EPSILON0), validation.MAXIMUM_EPSILON0)
    nearly = max(simple * (1 - 1e-12), validation.MINIMUM_EPSILON0)
    least = next((one for one in (simple, nearly, validation.MINIMUM_EPSILON0) if is_met(one)), None)
    if least is None:
        expected = f"a target that epsilon0 = {exact_text(validation.MINIMUM_EPSILON0)} meets"
        raise InvalidParameter("epsilon", epsilon, expected)
    coarse = Accountant(precision=max(accountant.precision, _COARSE_PRECISION))
    # Variances add up, approximately.
    target = math.sqrt(max((epsilon - spent) * (epsilon + spent), (epsilon * _COARSE_PRECISION) ** 2))

    def excess(epsilon0: float) -> float:
        """Returns the logarithm of the rounds' cost alone, in units of the target."""
        slot = slot_for(completed(epsilon0))
        cost = coarse.certify({slot: rounds}, delta=delta).epsilon_upper
        return math.log(min(max(cost, 1e-300), 1e300) / target)

    return _bracket(is_met, least, max(_crossing(excess, least), least), width)


def decided_by_composition(
    composed: Callable[[ShuffledRound, int], float],
    shuffled: ShuffledRound,
    *,
    rounds: int,
    epsilon: float,
    precision: float,
) -> float:
    """Returns the epsilon of the composition of all rounds, to be compared with the budget; infinite if the
    composition of fewer of them may be beyond it.

    Fewer rounds do not cost more, but the bounds on their cost may be larger, by the precision. So every
    number of rounds whose bound may exceed the budget is composed.

    Args:
        composed: returns the certified epsilon of a number of rounds, together with the rounds held.
        shuffled: the round as declared.
        rounds: number of rounds.
        epsilon: the budget.
        precision: relative width of certified intervals.
    """
    cost = composed(shuffled, rounds)
    far = epsilon * (1 - 2 * precision)
    if cost > epsilon or (rounds > _MOST_CHECKED_ROUNDS and cost > far):
        return max(cost, math.nextafter(epsilon, math.inf))
    below = cost
    for count in range(rounds - 1, 0, -1):
        if below <= far:
            break
        below = composed(shuffled, count)
        if below > epsilon:
            return math.inf
    return cost


def _completed(described: Mapping[str, object], name: str | None, policy: str, value: float) -> ShuffledRound:
    """Returns the round with a value of its noise's parameter called `name`, or of epsilon0; raises
    InvalidParameter if the policy is of cohorts, which do not take it."""
    written = described.get("randomizer")
    if name is None:
        randomizer = complete_randomizer(written, epsilon0=value)
    else:
        randomizer = randomizer_with(written, name, round(value) if name == "bits" else value)
    if isinstance(randomizer, MixedFleet) and policy != CALIBRATION_POLICIES[0]:
        expected = f"one randomizer for the whole round: cohorts, of policy {policy}, take no mixed fleet"
        raise InvalidParameter("randomizer", written, expected)
    return ShuffledRound.from_mapping({**described, "randomizer": randomizer})


def _number_of(rounds: object, policy: str) -> int:
    most = _ADAPTIVE_ROUNDS_MAX if policy == "adaptive" else validation.MAXIMUM_ROUNDS
    return validation.whole("rounds", rounds, 1, most)


def _target(epsilon: object) -> float:
    return validation.between("epsilon", epsilon, _LEAST_TARGET, validation.MAXIMUM_EPSILON)


def _crossing(excess: Callable[[float], float], least: float) -> float:
    """Returns about where a rising function crosses 0, from `least` on; the largest epsilon0 if it does
    not."""
    low = high = least
    while excess(high) <= 0:
        if high >= validation.MAXIMUM_EPSILON0:
            return high
        low, high = high, min(high * 2, validation.MAXIMUM_EPSILON0)
    if low == high:
        return low
    found = scipy.optimize.brentq(
        excess, low, high, xtol=_START_PRECISION * low, rtol=_START_PRECISION, maxiter=_MOST_STEPS, disp=False
    )
    return float(found)


def _bracket(
    is_met: Callable[[float], bool], least: float, about: float, width: float
) -> tuple[float, float | None]:
    """Returns an epsilon0 that meets the target, and a slightly larger one that does not, or None. `least`
    must meet the target."""
    low, high, step = about, about, width / 4
    while low > least and not is_met(low):
        high, low, step = low, max(low * (1 - step), least), 2 * step
    while high < validation.MAXIMUM_EPSILON0 and (high == low or is_met(high)):
        low, high, step = high, min(high * (1 + step), validation.MAXIMUM_EPSILON0), 2 * step
    if is_met(high):
        return high, None
    for _ in range(_MOST_STEPS):
        if high - low <= width * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low, high
