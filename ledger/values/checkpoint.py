"""Signed checkpoints: every chain's head at one moment, to be kept where the ledger's owner cannot reach.

A chain of digests shows that something *within* it was changed. That its end was cut off, or that all of it
was written anew, shows only beside a head that was kept elsewhere; the signature proves whose ledger it was.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from shuffle_ledger.ledger.errors import BadSignature, InvalidValue
from shuffle_ledger.ledger.values import canonical, signing

CHECKPOINT_FORMAT = "shuffle-ledger-checkpoint-1"
HEADS_MAX = 10_000_000
_DOMAIN = "shuffle-ledger/checkpoint/1"
_SEQUENCES = 2**63  # what a database can hold
_LEDGER_ID_LENGTH = 32
_TEXT_LENGTH_MAX = 200
_FIELDS = {
    "format",
    "ledger_id",
    "created_at",
    "heads",
    "software",
    "numerical_policy",
    "public_key",
    "signature",
}


@dataclass(frozen=True, kw_only=True)
class CheckpointHead:
    """The last entry of one cohort's chain."""

    cohort: str
    sequence: int
    digest_hex: str

    def to_json(self) -> dict[str, Any]:
        """Return the head as a JSON-able value; `read_head` reads it."""
        return {"cohort": self.cohort, "sequence": self.sequence, "digest": self.digest_hex}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The heads of a ledger's chains at one moment, signed."""

    ledger_id: str  # of the ledger, made when it was initialised; 32 hexadecimal digits
    created_at: datetime  # the database's clock, UTC
    heads: tuple[CheckpointHead, ...]  # in the order of the cohorts' names
    software: str
    numerical_policy: str
    public_key: bytes  # Ed25519, 32 bytes
    signature: bytes  # 64 bytes over `signed_bytes`
    format: str = CHECKPOINT_FORMAT

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as a JSON-able value; `read_checkpoint` reads it."""
        return self._content() | {"signature": self.signature.hex()}

    def signed_bytes(self) -> bytes:
        """Returns the signed bytes: a digest of the canonical bytes of everything but the signature."""
        return canonical.framed_digest(_DOMAIN, canonical.encode(self._content()))

    def _content(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "ledger_id": self.ledger_id,
            "created_at": canonical.spelled_moment(self.created_at),
            "heads": [head.to_json() for head in self.heads],
            "software": self.software,
            "numerical_policy": self.numerical_policy,
            "public_key": self.public_key.hex(),
        }


def check_signature(checkpoint: Checkpoint, trusted_public_key: bytes | None) -> None:
    """Raise BadSignature unless the checkpoint was signed by the trusted key.

    Without a trusted key (None), the signature is checked with the key that the checkpoint itself names. That
    detects accidents, but no forgery: a forger signs with another key.
    """
    if trusted_public_key is not None and checkpoint.public_key != trusted_public_key:
        raise BadSignature(
            f"the checkpoint names the public key {checkpoint.public_key.hex()}, which is not the trusted"
            f" one, {trusted_public_key.hex()}"
        )
    signing.check(checkpoint.public_key, checkpoint.signature, checkpoint.signed_bytes())


def read_checkpoint(data: object) -> Checkpoint:
    """Return the checkpoint that `to_json` wrote. Its signature is not checked: see `check_signature`.

    Raises:
        InvalidValue: this is no checkpoint, or not exactly one; names the field.
    """
    if not isinstance(data, Mapping) or data.get("format") != CHECKPOINT_FORMAT:
        _refuse("format", data, f'a mapping with "format": "{CHECKPOINT_FORMAT}"')
    if set(data) != _FIELDS:
        _refuse("fields", sorted(map(str, data)), "exactly " + ", ".join(sorted(_FIELDS)))
    checkpoint = Checkpoint(
        ledger_id=_hexadecimal("ledger_id", data["ledger_id"], _LEDGER_ID_LENGTH),
        created_at=_moment(data["created_at"]),
        heads=_heads(data["heads"]),
        software=_text("software", data["software"]),
        numerical_policy=_text("numerical_policy", data["numerical_policy"]),
        public_key=bytes.fromhex(
            _hexadecimal("public_key", data["public_key"], 2 * signing.PUBLIC_KEY_BYTES)
        ),
        signature=bytes.fromhex(_hexadecimal("signature", data["signature"], 2 * signing.SIGNATURE_BYTES)),
    )
    if checkpoint.to_json() != data:
        _refuse("created_at", data["created_at"], "a moment in UTC with microseconds, as it was written")
    return checkpoint


def read_head(item: object) -> CheckpointHead:
    """Return one head of a JSON-able list; raises InvalidValue."""
    expected = '{"cohort", "sequence", "digest"}'
    if not isinstance(item, Mapping) or set(item) != {"cohort", "sequence", "digest"}:
        _refuse("heads", item, expected)
    sequence = item["sequence"]
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 1 <= sequence < _SEQUENCES:
        _refuse("heads.sequence", sequence, f"a whole number from 1 to {_SEQUENCES - 1}")
    return CheckpointHead(
        cohort=_text("heads.cohort", item["cohort"]),
        sequence=sequence,
        digest_hex=_hexadecimal("heads.digest", item["digest"], 2 * canonical.DIGEST_BYTES),
    )


def _heads(value: object) -> tuple[CheckpointHead, ...]:
    if not isinstance(value, list) or len(value) > HEADS_MAX:
        _refuse("heads", value, f"a list of at most {HEADS_MAX} heads")
    found = tuple(read_head(item) for item in value)
    names = [head.cohort for head in found]
    if names != sorted(set(names)):
        _refuse("heads", "cohorts out of order", "each cohort once, in the order of their names")
    return found


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _TEXT_LENGTH_MAX:
        _refuse(field, value, f"a text of 1 to {_TEXT_LENGTH_MAX} characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(field, value, "a text that is Unicode")
    return value


def _hexadecimal(field: str, value: object, length: int) -> str:
    digits = set(string.digits + "abcdef")
    if not isinstance(value, str) or len(value) != length or not set(value) <= digits:
        _refuse(field, value, f"{length} hexadecimal digits, in small letters")
    return value


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(_text("created_at", value))
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta():  # others may have no moment in UTC
        _refuse("created_at", value, "a moment in UTC, as 2026-01-31T12:00:00.000000+00:00")
    return moment


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    shown = value if isinstance(value, str | int | None) else type(value).__name__
    raise InvalidValue(field=f"checkpoint.{field}", value=shown, expected=expected)
