"""A ledger takes one randomizer for a round: mixed fleets are refused at the door."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values import RoundRequest


def test_a_mixed_fleet_is_not_a_round_of_a_ledger() -> None:
    fleet = parse_randomizer("mixed((5, krr(k=3, epsilon0=1)), dummies=2)")
    with pytest.raises(InvalidValue, match="one randomizer for the whole round"):
        RoundRequest(round_id="one", cohort="phones", round=ShuffledRound(randomizer=fleet, reports=5))
