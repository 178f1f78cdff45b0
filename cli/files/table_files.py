"""Files of records, as CSV with a header or as JSON lines; whatever is wrong is named by its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shuffle_ledger.cli.failures import BadLine, BadValue, FileRefused
from shuffle_ledger.cli.files.fields import Fields, Kind
from shuffle_ledger.ledger.values import NotStrictJson, read_json

FILE_BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 200_000


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: the line it starts at (counted from 1) and its typed fields; empty ones are absent."""

    line: int
    fields: Fields


def read_records(path: Path, columns: Mapping[str, Kind], *, required: Collection[str]) -> list[Record]:
    """Returns every record of `path`, in order; at least one, at most `RECORDS_MAX`.

    Raises:
        FileRefused: too big, empty, not UTF-8, or a header with missing, unknown or repeated columns.
        BadLine: the first line that is malformed, with the field, the value and what was expected.
    """
    text = _text_of(path)
    is_json = text.lstrip()[:1] == "{"
    raw = _json_lines(path, text) if is_json else _csv_lines(path, text, columns, required)
    records: list[Record] = []
    for line, cells in raw:
        try:
            records.append(Record(line=line, fields=_typed(cells, columns, required, text=not is_json)))
        except BadValue as problem:
            raise BadLine(str(path), line, problem) from None
        if len(records) > RECORDS_MAX:
            raise FileRefused(f"{path}: more than {RECORDS_MAX:,} records; split it")
    if not records:
        raise FileRefused(f"{path}: a header and no records")
    return records


def _text_of(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise FileRefused(f"{path}: {size:,} bytes, expected at most {FILE_BYTES_MAX:,}; split it")
        data = path.read_bytes()
    except OSError as problem:
        raise FileRefused(f"{path}: cannot be read: {problem.strerror}") from problem
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise FileRefused(f"{path}, line {line}: not UTF-8 text") from None
    if not text.strip():
        raise FileRefused(f"{path}: empty, expected CSV with a header, or JSON lines")
    return text


def _typed(
    cells: Mapping[str, object], columns: Mapping[str, Kind], required: Collection[str], *, text: bool
) -> Fields:
    for name in cells:
        if name not in columns:
            raise BadValue("column", name, f"one of {', '.join(columns)}")
    given = {name: cell for name, cell in cells.items() if cell is not None and cell != ""}
    for name in required:
        if name not in given:
            raise BadValue(name, cells.get(name, ""), columns[name].expected)
    return {name: columns[name].read(name, cell, text=text) for name, cell in given.items()}


def _csv_lines(
    path: Path, text: str, columns: Mapping[str, Kind], required: Collection[str]
) -> Iterator[tuple[int, dict[str, object]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as problem:
            raise FileRefused(f"{path}, line {line}: not CSV: {problem}") from None
        if row is None:
            return
        if not any(cell.strip() for cell in row):
            continue
        if not header:
            header = _header(path, row, columns, required)
            continue
        if len(row) != len(header):
            expected = f"{len(header)}, like the header; values that contain commas stand in double quotes"
            raise BadLine(str(path), line, BadValue("record", f"{len(row)} fields", expected))
        yield line, {name: cell.strip() for name, cell in zip(header, row, strict=True)}


def _header(path: Path, row: list[str], columns: Mapping[str, Kind], required: Collection[str]) -> list[str]:
    header = [name.strip() for name in row]
    known = f"(known are {', '.join(columns)})"
    for name in header:
        if name not in columns:
            raise FileRefused(f"{path}: unknown column {name!r} {known}")
        if header.count(name) > 1:
            raise FileRefused(f"{path}: column {name!r} stands in the header twice")
    missing = [name for name in required if name not in header]
    if missing:
        raise FileRefused(f"{path}: no column {', '.join(map(repr, missing))} in the header {known}")
    return header


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            record = read_json(content)
        except NotStrictJson as problem:
            expected = f"one JSON object per line ({problem})"
            raise BadLine(str(path), line, BadValue("record", content.strip(), expected)) from None
        if not isinstance(record, dict):
            raise BadLine(str(path), line, BadValue("record", content.strip(), "one JSON object per line"))
        yield line, record
