"""Published closed forms of a shuffled round's epsilon, to compare certified bounds with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import KaryRandomizedResponse
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, certain_round

# For the rounding of a dozen operations.
_UP = 1 + 1e-14
_SINGLE = "a round with one report of each user"
# Conditions of the bound of 2019.
_LEAST_REPORTS, _LARGEST_EPSILON0, _LARGEST_DELTA = 1000, 0.5, 0.01


@dataclass(frozen=True, kw_only=True)
class PublishedBound:
    """One closed form at one round and delta.

    Attributes:
        name: a short name, the same for every round.
        source: paper and theorem.
        epsilon_upper: the epsilon that it promises, rounded up; None where it does not apply.
        condition: what it asks for where it does not apply; empty where it does.
    """

    name: str
    source: str
    epsilon_upper: float | None
    condition: str = ""


def published_bounds(shuffled: ShuffledRound, *, delta: float) -> tuple[PublishedBound, ...]:
    """Returns what published closed forms say of a round at `delta`, each form once.

    They are for rounds of a certain number of honest reports, of which everyone's is shuffled. Participation
    earns no credit in any of them.

    Guarantee: every epsilon is at least what its theorem states for the honest reports of the round.

    Raises:
        InvalidParameter: no round is given, or delta is not in (0, 1).
    """
    delta, shuffled = validation.probability("delta", delta), certain_round(shuffled)
    return (
        _local(shuffled),
        _clones(shuffled, delta),
        _clones_of_response(shuffled, delta),
        _blanket_of_response(shuffled, delta),
        _first(shuffled, delta),
    )


def _refused(shuffled: ShuffledRound) -> str:
    """Returns the condition of every closed form that the round breaks; empty if it breaks none."""
    randomizer = shuffled.randomizer
    if isinstance(randomizer, MixedFleet):
        return "reports of one randomizer"
    if not isinstance(randomizer, DecomposedRandomizer) or math.isinf(randomizer.epsilon0):
        return "a randomizer of finite epsilon0"
    if shuffled.sampled_from is not None or shuffled.participation is not None:
        return "a round in which all users report"
    if shuffled.reports_per_user > 1:
        return _SINGLE
    return "a delta0 of 0" if shuffled.delta0 > 0 else ""


def _bound(name: str, source: str, condition: str, epsilon: float) -> PublishedBound:
    found = None if condition else epsilon * _UP
    return PublishedBound(name=name, source=source, epsilon_upper=found, condition=condition)


def _local(shuffled: ShuffledRound) -> PublishedBound:
    epsilon0, source = shuffled.randomizer.epsilon0, "a round reveals no more than one report of the user"
    if math.isinf(epsilon0) or shuffled.delta0 > 0:
        return _bound("local", source, "a randomizer of finite epsilon0, and a delta0 of 0", 0.0)
    if shuffled.reports_per_user > 1:
        return _bound("local", source, _SINGLE, 0.0)
    return PublishedBound(name="local", source=source, epsilon_upper=epsilon0)


def _enough_clones(shuffled: ShuffledRound, delta: float) -> str:
    """Returns the condition of the theorems on clones that the round breaks; empty if it breaks none."""
    refused = _refused(shuffled)
    if refused:
        return refused
    most = shuffled.honest_reports / (16 * math.log(2 / delta))
    return "" if math.exp(shuffled.randomizer.epsilon0) <= most else "epsilon0 <= log(n / (16 log(2/delta)))"


def _clones(shuffled: ShuffledRound, delta: float) -> PublishedBound:
    name, source = "clones", "Feldman, McMillan, Talwar (2021), Theorem 3.1"
    condition = _enough_clones(shuffled, delta)
    if condition:
        return _bound(name, source, condition, 0.0)
    n, e = shuffled.honest_reports, math.exp(shuffled.randomizer.epsilon0)
    rise = math.tanh(shuffled.randomizer.epsilon0 / 2)
    return _bound(
        name, source, "", math.log1p(rise * (8 * math.sqrt(e * math.log(4 / delta) / n) + 8 * e / n))
    )


def _clones_of_response(shuffled: ShuffledRound, delta: float) -> PublishedBound:
    name, source = "clones, krr", "Feldman, McMillan, Talwar (2021), Corollary 4.2"
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, KaryRandomizedResponse):
        return _bound(name, source, "krr", 0.0)
    condition = _enough_clones(shuffled, delta)
    if condition:
        return _bound(name, source, condition, 0.0)
    n, k, e = shuffled.honest_reports, randomizer.k, math.exp(randomizer.epsilon0)
    spread = 4 * math.sqrt(2 * (k + 1) * math.log(4 / delta) / ((e + k - 1) * k * n))
    return _bound(
        name, source, "", math.log1p(math.expm1(randomizer.epsilon0) * (spread + 4 * (k + 1) / (k * n)))
    )


def _blanket_of_response(shuffled: ShuffledRound, delta: float) -> PublishedBound:
    name, source = "blanket, krr", "Balle, Bell, Gascon, Nissim (2019), Theorem 3.1"
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, KaryRandomizedResponse):
        return _bound(name, source, "krr, identical on all devices", 0.0)
    condition, others = _refused(shuffled), shuffled.honest_reports - 1
    if condition or others < 1:
        return _bound(name, source, condition or "two honest reports", 0.0)
    # Its share of uniform reports is k / (e + k - 1).
    inverse = (math.exp(randomizer.epsilon0) + randomizer.k - 1) / others
    epsilon = max(math.sqrt(14 * math.log(2 / delta) * inverse), 27 * inverse)
    return _bound(name, source, "" if epsilon * _UP <= 1 else "an epsilon of at most 1", epsilon)


def _first(shuffled: ShuffledRound, delta: float) -> PublishedBound:
    name = "first"
    source = "Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta (2019)"
    condition, n = _refused(shuffled), shuffled.honest_reports
    asked = (n >= _LEAST_REPORTS, shuffled.randomizer.epsilon0 < _LARGEST_EPSILON0, delta < _LARGEST_DELTA)
    if not condition and not all(asked):
        limits = exact_text(_LARGEST_EPSILON0), exact_text(_LARGEST_DELTA)
        condition = f"n >= {_LEAST_REPORTS}, epsilon0 < {limits[0]} and delta < {limits[1]}"
    if condition:
        return _bound(name, source, condition, 0.0)
    return _bound(name, source, "", 12 * shuffled.randomizer.epsilon0 * math.sqrt(math.log(1 / delta) / n))
