"""Corrections that change a round's randomizer, and with it the analysis."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import correct, open_cohort, register_and_admit
from shuffle_ledger.ledger.decisions.descriptions import described_otherwise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify


@pytest.fixture
def store(sqlite_url: str) -> Any:
    """Yield a ledger with the cohort "watches"."""
    with Store.connect(sqlite_url) as opened:
        opened_with: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-6}
        open_cohort(opened, name="watches", policy="adaptive", actor="tester", **opened_with)
        yield opened


def test_a_correction_to_any_randomizer_is_read_as_a_registration_of_it(
    store: Any, accountant: Accountant
) -> None:
    known = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=10_000)
    unknown: dict[str, object] = {"randomizer": {"kind": "generic", "epsilon0": 1.5}}
    registered = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1.5)"), reports=10_000)
    request = RoundRequest(round_id="known", cohort="watches", round=known)
    register_and_admit(store, accountant, request, actor="tester")
    told = correct(store, accountant, "known", unknown, reason="a log", actor="tester")
    assert told.round == registered
    assert told.round.analysis == "clone"
    assert correct(store, accountant, "known", unknown, reason="a log", actor="tester") == told
    assert verify(store, accountant).ok


def test_with_the_randomizer_the_analysis_is_that_of_a_registration_unless_it_is_named() -> None:
    known, one, alike = (
        ShuffledRound(randomizer=parse_randomizer(text), reports=100, analysis=analysis)
        for text, analysis in (
            ("krr(k=2, epsilon0=1)", "strong-adversary"),
            ("generic(epsilon0=1)", None),
            ("generic(epsilon0=1)", "tight"),
        )
    )
    unknown: dict[str, object] = {"randomizer": {"kind": "generic", "epsilon0": 1.5}}
    for described in (known, one, alike):
        assert described_otherwise(described, unknown).analysis == "clone"
        assert described_otherwise(described, {**unknown, "analysis": "tight"}).analysis == "tight"
        assert described_otherwise(described, {"randomizer": "krr(k=3, epsilon0=1)"}).analysis == "blanket"
    assert described_otherwise(alike, {"analysis": "clone"}) == one
    assert described_otherwise(alike, {"honest_fraction": 0.5}).analysis == "tight"
    several = dataclasses.replace(known, reports_per_user=2)
    with pytest.raises(InvalidParameter, match="1 for clone"):
        described_otherwise(several, unknown)
    assert described_otherwise(several, {**unknown, "analysis": "clone-identical"}).reports_per_user == 2


def test_a_field_that_is_gone_is_refused_with_what_replaces_it() -> None:
    known = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=100)
    with pytest.raises(InvalidParameter, match="interaction is gone: the analysis says it") as refused:
        described_otherwise(known, {"interaction": "identical"})
    assert refused.value.field == "interaction"


@pytest.mark.parametrize("delta0", [1e-14, 1e-12])
def test_noise_brings_its_local_delta_along_in_a_correction(delta0: float) -> None:
    """Also where the correction does not name one."""
    noise, other, known = (
        ShuffledRound(randomizer=parse_randomizer(text), reports=10_000)
        for text in (
            "local_gaussian(sigma=4, delta0=1e-14)",
            f"local_gaussian(sigma=3, delta0={delta0})",
            "krr(k=2, epsilon0=1)",
        )
    )
    changes: dict[str, object] = {"randomizer": f"local_gaussian(sigma=3, delta0={delta0})"}
    assert described_otherwise(known, changes) == other
    assert described_otherwise(noise, changes) == other
    with pytest.raises(InvalidParameter, match="delta0"):
        described_otherwise(noise, {**changes, "delta0": 1e-13})


def test_a_number_of_reports_that_no_round_has_is_no_round_of_one_user() -> None:
    known = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=100)
    with pytest.raises(InvalidParameter, match="reports"):
        described_otherwise(known, {"reports": 10**12 + 1})
