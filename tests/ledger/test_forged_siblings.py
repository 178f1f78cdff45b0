"""Entries about a round of several cohorts: what one chain says otherwise than another is found and named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.evidence.bundle import BundleMade, make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification import siblings
from shuffle_ledger.ledger.verification.siblings import Fact, JointRound, JointRounds
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger import attack
from tests.ledger.attack import disarmed, rewrite
from tests.ledger.clerk import Clerk, krr
from tests.ledger.test_bundles import by_the_example, members_of, repacked
from tests.ledger.test_bundles import forged as forged_bundle

AUDITOR = Accountant()
database_url = sqlite_url  # an entry has the same bytes in every database
KEY = SigningKey.generate()
BOTH = ("phones", "watches")
PHONES, WATCHES = "chains/000001.txt", "chains/000002.txt"


@pytest.fixture
def lived(clerk: Clerk) -> Clerk:
    """Return a ledger in which joint rounds are admitted, refused, closed, corrected and told."""
    for name, epsilon in (("phones", 1.0), ("watches", 0.5)):
        clerk.open(name, epsilon=epsilon, labels={"worn": str(name == "watches")})
    for name, reports in (("a", 150_000), ("b", 150_000), ("c", 10)):  # too few: refused
        clerk.ask(krr(reports), *BOTH, name=name)
    clerk.settle("a", 140_000)
    clerk.correct("a", reports=130_000, reason="counted twice")
    clerk.void("b")
    clerk.incident("c", krr(90_000), "watches")
    return clerk


@pytest.fixture
def made(lived: Clerk) -> BundleMade:
    return make_bundle(lived.store, BOTH, signing_key=KEY)


def found(data: bytes) -> list[tuple[str | None, int | None]]:
    report = verify_bundle(data, AUDITOR, numbers="none", trusted_public_key=KEY.public_key_bytes)
    assert report.ok == (not report.findings)
    assert all(each.ok for each in report.cohorts) == report.ok
    return [(each.cohort, each.sequence) for each in report.findings if "chain of cohort" in each.what]


@pytest.mark.slow
def test_chains_that_agree_hold(made: BundleMade, lived: Clerk) -> None:
    report = verify_bundle(made.data, AUDITOR, numbers="all", trusted_public_key=KEY.public_key_bytes)
    assert report.ok, report.findings
    assert verify(lived.store, lived.accountant, numbers="all").ok
    for name in BOTH:
        alone = verify_bundle(make_bundle(lived.store, [name], signing_key=KEY).data, AUDITOR)
        assert alone.ok, alone.findings
        assert alone.not_in_bundle == tuple(other for other in BOTH if other != name)
        assert verify(lived.store, lived.accountant, name).ok


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


@pytest.mark.parametrize(
    ("how", "member"), [*((how, PHONES) for how in FORGERIES), ("another actor", WATCHES)]
)
def test_a_chain_that_says_otherwise_is_found_in_both(made: BundleMade, how: str, member: str) -> None:
    at, forge = FORGERIES[how]
    data = forged(made, lambda sequence, body: forge(body) if sequence == at else None, member)
    assert {("phones", at), ("watches", at)} <= set(found(data))


def test_the_independent_verifier_compares_siblings(made: BundleMade, tmp_path: Path) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 7:
            body["details"]["reason"] = "a bug"

    assert not by_the_example(made.data, tmp_path / "made")
    said = by_the_example(forged(made, change), tmp_path / "forged")
    assert "round b: the chains of phones and watches say otherwise" in said


def test_a_cohort_that_the_heads_do_not_know_is_found(lived: Clerk) -> None:
    """A round that claims more cohorts may claim more reports, which lowers its charge."""
    made = make_bundle(lived.store, ["phones"], signing_key=KEY)

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


SAYS_OTHERWISE = attack.stating(reason="a bug")


def test_a_sibling_in_the_database_that_was_rewritten_is_found(lived: Clerk) -> None:
    """Every digest, link and head fits again; each cohort by itself finds it, too."""
    rewrite(lived.store, 7, SAYS_OTHERWISE, cohort="watches")
    report = verify(lived.store, lived.accountant)
    assert [each.problems[0].sequence for each in report.cohorts] == [7, 7]
    for name in BOTH:
        alone = verify(lived.store, lived.accountant, name)
        assert not alone.ok
        assert "says otherwise" in alone.cohorts[0].problems[0].what


@pytest.mark.slow
def test_a_joint_entry_without_what_its_kind_says_is_named(lived: Clerk) -> None:
    """Other chains are still compared with what can be read of it."""
    rewrite(lived.store, 2, lambda body: dataclasses.replace(body, kind=EntryKind.REFUSED))
    found = {each.cohort: each for each in verify(lived.store, lived.accountant).cohorts}
    assert 2 in [problem.sequence for problem in found["phones"].problems]
    assert not verify_bundle(make_bundle(lived.store, BOTH).data, AUDITOR).ok


def test_a_statement_relies_on_no_chain_that_a_sibling_contradicts(lived: Clerk) -> None:
    def verdicts(*names: str, as_of: int | None = None) -> list[str]:
        return [each.verdict for each in lived.statement(*names, as_of=as_of).cohorts]

    assert "unknown" not in verdicts(*BOTH)
    rewrite(lived.store, 7, SAYS_OTHERWISE, cohort="watches")
    assert verdicts(*BOTH) == ["unknown", "unknown"]
    for name in BOTH:
        (made,) = lived.statement(name).cohorts
        assert made.verdict == "unknown"
        assert any("entry 7: round" in each and "says otherwise" in each for each in made.chain_problems)
        assert "unknown" not in verdicts(name, as_of=6), "what stood before is not in doubt"


def test_a_chain_that_lacks_a_sibling_is_found(lived: Clerk) -> None:
    last = lived.store.entry("watches", 8)
    with disarmed(lived.store) as connection:
        connection.exec_driver_sql("DELETE FROM entries WHERE cohort = 'watches' AND sequence = 8")
        before = last.previous_digest.hex()
        connection.exec_driver_sql(
            f"UPDATE heads SET sequence = 7, incidents = 0, digest = x'{before}' WHERE cohort = 'watches'"  # noqa: S608 - a digest
        )
    lived.blames("no sibling")
    bundle = make_bundle(lived.store, BOTH, signing_key=KEY)
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
