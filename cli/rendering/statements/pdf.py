"""A statement on paper: the same document as in HTML, set by Typst as a tagged PDF (PDF/UA-1).

`docs/decisions/0035-one-statement.md` says why no library prints the HTML.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Final

import matplotlib as mpl
import typst
from matplotlib.ft2font import FT2Font

from shuffle_ledger.cli.rendering.statements.document import document_from
from shuffle_ledger.ledger.evidence import Statement

ROWS_MAX = 1_000
_TEMPLATE = "statement.typ"
_FONTS: Final = Path(mpl.get_data_path()) / "fonts" / "ttf"  # Matplotlib brings DejaVu Serif


def pdf(statement: Statement) -> bytes:
    """Returns the file; the same statement gives the same bytes."""
    document = document_from(statement, rows_max=ROWS_MAX)
    return typst.compile(
        (files("shuffle_ledger.cli.rendering.statements") / _TEMPLATE).read_bytes(),
        format="pdf",
        font_paths=typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=[_FONTS]),
        sys_inputs={"document": _printable(json.dumps(asdict(document), ensure_ascii=False))},
        pdf_standards="ua-1",
        timestamp=statement.made_at.replace(microsecond=0),
    )


def _printable(text: str) -> str:
    """Returns a text in letters that the font has; the others as their code points, such as <U+1F600>."""
    known = FT2Font(str(_FONTS / "DejaVuSerif.ttf")).get_charmap()
    return "".join(
        letter if letter.isspace() or ord(letter) in known else f"<U+{ord(letter):04X}>" for letter in text
    )
