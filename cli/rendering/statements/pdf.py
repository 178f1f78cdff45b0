"""A statement on paper: the same document as in HTML, set by Typst as a tagged PDF (PDF/UA-1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
import typst
from matplotlib.ft2font import FT2Font

from shuffle_ledger.cli.rendering.statements.document import CohortPages, document_from
from shuffle_ledger.cli.rendering.statements.drawings import drawing, in_words
from shuffle_ledger.cli.rendering.statements.tables import Table
from shuffle_ledger.ledger.evidence import Statement

ROWS_MAX = 1_000
_TEMPLATE = "statement.typ"
_FONTS: Final = Path(mpl.get_data_path()) / "fonts" / "ttf"  # Matplotlib brings DejaVu Serif
_DRAWINGS: Final[Mapping[Literal["spending", "profile"], str]] = {
    "spending": "The spending at the end of each day, beside the budget. The band is the certified interval.",
    "profile": "The privacy profile of the rounds that are charged, composed: a smaller δ for a larger ε.",
}


def pdf(statement: Statement) -> bytes:
    """Returns the file; the same statement gives the same bytes."""
    document = document_from(statement, rows_max=ROWS_MAX)
    content = {
        "title": document.title,
        "subtitle": document.subtitle,
        "alarms": document.alarms,
        "overview": None if document.overview is None else _sheet(document.overview),
        "cohorts": [_cohort(each) for each in document.cohorts],
        "evidence": document.evidence,
        "terms": document.terms,
    }
    written = json.dumps(content, ensure_ascii=False)
    return typst.compile(
        (files("shuffle_ledger.cli.rendering.statements") / _TEMPLATE).read_bytes(),
        format="pdf",
        font_paths=typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=[_FONTS]),
        sys_inputs={"document": _printable(written)},
        pdf_standards="ua-1",
        timestamp=statement.made_at.replace(microsecond=0),
    )


def _cohort(pages: CohortPages) -> dict[str, Any]:
    return {
        "name": pages.cohort,
        "good": pages.verdict in ("kept", "no_promise"),
        "verdict_word": pages.verdict_word,
        "verdict_sentence": pages.verdict_sentence,
        "used": pages.used,
        "used_text": pages.used_text,
        "chapters": [asdict(each) for each in pages.chapters],
        "conditions": _sheet(pages.conditions),
        "facts": pages.facts,
        "drawings": [
            {
                "svg": drawing(pages.statement, what),
                "caption": caption,
                "words": in_words(pages.statement, what),
            }
            for what, caption in (_DRAWINGS if pages.statement.promise.has_life else {}).items()
        ],
        "tables": [_sheet(each) for each in pages.tables],
    }


def _sheet(table: Table) -> dict[str, Any]:
    left_out = f"{table.left_out:,} rows are left out here; the JSON form has them all."
    return {**asdict(table), "left_out_words": left_out}


def _printable(text: str) -> str:
    """Returns a text in letters that the font has; the others as their code points, such as <U+1F600>."""
    known = FT2Font(str(_FONTS / "DejaVuSerif.ttf")).get_charmap()
    return "".join(
        letter if letter.isspace() or ord(letter) in known else f"<U+{ord(letter):04X}>" for letter in text
    )
