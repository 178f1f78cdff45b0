"""Makes signed checkpoints of a ledger's heads."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.answers.heads import Standing
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import signing
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, CheckpointHead
from shuffle_ledger.ledger.values.signing import SigningKey


def make_checkpoint(store: Store, signing_key: SigningKey) -> Checkpoint:
    """Return the heads of all chains at one moment, signed.

    It states the contents of the database: verify the ledger before you sign it.

    Raises:
        BehindCheckpoint: the store has an anchor, and lacks what the anchor has seen.
    """
    store.check_anchor()
    return sign_standing(store.standing(), signing_key)


def sign_standing(standing: Standing, signing_key: SigningKey) -> Checkpoint:
    """Return the heads of all chains as a ledger said them, signed; the key may be elsewhere."""
    heads = tuple(
        CheckpointHead(cohort=head.cohort, sequence=head.sequence, digest_hex=head.digest.hex())
        for head in standing.heads
    )
    content: dict[str, Any] = {
        "ledger_id": standing.ledger_id,
        "created_at": standing.at,
        "heads": heads,
        "software": f"shuffle-ledger {version('shuffle-ledger')}",
        "numerical_policy": NUMERICAL_POLICY,
        "public_key": signing_key.public_key_bytes,
    }
    unsigned = Checkpoint(**content, signature=bytes(signing.SIGNATURE_BYTES))
    return Checkpoint(**content, signature=signing_key.sign(unsigned.signed_bytes()))
