"""Rounds in which all devices run one randomizer, whatever that is."""

from __future__ import annotations

from typing import Any

from shuffle_ledger.accounting import InvalidParameter, ShuffledRound, parse_randomizer

# In the order of preference: the parts' own bounds, the smallest bound of any randomizer, the published pair.
_WANT_ONE_RANDOMIZER = ("blanket", "tight", "clone-identical")


def alike(**fields: Any) -> ShuffledRound:
    """Returns a round of one randomizer on all devices; unless an analysis is named, by the first one that
    holds for it."""
    known = parse_randomizer(fields["randomizer"]).analyses
    if fields.get("analysis") is not None or "clone" not in known:
        return ShuffledRound(**fields)
    *others, last = (name for name in _WANT_ONE_RANDOMIZER if name in known)
    for name in others:
        try:
            return ShuffledRound(**fields | {"analysis": name})
        except InvalidParameter as refused:
            if refused.field != "analysis":
                raise
    return ShuffledRound(**fields | {"analysis": last})
