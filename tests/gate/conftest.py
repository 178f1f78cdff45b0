"""Keys, and permits as a ledger signs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger import gate
from shuffle_ledger.ledger.permits import jwk
from shuffle_ledger.ledger.values import SigningKey

LEDGER = "a" * 32
Sign = Callable[..., str]


class Signer:
    """A key with its file and its public half."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        key = SigningKey.generate()
        key.save(path)
        self.pem = path.read_bytes()
        self.jwk = jwk(key.public_key_bytes, name)

    @property
    def keys(self) -> dict[str, Any]:
        """The JWK set of this key alone."""
        return {"ledger": LEDGER, "keys": [self.jwk]}

    def permit(self, *, kind: str = gate.PERMIT, key_id: str | None = None, **changes: Any) -> str:
        """Return a permit of 1,000 reports, with other claims where they are given."""
        now = int(time.time())
        claims = {
            "iss": "urn:test",
            "ledger": LEDGER,
            "jti": "e" * 64,
            "admitted_at": "2026-11-28T14:00:00+00:00",
            "nbf": now - 10,
            "exp": now + 1000,
            "round_id": "w48",
            "cohorts": ["phones"],
            "randomizer": "krr(epsilon0=1, k=10)",
            "round": {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 1.0}, "reports": 1000},
            "count_min": 1000,
            "count_max": None,
            "counts": "reports",
            "collected_on": None,
            "collected_until": None,
            **changes,
        }
        return gate.sign(claims, self.pem, kind=kind, key_id=key_id or self.jwk["kid"])

    def revoked(self, *events: str, **changes: Any) -> str:
        """Return a list of revoked permits."""
        now = int(time.time())
        claims = {"ledger": LEDGER, "iat": now, "exp": now + 3600, "revoked": list(events), **changes}
        return gate.sign(claims, self.pem, kind=gate.REVOKED, key_id=self.jwk["kid"])


@pytest.fixture
def ledger(tmp_path: Path) -> Signer:
    """Return the key of the ledger."""
    return Signer(tmp_path / "ledger.pem")


@pytest.fixture
def stranger(tmp_path: Path) -> Signer:
    """Return a key that no gate trusts."""
    return Signer(tmp_path / "stranger.pem")
