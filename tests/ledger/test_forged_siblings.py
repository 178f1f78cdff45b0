"""Entries about a round of several cohorts: what one chain says otherwise than another is found and named."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    correct,
    record_incident,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.evidence.bundle import BundleMade, make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification import siblings
from shuffle_ledger.ledger.verification.siblings import Fact, JointRound, JointRounds
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.desk import disarmed, open_as_usual, rewrite
from tests.ledger.test_bundles import forged as forged_bundle
from tests.ledger.test_bundles import members_of, repacked

AUDITOR = Accountant()
database_url = sqlite_url  # an entry has the same bytes in every database
KEY = SigningKey.generate()
BOTH = ("phones", "watches")
PHONES, WATCHES = "chains/000001.txt", "chains/000002.txt"
EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_bundle.py"


def krr(reports: int) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=reports)


@pytest.fixture
def lived(store: Store, accountant: Accountant) -> Store:
    """Return a ledger in which joint rounds are admitted, refused, closed, corrected and told."""
    for name, epsilon in (("phones", 1.0), ("watches", 0.5)):
        open_as_usual(
            store,
            name,
            population=100_000,
            epsilon=epsilon,
            delta=1e-6,
            labels={"worn": str(name == "watches")},
        )

    def ask(name: str, reports: int) -> None:
        request = RoundRequest(round_id=name, cohort="phones", audience=BOTH, round=krr(reports))
        register_and_admit(store, accountant, request, actor="ada")

    ask("a", 150_000)
    ask("b", 150_000)
    ask("c", 10)  # too few: refused
    settle(store, accountant, "a", reports=140_000, actor="ada")
    correct(store, accountant, "a", {"reports": 130_000}, reason="counted twice", actor="eve")
    void(store, accountant, "b", reason="cancelled", actor="ada")
    record_incident(
        store, accountant, "watches", round_id="c", described=krr(90_000), reason="a script", actor="eve"
    )
    return store


@pytest.fixture
def made(lived: Store) -> BundleMade:
    return make_bundle(lived, BOTH, signing_key=KEY)


def found(data: bytes) -> list[tuple[str | None, int | None]]:
    report = verify_bundle(data, AUDITOR, numbers="none", trusted_public_key=KEY.public_key_bytes)
    assert report.ok == (not report.findings)
    assert all(each.ok for each in report.cohorts) == report.ok
    return [(each.cohort, each.sequence) for each in report.findings if "chain of cohort" in each.what]


@pytest.mark.slow
def test_chains_that_agree_hold(made: BundleMade, lived: Store, accountant: Accountant) -> None:
    report = verify_bundle(made.data, AUDITOR, numbers="all", trusted_public_key=KEY.public_key_bytes)
    assert report.ok, report.findings
    assert verify(lived, accountant, numbers="all").ok
    for name in BOTH:
        alone = verify_bundle(make_bundle(lived, [name], signing_key=KEY).data, AUDITOR)
        assert alone.ok, alone.findings
        assert alone.not_in_bundle == tuple(other for other in BOTH if other != name)
        assert verify(lived, accountant, name).ok


def forged(made: BundleMade, change: Callable[[int, dict[str, Any]], None], member: str = PHONES) -> bytes:
    """Return a bundle with changed bodies in one chain, all digests and signatures made anew."""
    return repacked(members_of(forged_bundle(made.data, change, signer=KEY, member=member)), BOTH)


Forgery = Callable[[dict[str, Any]], None]


def quoting(**changes: Any) -> Forgery:
    def forge(body: dict[str, Any]) -> None:
        body["details"]["request"].update(changes)

    return forge


def stating(**changes: Any) -> Forgery:
    def forge(body: dict[str, Any]) -> None:
        body["details"].update(changes)

    return forge


def acting(body: dict[str, Any]) -> None:
    body["actor"] = "mallory"


# Each is sound in its own chain, or nothing in it says otherwise.
FORGERIES: dict[str, tuple[int, Forgery]] = {
    "another use case": (2, quoting(use_case="emoji")),
    "another actor": (2, acting),
    "the same slot, and other reports": (
        2,
        lambda body: body["details"]["request"]["round"].update(reports=150_001),
    ),
    "other reports, which are covered": (5, stating(reports=139_999)),
    "another reason": (6, stating(reason="a shard")),
    "another reason of a void": (7, stating(reason="a bug")),
    "another reason of an incident": (8, stating(reason="a fire")),
}


@pytest.mark.parametrize("how", FORGERIES)
@pytest.mark.parametrize("member", [PHONES, WATCHES])
def test_a_chain_that_says_otherwise_is_found_in_both(made: BundleMade, how: str, member: str) -> None:
    at, forge = FORGERIES[how]

    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == at:
            forge(body)

    data = forged(made, change, member)
    assert {("phones", at), ("watches", at)} <= set(found(data))


def test_the_independent_verifier_compares_siblings(made: BundleMade, tmp_path: Path) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 7:
            body["details"]["reason"] = "a bug"

    printed = []
    for name, data in (("made", made.data), ("forged", forged(made, change))):
        (tmp_path / name).write_bytes(data)
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE), str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        printed.append((ran.returncode, ran.stdout))
    assert printed[0][0] == 0, printed
    assert printed[1][0] == 1
    assert "round b: the chains of phones and watches say otherwise" in printed[1][1]


def test_a_cohort_that_the_heads_do_not_know_is_found(lived: Store) -> None:
    """A round that claims more cohorts may claim more reports, which lowers its charge."""
    made = make_bundle(lived, ["phones"], signing_key=KEY)

    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 2:
            body["details"]["request"]["audience"] = ["phones", "watches", "zebras"]

    data = repacked(members_of(forged_bundle(made.data, change, signer=KEY)), ("phones",))
    report = verify_bundle(data, AUDITOR, numbers="none")
    assert [(each.sequence, "'zebras'" in each.what) for each in report.findings] == [(2, True)]


def test_refusals_have_the_numbers_of_those_who_refused(made: BundleMade) -> None:
    """Of its own numbers each chain is the judge; of others' the siblings are."""

    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 4:
            body["details"]["refused_by"]["watches"]["epsilon_requested_upper"] = 0.51

    assert ("phones", 4) in found(forged(made, change))
    data = forged(made, change, WATCHES)
    report = verify_bundle(data, AUDITOR, numbers="none")
    assert any(
        "details.refused_by.watches.epsilon_requested_upper does not follow" in each.what
        and each.sequence == 4
        for each in report.findings
    )


def test_a_sibling_in_the_database_that_was_rewritten_is_found(lived: Store, accountant: Accountant) -> None:
    """Every digest, link and head fits again; each cohort by itself finds it, too."""

    def forge(body: Any) -> Any:
        return dataclasses.replace(body, details={**body.details, "reason": "a bug"})

    rewrite(lived, 7, forge)
    report = verify(lived, accountant)
    assert [each.problems[0].sequence for each in report.cohorts] == [7, 7]
    for name in BOTH:
        alone = verify(lived, accountant, name)
        assert not alone.ok
        assert "says otherwise" in alone.cohorts[0].problems[0].what


@pytest.mark.slow
def test_a_joint_entry_without_what_its_kind_says_is_named(lived: Store, accountant: Accountant) -> None:
    """Other chains are still compared with what can be read of it."""
    admitted = next(each for each in lived.entries_of("phones") if each.kind == EntryKind.ADMITTED)

    def forge(body: Any) -> Any:
        return dataclasses.replace(body, kind=EntryKind.REFUSED)

    rewrite(lived, admitted.sequence, forge, cohort="phones")
    found = {each.cohort: each for each in verify(lived, accountant).cohorts}
    assert admitted.sequence in [problem.sequence for problem in found["phones"].problems]
    assert not verify_bundle(make_bundle(lived, BOTH).data, AUDITOR).ok


def test_a_statement_relies_on_no_chain_that_a_sibling_contradicts(
    lived: Store, accountant: Accountant
) -> None:
    made_at = datetime(2026, 1, 1, tzinfo=UTC)

    def verdicts(*names: str, as_of: int | None = None) -> list[str]:
        made = make_statement(lived, accountant, names, made_at=made_at, as_of=as_of)
        return [each.verdict for each in made.cohorts]

    assert "unknown" not in verdicts(*BOTH)
    rewrite(lived, 7, lambda body: dataclasses.replace(body, details={**body.details, "reason": "a bug"}))
    assert verdicts(*BOTH) == ["unknown", "unknown"]
    for name in BOTH:
        (made,) = make_statement(lived, accountant, [name], made_at=made_at).cohorts
        assert made.verdict == "unknown"
        assert any("entry 7: round" in each and "says otherwise" in each for each in made.chain_problems)
        assert "unknown" not in verdicts(name, as_of=6), "what stood before is not in doubt"


def test_a_chain_that_lacks_a_sibling_is_found(lived: Store, accountant: Accountant) -> None:
    last = lived.entry("watches", 8)
    with disarmed(lived) as connection:
        connection.exec_driver_sql("DELETE FROM entries WHERE cohort = 'watches' AND sequence = 8")
        before = last.previous_digest.hex()
        connection.exec_driver_sql(
            f"UPDATE heads SET sequence = 7, incidents = 0, digest = x'{before}' WHERE cohort = 'watches'"  # noqa: S608 - a digest
        )
    problems = [problem for each in verify(lived, accountant).cohorts for problem in each.problems]
    assert any(problem.sequence == 8 and "no sibling" in problem.what for problem in problems)
    bundle = make_bundle(lived, BOTH, signing_key=KEY)
    assert ("phones", 8) in found(bundle.data)


def joint(*digests: str, frozen: bool = False, population: int = 10) -> JointRounds:
    facts = [
        Fact(sequence=number, kind=EntryKind.ADMITTED, digest=digest.encode())
        for number, digest in enumerate(digests, start=2)
    ]
    rounds = {"r": JointRound(audience=("a", "b", "c"), users=25, facts=facts)} if facts else {}
    return JointRounds(population=population, frozen=frozen, rounds=rounds)


def judged(chains: dict[str, JointRounds]) -> dict[str, list[int]]:
    return {
        name: [sequence for _, sequence, _ in siblings.disagreements(name, chains)] for name in sorted(chains)
    }


def test_what_a_frozen_chain_lost_is_no_disagreement_and_what_it_has_must_be_known() -> None:
    whole, part = joint("x", "y", "z"), joint("x", "z", frozen=True)
    assert judged({"a": whole, "b": part, "c": whole}) == {"a": [], "b": [], "c": []}
    assert judged({"a": whole, "b": joint(frozen=True), "c": whole}) == {"a": [], "b": [], "c": []}
    assert judged({"a": whole, "b": joint("x", "w", frozen=True), "c": whole}) == {"a": [], "b": [3], "c": []}
    assert judged({"a": whole, "b": joint("x", "z"), "c": whole}) == {"a": [3], "b": [3], "c": []}
    assert judged({"a": whole, "b": whole, "c": joint()}) == {"a": [2], "b": [], "c": []}
    assert judged({"a": joint("x"), "b": joint("x", "y")}) == {"a": [2], "b": [3]}


def test_a_round_has_no_more_users_than_its_cohorts_together() -> None:
    few = {name: joint("x", population=8) for name in "abc"}
    assert judged(few) == {"a": [2], "b": [2], "c": [2]}
    assert judged({name: few[name] for name in "ab"}) == {"a": [], "b": []}  # of others nothing is known


def test_a_statement_says_on_what_rounds_of_several_cohorts_rest(
    lived: Store, accountant: Accountant
) -> None:
    open_as_usual(lived, "tvs", population=9, delta=1e-6)
    made_at = datetime(2026, 1, 1, tzinfo=UTC)
    joint, alone = (make_statement(lived, accountant, [name], made_at=made_at) for name in ("watches", "tvs"))
    assert {one.name for one in joint.conditions} - {one.name for one in alone.conditions} == {
        "One cohort for each person"
    }
    assert [each.audience for each in joint.cohorts[0].rounds] == [BOTH, BOTH]
    assert [each.audience for each in joint.cohorts[0].refusals] == [BOTH]
