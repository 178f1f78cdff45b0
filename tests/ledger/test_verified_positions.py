"""Verification from signed positions: what it finds at once, and what only whole replays find."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import health as upkeep
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.decisions import correct, open_cohort, register_and_admit, settle, void
from shuffle_ledger.ledger.health import health, verify_oldest
from shuffle_ledger.ledger.recovery import reconcile
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.verified_position import read_position
from shuffle_ledger.ledger.verification import verifier
from shuffle_ledger.ledger.verification.verifier import CohortVerification, verify
from tests.ledger.resuming import assert_resumes_anywhere
from tests.ledger.test_upkeep import _attack as attack

MakeRequest = Callable[..., RoundRequest]
KEY = SigningKey.generate()
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Ledger:
    """A cohort with rounds, verified by a scheduler that has a key."""

    def __init__(self, store: Store, accountant: Accountant, make_request: MakeRequest) -> None:
        self.store, self.accountant, self.make_request = store, accountant, make_request

    def register(self, *names: str) -> None:
        for name in names:
            register_and_admit(self.store, self.accountant, self.make_request(name), actor="tester")

    def schedule(self, key: SigningKey | None = KEY) -> None:
        verify_oldest(self.store, self.accountant, enough=lambda: False, signing_key=key)

    def found(self, key: SigningKey = KEY) -> CohortVerification:
        (found,) = verify(self.store, self.accountant, "phones", positions_of=key.public_key_bytes).cohorts
        return found

    def position(self) -> bytes:
        stored = self.store.verifications()["phones"].position
        assert stored is not None
        return stored

    def put(self, position: bytes) -> None:
        last = self.store.verifications()["phones"]
        self.store.record_verification(
            "phones",
            head=(last.head_sequence, last.head_digest),
            numbers_checked=0,
            problem=None,
            replayed_at=last.replayed_at,
            position=position,
        )


@pytest.fixture
def ledger(phones: Store, accountant: Accountant, make_request: MakeRequest) -> Ledger:
    return Ledger(phones, accountant, make_request)


def test_an_answer_says_which_entries_were_verified_before(ledger: Ledger) -> None:
    ledger.register("a", "b")
    ledger.schedule()
    first = ledger.store.verifications()["phones"]
    ledger.register("c")
    settle(ledger.store, ledger.accountant, "a", reports=500, actor="tester")
    found = ledger.found()
    assert (found.ok, found.entries, found.head_sequence) == (True, 5, 5)
    before = found.verified_before
    assert before is not None
    assert (before.sequence, before.digest) == (3, first.head_digest)
    assert before.verified_at == before.replayed_at == first.replayed_at
    ledger.schedule()
    before = ledger.found().verified_before
    assert before is not None
    assert before.sequence == 5
    assert before.replayed_at == first.replayed_at < before.verified_at  # the whole chain was replayed then


def test_all_numbers_heads_and_other_keys_ask_for_the_whole_chain(ledger: Ledger) -> None:
    ledger.register("a")
    ledger.schedule()
    public = KEY.public_key_bytes
    every = verify(ledger.store, ledger.accountant, numbers="all", positions_of=public).cohorts
    assert [each.verified_before for each in every] == [None]
    assert ledger.found(SigningKey.generate()).verified_before is None
    assert [each.verified_before for each in verify(ledger.store, ledger.accountant).cohorts] == [None]
    ledger.schedule(key=None)
    assert ledger.store.verifications()["phones"].position is None


@ON_SQLITE
@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ("UPDATE entries SET body = replace(body, 'tester', 'nobody') WHERE sequence = 4", 4),
        ("UPDATE entries SET body = replace(body, 'tester', 'nobody') WHERE sequence = 3", 3),
        ("UPDATE holdings SET count = count + 1", None),
        ("UPDATE rounds SET registered_by = 'nobody' WHERE round_id = 'c'", 4),
        ("UPDATE heads SET admitted = admitted - 1, settled = settled + 1", None),
        ("DELETE FROM rounds WHERE round_id = 'c'", 4),
    ],
)
def test_a_change_behind_the_position_is_found_at_once(
    ledger: Ledger, database_url: str, change: str, blamed: int | None
) -> None:
    ledger.register("a", "b")
    ledger.schedule()
    ledger.register("c")
    attack(database_url, change)
    found = ledger.found()
    assert not found.ok
    assert blamed in {problem.sequence for problem in found.problems}
    ledger.schedule()
    assert health(ledger.store).alarms[0].startswith("BROKEN phones: ")


@ON_SQLITE
def test_a_change_beneath_the_position_is_found_by_the_next_whole_replay(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.register("a", "b")
    ledger.schedule()
    ledger.register("c")
    attack(database_url, "UPDATE entries SET body = replace(body, 'tester', 'nobody') WHERE sequence = 2")
    ledger.schedule()
    assert ledger.found().verified_before is not None  # it says that entry 2 was not replayed now
    assert not verify(ledger.store, ledger.accountant).ok
    monkeypatch.setattr(upkeep, "WHOLE_REPLAY_EVERY", timedelta())
    ledger.schedule()
    (alarm,) = health(ledger.store).alarms
    assert alarm.startswith("BROKEN phones: entry 2: ")
    monkeypatch.undo()
    ledger.schedule()  # a damaged chain has no position: it is replayed whole until it is mended
    assert health(ledger.store).alarms == (alarm,)


@ON_SQLITE
def test_an_earlier_entry_is_read_again_with_the_next_one_about_its_round(
    ledger: Ledger, database_url: str
) -> None:
    ledger.register("a", "b")
    ledger.schedule()
    settle(ledger.store, ledger.accountant, "a", reports=400, actor="tester")
    attack(database_url, "UPDATE entries SET body = replace(body, 'tester', 'nobody') WHERE sequence = 2")
    assert {problem.sequence for problem in ledger.found().problems} >= {2}


def test_a_forged_position_is_not_used(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.register("a", "b")
    ledger.schedule()
    true = ledger.position()
    thief = SigningKey.generate()
    forgeries = [
        true.replace(b'"overspent":false', b'"overspent":true'),
        read_position(true, KEY.public_key_bytes).signed(thief),
        true[:-1],
        b'{"position":{},"signature":""}',
    ]
    for forgery in forgeries:
        caplog.clear()
        ledger.put(forgery)
        found = ledger.found()
        assert (found.ok, found.verified_before) == (True, None)
        assert "is not used" in caplog.text
    ledger.put(true)
    assert ledger.found().verified_before is not None


def test_a_position_of_another_cohort_ledger_or_version_is_not_used(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_cohort(
        ledger.store,
        name="tablets",
        population=1000,
        epsilon=1.0,
        delta=1e-9,
        policy="adaptive",
        actor="tester",
    )
    ledger.register("a")
    ledger.schedule()
    own, other = ledger.position(), ledger.store.verifications()["tablets"].position
    assert other is not None
    ledger.put(other)
    assert ledger.found().verified_before is None
    ledger.put(own)
    with monkeypatch.context() as patched:
        patched.setattr(verifier, "SOFTWARE", "shuffle-ledger 99")
        assert ledger.found().verified_before is None
    with monkeypatch.context() as patched:
        patched.setattr(Store, "ledger_id", lambda _: "0" * 32)
        assert ledger.found().verified_before is None
    assert ledger.found().verified_before is not None


def test_whole_replays_come_at_their_pace_and_unverified_speaks_of_them(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.register("a")
    ledger.schedule()
    first = ledger.store.verifications()["phones"].replayed_at
    ledger.schedule()
    assert ledger.store.verifications()["phones"].replayed_at == first
    monkeypatch.setattr(upkeep, "VERIFIED_ALARM_SECONDS", 0.0)
    assert health(ledger.store).cohorts_unverified == 1  # it was verified since, and not as a whole
    monkeypatch.setattr(upkeep, "WHOLE_REPLAY_EVERY", timedelta())
    ledger.schedule()
    last = ledger.store.verifications()["phones"].replayed_at
    assert first is not None and last is not None and last > first  # noqa: PT018


def test_an_old_position_and_one_to_come_are_not_used(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.register("a")
    ledger.schedule()
    assert ledger.found().verified_before is not None
    now = ledger.store.now
    for days in (8, -1):
        monkeypatch.setattr(ledger.store, "now", lambda days=days: now() + timedelta(days=days))
        assert ledger.found().verified_before is None


@ON_SQLITE
def test_moments_to_come_and_rubbish_keep_no_chain_from_its_verification(
    ledger: Ledger, database_url: str
) -> None:
    ledger.register("a")
    ledger.schedule()
    attack(database_url, "UPDATE verifications SET verified_at = '2099-01-01', replayed_at = '2099-01-01'")
    assert any(alarm.startswith("UNVERIFIED 1") for alarm in health(ledger.store).alarms)
    ledger.schedule()
    assert health(ledger.store).alarms == ()
    # SQLite takes any value.
    attack(database_url, "UPDATE verifications SET verified_at = 'junk', replayed_at = 'junk'")
    ledger.schedule()
    assert health(ledger.store).alarms == ()


@ON_SQLITE
def test_a_frozen_chain_is_replayed_whole(ledger: Ledger, database_url: str) -> None:
    ledger.register("a")
    ledger.schedule()
    ledger.register("b")
    lost = make_checkpoint(ledger.store, KEY)
    attack(
        database_url,
        "UPDATE heads SET sequence = 2, admitted = 1,"
        " digest = (SELECT digest FROM entries WHERE sequence = 2)",
        "DELETE FROM entries WHERE sequence = 3",
        "DELETE FROM rounds WHERE round_id = 'b'",
        "DELETE FROM registrations WHERE round_id = 'b'",
        "UPDATE holdings SET count = 1, local_count = 1",
    )
    assert ledger.found().ok  # the position lies before what was lost
    reconcile(ledger.store, lost, reason="a backup", actor="tester", nothing_later=False)
    ledger.schedule()
    found = ledger.found()
    assert (found.status, found.ok, found.verified_before) == ("frozen", True, None)


def test_entries_written_during_a_verification_are_no_damage(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.register("a")
    real, written = Store.entries_of, iter(("b", "c"))

    def then_another(self: Store, cohort: str, *, after: int = 0) -> list[LedgerEntry]:
        found = list(real(self, cohort, after=after))
        ledger.register(next(written))
        return found

    real_rounds = Store.rounds_of

    def after_another(self: Store, cohort: str) -> object:
        ledger.register(next(written))
        return real_rounds(self, cohort)

    monkeypatch.setattr(Store, "entries_of", then_another)
    monkeypatch.setattr(Store, "rounds_of", after_another)
    (found,) = verify(ledger.store, ledger.accountant, "phones").cohorts
    assert (found.problems, found.head_sequence) == ((), 3)  # "b" is read with the tables, "c" came later


@ON_SQLITE
def test_every_story_of_a_round_can_be_gone_on_with(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    open_cohort(
        store, name="phones", population=1_000_000, epsilon=2.0, delta=1e-9, policy="adaptive", actor="tester"
    )
    ledger = Ledger(store, accountant, make_request)
    ledger.register("a", "b", "c", "d")
    void(store, accountant, "b", reason="none came", actor="tester")
    settle(store, accountant, "a", reports=300, actor="tester")
    for name in ("a", "c"):
        correct(store, accountant, name, {"reports": 200}, reason="counted again", actor="tester")
    settle(store, accountant, "d", reports=1000, actor="tester")
    assert assert_resumes_anywhere(store) == 10
