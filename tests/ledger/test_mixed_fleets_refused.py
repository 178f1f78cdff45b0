"""A ledger takes one randomizer for a round: mixed fleets are refused at the door."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions.descriptions import described_otherwise
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values import RoundRequest


def test_a_mixed_fleet_is_not_a_round_of_a_ledger() -> None:
    fleet = parse_randomizer("mixed((5, krr(k=3, epsilon0=1)), dummies=2)")
    with pytest.raises(InvalidValue, match="one randomizer for the whole round"):
        RoundRequest(round_id="one", cohort="phones", round=ShuffledRound(randomizer=fleet, reports=5))


def test_a_correction_describes_no_mixed_fleet() -> None:
    one = ShuffledRound(randomizer=parse_randomizer("krr(k=3, epsilon0=1)"), reports=5)
    with pytest.raises(InvalidValue, match="one randomizer for the whole round"):
        described_otherwise(one, {"randomizer": "mixed((5, krr(k=3, epsilon0=1)), dummies=2)", "reports": 5})
