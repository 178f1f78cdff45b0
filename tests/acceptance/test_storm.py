"""Registrations while servers and workers are killed: one outcome per identifier, and the budget holds."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks.http_storm import storm

NEEDED = ("SHUFFLE_LEDGER_TEST_POSTGRES_URL", "SHUFFLE_LEDGER_TEST_BROKER_URL")


@pytest.mark.system
def test_every_id_has_one_outcome_whoever_is_killed() -> None:
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not set: nothing was killed between HTTP and workers")
    report = storm(registrations=120, clients=8, calm_seconds=2.0, kills_max=8)
    assert report.wrong == []
    assert sum(report.outcomes.values()) == 120
    assert set(report.outcomes) == {"admitted", "refused"}
    assert report.kills >= 2
