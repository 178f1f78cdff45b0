"""`audit` as people and scripts use it: keys, checkpoints, and what comparing with them says."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ROUND = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "1000")


@pytest.fixture
def key(phones: Run, directory: Path) -> str:
    """Return the public key of a new key in "signing.pem"."""
    made = phones("audit", "keygen", "signing.pem", "--json")
    assert made.code == 0
    public_key: str = made.json["public_key"]
    return public_key


@pytest.fixture
def kept(phones: Run, key: str) -> Path:
    """Return a checkpoint that was made after one round."""
    assert phones("round", "register", "phones", "--id", "one", *ROUND).code == 0
    path = Path("checkpoint.json")
    assert phones("audit", "checkpoint", "--signing-key", "signing.pem", "-o", str(path)).code == 0
    return path


@pytest.mark.slow
def test_a_checkpoint_holds_until_the_chain_is_put_back(phones: Run, kept: Path, key: str) -> None:
    shutil.copy("shuffle-ledger.db", "backup.db")
    again = phones("audit", "verify", "--against", str(kept), "--public-key", key, "--json")
    assert (again.code, again.json["against"]["signature"]) == (0, "trusted")
    assert phones("round", "register", "phones", "--id", "two", *ROUND).code == 0
    later = phones("audit", "checkpoint", "--signing-key", "signing.pem", "-o", "later.json", "--json")
    assert later.code == 0
    assert json.loads(Path("later.json").read_text()) == later.json
    shutil.copy("backup.db", "shuffle-ledger.db")
    for name in ("shuffle-ledger.db-wal", "shuffle-ledger.db-shm"):
        Path(name).unlink(missing_ok=True)
    assert phones("audit", "verify").code == 0  # by itself, the old state is a sound one
    found = phones("audit", "verify", "--against", "later.json", "--json")
    assert found.code == 6
    assert [problem["sequence"] for problem in found.json["cohorts"][0]["problems"]] == [3]


@pytest.mark.slow
def test_people_are_told_whose_signature_it_is(phones: Run, kept: Path, key: str) -> None:
    assert "not compared with a trusted one" in phones("audit", "verify", "--against", str(kept)).stdout
    assert "given key" in phones("audit", "verify", "--against", str(kept), "--public-key", key).stdout
    Path("heads.json").write_text(phones("audit", "heads", "--json").stdout)
    unsigned = phones("audit", "verify", "--against", "heads.json").stdout
    assert "Compared with 1 head kept elsewhere, not signed: anyone" in " ".join(unsigned.split())


def test_a_changed_checkpoint_or_another_key_fails(phones: Run, kept: Path, key: str) -> None:
    assert phones("audit", "verify", "--against", str(kept), "--public-key", "0" * 64).code == 6
    content = json.loads(kept.read_text())
    content["heads"][0]["sequence"] += 1
    kept.write_text(json.dumps(content))
    answer = phones("audit", "verify", "--against", str(kept), "--json")
    assert (answer.code, answer.json["error"]["kind"]) == (6, "bad_signature")


def test_a_key_is_never_overwritten(phones: Run, key: str) -> None:
    assert stat.S_IMODE(Path("signing.pem").stat().st_mode) == 0o600
    answer = phones("audit", "keygen", "signing.pem", "--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, "signing_key")


def test_the_key_comes_from_the_environment_or_is_asked_for(
    phones: Run, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHUFFLE_LEDGER_SIGNING_KEY", raising=False)
    answer = phones("audit", "checkpoint", "--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, "--signing-key")
    monkeypatch.setenv("SHUFFLE_LEDGER_SIGNING_KEY", "signing.pem")
    assert phones("audit", "checkpoint", "--json").json["public_key"] == key
    assert phones("audit", "verify", "--public-key", key).code == 2


def put_back(backup: str) -> None:
    shutil.copy(backup, "shuffle-ledger.db")
    for name in ("shuffle-ledger.db-wal", "shuffle-ledger.db-shm"):
        Path(name).unlink(missing_ok=True)


@pytest.mark.slow
def test_a_restored_backup_is_not_written_until_somebody_accepts_the_loss(
    phones: Run, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_CHECKPOINT", "anchor.json")
    monkeypatch.setenv("SHUFFLE_LEDGER_CHECKPOINT_KEY", key)
    monkeypatch.setenv("SHUFFLE_LEDGER_SIGNING_KEY", "signing.pem")
    refused = phones("round", "register", "phones", "--id", "one", *ROUND, "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (6, "behind_checkpoint")  # no anchor yet
    assert phones("audit", "checkpoint", "-o", "anchor.json").code == 0
    shutil.copy("shuffle-ledger.db", "backup.db")
    assert phones("round", "register", "phones", "--id", "one", *ROUND).code == 0
    assert phones("audit", "checkpoint", "-o", "anchor.json").code == 0
    put_back("backup.db")
    behind = [
        ("round", "register", "phones", "--id", "two", *ROUND),
        ("cohort", "open", "new", "--population", "500", "--epsilon", "1", "--delta", "1e-6"),
        ("audit", "checkpoint", "-o", "anchor.json"),
        ("audit", "verify"),
        ("audit", "statement", "phones"),
        ("budget", "phones"),
        ("round", "quote", "phones", *ROUND),
        ("round", "quote", "phones", *ROUND, "--check"),
        ("forecast", "phones"),
    ]
    for command in behind:
        answer = phones(*command, "--json")
        assert (answer.code, answer.json["error"]["kind"]) == (6, "behind_checkpoint"), command
    assert phones("round", "list", "phones").code == 0
    done = phones("audit", "reconcile", "--against", "anchor.json", "--reason", "the disk broke", "--json")
    assert (done.code, done.json["frozen"]) == (0, ["phones"])
    assert phones("round", "register", "phones", "--id", "two", *ROUND).code == 3
    stated = phones("budget", "phones", "--json").json
    assert (stated["status"], stated["epsilon_remaining"]) == ("frozen", 0)
    assert stated["epsilon_spent_upper"] is None  # unknown
    assert phones("audit", "checkpoint", "-o", "anchor.json").code == 0
    assert phones("audit", "verify", "--against", "anchor.json").code == 0


@pytest.mark.slow
def test_lost_entries_come_back_from_a_bundle(phones: Run, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy("shuffle-ledger.db", "backup.db")
    decided = phones("round", "register", "phones", "--id", "one", *ROUND, "--json")
    assert decided.code == 0
    monkeypatch.setenv("SHUFFLE_LEDGER_SIGNING_KEY", "signing.pem")
    assert phones("audit", "statement", "phones", "--format", "json", "--bundle", "evidence.zip").code == 0
    assert phones("audit", "checkpoint", "-o", "anchor.json").code == 0
    monkeypatch.setenv("SHUFFLE_LEDGER_CHECKPOINT", "anchor.json")
    monkeypatch.setenv("SHUFFLE_LEDGER_CHECKPOINT_KEY", key)
    put_back("backup.db")
    assert phones("round", "register", "phones", "--id", "two", *ROUND).code == 6
    recover = ["audit", "recover", "evidence.zip", "--against", "anchor.json", "--public-key", key]
    recover += ["--reason", "the disk broke", "--json"]
    assert phones(*recover).code == 2  # without the attestation that nothing was written later
    assert phones(*recover[:-3], "", "--json", "--nothing-later").code == 2
    done = phones(*recover, "--nothing-later")
    assert (done.code, done.json["entries"], done.json["unproven"]) == (0, {"phones": 1}, [])
    assert phones(*recover, "--nothing-later").code == 5
    again = phones("round", "register", "phones", "--id", "one", *ROUND, "--json")
    assert (again.code, again.stdout) == (0, decided.stdout)
    assert phones("round", "register", "phones", "--id", "two", *ROUND).code in {0, 3}
    assert phones("audit", "verify", "--against", "anchor.json").code == 0


def test_a_checkpoint_never_overwrites_anything_else(phones: Run, key: str) -> None:
    Path("notes.txt").write_text("precious")
    answer = phones("audit", "checkpoint", "--signing-key", "signing.pem", "-o", "notes.txt", "--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, "checkpoint")
    assert Path("notes.txt").read_text() == "precious"
