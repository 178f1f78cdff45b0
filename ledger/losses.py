"""Privacy losses: computed once, stored by the digest of what determines them, checked when read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from accounting import NUMERICAL_POLICY, Accountant, AccountingError, RoundLoss, ShuffledRound
from ledger import entries
from ledger.entries import Spending
from ledger.errors import Damaged
from ledger.rows import StoredLoss
from ledger.store import Store

_log = logging.getLogger(__name__)


def certify(
    store: Store,
    accountant: Accountant,
    held: Mapping[ShuffledRound, int],
    *,
    delta: float,
    keep: bool = True,
) -> Spending:
    """Return the certified spending of rounds, reading and (if `keep`) storing the losses it needs.

    Raises:
        AccountingError: a loss or the composition cannot be computed.
        LedgerError: the certificate bounds nothing.
    """
    recall(store, accountant, held)
    if keep:
        for accounted in held:
            if not accountant.knows(accounted):
                digest_of(store, accountant, accounted)
    return Spending.from_certificate(accountant.certify(held, delta=delta), delta=delta)


def recall(store: Store, accountant: Accountant, held: Iterable[ShuffledRound]) -> None:
    """Give the accountant the stored losses of the rounds it does not know yet.

    A damaged loss, or one that is not the round's, is reported in the log and left out: the accountant then
    computes it anew from the parameters, which are what counts, and verification names the row.
    """
    for accounted in held:
        if accountant.knows(accounted):
            continue
        stored = store.loss(_key(accounted))
        if stored is None:
            continue
        try:
            loss = checked(stored)
            if not accountant.encloses(accounted, loss):
                raise Damaged(
                    f"privacy loss {stored.key.hex()}: it is not that of {accounted.randomizer.describe()}"
                )
        except Damaged as error:
            _log.error("stored privacy loss ignored, computing it anew: %s", error)
        else:
            accountant.adopt(accounted, loss)


def digest_of(store: Store, accountant: Accountant, accounted: ShuffledRound) -> bytes:
    """Return the digest of a round's privacy loss, storing the loss if it is not stored."""
    key = _key(accounted)
    digest = store.loss_digest(key)
    if digest is None:
        blob = accountant.privacy_loss(accounted).to_bytes()
        digest = entries.loss_digest(blob)
        store.insert_loss(StoredLoss(key=key, digest=digest, blob=blob))
    return digest


def checked(stored: StoredLoss) -> RoundLoss:
    """Return a stored privacy loss; raises Damaged unless its bytes have their digest and decode."""
    if entries.loss_digest(stored.blob) != stored.digest:
        raise Damaged(
            f"privacy loss {stored.key.hex()}: its bytes do not have the digest they were stored with"
        )
    try:
        return RoundLoss.from_bytes(stored.blob)
    except AccountingError as error:
        raise Damaged(f"privacy loss {stored.key.hex()}: {error}") from error


def _key(accounted: ShuffledRound) -> bytes:
    return entries.loss_key(entries.round_bytes(accounted), NUMERICAL_POLICY)
