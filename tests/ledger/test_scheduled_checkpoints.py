"""Checkpoints on a schedule extend each other, or are not written; who looks hears of it."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import files
from shuffle_ledger.ledger.checkpoints import schedule
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.checkpoints.schedule import LATEST, ScheduledCheckpoints
from shuffle_ledger.ledger.errors import BadSignature, BehindCheckpoint, Damaged, InvalidValue
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, read_checkpoint
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.conftest import sqlite_url
from tests.ledger.clerk import decided

database_url = sqlite_url  # files are what is attacked

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def place(tmp_path: Path, key: SigningKey) -> ScheduledCheckpoints:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    return ScheduledCheckpoints(
        directory=directory, every_seconds=60, trusted_public_key=key.public_key_bytes
    )


def read(path: Path) -> Checkpoint:
    return read_checkpoint(json.loads(path.read_text("utf-8")))


def contents(place: ScheduledCheckpoints) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in place.directory.iterdir()}


def test_two_schedulers_at_once_leave_the_later_one(
    phones: Store,
    place: ScheduledCheckpoints,
    key: SigningKey,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One has made its checkpoint and is slow to write it; meanwhile the ledger goes on."""
    has_made, other_is_done = threading.Event(), threading.Event()

    def slow(store: Store, signing_key: SigningKey) -> Checkpoint:
        made = make_checkpoint(store, signing_key)
        if not has_made.is_set():
            has_made.set()
            other_is_done.wait(1.0)
        return made

    monkeypatch.setattr(schedule, "make_checkpoint", slow)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(place.write, phones, key)
        assert has_made.wait(10.0)
        decided(phones, accountant, make_request("a"))
        later = place.write(phones, key)
        other_is_done.set()
        assert earlier.result().heads[0].sequence == 1
    assert later.heads[0].sequence == 2
    assert all(read(place.directory / name) == later for name in contents(place))


def test_who_cannot_write_alone_says_so(
    phones: Store, place: ScheduledCheckpoints, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_TIMEOUT_SECONDS", 0.2)
    with files.alone_in(place.directory), pytest.raises(TimeoutError):
        place.write(phones, key)
    assert contents(place) == {}
    place.write(phones, key)


def test_the_latest_and_each_days_last_are_kept(
    phones: Store,
    place: ScheduledCheckpoints,
    key: SigningKey,
    accountant: Accountant,
    make_request: MakeRequest,
) -> None:
    before = health(phones, place)
    assert (before.checkpointed_at, before.alarms) == (None, ("CHECKPOINT there is none yet",))
    place.write(phones, key)
    decided(phones, accountant, make_request("a"))
    made = place.write(phones, key)
    assert set(contents(place)) == {LATEST, f"checkpoint-{made.created_at:%Y-%m-%d}.json"}
    assert all(read(place.directory / name) == made for name in contents(place))
    assert made.heads[0].sequence == 2
    assert (health(phones, place).checkpointed_at, health(phones, place).alarms) == (made.created_at, ())
    with Store.connect(
        phones.engine.url.render_as_string(hide_password=False),
        anchor=Anchor(path=place.directory / LATEST, trusted_public_key=key.public_key_bytes),
    ) as anchored:  # what it writes is what processes are anchored to
        decided(anchored, accountant, make_request("b", epsilon0=0.5))
        assert place.write(anchored, key).heads[0].sequence == 3


@pytest.mark.parametrize("removed", [(), (LATEST,)], ids=["latest", "a day's"])
def test_a_checkpoint_the_ledger_is_behind_is_not_replaced(
    phones: Store,
    place: ScheduledCheckpoints,
    key: SigningKey,
    accountant: Accountant,
    make_request: MakeRequest,
    removed: tuple[str, ...],
) -> None:
    """As after a restore: the checkpoint has seen an entry that the ledger does not have."""
    made = place.write(phones, key)
    seen = dataclasses.replace(made.heads[0], sequence=2, digest_hex="ab" * 32)
    unsigned = dataclasses.replace(made, heads=(seen,))
    ahead = dataclasses.replace(unsigned, signature=key.sign(unsigned.signed_bytes()))
    for name in contents(place):
        (place.directory / name).write_text(json.dumps(ahead.to_json()))
    for name in removed:
        (place.directory / name).unlink()
    kept = contents(place)
    with pytest.raises(BehindCheckpoint):
        place.write(phones, key)
    (alarm,) = health(phones, place).alarms
    assert alarm.startswith("CHECKPOINT the ledger is behind it: ")
    decided(phones, accountant, make_request("another"))  # as many entries, and not the same
    with pytest.raises(BehindCheckpoint):
        place.write(phones, key)
    assert contents(place) == kept


@pytest.mark.parametrize("content", ["", "{}", "forged"])
def test_what_was_put_in_its_place_is_not_replaced_either(
    phones: Store, place: ScheduledCheckpoints, key: SigningKey, content: str
) -> None:
    if content == "forged":
        content = json.dumps(make_checkpoint(phones, SigningKey.generate()).to_json())
    (place.directory / LATEST).write_text(content)
    with pytest.raises((BadSignature, InvalidValue)):
        place.write(phones, key)
    assert (place.directory / LATEST).read_text() == content
    (alarm,) = health(phones, place).alarms
    assert alarm.startswith("CHECKPOINT ")


def test_an_anchor_that_was_removed_is_not_made_anew(
    phones: Store, place: ScheduledCheckpoints, key: SigningKey
) -> None:
    url = phones.engine.url.render_as_string(hide_password=False)
    anchor = Anchor(path=place.directory / LATEST)
    with Store.connect(url, anchor=anchor) as store, pytest.raises(BehindCheckpoint, match="nobody can tell"):
        place.write(store, key)
    assert contents(place) == {}


def test_a_broken_ledger_is_not_signed(phones: Store, place: ScheduledCheckpoints, key: SigningKey) -> None:
    good = place.write(phones, key)
    phones.record_verification("phones", head=(1, "ab" * 32), numbers_checked=0, problem="it was changed")
    with pytest.raises(Damaged, match="phones"):
        place.write(phones, key)
    assert read(place.directory / LATEST) == good
    phones.record_verification("phones", head=(1, "ab" * 32), numbers_checked=0, problem=None)
    place.write(phones, key)


def test_an_old_checkpoint_is_an_alarm(phones: Store, place: ScheduledCheckpoints, key: SigningKey) -> None:
    made = place.write(phones, key)
    now = made.created_at
    assert place.look(phones, now + timedelta(seconds=239)) == (now, [])
    assert place.look(phones, now + timedelta(seconds=241)) == (now, ["the last one is 241 seconds old"])


def test_without_a_directory_there_is_no_schedule(tmp_path: Path) -> None:
    assert ScheduledCheckpoints.of(Settings()) is None
    found = ScheduledCheckpoints.of(Settings(checkpoint_directory=tmp_path, checkpoint_every_seconds=7))
    assert found == ScheduledCheckpoints(directory=tmp_path, every_seconds=7)
    with pytest.raises(ValidationError):
        Settings(checkpoint_every_seconds=0)
