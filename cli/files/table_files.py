"""Files of records: CSV with a header, or JSON lines; what is wrong is named by its line."""

from __future__ import annotations

import csv
import difflib
import functools
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from shuffle_ledger.cli.failures import BadValue, FileRefused
from shuffle_ledger.cli.files.fields import Fields, Kind
from shuffle_ledger.cli.files.file_hints import delimiter_hint, hint_of_bytes
from shuffle_ledger.cli.files.problems import Problems
from shuffle_ledger.ledger.gone_names import replacement
from shuffle_ledger.ledger.values import NotStrictJson, read_json

FILE_BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 200_000
_ALIKE = 0.8  # how alike two names are, from 0 to 1, if one may be a misspelling of the other
# Without these a round is taken for honest, pure or single, which costs less: NaN in them is refused.
_NAN_REFUSED = frozenset({"honest_fraction", "delta0", "count", "reports_per_user"})


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """How a file's columns are taken.

    Attributes:
        renamed: by a column's name in the file, the name it has here.
        ignore_extra: whether columns that are not known are left out, not refused.
        by_options: whether the command has --map and --ignore-extra, for messages to name.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    ignore_extra: bool = False
    by_options: bool = False


PLAIN = TableReading()


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: the line it starts at (counted from 1) and its typed fields; empty ones are absent."""

    line: int
    fields: Fields


def read_records(
    path: Path,
    columns: Mapping[str, Kind],
    *,
    required: Collection[str],
    problems: Problems,
    reading: TableReading = PLAIN,
    instead: Mapping[str, str] = MappingProxyType({}),
) -> list[Record]:
    """Returns the good records of `path`, in order; there are at most `RECORDS_MAX` in all.

    Args:
        path: the file: CSV with a header, or JSON lines, as its first byte says.
        columns: what fields there are, and of which kind.
        required: those that every record has.
        problems: collects the lines that are malformed, with the field, the value and what was expected.
        reading: how the file's columns are taken.
        instead: by a required field, another one that a record may have in its place.

    Raises:
        FileRefused: too big, empty, of no kind that is read, or a header with missing, unknown or repeated
            columns.
        BadValue: `reading` renames a column to one that is not known, or that is not in the file.
    """
    for old, new in reading.renamed.items():
        if new not in columns:
            raise BadValue("map", f"{old}={new}", f"OLD=NEW, where NEW is one of {', '.join(columns)}")
    table = _Table(
        place=str(path),
        columns=columns,
        required=required,
        reading=reading,
        instead=instead,
        problems=problems,
    )
    records: list[Record] = []
    count = 0
    for line, fields in _lines(table, path):
        count += 1
        with problems.of(line):
            records.append(Record(line=line, fields=fields()))
        if count > RECORDS_MAX:
            raise FileRefused(f"{path}: more than {RECORDS_MAX:,} records; split it")
    if not count and not problems.found:
        raise FileRefused(f"{path}: a header and no records")
    return records


@dataclass(frozen=True, kw_only=True)
class _Table:
    place: str  # the file, as messages name it
    columns: Mapping[str, Kind]
    required: Collection[str]
    reading: TableReading
    instead: Mapping[str, str]
    problems: Problems

    def missing(self, given: Collection[str]) -> list[str]:
        """Returns the required fields that are not given, nor the one in their place."""
        return [name for name in self.required if not {name, self.instead.get(name, name)} & set(given)]


def _lines(table: _Table, path: Path) -> Iterator[tuple[int, Callable[[], Fields]]]:
    """Yields the number of each record's line, and what reads its fields."""
    data = _bytes_of(path)
    text = _text(path, data)
    if text.lstrip()[:1] == "{":
        for line, record in _json_lines(text, table.problems):
            yield line, functools.partial(_json_fields, table, record)
    else:
        yield from _cells(table, _csv_rows(path, text))


def _bytes_of(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise FileRefused(f"{path}: {size:,} bytes, expected at most {FILE_BYTES_MAX:,}; split it")
        return path.read_bytes()
    except OSError as problem:
        raise FileRefused(f"{path}: cannot be read: {problem.strerror}") from problem


def _text(path: Path, data: bytes) -> str:
    if (hint := hint_of_bytes(data)) is not None:
        raise FileRefused(f"{path}: not UTF-8 text: it {hint}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise FileRefused(f"{path}, line {line}: not UTF-8 text; save it as CSV UTF-8") from None
    if not text.strip():
        raise FileRefused(f"{path}: empty, expected CSV with a header, or JSON lines")
    if text.lstrip()[:1] == "[":
        expected = "expected JSON lines, one object on each line without commas between, or CSV with a header"
        raise FileRefused(f"{path}: a JSON array; {expected}")
    return text


def _cells(
    table: _Table, rows: Iterable[tuple[int, Sequence[str]]]
) -> Iterator[tuple[int, Callable[[], Fields]]]:
    """Yields the records of rows, the first of which is the header; rows without content are left out."""
    header: list[str] = []
    for line, row in rows:
        if not any(row):
            continue
        if not header:
            header = _header(table, list(row))
            continue
        if len(row) != len(header):
            expected = f"{len(header)}, like the header; values that contain commas stand in double quotes"
            table.problems.add(line, BadValue("record", f"{len(row)} fields", expected))
            continue
        pairs = zip(header, row, strict=True)
        known = {name: cell for name, cell in pairs if name in table.columns and not _is_absent(name, cell)}
        yield line, functools.partial(_fields, table, known, text=True)


def _is_absent(field: str, cell: str) -> bool:
    """Returns whether a cell holds nothing: it is empty, or NaN, which programs write for what is missing."""
    return not cell or (field not in _NAN_REFUSED and cell.lower() == "nan")


def _fields(table: _Table, given: Mapping[str, object], *, text: bool) -> Fields:
    """Returns the typed fields of a record; raises BadValue for one that is missing or not what it takes."""
    for name in table.missing(given):
        raise BadValue(name, "", table.columns[name].expected)
    return {name: table.columns[name].read(name, cell, text=text) for name, cell in given.items()}


def _json_fields(table: _Table, record: Mapping[str, object]) -> Fields:
    columns, given = table.columns, _renamed(record, table.reading)
    for name in given:
        _refuse_gone(name, columns)
        if name not in columns and not table.reading.ignore_extra:
            raise BadValue("column", name, f"one of {', '.join(columns)}")
        _refuse_misspelt(name, given, columns)
    known = {name: cell for name, cell in given.items() if name in columns and cell not in (None, "")}
    return _fields(table, known, text=False)


def _renamed(cells: Mapping[str, object], reading: TableReading) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in cells.items():
        here = reading.renamed.get(name, name)
        if here in found:
            raise BadValue("column", here, f"each field once ({name} is another name of it)")
        found[here] = cell
    return found


def _refuse_gone(name: str, columns: Mapping[str, Kind]) -> None:
    """Raise BadValue for a column that files had once: to leave it out may make a round cost less."""
    instead = None if name in columns else replacement(name)
    if instead is not None:
        raise BadValue("column", name, "no such column", f"column {name!r} is gone: {instead}")


def _refuse_misspelt(name: str, given: Collection[str], columns: Mapping[str, Kind]) -> None:
    """Raise BadValue for a column that looks like one that is not there: its values would be left out, and
    some of them make a round cost more."""
    like = difflib.get_close_matches(name, columns, n=1, cutoff=_ALIKE)
    if name not in columns and like and like[0] not in given:
        raise BadValue("column", name, f"{like[0]} (say so with --map {name}={like[0]}), or no such column")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as problem:
            raise FileRefused(f"{path}, line {line}: not CSV: {problem}") from None
        if row is None:
            return
        yield line, [cell.strip() for cell in row]


_OTHERWISE = "; name it with --map OLD=NEW, or leave it out with --ignore-extra"


def _header(table: _Table, row: list[str]) -> list[str]:
    path, columns = table.place, table.columns
    known = f"(known are {', '.join(columns)})"
    given = [name.strip() for name in row]
    for name in table.reading.renamed:
        if name not in given:
            raise BadValue("map", name, f"a column of the file, which has {', '.join(given)}")
    header = [table.reading.renamed.get(name, name) for name in given]
    for name in header:
        _refuse_gone(name, columns)
        if name not in columns and not table.reading.ignore_extra:
            hint = delimiter_hint(row, columns)
            otherwise = _OTHERWISE if table.reading.by_options else ""
            raise FileRefused(f"{path}: " + (hint or f"unknown column {name!r} {known}{otherwise}"))
        _refuse_misspelt(name, header, columns)
        if name in columns and header.count(name) > 1:
            raise FileRefused(f"{path}: column {name!r} stands in the header twice")
    if missing := table.missing(header):
        said = (
            delimiter_hint(row, columns) or f"no column {', '.join(map(repr, missing))} in the header {known}"
        )
        raise FileRefused(f"{path}: {said}")
    return header


def _json_lines(text: str, problems: Problems) -> Iterator[tuple[int, dict[str, object]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            record = read_json(content)
        except NotStrictJson as problem:
            expected = f"one JSON object per line ({problem})"
            problems.add(line, BadValue("record", content.strip(), expected))
            continue
        if not isinstance(record, dict):
            problems.add(line, BadValue("record", content.strip(), "one JSON object per line"))
            continue
        yield line, record
