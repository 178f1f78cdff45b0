"""A bundle is all an auditor has: whatever was done to it is found and named, from the bundle alone."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
)
from shuffle_ledger.accounting.verification.coverage import Coverage
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.errors import Damaged, InvalidValue, NotFound
from shuffle_ledger.ledger.evidence import archive as container
from shuffle_ledger.ledger.evidence import bundle
from shuffle_ledger.ledger.evidence.bundle import BundleMade, make_bundle
from shuffle_ledger.ledger.evidence.bundle_reader import open_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.findings import BundleReport
from shuffle_ledger.ledger.machine import UNBOUNDED, Cause, Charge, Cost, Described, Round, State
from shuffle_ledger.ledger.policies.numbers import read, spelled
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, decided, restated
from shuffle_ledger.ledger.reports.budgets import heads
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, CheckpointHead
from shuffle_ledger.ledger.values.saved_heads import SavedHeads, saved_heads
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_bundle.py"
AUDITOR = Accountant()  # another one than the ledger's
database_url = sqlite_url  # an entry has the same bytes in every database
PHONES, TABLETS = "chains/000001.txt", "chains/000002.txt"


def test_an_auditor_tries_the_precision_at_which_ledgers_compute() -> None:
    assert Settings().precision in Coverage(AUDITOR).precisions


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture(scope="module")
def kept() -> list[bytes]:
    """Return the file of the ledger of `lived`, once a test made it."""
    return []


@pytest.fixture
def lived(database_url: str, accountant: Accountant, kept: list[bytes]) -> Iterator[Store]:
    """Yield a ledger with entries of every kind in one cohort, and one round in another."""
    file = Path(database_url.removeprefix("sqlite:///"))
    if not kept:
        with Store.connect(database_url) as store:
            live(Clerk(store, accountant))
        kept.append(file.read_bytes())
    file.write_bytes(kept[0])
    with Store.connect(database_url) as store:
        yield store


def live(clerk: Clerk) -> None:
    """Write entries of every kind."""
    clerk.usual |= {"population": 10**6, "delta": 1e-9}
    clerk.open("phones")
    for name, described in (("a", krr(1_000)), ("b", krr(2_000)), ("c", krr(5, 8.0))):
        clerk.ask(described, name=name)
    clerk.settle("a", 900)
    clerk.void("b")
    clerk.open("tablets", epsilon=2.0)
    for name, described in (("t", krr(1_000)), ("u", krr(5, 8.0))):
        clerk.ask(described, "tablets", name=name)
    clerk.settle("t", 900)


@pytest.fixture
def made(lived: Store, key: SigningKey) -> BundleMade:
    return make_bundle(lived, ["tablets", "phones"], signing_key=key)


def verified(data: bytes, **options: Any) -> BundleReport:
    return verify_bundle(data, AUDITOR, **{"numbers": "none", **options})


def named(report: BundleReport) -> set[tuple[str | None, int | None]]:
    assert report.ok == (not report.findings)
    return {(each.member, each.sequence) for each in report.findings}


def members_of(data: bytes) -> dict[str, bytes]:
    return dict(container.unpack(data).members)


def repacked(members: Mapping[str, bytes], cohorts: tuple[str, ...] = ("phones", "tablets")) -> bytes:
    """Return a bundle of members with a manifest that fits: what a forger would hand over."""
    others = {name: members[name] for name in sorted(members) if name != bundle.MANIFEST}
    chains = sum(name.startswith("chains/") for name in others)
    return container.pack({bundle.MANIFEST: bundle.manifest_bytes(others, cohorts[:chains]), **others})


@pytest.mark.slow
def test_an_untouched_bundle_holds_with_every_number(made: BundleMade, key: SigningKey, lived: Store) -> None:
    report = verified(made.data, numbers="all", trusted_public_key=key.public_key_bytes)
    assert report.ok, report.findings
    assert report.signature == "trusted"
    assert report.sha256 == made.sha256 == hashlib.sha256(made.data).hexdigest()
    phones, tablets = report.cohorts
    assert (phones.cohort, phones.entries, phones.rounds_admitted, phones.rounds_refused) == (
        "phones",
        6,
        2,
        1,
    )
    assert phones.promise_kept
    assert phones.numbers_stated == len(phones.numbers) == 6
    assert all(each.agrees for each in (*phones.numbers, *tablets.numbers))
    standing = lived.view("phones")
    assert (phones.head_sequence, phones.head_digest) == (standing.head_sequence, standing.head_digest.hex())
    assert phones.epsilon_spent_upper == standing.spent.epsilon_upper


@pytest.mark.slow
def test_a_ledger_that_computed_as_coarsely_as_it_may_holds_for_a_finer_auditor(lived: Store) -> None:
    coarse = Clerk(lived, Accountant(precision=0.1))
    for name, epsilon0 in (("x", 0.5), ("y", 1.0)):
        coarse.ask(krr(2_000, epsilon0), "tablets", name=name)
    report = verify_bundle(make_bundle(lived, ["tablets"]).data, Accountant(precision=1e-3), numbers="all")
    assert report.ok, report.findings


def test_the_same_ledger_gives_the_same_bytes(lived: Store, key: SigningKey) -> None:
    checkpoint = make_checkpoint(lived, key)
    once = make_bundle(lived, ["phones", "tablets"], checkpoint=checkpoint)
    assert make_bundle(lived, ["tablets", "phones"], checkpoint=checkpoint).data == once.data


def test_any_program_opens_a_bundle(made: BundleMade) -> None:
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == members_of(made.data)
        manifest = json.loads(archive.read("manifest.json"))
    for item in manifest["members"]:
        assert hashlib.sha256(members_of(made.data)[item["name"]]).hexdigest() == item["sha256"]


def test_the_containers_bytes_are_the_same_for_ever() -> None:
    packed = container.pack({"a.txt": b"one\n", "b/c.txt": b""})
    assert hashlib.sha256(packed).hexdigest() == (
        "ac9ed0df4090811beb7187f1e6b9de5af92003fb639a55e16335147165aa77f3"
    )


def region(data: bytes, place: int) -> tuple[str | None, int | None]:
    """Return the member a byte of a bundle is in, and the line if it is in a chain."""
    start = 0
    for name, content in members_of(data).items():
        header = 30 + len(name)
        if start + header <= place < start + header + len(content):
            line = content[: place - start - header].count(b"\n") + 1
            return name, line if name.startswith("chains/") else None
        if start <= place < start + header:
            return name, None
        start += header + len(content)
    return None, None


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.data())
def test_every_changed_byte_is_found_and_named(made: BundleMade, chosen: st.DataObject) -> None:
    place = chosen.draw(st.integers(0, len(made.data) - 1))
    changed = bytearray(made.data)
    changed[place] ^= chosen.draw(st.integers(1, 255))
    report = verified(bytes(changed))
    assert not report.ok
    member, line = region(made.data, place)
    found = named(report)
    if line is not None:
        assert (member, line) in found, (place, found)
    elif member is not None:
        # A header that announces another name or length makes the archive itself unreadable there.
        assert member in {name for name, _ in found} or any(name not in made_names(made) for name, _ in found)


def made_names(made: BundleMade) -> set[str]:
    return set(members_of(made.data))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.data())
def test_bytes_removed_or_added_are_found(made: BundleMade, chosen: st.DataObject) -> None:
    place = chosen.draw(st.integers(0, len(made.data)))
    length = chosen.draw(st.integers(1, 50))
    if chosen.draw(st.booleans()):
        changed = made.data[:place] + made.data[place + length :]
        if changed == made.data:
            return
    else:
        changed = (
            made.data[:place] + chosen.draw(st.binary(min_size=length, max_size=length)) + made.data[place:]
        )
    assert not verified(changed).ok


def lines_of(members: Mapping[str, bytes], name: str) -> list[bytes]:
    return members[name].splitlines(keepends=True)


@pytest.mark.parametrize(
    ("attack", "sequence"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], 4),  # an entry removed
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 4),  # two swapped
        (lambda lines: [*lines[:3], *lines[2:]], 3),  # one there twice
        (lambda lines: lines[:-1], 5),  # the last one cut off
        (lambda lines: lines[1:], 2),  # the first one cut off
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 6),  # the end of the last line
        (lambda lines: [], 0),
    ],
)
def test_entries_removed_moved_or_repeated_are_named_though_the_manifest_fits(
    made: BundleMade, attack: Callable[[list[bytes]], list[bytes]], sequence: int
) -> None:
    members = members_of(made.data)
    members[PHONES] = b"".join(attack(lines_of(members, PHONES)))
    report = verified(repacked(members))
    assert not report.ok
    assert (PHONES, sequence) in named(report), report.findings
    assert {each.cohort for each in report.findings} <= {"phones", None}, "the other cohort is blameless"
    assert report.cohorts[1].ok


@pytest.mark.parametrize(
    "name", [PHONES, bundle.HEADS, bundle.PUBLIC_KEY, bundle.FORMAT_NOTE, bundle.MANIFEST]
)
def test_members_removed_added_or_renamed_are_named(made: BundleMade, name: str) -> None:
    members = members_of(made.data)
    without = {each: data for each, data in members.items() if each != name}
    assert name in {member for member, _ in named(verified(container.pack(without)))}
    renamed = {("x.txt" if each == name else each): data for each, data in members.items()}
    assert {"x.txt", name} & {member for member, _ in named(verified(container.pack(renamed)))}
    added = {**members, "z.txt": b"more"}
    assert "z.txt" in {member for member, _ in named(verified(container.pack(added)))}


def forged(
    data: bytes,
    change: Callable[[int, dict[str, Any]], None],
    *,
    signer: SigningKey | None = None,
    member: str = PHONES,
    only: int | None = None,
) -> bytes:
    """Return a bundle whose bodies were changed and whose digests were all made anew, signed by `signer`.

    `only` is the entry that is changed, if it is one: the others are not read.
    """
    members = members_of(data)
    previous, lines, cohort, sequence = bytes(32), [], "", 0
    for line in lines_of(members, member):
        number, _, _, content = line[:-1].split(b" ", 3)
        cohort, sequence = cohort or canonical.decode(content)["cohort"], int(number)
        if only in (None, sequence):
            body = canonical.decode(content)
            change(sequence, body)
            content = canonical.encode(body)
        digest = entries.entry_digest(
            cohort=cohort, sequence=sequence, previous_digest=previous, body=content
        )
        lines.append(f"{sequence} {previous.hex()} {digest.hex()} ".encode() + content + b"\n")
        previous = digest
    members[member] = b"".join(lines)
    if signer is not None:
        old = saved_heads(json.loads(members[bundle.HEADS])).checkpoint
        assert old is not None
        moved = [CheckpointHead(cohort=cohort, sequence=sequence, digest_hex=previous.hex())]
        others = [head for head in old.heads if head.cohort != cohort]
        signed = resigned(old, signer, heads=tuple(sorted([*moved, *others], key=lambda head: head.cohort)))
        members[bundle.HEADS] = bundle.json_bytes(signed.to_json())
        members[bundle.PUBLIC_KEY] = signer.public_key_bytes.hex().encode() + b"\n"
    manifest = json.loads(members[bundle.MANIFEST])
    return repacked(members, tuple(item["cohort"] for item in manifest["cohorts"]))


def resigned(old: Checkpoint, signer: SigningKey, **changes: Any) -> Checkpoint:
    unsigned = dataclasses.replace(old, public_key=signer.public_key_bytes, **changes)
    return dataclasses.replace(unsigned, signature=signer.sign(unsigned.signed_bytes()))


def by_another(sequence: int, body: dict[str, Any]) -> None:
    if sequence == 2:
        body["actor"] = body["actor"] + "s"


def test_a_rewritten_chain_does_not_end_with_the_signed_head(made: BundleMade) -> None:
    report = verified(forged(made.data, by_another))
    assert named(report) == {(PHONES, 6)}


def test_a_rewritten_chain_with_another_key_is_found_by_whoever_knows_the_key(
    made: BundleMade, key: SigningKey, lived: Store
) -> None:
    rewritten = forged(made.data, by_another, signer=SigningKey.generate())
    assert verified(rewritten).ok, "nothing in it tells, and the report says that nobody vouched for the key"
    assert verified(rewritten).signature == "valid"
    report = verified(rewritten, trusted_public_key=key.public_key_bytes)
    assert named(report) == {(bundle.HEADS, None)}
    # Even its owner cannot rewrite what somebody kept the head of.
    rewritten = forged(made.data, by_another, signer=key)
    assert verified(rewritten, trusted_public_key=key.public_key_bytes).ok
    kept = saved_heads(heads(lived))
    assert named(verified(rewritten, against=kept)) == {(PHONES, 6)}


def test_a_signature_over_other_heads_is_refused(made: BundleMade, key: SigningKey) -> None:
    members = members_of(made.data)
    content = json.loads(members[bundle.HEADS])
    content["heads"][0]["sequence"] = 5
    members[bundle.HEADS] = bundle.json_bytes(content)
    assert (bundle.HEADS, None) in named(verified(repacked(members)))


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59"])
def test_heads_of_a_moment_that_there_is_not_in_utc_are_refused(made: BundleMade, moment: str) -> None:
    members = members_of(made.data)
    content = {**json.loads(members[bundle.HEADS]), "created_at": moment}
    members[bundle.HEADS] = bundle.json_bytes(content)
    assert (bundle.HEADS, None) in named(verified(repacked(members), numbers="none"))


def half(body: dict[str, Any], *path: str) -> None:
    for name in path[:-1]:
        body = body[name]
    body[path[-1]] = body[path[-1]] / 2


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every value in a body is that holds no others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = False
    for name, each in inner:
        found = True
        yield from leaves(each, (*path, name))
    if not found:
        yield path


def altered(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.001 + 1e-9
        case str():
            return value[:-1] + ("y" if value.endswith("x") else "x")
        case _:
            return 7


MANIFEST_LIES: list[Callable[[dict[str, Any]], None]] = [
    lambda manifest: manifest.update(format="shuffle-ledger-bundle-2"),
    lambda manifest: manifest.update(more=1),
    lambda manifest: manifest["cohorts"].reverse(),
    lambda manifest: manifest["cohorts"].pop(),
    lambda manifest: manifest["cohorts"][0].update(cohort="tablets"),
    lambda manifest: manifest["cohorts"][0].update(entries=7),
    lambda manifest: manifest["cohorts"][0]["head"].update(sequence=5),
    lambda manifest: manifest["cohorts"][0].update(member=TABLETS),
    lambda manifest: manifest["members"].reverse(),
    lambda manifest: manifest["members"].pop(),
    lambda manifest: manifest["members"][0].update(bytes=1),
    lambda manifest: manifest["members"][1].update(sha256="0" * 64),
]


@pytest.mark.parametrize("lie", MANIFEST_LIES)
def test_a_manifest_that_lies_is_named(made: BundleMade, lie: Callable[[dict[str, Any]], None]) -> None:
    members = members_of(made.data)
    manifest = json.loads(members[bundle.MANIFEST])
    lie(manifest)
    report = verified(container.pack({**members, bundle.MANIFEST: bundle.json_bytes(manifest)}))
    assert bundle.MANIFEST in {member for member, _ in named(report)}


def charged(factor: Fraction) -> Callable[[int, dict[str, Any]], None]:
    """Returns a change that multiplies all costs by `factor`, with everything that follows from them."""
    found: list[tuple[BudgetPolicy, State]] = []
    charges: dict[str, Charge] = {}

    def scaled(cost: Cost) -> Cost:
        parts: dict[str, Any] = {
            name: tuple(min(int(factor * one), UNBOUNDED) for one in getattr(cost, name))
            for name in ("gaussian", "divergences")
        }
        return dataclasses.replace(cost, **parts)

    def change(sequence: int, body: dict[str, Any]) -> None:
        details = body["details"]
        if sequence == 1:
            policy = BudgetPolicy.from_details("adaptive", details)
            found.append((policy, policy.state_in(details)))
            return
        policy, state = found.pop()
        cost, round_id = scaled(read(Cost, details["cost"])), body["round_id"]
        if body["kind"] == "settled":
            known = Round(charges={"budget": charges[round_id]})
            posting = restated(state, known, Described.STATED, Cause.CORRECT, cost)
            asked = total = posting.total
        else:
            posting = decided(state, cost)
            assert posting.charge is not None
            asked = machine.added(state.rules, state.total, posting.charge)
            total = asked if body["kind"] == "admitted" else state.total
        assert posting.charge is not None
        charges[round_id] = posting.charge
        details |= {"cost": spelled(cost), "charge": spelled(posting.charge)}
        details["standing"]["total"] = spelled(total)
        after = dataclasses.replace(state, total=total)
        found.append((policy, after))
        told = {"spent": (body, after)}
        if details.get("requested"):
            told["requested"] = (details, dataclasses.replace(state, total=asked))
        for name, (place, reached) in told.items():
            place[name] = policy.spending(reached, rounds=place[name]["rounds"]).to_mapping()

    return change


@pytest.mark.slow
def test_charges_a_little_too_small_are_found_though_everything_else_fits(
    made: BundleMade, key: SigningKey
) -> None:
    """One in a hundred, from the first entry to the head, signed with the right key."""
    assert verified(forged(made.data, charged(Fraction(1)), signer=key, member=TABLETS), numbers="all").ok
    report = verified(
        forged(made.data, charged(Fraction(99, 100)), signer=key, member=TABLETS), numbers="all"
    )
    assert (TABLETS, 2) in named(report)
    assert {each.sequence for each in report.findings} <= {2, 3, 4}
    assert all("too small" in each.what for each in report.findings)


@pytest.mark.parametrize("said", [0.01, 9.0])
def test_what_is_said_to_be_spent_is_what_filters_say(made: BundleMade, key: SigningKey, said: float) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 3:
            body["spent"].update(epsilon_upper=said, epsilon_lower=said)

    report = verified(forged(made.data, change, signer=key), numbers="all")
    assert (PHONES, 3) in named(report), report.findings


@pytest.mark.slow
def test_charges_too_large_are_sound_and_noted(made: BundleMade, key: SigningKey) -> None:
    report = verified(forged(made.data, charged(Fraction(5, 4)), signer=key, member=TABLETS), numbers="all")
    assert report.ok, report.findings
    assert (TABLETS, 2) in {(each.member, each.sequence) for each in report.notes}
    assert "more than its round needs" in report.notes[0].what


def test_of_used_up_filters_no_number_can_be_stated(made: BundleMade, key: SigningKey) -> None:
    """Every charge times a million million: all filters are used up, and half of epsilon is claimed."""
    enlarged = charged(Fraction(10**12))

    def change(sequence: int, body: dict[str, Any]) -> None:
        enlarged(sequence, body)
        if sequence > 1:
            body["spent"].update(epsilon_lower=0.0, epsilon_upper=0.5)

    report = verified(forged(made.data, change, signer=key, member=TABLETS), numbers="none")
    said = [each.what for each in report.findings if each.sequence == 2]
    assert any("the filters say unbounded" in what for what in said), report


def values() -> st.SearchStrategy[Any]:
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False)
        | st.text(max_size=5)
    )
    return (
        plain
        | st.lists(plain, max_size=2)
        | st.dictionaries(st.sampled_from(["kind", "k", "x"]), plain, max_size=2)
    )


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.data())
def test_no_content_however_signed_breaks_the_verifier(
    made: BundleMade, key: SigningKey, chosen: st.DataObject
) -> None:
    target = chosen.draw(st.integers(1, 6))

    def change(sequence: int, body: dict[str, Any]) -> None:
        place: Any = body
        if sequence != target:
            return
        for _ in range(chosen.draw(st.integers(0, 3))):
            inner = [each for each in place.values() if isinstance(each, dict) and each]
            place = chosen.draw(st.sampled_from(inner)) if inner else place
        name = chosen.draw(st.sampled_from(sorted(place)))
        if chosen.draw(st.booleans()):
            del place[name]
        else:
            place[name] = chosen.draw(values())

    def usable(sequence: int, body: dict[str, Any]) -> None:
        change(sequence, body)
        body["cohort"] = "phones"

    numbers = chosen.draw(st.sampled_from(["none", "none", "none", "none", "all"]))
    report = verified(forged(made.data, usable, signer=key), numbers=numbers)
    assert report.cohorts[1].ok or not report.ok


def test_a_bundle_extends_what_was_kept(lived: Store, accountant: Accountant, key: SigningKey) -> None:
    earlier = make_checkpoint(lived, key)
    first = make_bundle(lived, ["phones"], checkpoint=earlier)
    Clerk(lived, accountant).ask(krr(1_000), name="d")
    kept = SavedHeads(heads=earlier.heads, signature="valid", checkpoint=earlier)
    second = make_bundle(lived, ["phones"], signing_key=key)
    report = verified(second.data, against=kept)
    assert report.ok
    assert report.compared_with == 1
    assert report.not_in_bundle == ("tablets",)
    # The old bundle does not reach the new head.
    later = make_checkpoint(lived, key)
    newer = SavedHeads(heads=later.heads, signature="valid", checkpoint=later)
    assert named(verified(first.data, against=newer)) == {(PHONES, 7)}
    other = resigned(earlier, key, ledger_id="0" * 32)
    strange = SavedHeads(heads=other.heads, signature="valid", checkpoint=other)
    assert named(verified(second.data, against=strange)) == {(None, None)}


def test_a_cohort_that_the_ledger_no_longer_has_is_named(lived: Store) -> None:
    here = saved_heads(heads(lived))
    gone = CheckpointHead(cohort="gone", sequence=3, digest_hex="0" * 64)
    for names in (["phones"], ["phones", "tablets"]):
        made = make_bundle(lived, names)
        assert verified(made.data, against=here).ok
        report = verified(made.data, against=dataclasses.replace(here, heads=(*here.heads, gone)))
        assert [each.cohort for each in report.findings] == ["gone"]
        assert not report.vouched


def test_an_unsigned_bundle_says_so(lived: Store, key: SigningKey) -> None:
    made = make_bundle(lived, ["phones"])
    assert (made.public_key, bundle.PUBLIC_KEY in members_of(made.data)) == (None, False)
    report = verified(made.data)
    assert report.ok
    assert (report.signature, report.public_key) == ("none", None)
    # An auditor with a trusted key expects a signature.
    assert named(verified(made.data, trusted_public_key=key.public_key_bytes)) == {(bundle.HEADS, None)}


def test_a_bundle_without_chains_is_never_vouched_for(lived: Store, key: SigningKey, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(lived, key)
    without_heads: dict[str, Any] = {"format": "shuffle-ledger-heads-1", "heads": []}
    unsigned = repacked({bundle.HEADS: bundle.json_bytes(without_heads)})
    signed = make_bundle(lived, [], checkpoint=checkpoint).data
    cases: tuple[tuple[bytes, dict[str, Any]], ...] = (
        (unsigned, {}),
        (unsigned, {"against": saved_heads(without_heads)}),
        (signed, {"trusted_public_key": key.public_key_bytes}),
        (signed, {"against": saved_heads(heads(lived))}),
    )
    for data, options in cases:
        report = verified(data, **options)
        assert not report.vouched
        assert "it contains no chain" in report.findings[0].what
    assert "it lists no chain" in by_the_example(unsigned, tmp_path / "empty.zip")


def test_no_bundle_is_made_of_a_chain_that_does_not_reach_its_head(lived: Store, key: SigningKey) -> None:
    checkpoint = make_checkpoint(lived, key)
    later = dataclasses.replace(checkpoint.heads[0], sequence=9)
    with pytest.raises(Damaged, match="entry 9"):
        make_bundle(lived, ["phones"], checkpoint=dataclasses.replace(checkpoint, heads=(later,)))
    with pytest.raises(NotFound, match="nobody"):
        make_bundle(lived, ["nobody"])


def test_a_container_has_its_limits() -> None:
    with pytest.raises(InvalidValue, match="bundle"):
        container.pack({f"{number}": b"" for number in range(container.MEMBERS_MAX + 1)})
    for data in (b"", b"PK", b"PK\x03\x04", b"PK\x03\x04" + bytes(26), b"x" * 1000):
        assert not verified(data).ok


@functools.cache
def example_module() -> ModuleType:
    """Return the independent verifier as a module."""
    spec = importlib.util.spec_from_file_location("verify_bundle_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_the_example(data: bytes, path: Path) -> str:
    """Return what the independent verifier, run in this process, prints of a bundle; nothing if it holds."""
    path.write_bytes(data)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.setattr(sys, "argv", [str(EXAMPLE), str(path)])
        code = int(example_module().main())
    said = printed.getvalue()
    assert code in (0, 1)
    assert (code == 0) == said.startswith("Digests, chains and heads hold"), said
    return said if code else ""


def test_the_independent_verifier_agrees_and_needs_nothing(made: BundleMade, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 610
    path = tmp_path / "bundle.zip"
    path.write_bytes(made.data)
    # -S and -E: no package of ours or anybody's can be imported.
    command = [sys.executable, "-S", "-E", str(EXAMPLE), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "were not checked" in done.stdout


@pytest.mark.parametrize(
    ("attack", "word"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "entry 3"),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "entry 3"),
        (lambda lines: lines[:-1], "heads.json says otherwise"),
        (lambda lines: [lines[0], lines[1].replace(b'"ada"', b'"eve"'), *lines[2:]], "entry 2"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "its last line is not ended"),
    ],
)
def test_the_independent_verifier_names_what_was_tampered_with(
    made: BundleMade, tmp_path: Path, attack: Callable[[list[bytes]], list[bytes]], word: str
) -> None:
    members, path = members_of(made.data), tmp_path / "bundle.zip"
    members[PHONES] = b"".join(attack(lines_of(members, PHONES)))
    assert word in by_the_example(repacked(members), path)
    # The same without a manifest that fits, and with an archive that is none.
    packed = container.pack({**members_of(made.data), PHONES: members[PHONES]})
    assert "SHA-256 is not the one in the manifest" in by_the_example(packed, path)
    assert by_the_example(made.data[: len(made.data) // 2], path)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_any_changed_byte_of_the_archive_ends_both_verifiers_with_a_verdict(
    made: BundleMade, tmp_path: Path, mask: int
) -> None:
    members, path = members_of(made.data), tmp_path / "bundle.zip"
    headers: list[int] = []
    start = 0
    for name, content in members.items():
        headers += range(start, start + 30 + len(name))
        start += 30 + len(name) + len(content)
    for place in [*headers, *range(start, len(made.data))]:
        changed = bytearray(made.data)
        changed[place] ^= mask
        by_the_example(bytes(changed), path)
        assert open_bundle(bytes(changed)).findings.listed, place


@pytest.mark.parametrize("note", [None, b"", b"# What this is\n"])
def test_a_bundle_without_its_note_is_found(made: BundleMade, tmp_path: Path, note: bytes | None) -> None:
    """The manifest fits: only the note itself is another one, or none."""
    members = members_of(made.data)
    cohorts = [each["cohort"] for each in json.loads(members["manifest.json"])["cohorts"]]
    others = {name: data for name, data in members.items() if name not in ("manifest.json", "FORMAT.md")}
    if note is not None:
        others = dict(sorted({**others, "FORMAT.md": note}.items()))
    data = container.pack({"manifest.json": bundle.manifest_bytes(others, cohorts), **others})
    assert [each.member for each in open_bundle(data).findings.listed] == ["FORMAT.md"]
    assert by_the_example(data, tmp_path / "bundle.zip")
