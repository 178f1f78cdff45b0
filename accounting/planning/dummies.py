"""How many dummies a shuffler must add, so that rounds meet a target."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import DEFAULT_PRECISION, Accountant
from shuffle_ledger.accounting.certificate import Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.bracketing import least_true
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.mixed import MAXIMUM_DUMMIES, MixedFleet
from shuffle_ledger.accounting.randomizers.notation import parse_randomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

_WIDTH = 0.01  # relative distance of the number from one that is too small: less takes more certificates


@dataclass(frozen=True, kw_only=True)
class Dummies:
    """The number of dummies with which rounds certainly meet a target.

    Attributes:
        dummies: the number for each round.
        dummies_beyond: a smaller number that was tried and is not certain to meet the target; None if
            `dummies` is 0. The two are at most one percent apart, or neighbours.
        round: the round with its dummies.
        certificate: epsilon of the rounds together.
    """

    dummies: int
    dummies_beyond: int | None
    round: ShuffledRound
    certificate: Certificate


def least_dummies(
    randomizer: object,
    *,
    reports: int,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    precision: float = DEFAULT_PRECISION,
) -> Dummies:
    """Returns about the least number of dummies with which `rounds` rounds are (epsilon, delta)-private.

    Args:
        randomizer: that of the devices, a text, a JSON form or a value; one of which dummies have a law (see
            `MixedFleet`), or a mixed fleet, whose own number of dummies is replaced.
        reports: number of the devices' reports of one round.
        epsilon, delta: the target.
        rounds: number of rounds, each with as many dummies.
        precision: wanted relative width of the certificate.

    Guarantee: the certificate's epsilon is at most the target.

    Raises:
        InvalidParameter: a value is out of range, dummies of the randomizer have no law, or the largest
            number does not meet the target.
    """
    target = validation.real("epsilon", epsilon, "a number from 0 on")
    rounds = validation.whole("rounds", rounds, 1, validation.MAXIMUM_ROUNDS)
    fleet = _fleet(parse_randomizer(randomizer), reports)
    accountant = Accountant(precision=precision)

    def with_dummies(number: float) -> ShuffledRound:
        added = MixedFleet(groups=fleet.groups, dummies=math.ceil(number))
        return ShuffledRound(randomizer=added, reports=reports)

    def epsilon_of(number: float) -> float:
        return accountant.certify({with_dummies(number): rounds}, delta=delta).epsilon_upper

    with_dummies(1)  # refuses randomizers whose dummies have no law
    number, beyond = 0, None
    if epsilon_of(0) > target:
        found = least_true(
            lambda number: epsilon_of(number) <= target,
            start=min(reports, MAXIMUM_DUMMIES),
            least=1,
            most=MAXIMUM_DUMMIES,
            width=_WIDTH,
        )
        if found is None:
            expected = f"a target that {MAXIMUM_DUMMIES} dummies meet"
            raise InvalidParameter("epsilon", exact_text(target), expected)
        number, beyond = math.ceil(found[0]), math.ceil(found[1] or 0)
    certificate = accountant.certify({with_dummies(number): rounds}, delta=delta)
    return Dummies(dummies=number, dummies_beyond=beyond, round=with_dummies(number), certificate=certificate)


def _fleet(randomizer: object, reports: int) -> MixedFleet:
    if isinstance(randomizer, MixedFleet):
        return randomizer
    return MixedFleet(groups=((reports, randomizer),))  # type: ignore[arg-type]  # the constructor checks it
