"""`permit`, `gate` and `--receipt`: from an admission to a settlement, with an exit code for each refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shuffle_ledger.gate import CODES
from tests.cli.conftest import ROUND, Run

pytestmark = pytest.mark.slow


@pytest.fixture
def house(phones: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return `run` where the ledger signs permits and trusts the releaser "acme"."""
    assert phones("permit", "keygen", "permit.pem").code == 0
    assert phones("permit", "keygen", "acme.pem", "--name", "acme", "-o", "releasers.json").code == 0
    monkeypatch.setenv("SHUFFLE_LEDGER_PERMIT_KEY", "permit.pem")
    monkeypatch.setenv("SHUFFLE_LEDGER_RELEASER_KEYS", "releasers.json")
    assert phones("permit", "keys", "-o", "permit-keys.json").code == 0
    registered = phones(
        "round", "register", "phones", "--id", "w48", *ROUND, "--permit", "w48.permit", "--json"
    )
    assert registered.json["permit"] == (directory / "w48.permit").read_text().strip()
    return phones


SIGNED = ("--releaser", "acme", "--signing-key", "acme.pem", "--receipt", "w48.receipt")
GATE = ("gate", "--permit", "w48.permit", "--count", "1000")


def test_a_round_goes_from_permit_to_receipt(house: Run, directory: Path) -> None:
    assert house("permit", "revoked", "-o", "revoked.jwt").code == 0
    asked = (*GATE, *SIGNED, "--randomizer", "krr(epsilon0=0.5,k=2)", "--revoked", "revoked.jwt")
    looked = house(*asked, "--check", "--json").json
    assert (looked["released"], looked["used"], looked["round_id"]) == (False, False, "w48")
    done = house(*asked, "--json").json
    assert (done["released"], done["randomizer_checked"], done["revoked_checked"]) == (True, True, True)
    assert (directory / "w48.receipt").read_text().strip() == done["receipt"]
    settled = house("round", "settle", "--receipt", "w48.receipt", "--json")
    assert (settled.code, settled.json["reports"]) == (0, 1000)
    again = house(*asked, "--json")
    assert again.code == CODES["used_before"] == 21
    assert again.json["error"]["kind"] == "used_before"
    assert again.json["error"]["receipt"] == done["receipt"]
    for kept in ("w48.receipt", "gate-state.jsonl"):
        assert house("permit", "verify", kept, "--json").json == {"ok": True, "receipts": 1, "problems": []}
    refused = house("permit", "issue", "w48", "--json")
    assert (refused.code, refused.json["error"]["state"]) == (5, "settled")


REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--count", "999"), "too_few_reports"),
    (("--randomizer", "krr(k=2, epsilon0=0.6)"), "other_randomizer"),
    (("--ledger", "b" * 32), "other_ledger"),
    (("--keys", "releasers.json"), "wrong_key"),
    (("--revoked", "w48.permit"), "altered"),
    (("--permit", "cut.permit"), "altered"),
    (("--permit", "named.permit"), "other_releaser"),
    (("--state", "nowhere/state"), "state_unusable"),
    (("--revoked", "revoked.jwt"), "revoked"),
)


def test_each_reason_has_its_exit_code(house: Run, directory: Path) -> None:
    (directory / "cut.permit").write_text((directory / "w48.permit").read_text()[:-20])
    named = ("--permit", "named.permit", "--releaser", "other")
    assert house("round", "register", "phones", "--id", "named", *ROUND, *named).code == 0
    for options, kind in REASONS:
        if kind == "revoked":
            assert house("round", "void", "w48", "--reason", "cancelled").code == 0
            assert house("permit", "revoked", "-o", "revoked.jwt").code == 0
        answer = house(*GATE, *options, "--json")
        assert (answer.code, answer.json["error"]["kind"]) == (CODES[kind], kind)
        assert answer.code >= 10
    assert not (directory / "gate-state.jsonl").exists()


def test_a_release_after_a_void_is_an_incident_and_is_verified_so(house: Run) -> None:
    assert house(*GATE, *SIGNED).code == 0
    assert house("round", "void", "w48", "--reason", "I thought that nothing left").code == 0
    found = house("permit", "verify", "gate-state.jsonl", "--json")
    assert (found.code, found.json["ok"]) == (6, False)
    assert "voided" in found.json["problems"][0]["what"]
    told = house("round", "settle", "--receipt", "w48.receipt", "--json")
    assert told.json["outcome"] == "incident"
    assert house("permit", "verify", "gate-state.jsonl").code == 0


def test_the_gate_knows_a_randomizer_as_it_was_registered(house: Run) -> None:
    """With parameters that were left out."""
    described = ("--randomizer", "olh(epsilon0=1, domain=64)", "--reports", "5000", "--permit", "olh.permit")
    assert house("round", "register", "phones", "--id", "olh", *described).code == 0
    asked = ("gate", "--permit", "olh.permit", "--count", "5000", "--check", *described[:2])
    assert house(*asked).code == 0
    assert house(*asked[:-1], "olh(epsilon0=1, domain=64, g=5)").code == CODES["other_randomizer"]
    for nonsense in ("", "olh("):
        assert house(*asked[:-1], nonsense).code == 2


def test_a_refused_round_gets_no_permit(house: Run, directory: Path) -> None:
    strong = ("--randomizer", "krr(k=2, epsilon0=6)", "--reports", "5", "--permit", "strong.permit")
    assert house("round", "register", "phones", "--id", "strong", *strong).code == 3
    assert not (directory / "strong.permit").exists()
    assert house("permit", "issue", "strong").code == 5
    assert house("permit", "issue", "absent").code == 4


def test_misuse_is_refused_before_anything_happens(
    house: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "five.json").write_text("[5]")
    (directory / "deep.json").write_text('{"a":' + "[" * 100_000)
    for words in (
        ("round", "settle"),
        ("round", "settle", "w48", "--receipt", "releasers.json"),
        ("round", "register", "phones", "--id", "x", *ROUND, "--releaser", "acme"),
        (*GATE, "--receipt", "r"),
        (*GATE, "--signing-key", "acme.pem"),
        (*GATE, "--keys", "acme.pem"),
        (*GATE, *SIGNED[:-1], "nowhere/receipt"),
        (*GATE, "--server", "http://127.0.0.1:1"),
        (*GATE, "--leeway", "nan"),
        (*GATE, "--leeway=-1"),
        (*GATE, "--keys", "five.json"),
        (*GATE, "--keys", "deep.json"),
        (*GATE, *SIGNED, "--signing-key", "releasers.json"),
        ("permit", "verify", "releasers.json"),
        ("permit", "verify", "deep.json"),
        ("round", "register", "phones", "--id", "nowhere", *ROUND, "--permit", "nowhere/permit"),
        ("round", "register", "phones", "--id", "nowhere", *ROUND, "--permit", "n", "--releaser", ".."),
    ):
        assert house(*words).code == 2, words
    assert not (directory / "gate-state.jsonl").exists()
    assert house("round", "show", "nowhere").code == 4
    (directory / "junk").write_text("no receipt")
    assert house("round", "settle", "--receipt", "junk").code == 6
    assert house("permit", "verify", "junk").code == 6
    monkeypatch.setenv("SHUFFLE_LEDGER_SIGNING_KEY", "permit.pem")
    assert house("permit", "keys").code == 2
    for name in ("SIGNING_KEY", "PERMIT_KEY"):
        monkeypatch.delenv(f"SHUFFLE_LEDGER_{name}")
    unsigned = ("round", "register", "phones", "--id", "y", *ROUND, "--permit", "y.permit")
    assert house(*unsigned).code == 2
    monkeypatch.setenv("SHUFFLE_LEDGER_PERMIT_KEYS_RETIRED", '["permit.pem"]')
    published = house("permit", "keys", "--json").json
    assert (len(published["keys"]), published["signing"]) == (1, None)
    assert house(*unsigned).code == 2, "a retired key signs nothing"
    assert house("round", "show", "y").code == 4
    assert json.loads((directory / "permit-keys.json").read_text())["keys"]
