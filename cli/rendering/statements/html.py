"""A statement as one HTML file that refers to nothing outside itself; it prints as it reads."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from shuffle_ledger.cli.rendering.statements.blocks import RAISED, Drawing
from shuffle_ledger.cli.rendering.statements.document import document_from
from shuffle_ledger.ledger.evidence import Statement

ROWS_MAX = 2_000
_TEMPLATE = "statement.html.jinja"


def html(statement: Statement) -> bytes:
    """Returns the whole file; everything that people named is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"footnoted": _footnoted, "lines": _lines, "svg": _svg}
    source = (files("shuffle_ledger.cli.rendering.statements") / _TEMPLATE).read_text("utf-8")
    document = document_from(statement, rows_max=ROWS_MAX)
    return environment.from_string(source).render(document=document).encode("utf-8")


def _svg(drawing: Drawing) -> Markup:
    # Our own drawing, made of paths: nothing that people named is in it, nor in its words.
    labelled = f'<svg role="img" aria-label="{escape(drawing.words)}" '
    return Markup(drawing.svg.replace("<svg ", labelled, 1))  # noqa: S704 - a drawing of ours


def _footnoted(text: str) -> Markup:
    """Returns a sentence whose raised digits lead to the terms."""
    pieces = []
    for letter in text:
        number = RAISED.find(letter) + 1
        pieces.append(
            Markup('<sup><a href="#term-{0}">{0}</a></sup>').format(number) if number else escape(letter)
        )
    return Markup("").join(pieces)


def _lines(text: str) -> Markup:
    """Returns a cell: its first line, and the others smaller below."""
    first, *others = text.split("\n")
    rest = Markup("").join(
        Markup('<div class="small">{}</div>').format(_footnoted(each)) for each in others if each
    )
    return _footnoted(first) + rest
