"""Questions: one frozen dataclass for each thing that can be asked, with the JSON names of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shuffle_ledger.names import imported_when_used

if TYPE_CHECKING:
    from shuffle_ledger.ledger.questions import (
        audits,
        calculators,
        cohorts,
        fields,
        permits,
        randomizers,
        rounds,
    )
else:
    __getattr__ = imported_when_used(
        __name__,
        dict.fromkeys(("audits", "calculators", "cohorts", "fields", "permits", "randomizers", "rounds"), ""),
    )

__all__ = ["audits", "calculators", "cohorts", "fields", "permits", "randomizers", "rounds"]
