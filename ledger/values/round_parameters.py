"""Reads the parameters of rounds out of entries and requests.

Thousands of entries spell the parameters of the same few kinds of rounds, so each kind is read once.
"""

from __future__ import annotations

import functools

from shuffle_ledger import accounting
from shuffle_ledger.ledger.values import canonical

_REMEMBERED_MAX = 8192  # kinds of rounds


def read_round(content: object) -> accounting.ShuffledRound:
    """Returns the round whose parameters a decoded part of an entry spells.

    Raises:
        InvalidParameter, ValueError: it spells none.
    """
    return _read(canonical.memo_key(content))


@functools.lru_cache(maxsize=_REMEMBERED_MAX)
def _read(spelled: bytes) -> accounting.ShuffledRound:
    return accounting.ShuffledRound.from_mapping(canonical.of_memo_key(spelled))
