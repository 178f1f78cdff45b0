"""Workbooks (.xlsx) of records, read by openpyxl with limits on what they unpack to."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.parsers import expat

from shuffle_ledger.cli.failures import BadValue, CommandLineError, FileRefused
from shuffle_ledger.cli.files.typed_cells import Unreadable, day_or_moment

UNPACKED_BYTES_MAX = 256 * 1024 * 1024  # of all parts of a workbook
PART_BYTES_MAX = (
    16 * 1024 * 1024
)  # of a part that is kept in memory as a tree: all but sheets and their texts
CELLS_MAX = 5_000_000  # of a sheet, empty ones too: a row number or a column letter may be anything
_STREAMED = ("xl/worksheets/", "xl/sharedStrings.xml")
_CHUNK_BYTES = 65_536
_DAMAGED = "a workbook that cannot be read; open it in a spreadsheet program and save it again as .xlsx"
_NO_RESULT = Unreadable(
    shown="a formula without a result",
    expected="a value: open the workbook in a spreadsheet program, which computes it, and save it",
)


class _ElementBegins(Exception):
    """The first element of a document begins; raised only to end its parsing."""


def workbook_rows(
    path: Path, data: bytes, *, sheet: str | None
) -> tuple[str, Iterator[tuple[int, list[Any]]]]:
    """Returns how messages name the sheet, and its rows with their numbers, from the header on.

    Each row has as many cells as the header, or more where there is something in them. Formulas have the
    results that the file has of them.

    Args:
        path: the file, for messages.
        data: its content, a ZIP archive.
        sheet: the name of the sheet; the first visible one if None.

    Raises:
        FileRefused: no .xlsx workbook, damaged, too large, or an empty sheet.
        BadValue: there is no sheet of this name.
        ModuleNotFoundError: openpyxl is not installed.
    """
    import openpyxl  # noqa: F401, PLC0415 - an extra; its absence is no damage of the file

    try:
        _check_archive(path, data)
        with warnings.catch_warnings(action="ignore"):  # of drawings and styles that openpyxl leaves out
            title, rows = _read(path, data, sheet)
    except CommandLineError:
        raise
    except Exception as problem:
        raise FileRefused(f"{path}: {_DAMAGED}") from problem
    place = f"{path}, sheet {title!r}"
    filled = [(number, cells) for number, cells in rows if any(cell not in (None, "") for cell in cells)]
    if not filled:
        raise FileRefused(f"{place}: empty, expected a header and records")
    width = len(_without_end(filled[0][1]))
    return place, ((number, _of_width(cells, width)) for number, cells in filled)


def _check_archive(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
        names = {part.filename for part in parts}
        if not any(name.startswith("xl/") for name in names):
            expected = "a workbook (.xlsx), CSV with a header, JSON lines or Parquet"
            raise FileRefused(f"{path}: a ZIP archive that is no .xlsx workbook, expected {expected}")
        if "xl/workbook.bin" in names:
            raise FileRefused(f"{path}: a binary workbook (.xlsb); save it as .xlsx")
        # No more is ever unpacked of a part than it declares.
        if sum(part.file_size for part in parts) > UNPACKED_BYTES_MAX:
            expected = f"expected at most {UNPACKED_BYTES_MAX:,} bytes without compression"
            raise FileRefused(f"{path}: too large, {expected}; split it")
        for part in parts:  # whatever its name is: a workbook says itself which part is a sheet
            with archive.open(part) as content:
                is_document = _is_document(path, content)
            is_large = part.file_size > PART_BYTES_MAX and not part.filename.startswith(_STREAMED)
            if is_document and is_large:
                raise FileRefused(f"{path}: {part.filename} has more than {PART_BYTES_MAX:,} bytes")


def _is_document(path: Path, content: Any) -> bool:
    """Return whether a part is of XML, and no picture, say.

    Raises:
        FileRefused: it has a document type declaration, whose entities could expand without limit. That can
            only stand before the first element. No workbook has one.
    """

    def refuse(*_: object) -> None:
        raise FileRefused(f"{path}: {_DAMAGED} (it declares a document type)")

    def begin(*_: object) -> None:
        raise _ElementBegins

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = refuse, begin
    try:
        while chunk := content.read(_CHUNK_BYTES):
            parser.Parse(chunk)
    except _ElementBegins:
        return True
    except expat.ExpatError:  # openpyxl cannot read it as XML either
        return False
    return False


def _read(path: Path, data: bytes, sheet: str | None) -> tuple[str, list[tuple[int, list[Any]]]]:
    title, rows, formulas = _sheet(path, data, sheet, results=False)
    if formulas:
        _, results, _ = _sheet(path, data, sheet, results=True)
        by_number = dict(results)
        for number, cells in rows:
            for place in formulas.get(number, ()):
                result = by_number[number][place]
                cells[place] = _NO_RESULT if result is None else result
    return title, rows


def _sheet(
    path: Path, data: bytes, name: str | None, *, results: bool
) -> tuple[str, list[tuple[int, list[Any]]], dict[int, list[int]]]:
    """Returns the sheet's name, its rows with their numbers, and by row the places of formulas.

    With `results` these cells are the results that the file has, and no formulas are found.
    """
    import openpyxl  # noqa: PLC0415 - as above

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=results, keep_links=False)
    found = _chosen(path, book.worksheets, name)
    found.reset_dimensions()  # some programs declare fewer cells than there are
    rows, formulas, count = [], {}, 0
    for number, row in enumerate(found.iter_rows(), start=1):
        count += 1 + len(row)
        if count > CELLS_MAX:
            raise FileRefused(f"{path}: sheet {found.title!r} has more than {CELLS_MAX:,} cells; split it")
        if row:
            rows.append((number, [_plain(cell) for cell in row]))
        if places := [place for place, cell in enumerate(row) if cell.data_type == "f"]:
            formulas[number] = places
    return found.title, rows, formulas


def _chosen(path: Path, sheets: list[Any], name: str | None) -> Any:
    if name is None:
        visible = [sheet for sheet in sheets if sheet.sheet_state == "visible"]
        if not visible:
            raise FileRefused(f"{path}: a workbook without a visible sheet")
        return visible[0]
    for sheet in sheets:
        if sheet.title == name:
            return sheet
    raise BadValue("sheet", name, f"one of {', '.join(sheet.title for sheet in sheets)}")


def _plain(cell: Any) -> Any:
    if cell.data_type == "e":
        return Unreadable(shown=str(cell.value), expected="a value, not an error of the spreadsheet")
    if isinstance(cell.value, str):
        return cell.value.strip()
    return day_or_moment(cell.value) if isinstance(cell.value, datetime) else cell.value


def _without_end(cells: list[Any]) -> list[Any]:
    """Returns the cells up to the last one that is not empty."""
    filled = [place for place, cell in enumerate(cells, start=1) if cell not in (None, "")]
    return cells[: filled[-1] if filled else 0]


def _of_width(cells: list[Any], width: int) -> list[Any]:
    trimmed = _without_end(cells)
    return trimmed + [None] * (width - len(trimmed))
