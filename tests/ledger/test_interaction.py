"""Rounds that were registered before rounds declared their interaction, and rounds that declare it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    correct,
    open_cohort,
    quote,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.truths import restated
from shuffle_ledger.ledger.errors import Conflict, NotCollectable
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import document_of
from shuffle_ledger.ledger.values.documents import record_document, record_of_document
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

ONE = {"$float": (1.0).hex()}
# What `register --id week1 --randomizer 'generic(epsilon0=1)' --reports 10000` was bound to.
WRITTEN: dict[str, Any] = {
    "version": 1,
    "round_id": "week1",
    "cohort": "watches",
    "round": {
        "randomizer": {"kind": "generic", "epsilon0": ONE},
        "reports": 10_000,
        "sampled_from": None,
        "participation": None,
        "honest_fraction": ONE,
        "delta0": {"$float": (0.0).hex()},
        "analysis": "tight",
    },
    "collected_on": None,
    "use_case": None,
}


@pytest.fixture
def store(sqlite_url: str) -> Any:
    """Yield a ledger with the cohort "watches"."""
    with Store.connect(sqlite_url) as opened:
        opened_with: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-6}
        open_cohort(opened, name="watches", policy="adaptive", actor="tester", **opened_with)
        yield opened


def written(**changes: Any) -> bytes:
    """The canonical bytes of a request of before."""
    content = {**WRITTEN, **{name: changes.pop(name) for name in ("round_id",) if name in changes}}
    content["round"] = {**WRITTEN["round"], **changes}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def of_before(store: Store, accountant: Accountant, **changes: Any) -> RoundRequest:
    """Register and admit a round as it was read from such bytes."""
    request = RoundRequest.from_bytes(written(**changes))
    assert request.to_bytes() == written(**changes)
    register(store, request, actor="tester")
    assert isinstance(admit(store, accountant, request.round_id), Admitted)
    return request


def today(round_id: str = "week1", **fields: Any) -> RoundRequest:
    """The request that a script makes today."""
    randomizer = parse_randomizer(fields.pop("randomizer", "generic(epsilon0=1)"))
    shuffled = ShuffledRound(randomizer=randomizer, **{"reports": 10_000, **fields})
    return RoundRequest(round_id=round_id, cohort="watches", round=shuffled)


def decided(store: Store, accountant: Accountant, request: RoundRequest) -> tuple[Any, bool]:
    return register_and_admit(store, accountant, request, actor="tester")


@pytest.mark.parametrize("fields", [{}, {"interaction": "identical"}, {"analysis": "tight"}])
def test_the_words_of_before_repeat_what_they_registered(
    store: Store, accountant: Accountant, fields: dict[str, Any]
) -> None:
    of_before(store, accountant)
    record = round_record(store, "week1")
    answer, known = decided(store, accountant, today(**fields))
    assert known
    assert answer == record.outcome
    assert answer.accounted.interaction == "undeclared"
    assert answer.accounted.analysis == "tight"
    assert quote(store, accountant, today(**fields)).would_be == "admitted"
    assert len(list(store.entries_of("watches"))) == 2
    void(store, accountant, "week1", reason="never collected", actor="tester")
    with pytest.raises(NotCollectable):
        decided(store, accountant, today(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"interaction": "sequential"},
        {"analysis": "clone"},
        {"analysis": "clone", "interaction": "identical"},
        {"randomizer": "krr(k=2, epsilon0=1)", "interaction": "sequential"},
        {"reports": 10_001},
    ],
)
def test_other_words_are_a_conflict(store: Store, accountant: Accountant, fields: dict[str, Any]) -> None:
    of_before(store, accountant)
    for ask in (
        lambda: decided(store, accountant, today(**fields)),
        lambda: quote(store, accountant, today(**fields)),
    ):
        with pytest.raises(Conflict):
            ask()


def test_named_randomizers_and_clones_of_before_are_repeated_too(
    store: Store, accountant: Accountant
) -> None:
    krr = {"kind": "krr", "epsilon0": ONE, "k": 4}
    of_before(store, accountant, randomizer=krr, analysis="blanket", round_id="named")
    of_before(store, accountant, analysis="clone", round_id="clone")
    assert decided(store, accountant, today("named", randomizer="krr(k=4, epsilon0=1)"))[1]
    assert decided(store, accountant, today("clone", analysis="clone"))[1]
    with pytest.raises(Conflict):  # it was bound to the published pair, and this would have been tight
        decided(store, accountant, today("clone"))


@pytest.mark.slow
def test_what_is_registered_now_declares_its_interaction(store: Store, accountant: Accountant) -> None:
    old = of_before(store, accountant)
    for name, fields in (
        ("a", {}),
        ("b", {"interaction": "identical"}),
        ("c", {"randomizer": "krr(k=4, epsilon0=1)"}),
    ):
        assert isinstance(decided(store, accountant, today(name, **fields))[0], Admitted)
        assert decided(store, accountant, today(name, **fields))[1]
    with pytest.raises(Conflict):
        decided(store, accountant, today("a", interaction="identical"))
    settle(store, accountant, "a", reports=9_000, actor="tester")
    settle(store, accountant, "week1", reports=9_000, actor="tester")
    bodies = [entry.content() for entry in store.entries_of("watches")]
    stated = [
        (body.round_id, shuffled.get("interaction"), shuffled["analysis"])
        for body in bodies
        for shuffled in [
            body.details[name] for name in ("accounted", "accounted_before") if name in body.details
        ]
        + ([body.details["request"]["round"]] if "request" in body.details else [])
    ]
    assert set(stated) == {
        ("week1", None, "tight"),
        ("a", "sequential", "clone"),
        ("b", "identical", "tight"),
        ("c", "identical", "blanket"),
    }
    report = verify(store, accountant, numbers="all")
    assert [each.problems for each in report.cohorts] == [()]
    for name in ("week1", "a", "b"):
        record = round_record(store, name)
        assert record_of_document(json.loads(json.dumps(record_document(record)))) == record
    assert document_of(round_record(store, "a").request.round)["interaction"] == "sequential"  # type: ignore[index,call-overload]
    assert round_record(store, "week1").request == old


def test_a_correction_to_any_randomizer_is_read_as_a_registration_of_it(
    store: Any, accountant: Accountant
) -> None:
    """It kept the interaction of a round whose devices were alike, for a randomizer that is unknown."""
    known = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=10_000)
    unknown: dict[str, object] = {"randomizer": {"kind": "generic", "epsilon0": 1.5}}
    registered = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1.5)"), reports=10_000)
    request = RoundRequest(round_id="known", cohort="watches", round=known)
    register_and_admit(store, accountant, request, actor="tester")
    told = correct(store, accountant, "known", unknown, reason="a log", actor="tester")
    assert told.round == registered
    assert told.round.is_sequential
    assert correct(store, accountant, "known", unknown, reason="a log", actor="tester") == told
    assert verify(store, accountant).ok


def test_a_correction_keeps_what_is_known_of_the_interaction() -> None:
    known, one, alike = (
        ShuffledRound(randomizer=parse_randomizer(text), reports=100, interaction=interaction)
        for text, interaction in (
            ("krr(k=2, epsilon0=1)", None),
            ("generic(epsilon0=1)", None),
            ("generic(epsilon0=1)", "identical"),
        )
    )
    unknown: dict[str, object] = {"randomizer": {"kind": "generic", "epsilon0": 1.5}}
    assert restated(known, {**unknown, "interaction": "identical"}).interaction == "identical"
    assert restated(known, {**unknown, "analysis": "tight"}).interaction == "identical"
    assert restated(alike, unknown).interaction == "identical"
    assert restated(one, unknown).is_sequential
    assert restated(alike, {"interaction": "sequential"}) == one, "it was refused for its analysis"
    assert restated(one, {"randomizer": {"kind": "krr", "k": 2, "epsilon0": 1.0}}).is_sequential
    several = dataclasses.replace(known, reports_per_user=2)
    with pytest.raises(InvalidParameter, match="1 for sequential rounds"):
        restated(several, unknown)
    assert restated(several, {**unknown, "interaction": "identical"}).reports_per_user == 2


def test_a_correction_of_noise_to_any_randomizer_is_read_as_a_registration_of_it(
    store: Any, accountant: Accountant
) -> None:
    """Gaussian noise is recorded as `generic`, and its devices are alike: that was kept, and tight."""
    noise = ShuffledRound(
        randomizer=parse_randomizer("local_gaussian(sigma=4, delta0=1e-14)"), reports=10_000
    )
    unknown: dict[str, object] = {"randomizer": {"kind": "generic", "epsilon0": 1.5}, "delta0": 0.0}
    registered = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1.5)"), reports=10_000)
    register_and_admit(
        store, accountant, RoundRequest(round_id="noise", cohort="watches", round=noise), actor="tester"
    )
    told = correct(store, accountant, "noise", unknown, reason="a log", actor="tester")
    assert told.round == registered
    assert correct(store, accountant, "noise", unknown, reason="a log", actor="tester") == told
    assert restated(noise, unknown | {"interaction": "identical"}).analysis == "tight"
    assert verify(store, accountant).ok


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
    assert restated(known, changes) == other
    assert restated(noise, changes) == other
    with pytest.raises(InvalidParameter, match="delta0"):
        restated(noise, {**changes, "delta0": 1e-13})


def test_a_number_of_reports_that_no_round_has_is_no_round_of_one_user() -> None:
    known = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=100)
    with pytest.raises(InvalidParameter, match="reports"):
        restated(known, {"reports": 10**12 + 1})
