"""Rounds of a `joint` whose neighbouring datasets differ in one attribute of one user."""

from __future__ import annotations

import dataclasses

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import Joint
from shuffle_ledger.accounting.randomizers.generic import CLONE
from shuffle_ledger.accounting.randomizers.one_attribute import OneAttribute
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound


def attribute_rounds(described: ShuffledRound) -> tuple[ShuffledRound, ...]:
    """Returns a round for each part of a `joint`, whose certificate is for datasets that differ only in the
    value of this part of one user.

    They are for answers, not for a ledger: a budget protects all that a user holds. Their epsilon may be
    above that of a round of the part alone, since the reports of the other parts, which are sent together
    with it, tell users apart.

    Guarantee: certified bounds of these rounds hold for all values of the part, and all common values of the
        others.
    Source: docs/theory/randomizers.md, R8.

    Raises:
        InvalidParameter: the round is not one of a `joint` that all devices run.
    """
    randomizer = described.randomizer
    if not isinstance(randomizer, Joint):
        expected = "a joint, such as joint(krr(k=4, epsilon0=1), laplace(epsilon0=1))"
        if isinstance(described.written, Joint):
            expected += f"; {CLONE} knows no parts: name another analysis"
        raise InvalidParameter("randomizer", described.describe(), expected)
    each = [OneAttribute(parts=randomizer.parts, attribute=place) for place in range(len(randomizer.parts))]
    return tuple(dataclasses.replace(described, randomizer=one, analysis=one.analyses[0]) for one in each)
