"""HTML tables of names and texts for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from shuffle_ledger.accounting.printed_numbers import exact_text, lower_text, upper_text


def interval_text(lower: float, upper: float) -> str:
    """Returns a certified interval as "LOWER to UPPER", or as one number if both ends are equal.

    Guarantee: the first number is at most `lower`, and the second is at least `upper`.
    """
    if lower == upper:
        return exact_text(upper)
    return f"{lower_text(lower)} to {upper_text(upper)}"


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Returns a table of two columns with a caption; all texts are escaped."""
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"
