"""Which numerical policies may follow one another in a chain."""

from __future__ import annotations

from collections.abc import Collection

# While a ledger is upgraded, processes of the version before write, too: see
# docs/decisions/0021-rolling-upgrades.md. A larger number lets older policies pass that nobody wrote.
OLDER_MAX = 1


def goes_back(numerical_policy: str, before: Collection[str]) -> str | None:
    """Return the newest of a chain's policies if no version of its time would write this one.

    None: the chain had this policy before, or it is at most `OLDER_MAX` older than the newest. All of them
    are known ones, which end with their number.
    """
    if not before or numerical_policy in before:
        return None
    newest = max(before, key=_number)
    return newest if _number(numerical_policy) < _number(newest) - OLDER_MAX else None


def _number(numerical_policy: str) -> int:
    return int(numerical_policy.rpartition("-")[2])
