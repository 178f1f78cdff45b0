"""Heads that were kept elsewhere: a signed checkpoint, or the list `reports.budgets.heads` makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shuffle_ledger.ledger.errors import BadSignature, InvalidValue
from shuffle_ledger.ledger.values.checkpoint import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    CheckpointHead,
    check_signature,
    read_checkpoint,
    read_head,
)

HEADS_FORMAT = "shuffle-ledger-heads-1"
# "valid": signed with the key that the checkpoint itself names; no trusted key was given to compare it with.
Signature = Literal["trusted", "valid", "none"]


@dataclass(frozen=True, kw_only=True)
class SavedHeads:
    """Heads that verification compares the chains with, and how far they can be believed."""

    heads: tuple[CheckpointHead, ...]
    signature: Signature
    checkpoint: Checkpoint | None  # None: a plain list


class SavedHead(NamedTuple):
    """A head that a chain must contain."""

    sequence: int
    digest: str  # hexadecimal
    signed_at: datetime | None = None  # its entry was not recorded later; None: it is not signed


def heads_by_cohort(saved: SavedHeads | None) -> dict[str, list[SavedHead]]:
    """Return heads by cohort; none where there are none, or where they could not be read."""
    found: dict[str, list[SavedHead]] = {}
    if saved is not None:
        signed_at = saved.checkpoint.created_at if saved.checkpoint else None
        for head in saved.heads:
            found.setdefault(head.cohort, []).append(SavedHead(head.sequence, head.digest_hex, signed_at))
    return found


def read_saved_heads(path: Path, trusted_public_key: bytes | None = None) -> SavedHeads:
    """Return the heads in a file, its signature checked.

    Raises:
        InvalidValue: the file holds neither a checkpoint nor heads.
        BadSignature: a trusted key was given, and the file is not signed by it, or not at all.
        OSError: the file cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        expected = f"a JSON file of heads or of a checkpoint ({error})"
        raise InvalidValue(field="against", value=str(path), expected=expected) from error
    return saved_heads(data, trusted_public_key)


def saved_heads(data: object, trusted_public_key: bytes | None = None) -> SavedHeads:
    """Return the heads in a JSON-able value; as `read_saved_heads`."""
    match data:
        case Mapping() if data.get("format") == CHECKPOINT_FORMAT:
            checkpoint = read_checkpoint(data)
            check_signature(checkpoint, trusted_public_key)
            signature: Signature = "valid" if trusted_public_key is None else "trusted"
            return SavedHeads(heads=checkpoint.heads, signature=signature, checkpoint=checkpoint)
        case {"format": str(name), "heads": list(listed)} if name == HEADS_FORMAT:
            if trusted_public_key is not None:
                raise BadSignature("these heads are not signed; a checkpoint is (`audit checkpoint`)")
            return SavedHeads(heads=_plain(listed), signature="none", checkpoint=None)
        case _:
            expected = f'a mapping with "format": "{CHECKPOINT_FORMAT}" or "{HEADS_FORMAT}", and "heads"'
            raise InvalidValue(field="against", value=type(data).__name__, expected=expected)


def document_of_heads(saved: SavedHeads) -> tuple[dict[str, Any], bytes | None]:
    """Return what `saved_heads` makes these heads of: the JSON-able value, and the trusted key."""
    if saved.checkpoint is not None:
        trusted = saved.checkpoint.public_key if saved.signature == "trusted" else None
        return saved.checkpoint.to_json(), trusted
    return {"format": HEADS_FORMAT, "heads": [head.to_json() for head in saved.heads]}, None


def _plain(listed: list[Any]) -> tuple[CheckpointHead, ...]:
    try:
        return tuple(read_head(item) for item in listed)
    except InvalidValue as error:
        raise InvalidValue(field="against", value=error.value, expected=error.expected) from error
