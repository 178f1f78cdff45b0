"""Rounds as CSV: the columns of an import, and others behind them that say what became of each round."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.files.fields import REGISTRATION_FIELDS, ROUND_FIELDS
from shuffle_ledger.ledger.values import document_of

IMPORT_COLUMNS = ("round_id", "cohort", *ROUND_FIELDS, *REGISTRATION_FIELDS, "audience")


def round_cells(
    *, round_id: str, cohort: str, described: ShuffledRound, audience: Sequence[str] = (), **more: object
) -> dict[str, object]:
    """Returns a round's cells by the columns of an import, so that the line can be imported as it is.

    Args:
        round_id: its name.
        cohort: its cohort, if it has no audience.
        described: the round.
        audience: its cohorts, if there are several.
        more: its `REGISTRATION_FIELDS`.
    """
    words = described.asked_mapping()
    return {
        "round_id": round_id,
        "cohort": None if audience else cohort,
        **{name: words.get(name) for name in ROUND_FIELDS},
        **more,
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
