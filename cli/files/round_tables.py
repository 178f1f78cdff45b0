"""Rounds as CSV: the columns of an import, and others behind them that say what became of each round."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.values import document_of

_ROUND_COLUMNS = (
    "randomizer", "reports", "sampled_from", "participation", "honest_fraction", "delta0", "analysis",
    "reports_per_user",
)  # fmt: skip
IMPORT_COLUMNS = (
    "round_id", "cohort", *_ROUND_COLUMNS, "collected_on", "use_case", "collected_until", "audience",
)  # fmt: skip


def round_cells(
    *,
    round_id: str,
    cohort: str,
    described: ShuffledRound,
    collected_on: date | None,
    use_case: str | None,
    collected_until: date | None = None,
    audience: Sequence[str] = (),
) -> dict[str, object]:
    """Returns a round's cells by the columns of an import, so that the line can be imported as it is."""
    words = described.asked_mapping()
    return {
        "round_id": round_id,
        "cohort": None if audience else cohort,
        **{name: words.get(name) for name in _ROUND_COLUMNS},
        "collected_on": collected_on,
        "use_case": use_case,
        "collected_until": collected_until,
        "audience": ",".join(audience) or None,
    }


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Returns CSV with a header; an absent cell is empty, a randomizer stands in its JSON form."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return json.dumps(document_of(value))
    found = document_of(value)
    return found if isinstance(found, str) else json.dumps(found)
