"""Privacy losses: computed once, stored by the digest of what determines them, checked when read.

With several reports of a user, the stored loss is that of one of the equal rounds it is charged as.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    AccountingError,
    RoundLoss,
    ShuffledRound,
    charged_as,
    charged_together,
)
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.storage.rows import StoredLoss
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import Spending

_KEYS_REMEMBERED_MAX = 8192

_log = logging.getLogger(__name__)

# Every decision names a loss by its digest, and a loss in memory never changes.
_digests: WeakKeyDictionary[RoundLoss, bytes] = WeakKeyDictionary()


def certify(
    store: Store,
    accountant: Accountant,
    held: Mapping[ShuffledRound, int],
    *,
    delta: float,
    budget: float | None = None,
    keep: bool = True,
) -> Spending:
    """Return the certified spending of rounds, reading and (if `keep`) storing the losses it needs.

    With a budget, narrower where that may tell whether it is kept; see `Accountant.certify`.

    Raises:
        AccountingError: a loss or the composition cannot be computed.
        LedgerError: the certificate bounds nothing.
    """
    recall(store, accountant, held)
    if keep:
        for accounted in charged_together(held):
            if not accountant.knows(accounted):
                _computed(store, accountant, accounted)
    certificate = accountant.certify(held, delta=delta, budget=budget)
    return Spending.from_certificate(certificate, delta=delta)


def recall(store: Store, accountant: Accountant, held: Iterable[ShuffledRound]) -> None:
    """Give the accountant the stored losses of the rounds it does not know yet.

    A damaged loss, or one that is not the round's, is reported in the log and left out: the accountant then
    computes it anew from the parameters, which are what counts, and verification names the row.
    """
    missing = {_key(accounted): accounted for accounted in unknown(accountant, held)}
    for stored in store.losses_of(list(missing)):
        accounted = missing[stored.key]
        loss = _sound(stored, accountant, accounted)
        if loss is not None:
            accountant.adopt(accounted, loss)


def unknown(accountant: Accountant, held: Iterable[ShuffledRound]) -> list[ShuffledRound]:
    """Return the rounds whose privacy losses an accountant does not know yet."""
    return [each for each in charged_together(dict.fromkeys(held, 1)) if not accountant.knows(each)]


def is_stored(store: Store, accounted: ShuffledRound) -> bool:
    """Return whether a round's privacy loss is stored."""
    return store.loss_digest(_key(charged_as(accounted)[0])) is not None


def digest_of(store: Store, accountant: Accountant, accounted: ShuffledRound) -> bytes:
    """Return the digest of a round's privacy loss, storing the loss if it is not stored.

    Of a stored loss that is not the round's, no digest gets into a chain: that of the right one does.
    """
    accounted, _ = charged_as(accounted)
    stored = store.loss_digest(_key(accounted))
    if not accountant.knows(accounted):
        recall(store, accountant, [accounted])
    is_known = accountant.knows(accounted)
    if is_known and stored == _digest(accountant.privacy_loss(accounted)):
        return stored
    if stored is None and not is_known:
        return _computed(store, accountant, accounted)
    return _publish(store, accountant, accounted)


def _computed(store: Store, accountant: Accountant, accounted: ShuffledRound) -> bytes:
    """Compute and store a loss that is not stored, in one of several processes; return its digest."""
    with store.claimed(_key(accounted)) as waited:
        if waited:
            recall(store, accountant, [accounted])
        return _publish(store, accountant, accounted)


def store_known(store: Store, accountant: Accountant, rounds: Iterable[ShuffledRound]) -> None:
    """Store the losses of rounds, of which an accountant knows each, in one commit."""
    store.insert_losses([_own(accountant, accounted) for accounted in rounds])


def _own(accountant: Accountant, accounted: ShuffledRound) -> StoredLoss:
    loss = accountant.privacy_loss(accounted)
    blob = loss.to_bytes()
    digest = _digests[loss] = entries.loss_digest(blob)
    return StoredLoss(key=_key(accounted), digest=digest, blob=blob)


def _publish(store: Store, accountant: Accountant, accounted: ShuffledRound) -> bytes:
    """Store a round's loss and return the digest of the stored one.

    Another process may have stored one first, with another precision: then all processes use that one.
    """
    own = _own(accountant, accounted)
    store.insert_losses([own])
    stored = store.loss(own.key)
    if stored == own:
        return own.digest
    recalled = _sound(stored, accountant, accounted)
    if recalled is None:
        return own.digest
    accountant.adopt(accounted, recalled)
    return _digest(recalled)


def _digest(loss: RoundLoss) -> bytes:
    if loss not in _digests:
        _digests[loss] = entries.loss_digest(loss.to_bytes())
    return _digests[loss]


def _sound(stored: StoredLoss | None, accountant: Accountant, accounted: ShuffledRound) -> RoundLoss | None:
    """Return the stored loss of a round, None if there is none, it is damaged, or it is another's."""
    if stored is None:
        return None
    try:
        loss = checked(stored)
        if not accountant.encloses(accounted, loss):
            raise Damaged(
                f"privacy loss {stored.key.hex()}: it is not that of {accounted.randomizer.describe()}"
            )
    except Damaged as error:
        _log.error("stored privacy loss ignored, computing it anew: %s", error)
        return None
    return loss


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


@functools.lru_cache(maxsize=_KEYS_REMEMBERED_MAX)
def _key(accounted: ShuffledRound) -> bytes:
    return entries.loss_key(entries.round_bytes(accounted), NUMERICAL_POLICY)
