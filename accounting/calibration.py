"""How much local privacy must be given up, and no more: the largest epsilon0 that meets a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import scipy

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import DEFAULT_PRECISION, Accountant
from shuffle_ledger.accounting.certificate import Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.notation import complete_randomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

_COARSE = 1e-2
_STEPS = 60


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The largest local privacy parameter that certainly meets a target, to the precision asked for.

    Attributes:
        epsilon0: certainly meets it.
        epsilon0_beyond: the smallest one seen that is not certain to: at most by the precision larger,
            relative to it; None when the largest accepted one still meets the target.
        round: the round at `epsilon0`.
        certificate: what the rounds cost together at `epsilon0`.
    """

    epsilon0: float
    epsilon0_beyond: float | None
    round: ShuffledRound
    certificate: Certificate


def calibrate(
    described: Mapping[str, object],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    precision: float = DEFAULT_PRECISION,
) -> Calibration:
    """The largest epsilon0 with which `rounds` rounds certainly are `(epsilon, delta)`-private together.

    Args:
        described: a round's JSON form, with a randomizer whose epsilon0 is left out, such as `krr(k=10)`;
            where several parts lack one, they all get the same.
        epsilon: the target, above 0.
        delta: the target.
        rounds: number of such rounds, all parameters fixed in advance.
        precision: wanted relative width of the answer.

    Guarantee: `epsilon_upper` at the answer is at most the target.

    Raises:
        InvalidParameter: a value is out of range, no epsilon0 is left out, or none meets the target.
    """
    if not isinstance(described, Mapping):
        raise InvalidParameter("round", described, "a mapping with a round's fields")
    epsilon, delta = _target(epsilon), validation.probability("delta", delta)
    rounds = validation.whole("rounds", rounds, 1, validation.MAXIMUM_ROUNDS)
    fine = Accountant(precision=precision)
    coarse = Accountant(precision=max(precision, _COARSE))

    def at(epsilon0: float) -> ShuffledRound:
        randomizer = complete_randomizer(described.get("randomizer"), epsilon0=epsilon0)
        return ShuffledRound.from_mapping({**described, "randomizer": randomizer})

    def excess(accountant: Accountant, epsilon0: float) -> float:
        """Logarithm of what the rounds cost in units of the target: at most 0 where it is met."""
        cost = accountant.certify({at(epsilon0): rounds}, delta=delta).epsilon_upper
        if cost <= epsilon:
            return min(math.log(max(cost, 1e-300) / epsilon), 0.0)
        return max(math.log(min(cost, 1e300) / epsilon), 1e-15)

    # Without amplification epsilon0 counts in full every time; beyond that, nothing is sure to be enough.
    simple = min(max(epsilon / rounds, validation.MINIMUM_EPSILON0), validation.MAXIMUM_EPSILON0)
    for least in (
        simple,
        max(simple * (1 - 1e-12), validation.MINIMUM_EPSILON0),
        validation.MINIMUM_EPSILON0,
    ):
        if excess(fine, least) <= 0:
            break
    else:
        raise InvalidParameter("epsilon", epsilon, f"a target that epsilon0 = {exact_text(least)} meets")
    about = _crossing(lambda epsilon0: excess(coarse, epsilon0), least)
    low, high = _bracket(lambda epsilon0: excess(fine, epsilon0), least, about, fine.precision)
    certificate = fine.certify({at(low): rounds}, delta=delta)
    return Calibration(epsilon0=low, epsilon0_beyond=high, round=at(low), certificate=certificate)


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
    return float(
        scipy.optimize.brentq(excess, low, high, xtol=1e-4 * low, rtol=1e-4, maxiter=_STEPS, disp=False)
    )


def _bracket(
    excess: Callable[[float], float], least: float, about: float, precision: float
) -> tuple[float, float | None]:
    """An epsilon0 that meets the target, and a slightly larger one that does not, if there is any."""
    low, high, step = about, about, precision / 4
    while low > least and excess(low) > 0:
        high, low, step = low, max(low * (1 - step), least), 2 * step
    while high < validation.MAXIMUM_EPSILON0 and (high == low or excess(high) <= 0):
        low, high, step = high, min(high * (1 + step), validation.MAXIMUM_EPSILON0), 2 * step
    if excess(high) <= 0:
        return high, None
    for _ in range(_STEPS):
        if high - low <= precision * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low, high
