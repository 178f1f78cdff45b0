"""Parquet files and workbooks: read like the CSV file of the same rounds, within limits, or refused."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shuffle_ledger.cli.failures import BadLine, BadValue, FileRefused
from shuffle_ledger.cli.files import parquet_files, typed_cells, workbook_files
from shuffle_ledger.cli.files.round_files import read_composition, read_requests
from shuffle_ledger.cli.files.table_files import Reading
from tests.cli.conftest import Run

KRR = "krr(k=2, epsilon0=0.5)"
COLUMNS = ("round_id", "cohort", "randomizer", "reports", "collected_on", "honest_fraction", "use_case")
ROWS: Sequence[Sequence[object]] = (
    ("a", "phones", KRR, 1000, date(2025, 1, 6), 0.95, "emoji"),
    ("b", "phones", KRR, 2000.0, datetime(2025, 1, 13), None, None),  # noqa: DTZ001 - as files have dates
)
CSV = (
    ",".join(COLUMNS) + f'\na,phones,"{KRR}",1000,2025-01-06,0.95,emoji\nb,phones,"{KRR}",2000,2025-01-13,,\n'
)
Write = Callable[..., None]


def write_workbook(
    path: Path, columns: Sequence[str] = COLUMNS, rows: Sequence[Sequence[object]] = ROWS
) -> None:
    book = openpyxl.Workbook()
    book.active.title = "Rounds"
    for row in (columns, *rows):
        book.active.append(list(row))
    book.save(path)


def write_parquet(
    path: Path, columns: Sequence[str] = COLUMNS, rows: Sequence[Sequence[object]] = ROWS
) -> None:
    cells = zip(*rows, strict=True)
    pq.write_table(pa.Table.from_arrays([pa.array(list(each)) for each in cells], list(columns)), path)


BOTH = pytest.mark.parametrize("write", [write_workbook, write_parquet])


def one_row(**cells: object) -> tuple[list[str], list[list[object]]]:
    row: dict[str, object] = {
        "round_id": "a",
        "cohort": "phones",
        "randomizer": KRR,
        "reports": 1000,
        **cells,
    }
    return list(row), [list(row.values())]


@BOTH
def test_a_table_is_the_csv_file_of_the_same_rounds(tmp_path: Path, write: Write) -> None:
    (tmp_path / "rounds.csv").write_text(CSV)
    write(tmp_path / "rounds")  # the bytes decide, not the name
    expected = [line.request for line in read_requests(tmp_path / "rounds.csv")]
    found = read_requests(tmp_path / "rounds")
    assert [line.request for line in found] == expected
    assert [line.line for line in found] == ([2, 3] if write is write_workbook else [1, 2])
    assert sum(read_composition(tmp_path / "rounds").values()) == 2


@pytest.mark.slow
@BOTH
def test_an_import_takes_the_options_that_it_takes_for_csv(
    phones: Run, directory: Path, write: Write
) -> None:
    names = ["id", *COLUMNS[1:], "owner"]
    write(directory / "rounds", names, [[*row, "ann"] for row in ROWS])
    order = ("round", "import", "rounds", "--map", "id=round_id", "--json")
    assert "owner" in phones(*order).json["error"]["message"]
    rehearsed = phones(*order, "--ignore-extra", "--dry-run").json
    assert (rehearsed["dry_run"], rehearsed["rounds_admitted"]) == (True, 2)
    assert phones(*order, "--ignore-extra").json["rounds_admitted"] == 2
    assert phones("round", "show", "b", "--json").json["collected_on"] == "2025-01-13"


@BOTH
@pytest.mark.parametrize(
    ("field", "cell"),
    [
        ("reports", 1000.5),
        ("reports", True),
        ("reports", date(2025, 1, 6)),
        ("reports", "30.000"),
        ("collected_on", datetime(2025, 1, 6, 12)),  # noqa: DTZ001 - as above
        ("collected_on", time(12)),
        ("collected_on", 45_663),
        ("round_id", 7),
        ("round_id", date(2025, 1, 1)),
        ("cohort", 7.0),
        ("use_case", "x" * (typed_cells.CHARACTERS_MAX + 1)),
    ],
)
def test_a_cell_that_is_something_else_is_refused(
    tmp_path: Path, write: Write, field: str, cell: object
) -> None:
    write(tmp_path / "rounds", *one_row(**{field: cell}))
    hint = "a text, stored as text" if field in ("round_id", "cohort") else ""
    # A column of a Parquet file has one type, which may be refused for all its cells.
    with pytest.raises((BadLine, FileRefused), match=f"{field}.*expected.*{hint}"):
        read_requests(tmp_path / "rounds")


@BOTH
@pytest.mark.parametrize("field", ["honest_fraction", "delta0", "reports_per_user"])
def test_nan_is_absent_but_where_a_round_would_cost_less(tmp_path: Path, write: Write, field: str) -> None:
    nan: object = "NaN" if write is write_workbook else float("nan")
    write(tmp_path / "rounds", *one_row(participation=nan, collected_on=None))
    assert read_requests(tmp_path / "rounds")[0].request.round.participation is None
    write(tmp_path / "rounds", *one_row(**{field: nan}))
    with pytest.raises(BadLine, match=field):
        read_requests(tmp_path / "rounds")


def test_all_bad_rows_are_named_at_once_with_the_numbers_of_the_sheet(phones: Run, directory: Path) -> None:
    columns, (good,) = one_row()
    bad = [f"b{len(good)}", "phones", KRR, "many"]
    write_workbook(directory / "rounds.xlsx", columns, [bad, [None] * 4, good, [*good, "beyond"], [*bad[:3]]])
    error = phones("round", "import", "rounds.xlsx", "--json").json["error"]
    assert [(each["line"], each["field"]) for each in error["lines"]] == [
        (2, "reports"),
        (5, "record"),
        (6, "reports"),
    ]


def test_the_sheet_is_the_first_visible_one_or_the_one_that_is_named(phones: Run, directory: Path) -> None:
    book = openpyxl.Workbook()
    for title, reports in (("hidden", 1), ("first", 10), ("second", 20)):
        sheet = book.create_sheet(title)
        columns, (row,) = one_row(reports=reports)
        for each in (columns, row):
            sheet.append(each)
    book["hidden"].sheet_state = "hidden"
    del book["Sheet"]
    book.create_sheet("notes")["A1"] = "read me"
    book.save(directory / "rounds.xlsx")
    path = directory / "rounds.xlsx"
    for name, reports in ((None, 10), ("second", 20), ("hidden", 1)):
        (found,) = read_requests(path, Reading(sheet=name))
        assert found.request.round.reports == reports
    error = phones("round", "import", "rounds.xlsx", "--sheet", "third", "--json").json["error"]
    assert (error["field"], error["expected"]) == ("sheet", "one of hidden, first, second, notes")
    with pytest.raises(FileRefused, match=r"sheet 'notes'.*read me"):
        read_requests(path, Reading(sheet="notes"))
    (directory / "rounds.csv").write_text(CSV)
    with pytest.raises(BadValue, match="no workbook"):
        read_requests(directory / "rounds.csv", Reading(sheet="first"))


def _with_part(
    path: Path, name: str, change: Callable[[bytes], bytes], *, renamed: str | None = None
) -> None:
    """Rewrites a part of a workbook, also under another name."""
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in parts.items():
            archive.writestr(each, change(content) if each == name and renamed is None else content)
        if renamed is not None:
            archive.writestr(renamed, change(parts[name]))


SHEET = "xl/worksheets/sheet1.xml"


def test_a_formula_has_its_stored_result_and_is_never_taken_for_an_empty_cell(tmp_path: Path) -> None:
    path = tmp_path / "rounds.xlsx"
    write_workbook(path, *one_row(honest_fraction="=1-0.05"))
    with pytest.raises(BadLine, match=r"line 2: honest_fraction: got 'a formula without a result'"):
        read_requests(path)
    _with_part(path, SHEET, lambda sheet: sheet.replace(b"<v />", b"<v>0.95</v>"))
    assert read_requests(path)[0].request.round.honest_fraction == 0.95
    write_workbook(path, *one_row(honest_fraction="#N/A"))
    with pytest.raises(BadLine, match="honest_fraction: got '#N/A', expected a value"):
        read_requests(path)


def test_a_workbook_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rounds.xlsx"

    def refused(words: str) -> None:
        with pytest.raises(FileRefused, match=words):
            read_requests(path)

    write_workbook(path)
    size = path.stat().st_size
    with monkeypatch.context() as limits:
        limits.setattr(workbook_files, "UNPACKED_BYTES_MAX", size)
        refused("without compression")
    with monkeypatch.context() as limits:
        limits.setattr(workbook_files, "PART_BYTES_MAX", 100)
        refused("has more than 100 bytes")
    far = b'<row r="999999999999"><c r="A9"><v>1</v></c></row></sheetData>'
    _with_part(path, SHEET, lambda sheet: sheet.replace(b"</sheetData>", far))
    with monkeypatch.context() as limits:
        limits.setattr(workbook_files, "CELLS_MAX", 1000)
        refused("more than 1,000 cells")
    write_workbook(path)
    laughs = b'<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]><'
    _with_part(path, "xl/styles.xml", lambda part: laughs + part[1:])
    refused("declares a document type")
    write_workbook(path)
    _with_part(path, "xl/theme/theme1.xml", lambda part: laughs + part[1:], renamed="xl/theme1.dat")
    refused("declares a document type")


def test_a_parquet_file_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rounds.parquet"
    write_parquet(path)
    with monkeypatch.context() as limits:
        limits.setattr(parquet_files, "UNPACKED_BYTES_MAX", 100)
        with pytest.raises(FileRefused, match="without compression"):
            read_requests(path)
    columns, (row,) = one_row(use_case="x" * 100_000)
    write_parquet(path, columns, [row] * 20)
    _, *found = parquet_files.parquet_rows(path, path.read_bytes(), {"use_case"}, rows_max=20)
    assert len({id(cells[-1]) for cells in found}) == 1  # a text that repeats is kept once
    with pytest.raises(FileRefused, match="20 records, expected at most 19"):
        next(parquet_files.parquet_rows(path, path.read_bytes(), (), rows_max=19))


def test_types_of_parquet_files_that_hold_what_csv_holds(tmp_path: Path) -> None:
    columns, (row,) = one_row()
    arrays: dict[str, pa.Array] = {
        **{name: pa.array([cell]) for name, cell in zip(columns, row, strict=True)},
        "cohort": pa.array(["phones"]).dictionary_encode(),
        "round_id": pa.array(["a"], pa.large_string()),
        "reports": pa.array([Decimal("1000.00")]),
        "collected_on": pa.array([datetime(2025, 1, 6, tzinfo=UTC)], pa.timestamp("ns", "UTC")),
        "analysis": pa.nulls(1),
        "__index_level_0__": pa.array([5]),
    }
    pq.write_table(pa.table(arrays), tmp_path / "rounds")
    (found,) = read_requests(tmp_path / "rounds")
    assert (found.request.cohort, found.request.round.reports) == ("phones", 1000)
    assert found.request.collected_on == date(2025, 1, 6)
    midnight_elsewhere = pa.array([datetime(2025, 1, 5, 23, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin"))
    for name, array, expected in (
        ("reports", pa.array([1000.0], pa.float32()), "double or int64"),
        ("randomizer", pa.array([{"kind": "krr"}]), "texts, numbers or dates"),
        ("collected_on", midnight_elsewhere, "a date"),
    ):
        pq.write_table(pa.table({**arrays, name: array}), tmp_path / "rounds")
        with pytest.raises((FileRefused, BadLine), match=f"{name}.*expected {expected}"):
            read_requests(tmp_path / "rounds")


def _zip(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "an old Excel workbook (.xls); save it as .xlsx"),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            "an encrypted workbook; save it without a password",
        ),
        (_zip("xl/workbook.bin"), "a binary workbook (.xlsb); save it as .xlsx"),
        (_zip("content.xml", "mimetype"), "a ZIP archive that is no .xlsx workbook"),
        (_zip("xl/workbook.xml"), "a workbook that cannot be read"),
        (b"PAR1 and so on", "a Parquet file that cannot be read; it may be damaged or encrypted"),
        (b"PARE and so on", "an encrypted Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_gets_a_hint(
    phones: Run, directory: Path, content: bytes, hint: str
) -> None:
    (directory / "rounds.xlsx").write_bytes(content)
    answer = phones("round", "import", "rounds.xlsx")
    assert (answer.code, answer.stdout) == (2, "")
    assert hint in answer.stderr
