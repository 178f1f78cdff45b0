"""Permits over HTTP: issued to registrars, with keys and revocations that gates read without a token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.gate import Gate, GateRefused
from shuffle_ledger.ledger.api import served
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.errors import BadSignature, NotAllowed, NotFound
from shuffle_ledger.ledger.permits import jwk
from shuffle_ledger.ledger.values import Incident, Settled, SigningKey
from tests.api.conftest import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def house(serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a server that signs permits and trusts the releaser "acme"."""
    for name in ("permit", "acme"):
        key = SigningKey.generate()
        key.save(tmp_path / f"{name}.pem")
        (tmp_path / f"{name}.json").write_text(json.dumps({"keys": [jwk(key.public_key_bytes, name)]}))
    monkeypatch.setattr(served, "PUBLISHED_SECONDS", 0)
    return serve(permit_key=tmp_path / "permit.pem", releaser_keys=tmp_path / "acme.json")


def client(server: Server, role: str = "registrar") -> LedgerClient:
    """Return a client with the token of a role."""
    return LedgerClient(server.url, server.tokens[role])


def gate_of(server: Server, folder: Path, **more: Any) -> Gate:
    """Return the gate of acme, which asks for keys as strangers do."""
    keys = server.http.get("/.well-known/jwks.json").json()
    pem = (folder / "acme.pem").read_bytes()
    return Gate(keys, state=folder / "state.jsonl", releaser="acme", signing_key=pem, **more)


def test_a_round_goes_from_permit_to_receipt(house: Server, tmp_path: Path) -> None:
    house.register("w48")
    with client(house) as ledger:
        issued = ledger.permit("w48", releaser="acme")
        assert ledger.permit("w48", releaser="acme") == issued
        assert ledger.permit_keys() == house.http.get("/v1/permits/keys").json()
        door = gate_of(house, tmp_path)
        release = door.release(issued.permit, count=1000, revoked=ledger.revoked_permits())
        settled = ledger.settle_by_receipt(str(release.receipt))
        assert isinstance(settled, Settled)
        assert settled.reports == 1000
        assert ledger.settle_by_receipt(str(release.receipt)) == settled
    stated = house.ask("POST", "/v1/statements", bearer="auditor", json={"cohorts": ["phones"]}).json()
    (one,) = stated["cohorts"][0]["rounds"]
    assert one["release"]["basis"] == "receipt"
    assert one["release"]["receipts"][0]["releaser"] == "acme"


def test_strangers_get_keys_and_revocations_and_nothing_else(house: Server, tmp_path: Path) -> None:
    house.register("w48")
    permit = house.ask("POST", "/v1/rounds/w48/permit", bearer="registrar", json={}).json()["permit"]
    listed = house.http.get("/v1/permits/revoked")
    assert listed.headers["content-type"] == "application/jwt"
    assert listed.headers["cache-control"].startswith("public, max-age=")
    assert gate_of(house, tmp_path).check(permit, count=1000, revoked=listed.text).round_id
    house.ask("POST", "/v1/rounds/w48/void", bearer="registrar", json={"reason": "cancelled"})
    with pytest.raises(GateRefused, match="revoked"):
        gate_of(house, tmp_path).check(permit, count=1000, revoked=house.http.get("/v1/permits/revoked").text)
    for path in ("/v1/rounds/w48/permit", "/v1/receipts"):
        assert house.http.post(path, json={}).status_code == 401


def test_permits_are_for_registrars_of_the_cohorts(house: Server, tmp_path: Path) -> None:
    house.register("w48")
    house.issue("limited", "registrar", cohorts=["secret"])
    permit = house.ask("POST", "/v1/rounds/w48/permit", bearer="registrar", json={}).json()["permit"]
    receipt = str(gate_of(house, tmp_path).release(permit, count=1000).receipt)
    with client(house, "reader") as reader, client(house, "limited") as limited:
        with pytest.raises(NotAllowed):
            reader.permit("w48")
        with pytest.raises(NotAllowed):
            reader.settle_by_receipt(receipt)
        with pytest.raises(NotFound):
            limited.permit("w48")
        with pytest.raises(NotFound):
            limited.settle_by_receipt(receipt)
        with pytest.raises(BadSignature):
            limited.settle_by_receipt(receipt[:-8])
    house.ask("POST", "/v1/rounds/w48/void", bearer="registrar", json={"reason": "cancelled"})
    with client(house) as ledger:
        assert isinstance(ledger.settle_by_receipt(receipt), Incident)


def test_answers_to_strangers_are_kept_for_a_while(house: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PUBLISHED_SECONDS", 1000)
    first = house.http.get("/v1/permits/revoked").text
    house.store.close()
    assert house.http.get("/v1/permits/revoked").text == first


def test_a_server_without_a_key_says_so(serve: Callable[..., Server]) -> None:
    server = serve()
    server.register("w48")
    assert server.http.get("/.well-known/jwks.json").json()["keys"] == []
    for answer in (
        server.http.get("/v1/permits/revoked"),
        server.ask("POST", "/v1/rounds/w48/permit", bearer="registrar", json={}),
    ):
        assert answer.status_code == 409
        assert "SHUFFLE_LEDGER_PERMIT_KEY" in answer.json()["detail"]
