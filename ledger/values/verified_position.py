"""Verified positions: up to which entry one chain was verified, signed, so that verification can go on there.

A position also carries what the rest of the chain is judged by (`state`). It lies in the database, where its
writers can change it: the signature shows whether the holder of the signing key wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shuffle_ledger.ledger.errors import BadSignature, Damaged
from shuffle_ledger.ledger.values import canonical, signing
from shuffle_ledger.ledger.values.signing import SigningKey

_DOMAIN = "shuffle-ledger/verified-position/1"


@dataclass(frozen=True, kw_only=True)
class VerifiedPosition:
    """The last entry of a chain that verification found good, and the chain's state there."""

    ledger_id: str
    cohort: str
    sequence: int
    digest_hex: str
    verified_at: datetime  # when the verification that ended here began, by the database's clock
    replayed_at: datetime  # when the last replay of the whole chain began
    software: str  # that verified: another version may check more, and replays the whole chain
    state: Mapping[str, Any]  # see `verification.resumption`

    def signed(self, signing_key: SigningKey) -> bytes:
        """Return the position's canonical bytes, with a signature; `read_position` reads them."""
        content = self._content()
        signature = signing_key.sign(_message(content)).hex()
        return canonical.encode({"position": content, "signature": signature})

    def _content(self) -> dict[str, Any]:
        moments = {
            name: canonical.spelled_moment(getattr(self, name)) for name in ("verified_at", "replayed_at")
        }
        return {**vars(self), **moments}


def read_position(data: bytes, trusted_public_key: bytes) -> VerifiedPosition:
    """Return the position that `signed` wrote.

    Raises:
        BadSignature: the trusted key did not sign it, or it was changed.
    """
    try:
        read = canonical.decode(data)
        content, signature = read["position"], bytes.fromhex(read["signature"])
        signing.check(trusted_public_key, signature, _message(content))
        moments = {name: datetime.fromisoformat(content[name]) for name in ("verified_at", "replayed_at")}
        return VerifiedPosition(**{**content, **moments})
    except (Damaged, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadSignature(f"this is no verified position: {error}") from error


def _message(content: Mapping[str, Any]) -> bytes:
    return canonical.framed_digest(_DOMAIN, canonical.encode(content))
