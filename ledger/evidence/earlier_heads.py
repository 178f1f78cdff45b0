"""Heads that earlier statements and checkpoints were about, for new ones to extend."""

from __future__ import annotations

import json
from pathlib import Path

from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.statement import STATEMENT_FORMAT
from shuffle_ledger.ledger.values.checkpoint import read_head
from shuffle_ledger.ledger.values.saved_heads import saved_heads


def read_earlier_heads(path: Path) -> list[tuple[str, Head]]:
    """Return the heads in a file, by cohort: of a checkpoint, of a list of heads, or of a JSON statement.

    Raises:
        InvalidValue: the file holds none of these.
        BadSignature: it holds a checkpoint that was changed.
        OSError: the file cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        expected = f"a JSON file with a checkpoint, heads or a statement ({error})"
        raise InvalidValue(field="extends", value=str(path), expected=expected) from error
    if isinstance(data, dict) and data.get("format") == STATEMENT_FORMAT:
        try:
            found = [read_head({"cohort": each["cohort"], **each["head"]}) for each in data["cohorts"]]
        except (KeyError, TypeError) as error:
            raise InvalidValue(
                field="extends", value=str(path), expected="a statement with a head for each of its cohorts"
            ) from error
    else:
        found = list(saved_heads(data).heads)
    return [(head.cohort, Head(sequence=head.sequence, digest=head.digest_hex)) for head in found]
