"""A statement on paper: the same document as in HTML, set by fpdf2."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import matplotlib as mpl
from fpdf import FPDF
from fpdf.enums import Align, PageMode, TableBordersLayout, VAlign, XPos, YPos
from fpdf.fonts import FontFace
from fpdf.prefs import ViewerPreferences

from shuffle_ledger.cli.rendering.statements.document import CohortPages, Document, document_from
from shuffle_ledger.cli.rendering.statements.drawings import drawing, in_words
from shuffle_ledger.cli.rendering.statements.tables import Table
from shuffle_ledger.ledger.evidence import Statement

ROWS_MAX = 1_000
_FONT: Final = "DejaVu Serif"  # it ships with Matplotlib, and has every letter that people name things with
_INK, _SOFT, _RULE, _GOOD, _BAD, _MARK = 0x1C2733, 0x5B6672, 0xD5DAE0, 0x1F5F4A, 0x9B2C2C, 0x234F72
_MARGIN = 18.0  # millimetres
_CELL = 7.2  # points
_DRAWINGS: Final[Mapping[Literal["spending", "profile"], str]] = {
    "spending": "The spending at the end of each day, beside the budget. The band is the certified interval.",
    "profile": "The privacy profile of the rounds that are charged, composed: a smaller δ for a larger ε.",
}


class _Paper(FPDF):
    """Pages with a quiet foot: what this is, and which page of how many."""

    def __init__(self, title: str) -> None:
        super().__init__(format="A4")
        self._title = title
        fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
        self.add_font(_FONT, "", fonts / "DejaVuSerif.ttf")
        self.add_font(_FONT, "B", fonts / "DejaVuSerif-Bold.ttf")
        self.set_margin(_MARGIN)
        self.set_auto_page_break(auto=True, margin=_MARGIN + 4)
        self.set_title(title)
        self.set_lang("en")
        # Nothing is tagged: fpdf2 can tag pictures only, and of a document that is tagged in part, screen
        # readers may leave out the rest. The text is in the order of reading, and has each drawing in words.
        self.viewer_preferences = ViewerPreferences(display_doc_title=True)
        self.page_mode = PageMode.USE_OUTLINES

    def footer(self) -> None:
        """Write the foot of a page; fpdf2 calls it."""
        self.set_y(-14)
        self.ink(_SOFT, 7)
        width = self.epw
        self.cell(width * 0.8, 4, self._title, new_x=XPos.RIGHT)
        self.cell(width * 0.2, 4, f"{self.page_no()} / {{nb}}", align=Align.R)

    def ink(self, color: int, size: float, style: str = "") -> None:
        """Sets color, size in points and style of the next text."""
        self.set_text_color(*_channels(color))
        self.set_font(_FONT, style, size)

    def words(
        self, text: str, size: float, *, color: int = _INK, style: str = "", after: float = 1.6
    ) -> None:
        """Write a paragraph, and leave `after` millimetres below it."""
        self.ink(color, size, style)
        self.multi_cell(0, size * 0.5, text, align=Align.L, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.ln(after)

    def heading(self, text: str, size: float, *, level: int, color: int = _INK, room: float = 26) -> None:
        """Write a heading with its bookmark, on the next page if there is no room for what follows it."""
        if self.will_page_break(room):
            self.add_page()
        self.ln(1.6)
        self.start_section(text, level=level, strict=False)
        self.words(text, size, color=color, style="B", after=0.8)

    def rule(self, *, color: int = _RULE, width: float = 0.2) -> None:
        """Draw a line across the page."""
        self.set_draw_color(*_channels(color))
        self.set_line_width(width)
        self.line(self.l_margin, self.get_y(), self.w - self.r_margin, self.get_y())


def pdf(statement: Statement) -> bytes:
    """Returns the file; the same statement gives the same bytes."""
    document = document_from(statement, rows_max=ROWS_MAX)
    paper = _Paper(document.title)
    paper.set_creation_date(statement.made_at)
    paper.set_creator(statement.software)
    paper.add_page()
    for alarm in document.alarms:
        paper.words(alarm, 9, color=_BAD, style="B")
    paper.start_section(document.title)
    paper.words(document.title, 17, style="B", after=0.6)
    paper.words(document.subtitle, 8, color=_SOFT, after=2)
    if document.overview is not None:
        _table(paper, document.overview)
    for number, cohort in enumerate(document.cohorts):
        if document.overview is not None:
            paper.add_page()
            paper.heading(cohort.cohort, 13, level=0)
        _first_page(paper, cohort)
        _account(paper, cohort)
        if number == len(document.cohorts) - 1:
            _last_page(paper, document)
    return bytes(paper.output())


def _first_page(paper: _Paper, cohort: CohortPages) -> None:
    paper.rule(color=_INK, width=0.5)
    paper.ln(3)
    good = cohort.verdict in ("kept", "no_promise")
    paper.words(cohort.verdict_word, 15, color=_GOOD if good else _BAD, style="B", after=0.6)
    paper.words(cohort.verdict_sentence, 9)
    paper.set_fill_color(*_channels(_RULE))
    paper.rect(paper.l_margin, paper.get_y(), paper.epw, 2, style="F")
    paper.set_fill_color(*_channels(_MARK if good else _BAD))
    paper.rect(paper.l_margin, paper.get_y(), max(paper.epw * cohort.used, 0.01), 2, style="F")
    paper.set_fill_color(255)  # tables would take the last color for their cells
    paper.ln(3)
    paper.words(cohort.used_text, 8, color=_SOFT)
    for chapter in cohort.chapters:
        paper.heading(chapter.heading, 10, level=1)
        for paragraph in chapter.paragraphs:
            paper.words(paragraph, 8.6)
    _table(paper, cohort.conditions)


def _account(paper: _Paper, cohort: CohortPages) -> None:
    paper.add_page()
    paper.heading(f"{cohort.cohort}: the account", 13, level=0)
    _facts(paper, cohort.facts)
    for what, caption in _DRAWINGS.items():
        words = in_words(cohort.statement, what)
        height = paper.epw / 3
        if paper.will_page_break(height + 16):
            paper.add_page()
        paper.image(io.BytesIO(drawing(cohort.statement, what, "png")), w=paper.epw, h=height)
        paper.words(f"{caption} {words}", 7.4, color=_SOFT, after=2.4)
    for each in cohort.tables:
        _table(paper, each)


def _last_page(paper: _Paper, document: Document) -> None:
    paper.heading("Evidence", 13, level=0)
    _facts(paper, document.evidence)
    paper.heading("Terms", 13, level=0)
    for number, (name, meaning) in enumerate(document.terms, start=1):
        paper.words(f"{number}. {name}. {meaning}", 7.8, after=1)


def _facts(paper: _Paper, rows: tuple[tuple[str, str], ...]) -> None:
    paper.ink(_INK, _CELL + 0.4)
    soft = FontFace(color=_channels(_SOFT))
    with paper.table(
        col_widths=(22, 78),
        first_row_as_headings=False,
        borders_layout=TableBordersLayout.NONE,
        line_height=4.2,
        text_align=Align.L,
        v_align=VAlign.T,
        padding=(0.7, 1, 0.7, 0),
    ) as table:
        for name, value in rows:
            row = table.row()
            row.cell(name, style=soft)
            row.cell(value)
    paper.ln(2)


def _table(paper: _Paper, it: Table) -> None:
    paper.heading(it.title, 10, level=1, color=_BAD if it.alarming else _INK)
    paper.words(it.intro, 7.6, color=_SOFT, after=1)
    if not it.rows:
        paper.words("None.", 8)
        return
    paper.ink(_INK, _CELL)
    paper.set_draw_color(*_channels(_RULE))
    paper.set_line_width(0.15)
    with paper.table(
        col_widths=tuple(column.width for column in it.columns),
        text_align=tuple(Align.R if column.numeric else Align.L for column in it.columns),
        headings_style=FontFace(emphasis="BOLD", color=_channels(_BAD if it.alarming else _INK)),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
        line_height=3.5,
        v_align=VAlign.T,
        padding=(0.9, 1.2, 0.9, 0),
    ) as table:
        table.row([column.name for column in it.columns])
        for index, row in enumerate(it.rows):
            if it.left_out and index == len(it.rows) // 2:
                cut = f"{it.left_out:,} rows are left out here; the JSON and CSV forms have them all."
                table.row().cell(cut, colspan=len(it.columns))
            table.row(row)
    paper.ln(2)


def _channels(color: int) -> tuple[int, int, int]:
    return color >> 16 & 255, color >> 8 & 255, color & 255
