"""An attacker with write access can change the database; verification names the change."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.decisions import admit, register, settle, void
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.reports.budgets import heads
from shuffle_ledger.ledger.storage.rows import StoredLoss
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry, Spending
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.values.saved_heads import HEADS_FORMAT, read_saved_heads, saved_heads
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification.replay import Replay
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.attack import disarmed, rewrite
from tests.ledger.clerk import open_as_usual

MakeRequest = Callable[..., RoundRequest]
TABLES = ("cohorts", "rounds", "entries", "heads", "holdings", "accounted_rounds", "privacy_losses")
FLIPPED_EVERY = 6  # bytes; entries begin at different ones, and each takes a replay


@pytest.fixture
def lived(phones: Store, accountant: Accountant, make_request: MakeRequest) -> Store:
    """Return a ledger with entries of every kind."""
    for name, changes in (
        ("a", {}),
        ("b", {"reports": 2_000}),
        ("c", {"epsilon0": 8.0, "reports": 5}),
        ("d", {}),
    ):
        register(phones, make_request(name, **cast("dict[str, Any]", changes)), actor="tester")
        admit(phones, accountant, name)
        if name == "a":
            settle(phones, accountant, "a", reports=900, actor="tester")
        if name == "b":
            void(phones, accountant, "b", reason="a bug", actor="tester")
    register(phones, make_request("e"), actor="tester")
    return phones


def problems(store: Store, accountant: Accountant, **options: Any) -> list[tuple[int | None, str]]:
    report = verify(store, accountant, "phones", **options)
    assert report.ok == (not report.cohorts[0].problems)
    return [(problem.sequence, problem.what) for problem in report.cohorts[0].problems]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_admission_whose_rounds_compose_to_more_than_the_budget_is_named(
    lived: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The composition is checked apart from the chain and the machine."""
    budget = lived.cohort("phones").epsilon_budget

    def beyond(_: LossSource, held: object, *, delta: float, budget: float | None = None) -> Spending:
        return dataclasses.replace(Spending.nothing(delta), epsilon_lower=more, epsilon_upper=math.inf)

    more = math.nextafter(budget, math.inf)
    monkeypatch.setattr(LossSource, "certify", beyond)
    found = [place for place, what in problems(lived, accountant, numbers="all") if "admits a round" in what]
    assert found == [entry.sequence for entry in lived.entries_of("phones") if entry.kind == "admitted"]
    more = budget
    found = [place for place, what in problems(lived, accountant, numbers="all") if "admits a round" in what]
    assert found == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_second_closing_of_a_round_is_named(lived: Store, accountant: Accountant) -> None:
    settled = lived.entry("phones", 3).content()

    def again(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, kind=settled.kind, round_id="a", details=settled.details)

    rewrite(lived, 5, again)
    assert (5, "it closes round 'a', which is not admitted and open") in problems(lived, accountant)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_bound_on_what_is_spent_below_that_of_the_charges_is_named(
    lived: Store, accountant: Accountant
) -> None:
    def less(body: EntryBody) -> EntryBody:
        said = dataclasses.replace(
            body.spent, epsilon_upper=0.9 * body.spent.epsilon_lower, epsilon_lower=0.0
        )
        return dataclasses.replace(body, spent=said, details={**body.details, "requested": said.to_mapping()})

    rewrite(lived, 4, less)
    found = [what for place, what in problems(lived, accountant) if place == 4]
    assert sum("it says epsilon of what is spent is up to" in what for what in found) == 1, found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_untouched_ledger_is_sound(lived: Store, accountant: Accountant) -> None:
    assert [entry.kind for entry in lived.entries_of("phones")] == [
        "opened",
        "admitted",
        "settled",
        "admitted",
        "voided",
        "refused",
        "admitted",
    ]
    report = verify(lived, Accountant(), numbers="all", against=saved_heads(heads(lived)))
    assert report.ok, report
    assert (report.cohorts[0].entries, report.cohorts[0].numbers_checked) == (7, 7)


@pytest.mark.parametrize("table", TABLES[:-2] + TABLES[-1:])
def test_the_database_itself_refuses(lived: Store, table: str) -> None:
    changes = {
        "cohorts": ["UPDATE cohorts SET population = 1", "DELETE FROM cohorts"],
        "rounds": [
            "UPDATE rounds SET content = content_digest",
            "UPDATE rounds SET outcome_sequence = NULL",
            "DELETE FROM rounds",
        ],
        "entries": [
            "UPDATE entries SET body = digest",
            "UPDATE entries SET kind = kind",
            "DELETE FROM entries",
        ],
        "heads": ["UPDATE heads SET sequence = sequence - 1", "DELETE FROM heads"],
        "holdings": ["UPDATE holdings SET count = -1"],
        "privacy_losses": ["UPDATE privacy_losses SET blob = digest"],
    }[table]
    if lived._engine.dialect.name == "postgresql" and table != "privacy_losses":
        changes.append(f"TRUNCATE {table} CASCADE")
    for change in changes:
        with pytest.raises(DBAPIError), lived._engine.begin() as connection:
            connection.execute(text(change))


@pytest.mark.parametrize(
    "values",
    [
        {"sequence": 8, "kind": "admitted", "round_id": None},
        {"sequence": 8, "kind": "opened"},
        {"sequence": 8, "digest": b"short"},
        {"sequence": 7},
    ],
)
def test_the_database_refuses_entries_that_do_not_continue_the_chain(
    lived: Store, values: dict[str, Any]
) -> None:
    last = list(lived.entries_of("phones"))[-1]
    good = {
        "cohort": "phones",
        "sequence": 8,
        "kind": "settled",
        "round_id": "d",
        "body": b"{}",
        "previous_digest": last.digest,
        "digest": bytes(32),
        "position": 1_000,
    }
    insert = text(
        "INSERT INTO entries VALUES"
        " (:cohort, :sequence, :kind, :round_id, :body, :previous_digest, :digest, :position)"
    )
    with pytest.raises(DBAPIError), lived._engine.begin() as connection:
        connection.execute(insert, good | values)
    with lived._engine.connect() as connection:
        connection.execute(insert, good)  # what was refused above was refused for the change alone
        connection.rollback()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the bytes are the same on both
def test_a_flipped_byte_of_any_entry_is_named(lived: Store) -> None:
    entries = list(lived.entries_of("phones"))
    flips = 0
    for index, entry in enumerate(entries):
        before, after = replayed(entries[:index]), entries[index + 1 : index + 2]
        for column in ("body", "digest", "previous_digest"):
            data: bytes = getattr(entry, column)
            for place in range(index, len(data), FLIPPED_EVERY):
                flipped = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
                flips += 1
                found = first_named(before, [with_column(entry, column, flipped), *after])
                assert found == entry.sequence, (entry.sequence, column, place)
        for column, value in (("kind", "voided "), ("round_id", "z"), ("cohort", "tablets")):
            assert first_named(before, [with_column(entry, column, value), *after]) == entry.sequence
    assert flips > 5_000 / FLIPPED_EVERY


def with_column(entry: LedgerEntry, column: str, value: object) -> LedgerEntry:
    changes: dict[str, Any] = {column: value}
    return dataclasses.replace(entry, **changes)


def replayed(entries: list[LedgerEntry]) -> Replay:
    """Return the state after replaying the beginning of a chain, in which nothing is wrong."""
    replay = Replay(store=stub(entries), cohort="phones")
    assert len(list(replay.steps())) == len(entries)
    assert replay.problems == []
    return replay


def first_named(before: Replay, entries: list[LedgerEntry]) -> int | None:
    """Return the entry that is blamed first when these follow."""
    replay = copy.deepcopy(before)
    replay.store = stub(entries)
    for _ in replay.steps():
        if replay.problems:
            break
    return min(problem.sequence or 0 for problem in replay.problems) if replay.problems else None


def stub(entries: list[LedgerEntry]) -> Store:
    """Return a store that has these entries and nothing else."""
    return cast("Store", SimpleNamespace(entries_of=lambda _: iter(entries)))


@pytest.mark.policies
@pytest.mark.parametrize(
    ("change", "sequence", "word"),
    [
        (
            "UPDATE entries SET body = (SELECT body FROM entries WHERE sequence = 4) WHERE sequence = 2",
            2,
            "changed",
        ),
        ("UPDATE entries SET sequence = sequence + 100 WHERE sequence IN (2, 4)", 3, "missing"),
        ("DELETE FROM entries WHERE sequence = 3", 4, "missing"),
        ("DELETE FROM entries WHERE sequence = 7", None, "head"),
        ("UPDATE holdings SET count = 0", None, "holding"),
        ("DELETE FROM holdings", None, "holding"),
        ("UPDATE accounted_rounds SET parameters = digest", None, ""),
        ("UPDATE rounds SET content = content_digest WHERE round_id = 'b'", 4, "content"),
        (
            "UPDATE rounds SET outcome_sequence = NULL, closing_sequence = NULL WHERE round_id = 'b'",
            None,
            "'b'",
        ),
        ("UPDATE rounds SET registered_by = 'nobody' WHERE round_id = 'a'", 2, "'a'"),
        ("UPDATE heads SET status = 'overspent'", None, "overspent"),
        ("UPDATE heads SET epsilon_budget = 100", None, "budget"),
        ("UPDATE heads SET used_share = 0", None, "used share"),
        ("UPDATE cohorts SET population = 100", None, "opened"),
        ("UPDATE privacy_losses SET blob = digest", 2, "privacy loss"),
        ("UPDATE rounds SET registration = 77 WHERE round_id = 'a'", 2, "otherwise when"),
        (
            "UPDATE rounds SET registered_at = opened_at FROM cohorts WHERE round_id = 'd'",
            7,
            "otherwise when",
        ),
        ("UPDATE heads SET admitted = admitted - 1, refused = refused + 1", None, "counts"),
        ("DELETE FROM rounds WHERE round_id = 'e'", None, "'e': it was registered, pending"),
        ("DELETE FROM rounds WHERE round_id = 'd'", 7, "'d': its registered row is missing"),
        ("DELETE FROM registrations WHERE round_id = 'e'", None, "'e': it is not in the list"),
    ],
)
def test_changed_tables_are_named(
    lived: Store, accountant: Accountant, change: str, sequence: int | None, word: str
) -> None:
    with disarmed(lived) as connection:
        connection.execute(text(change))
    found = problems(lived, accountant)
    assert found, change
    assert any(place == sequence and word in what for place, what in found), found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_cut_tail_is_found_by_saved_heads(lived: Store, accountant: Accountant, tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(heads(lived)))
    with disarmed(lived) as connection:  # carefully, so that everything left fits together
        connection.execute(text("DELETE FROM entries WHERE sequence >= 6"))
        connection.execute(text("DELETE FROM rounds WHERE round_id IN ('c', 'd')"))
        connection.execute(text("DELETE FROM registrations WHERE round_id IN ('c', 'd')"))
        move = (
            "UPDATE heads SET sequence = 5, digest = (SELECT digest FROM entries WHERE sequence = 5),"
            " admitted = 2, refused = 0, used_share = :used_share"
        )
        connection.execute(text(move), {"used_share": lived.entry("phones", 5).content().used_share})
        connection.execute(text("UPDATE holdings SET count = 0, local_count = 1 WHERE local_count = 2"))
    assert problems(lived, accountant) == []
    found = problems(lived, accountant, against=read_saved_heads(path))
    assert len(found) == 1
    assert found[0][0] == 7
    assert "missing" in found[0][1]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_lost_cohort_is_found_by_saved_heads(lived: Store, accountant: Accountant) -> None:
    saved = heads(lived)
    saved["heads"].append({"cohort": "tablets", "sequence": 3, "digest": "00" * 32})
    report = verify(lived, accountant, against=saved_heads(saved))
    assert [(found.cohort, found.ok) for found in report.cohorts] == [("phones", True), ("tablets", False)]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_rewritten_chain_is_found_by_its_numbers_and_by_saved_heads(
    lived: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    saved = heads(lived)
    small = Spending(
        **vars(Spending.nothing(1e-9)) | {"epsilon_upper": 0.9, "epsilon_lower": 0.89, "rounds": 2}
    )
    greedy = make_request("c", epsilon0=8.0, reports=5)

    def forge(body: EntryBody) -> EntryBody:  # the refused round becomes an admitted one at a modest price
        accounted = slot_for(greedy.round).to_mapping()
        details = {**body.details, "accounted": accounted, "requested": small.to_mapping()}
        del details["reason"], details["message"]
        kind = type(body.kind)("admitted")
        return dataclasses.replace(body, kind=kind, spent=small, details=details)

    rewrite(lived, 6, forge, cohort="phones")
    found = problems(lived, accountant, against=saved_heads(saved))
    assert any(place == 6 and "details.requested.method does not follow" in what for place, what in found), (
        found
    )
    assert any(place == 7 and "rewritten" in what for place, what in found), found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_planted_privacy_loss_decides_nothing(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """The loss of a harmless round, stored with a right digest where a costly round's is looked for."""
    harmless = make_request("x", epsilon0=0.5, reports=100_000).round
    costly = make_request("y", epsilon0=6.0, reports=500).round
    blob = accountant.privacy_loss(slot_for(harmless)).to_bytes()
    key = entries.loss_key(entries.round_bytes(slot_for(costly)), NUMERICAL_POLICY)
    phones.insert_losses([StoredLoss(key=key, digest=entries.loss_digest(blob), blob=blob)])
    register(phones, make_request("y", epsilon0=6.0, reports=500), actor="tester")
    assert isinstance(admit(phones, Accountant(), "y"), Refused)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_of_a_planted_privacy_loss_nothing_gets_into_a_chain(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    request = make_request("x", epsilon0=0.5, reports=100_000)
    other = accountant.privacy_loss(slot_for(make_request("y", epsilon0=6.0, reports=500).round)).to_bytes()
    key = entries.loss_key(entries.round_bytes(slot_for(request.round)), NUMERICAL_POLICY)
    phones.insert_losses([StoredLoss(key=key, digest=entries.loss_digest(other), blob=other)])
    register(phones, request, actor="tester")
    assert isinstance(admit(phones, Accountant(), "x"), Admitted)
    own = entries.loss_digest(Accountant().privacy_loss(slot_for(request.round)).to_bytes())
    stated = list(phones.entries_of("phones"))[-1].content().details["privacy_loss"]
    assert stated == own.hex()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE heads SET epsilon_budget = 100 WHERE cohort = 'phones'",
        "DELETE FROM holdings WHERE cohort = 'phones'",
        "UPDATE accounted_rounds SET parameters = (SELECT content FROM rounds WHERE round_id = 'a')",
        "UPDATE heads SET digest = (SELECT digest FROM entries WHERE sequence = 2)",
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_nothing_is_decided_on_edited_rows(
    lived: Store, accountant: Accountant, make_request: MakeRequest, statement: str
) -> None:
    register(lived, make_request("late", reports=300, epsilon0=2.0), actor="tester")
    with disarmed(lived) as connection:
        connection.execute(text(statement))
    # As another process would: one that has read the parameters before knows them, whatever the rows say.
    url = lived.engine.url.render_as_string(hide_password=False)
    with Store.connect(url) as elsewhere, pytest.raises(Damaged):
        admit(elsewhere, accountant, "late")
    assert lived.round("late").outcome_sequence is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_round_whose_registered_content_was_edited_is_not_decided(
    lived: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    register(lived, make_request("late"), actor="tester")
    with disarmed(lived) as connection:
        other = make_request("other").to_bytes()
        connection.execute(text("UPDATE rounds SET content = :c WHERE round_id = 'late'"), {"c": other})
    with pytest.raises(Damaged):
        admit(lived, accountant, "late")


@pytest.mark.policies
@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM heads WHERE cohort = 'phones'"],
        ["DELETE FROM heads WHERE cohort = 'phones'", "DELETE FROM cohorts WHERE name = 'phones'"],
        ["DELETE FROM rounds WHERE round_id = 'd'"],
    ],
)
def test_what_disappeared_is_missed(lived: Store, accountant: Accountant, statements: list[str]) -> None:
    with disarmed(lived) as connection:
        for statement in statements:
            connection.execute(text(statement))
    report = verify(lived, accountant, None)
    assert not report.ok
    assert [found.cohort for found in report.cohorts if not found.ok] == ["phones"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the other one knows its types
@pytest.mark.policies
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("UPDATE entries SET body = 'text' WHERE sequence = 4", "entry 4 holds"),
        ("UPDATE entries SET digest = 5 WHERE sequence = 4", "entry 4 holds"),
        ("UPDATE entries SET sequence = 'four' WHERE sequence = 4", "entry 'four' holds"),
        ("UPDATE entries SET kind = x'00' WHERE sequence = 4", "entry 4 holds"),
        ("UPDATE heads SET sequence = 'seven'", ""),
        ("UPDATE heads SET digest = 'text'", ""),
        ("UPDATE cohorts SET population = 'many'", ""),
        ("UPDATE cohorts SET opened_at = 'yesterday'", ""),
        ("UPDATE rounds SET content = 1.5 WHERE round_id = 'a'", ""),
        ("UPDATE rounds SET registered_at = 'once' WHERE round_id = 'a'", ""),
        ("UPDATE rounds SET cohort = x'ff' WHERE round_id = 'a'", ""),
        ("UPDATE holdings SET count = 'two'", ""),
        ("UPDATE privacy_losses SET blob = 'text'", ""),
    ],
)
def test_values_of_other_types_are_named_and_stop_nothing(
    lived: Store, accountant: Accountant, change: str, word: str
) -> None:
    open_as_usual(lived, "others", population=10)
    broken = change.replace("UPDATE heads SET", "UPDATE OR IGNORE heads SET")
    with disarmed(lived) as connection:
        connection.execute(text("PRAGMA ignore_check_constraints = ON"))
        where = " AND cohort = 'phones'" if "WHERE" in broken else " WHERE cohort = 'phones'"
        if "cohorts SET" in broken:
            where = " WHERE name = 'phones'"
        connection.execute(text(broken + ("" if "privacy" in broken else where)))
    report = verify(lived, accountant)
    found = {each.cohort: each for each in report.cohorts}
    assert not found["phones"].ok
    assert any(word in problem.what for problem in found["phones"].problems), found["phones"].problems
    assert found["others"].ok


@pytest.mark.policies
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rounds SET attempts = 3, last_error = 'x' WHERE round_id = 'e'",
        "UPDATE rounds SET queued_at = registered_at WHERE round_id = 'e'",
        "DELETE FROM privacy_losses",
    ],
)
def test_what_no_digest_covers_changes_no_answer(lived: Store, accountant: Accountant, change: str) -> None:
    """Counts of attempts, and caches that are recomputed: an edit of them changes no answer."""
    with lived.engine.begin() as connection:
        connection.execute(text(change))
    assert verify(lived, accountant).ok
    assert isinstance(admit(lived, Accountant(), "e"), Refused | Admitted)


@pytest.mark.parametrize(
    "against",
    [
        {"format": "x"},
        {"format": HEADS_FORMAT},
        {"format": HEADS_FORMAT, "heads": 5},
        {"format": HEADS_FORMAT, "heads": [{"cohort": "phones", "sequence": 10**23, "digest": "0" * 64}]},
    ],
)
def test_values_that_are_no_heads_are_refused(against: Any) -> None:
    with pytest.raises(InvalidValue):
        saved_heads(against)


def test_a_cached_loss_that_no_entry_names_is_named(lived: Store, accountant: Accountant) -> None:
    """It was stored for no entry, and changed since: the next round of its kind would read it."""
    kept = accountant.privacy_loss(slot_for(lived_round())).to_bytes()
    key = entries.loss_key(b"a kind that was never decided", NUMERICAL_POLICY)
    lived.insert_losses([StoredLoss(key=key, digest=entries.loss_digest(kept), blob=kept)])
    assert verify(lived, accountant).ok
    with disarmed(lived) as connection:
        connection.execute(text("UPDATE privacy_losses SET blob = digest WHERE key = :key"), {"key": key})
    (what,) = verify(lived, accountant).problems
    assert key.hex() in what


def lived_round() -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": 1.0})
    return ShuffledRound(randomizer=randomizer, reports=500)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_changed_identity_is_found_by_a_checkpoint_alone(lived: Store, accountant: Accountant) -> None:
    checkpoint = make_checkpoint(lived, SigningKey.generate())
    with disarmed(lived) as connection:
        connection.execute(text("UPDATE ledger_identity SET ledger_id = :other"), {"other": "0" * 32})
    assert verify(lived, accountant).ok
    report = verify(lived, accountant, against=saved_heads(checkpoint.to_json()))
    assert [checkpoint.ledger_id in what for what in report.problems] == [True]
