"""Conversions to and from dp-accounting: privacy loss distributions and events, on their safe sides"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.errors import AccountingError, InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import (
    CentralLaplace,
    Declared,
    Gaussian,
    LocalRandomizer,
    PrivacyLoss,
)
from shuffle_ledger.accounting.randomizers.privacy_loss import LARGEST_LOSS, MAXIMUM_LOSSES
from shuffle_ledger.accounting.randomizers.whole_release import checked_relation
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, charged_as

_MAXIMUM_DEPTH = 32  # events inside one another
_MAXIMUM_EVENTS = 100_000  # in one event; each costs a round
_LEAST_SPACING, _MOST_SPACING = 1e-9, 1.0  # of losses in nats


def from_dp_accounting(pld: Any, *, relation: str) -> PrivacyLoss:
    """Returns a release whose profile is at least that of a dp-accounting privacy loss distribution.

    Args:
        pld: a `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`, with pessimistic
            estimates.
        relation: the neighbours that it was computed for; only "substitution" can be taken over. It is not
            dp-accounting's REPLACE_SPECIAL, where a record is replaced by the zero record only: a sum then
            moves half as far.

    Guarantee: its profile is the larger one of both directions, and losses are rounded up, to fewer of them
    if there are more than 10,000. Losses beyond 120, and missing mass, count as infinite loss. Losses below 0
    count as 0, and what masses sum to beyond 1 is taken from there: neither changes a divergence at an order
    from 1 on.

    Raises:
        InvalidParameter: the relation is another one, the estimates are optimistic, the loss is certainly
            infinite, or `pld` is no such distribution.
    """
    if relation != "substitution":
        expected = "substitution: compute the distribution for datasets that differ in one user's data"
        raise InvalidParameter("relation", relation, expected)
    try:
        first = _direction(pld._pmf_remove)
        second = None if pld._symmetric else _direction(pld._pmf_add)
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InvalidParameter):
            raise
        expected = "a privacy loss distribution of dp-accounting"
        raise InvalidParameter("pld", type(pld).__name__, expected) from error
    losses, masses, infinity = first
    return PrivacyLoss(losses=losses, masses=masses, infinity=infinity, reverse=second)


def to_dp_accounting(
    described: ShuffledRound, *, accountant: Accountant | None = None, discretization: float = 1e-4
) -> Any:
    """Returns a dp-accounting privacy loss distribution whose profile is at least that of a round.

    Args:
        described: the round. With several reports of a user, the rounds that it is charged as are composed by
            dp-accounting.
        accountant: computes the round's privacy loss; None makes one.
        discretization: spacing of losses in nats, from 1e-9 to 1. Only distributions with the same spacing
            compose.

    Guarantee: losses are rounded up, and the estimates are marked pessimistic. The two directions are the
    same. It is for datasets that differ in one user's data (substitution). A round's slack (of `generic` with
    a local delta, of `distinct_elements`) is included: largest losses count as infinite, in return for what
    it costs at the others.

    Raises:
        InvalidParameter: the spacing is out of range.
        AccountingError: dp-accounting is not installed.
    """
    spacing = validation.between("discretization", discretization, _LEAST_SPACING, _MOST_SPACING)
    try:
        from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415 - needed here only
    except ImportError as error:
        raise AccountingError("dp-accounting is not installed: pip install dp-accounting") from error
    single, count = charged_as(described)
    pair = (accountant or Accountant()).privacy_loss(single).upper
    losses = np.concatenate([-pair.losses[::-1], [0.0], pair.losses])
    room = 1 + (64 + 16 * pair.largest_loss) * UNIT_ROUND_OFF
    masses = np.concatenate([pair.q[::-1], [pair.zero], pair.p * room])
    masses, infinity = _with_slack(losses, masses, pair.infinity * room, single.slack)
    places = np.ceil(losses / spacing * (1 + 4 * UNIT_ROUND_OFF * np.sign(losses))).astype(np.int64)
    rounded: dict[int, float] = {}
    for place, mass in zip(places.tolist(), masses.tolist(), strict=True):
        rounded[place] = rounded.get(place, 0.0) + mass
    found = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        rounded, infinity, spacing, pessimistic_estimate=True
    )
    return found if count == 1 else found.self_compose(count)


def rounds_of_dp_event(event: Any, *, relation: str) -> dict[ShuffledRound, int]:
    """Returns the central releases that a dp-accounting event describes, each with how often it happens.

    Gaussian, Laplace and zero-concentrated events, their compositions, and the event of no operation are read
    exactly. All others are refused: Poisson sampling is another sampling than that of the rounds here.

    Args:
        event: a `dp_accounting.DpEvent`; classes are recognised by their names.
        relation: the neighbours that the accountant of the event assumes: "substitution" (dp-accounting's
            REPLACE_ONE), or "add-remove" (ADD_OR_REMOVE_ONE, and REPLACE_SPECIAL, which puts the zero record
            in the place of one). The rho of a zero-concentrated event is for these neighbours. A noise
            multiplier is not for any: it is the noise over the largest norm C of a record.

    Guarantee: certificates of the rounds are for substitution, whichever relation is given. Records of norm
        at most C move their sum by up to C if one is added or removed, by up to 2C if one is replaced. So a
        noise multiplier m is accounted as a sensitivity of 2 at the noise m.

    Raises:
        InvalidParameter: an event that is not supported, or values out of range.
    """
    checked_relation(relation)
    found: dict[ShuffledRound, int] = {}
    left = _MAXIMUM_EVENTS

    def add(one: Any, times: int, depth: int) -> None:
        nonlocal left
        left -= 1
        if depth > _MAXIMUM_DEPTH or left < 0:
            expected = f"at most {_MAXIMUM_DEPTH} events inside one another, and {_MAXIMUM_EVENTS} altogether"
            raise InvalidParameter("event", type(one).__name__, expected)
        name = type(one).__name__
        if name == "NoOpDpEvent":
            return
        if name == "ComposedDpEvent":
            if not isinstance(one.events, list | tuple):
                raise InvalidParameter("events", one.events, "a list of events")
            for each in one.events:
                add(each, times, depth + 1)
            return
        if name == "SelfComposedDpEvent":
            count = validation.whole("count", one.count, 0, validation.MAXIMUM_ROUNDS)
            if count:
                add(one.event, times * count, depth + 1)
            return
        made = _RELEASES.get(name)
        if made is None:
            raise InvalidParameter("event", name, f"one of {', '.join([*_RELEASES, *_COMPOSED])}")
        described = ShuffledRound(randomizer=made(one, relation), reports=1)
        total = found.get(described, 0) + times
        found[described] = validation.whole("count", total, 1, validation.MAXIMUM_ROUNDS)

    add(event, 1, 0)
    return found


def _zero_concentrated(event: Any, relation: str) -> LocalRandomizer:
    if event.xi != 0:
        raise InvalidParameter("xi", event.xi, "0")
    return Declared(rho=event.rho, relation=relation)


# Largest distance of the sums of two neighbours, in norms of a record. For "add-remove" the releases
# themselves count the sensitivity twice in a substitution.
_SENSITIVITY: Mapping[str, float] = {"substitution": 2.0, "add-remove": 1.0}
# Names of dp-accounting's events: those that hold other events, and those that are one release.
_COMPOSED = ("SelfComposedDpEvent", "ComposedDpEvent", "NoOpDpEvent")
_RELEASES: Mapping[str, Callable[[Any, str], LocalRandomizer]] = {
    "GaussianDpEvent": lambda event, relation: Gaussian(
        sigma=event.noise_multiplier, sensitivity=_SENSITIVITY[relation], relation=relation
    ),
    "LaplaceDpEvent": lambda event, relation: CentralLaplace(
        scale=event.noise_multiplier, sensitivity=_SENSITIVITY[relation], relation=relation
    ),
    "ZCDpEvent": _zero_concentrated,
}


def _with_slack(
    losses: FloatArray, masses: FloatArray, infinity: float, slack: float
) -> tuple[FloatArray, float]:
    """Returns the masses at ascending losses, and at infinity, of a pair above all pairs whose laws are each
    within a total variation distance of `slack` of those of the given pair.

    At the order a these have at most `slack (1 + a)` more. So much more has the pair whose largest losses, of
    a probability of at least `slack` under Q, are infinite, together with a mass of `slack`, up to the order
    of these losses. From there on it is constant, while a profile falls.
    """
    if slack == 0:
        return masses, infinity
    q = masses * np.exp(-losses)
    beyond = np.append(np.cumsum(q[::-1])[::-1][1:], 0.0)  # mass under Q above each loss
    taken = np.clip(slack * (1 + 1e-9) - beyond, 0.0, q)
    moved = masses * np.divide(taken, q, out=np.ones_like(q), where=q > 0)
    infinity = min(math.fsum([infinity, slack, *moved.tolist()]) * (1 + 1e-12), 1.0)
    return np.maximum(masses - moved, 0.0), infinity


def _direction(pmf: Any) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Returns losses, masses and infinity of one direction, with losses rounded up.

    Raises:
        InvalidParameter: the estimates are optimistic, or the loss is certainly infinite.
    """
    if pmf._pessimistic_estimate is not True:
        raise InvalidParameter("pld", "optimistic estimates", "pessimistic estimates, which are upper bounds")
    _check_finite(float(pmf._infinity_mass))  # a distribution without finite losses has no dense form
    dense = pmf.to_dense_pmf()
    masses = np.maximum(np.asarray(dense._probs, dtype=np.float64), 0.0)
    places = np.arange(masses.size) + int(dense._lower_loss)
    spacing, infinity = float(dense._discretization), float(dense._infinity_mass)
    room = 1 + (masses.size + 8) * UNIT_ROUND_OFF  # of sums
    finite = places * spacing <= LARGEST_LOSS * (1 - 8 * UNIT_ROUND_OFF)
    infinity = min((infinity + float(masses[~finite].sum())) * room, 1.0)
    _check_finite(infinity)
    kept = finite & (places > 0) & (masses > 0)
    at_most_zero = math.fsum(masses[places <= 0].tolist())
    # Estimates from above may sum to more than 1. What loss 0 has makes no divergence at an order from 1 on.
    beyond_one = math.fsum([*masses[finite].tolist(), infinity, -1.0])
    at_most_zero = max(at_most_zero - max(beyond_one, 0.0), 0.0)
    places, masses = places[kept], masses[kept]
    step = -(-int(places[-1]) // (MAXIMUM_LOSSES - 2)) if places.size > MAXIMUM_LOSSES - 2 else 1
    rounded, inverse = np.unique(-(-places // step), return_inverse=True)
    joined = np.bincount(inverse, weights=masses, minlength=rounded.size) * (room if step > 1 else 1.0)
    losses = np.minimum(rounded * (step * spacing) * (1 + 4 * UNIT_ROUND_OFF), LARGEST_LOSS)
    return (0.0, *losses.tolist()), (at_most_zero, *joined.tolist()), infinity


def _check_finite(infinity: float) -> None:
    """Refuses a distribution that reveals everything: no release of one has any privacy."""
    if infinity >= 1:
        most = exact_text(LARGEST_LOSS)
        expected = f"a probability below 1 of losses that are infinite or above {most}"
        raise InvalidParameter("pld", "a release that certainly reveals everything", expected)
