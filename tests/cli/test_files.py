"""Files of rounds: what is read, and what is refused, with line, field, value and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuffle_ledger.cli.files import table_files
from shuffle_ledger.cli.files.round_files import read_cohorts, read_requests
from tests.cli.conftest import Run

HEADER = "round_id,cohort,randomizer,reports\n"
GOOD = 'a,phones,"krr(k=2, epsilon0=0.5)",1000\n'
EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = '{"round_id": "a", "cohort": "phones", "randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000}'


def test_the_examples_are_six_cohorts_and_a_year() -> None:
    requests = read_requests(EXAMPLES / "rounds.csv")
    assert len(requests) == 1272
    assert (requests[0].line, requests[-1].line) == (2, 1273)
    cohorts = {line.cohort.name for line in read_cohorts(EXAMPLES / "cohorts.csv")}
    assert {line.request.cohort for line in requests} == cohorts
    assert len(cohorts) == 6


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + HEADER + GOOD,
        (HEADER + GOOD).replace("\n", "\r\n"),
        "\n" + HEADER + "\n" + GOOD + ",,,\n\n",
        'cohort , reports,randomizer,round_id,use_case\n phones,1000 ,"krr(k=2, epsilon0=0.5)",a,\n',
        RECORD + "\n",
        "\ufeff\n" + RECORD,
    ],
)
def test_forms_that_mean_the_same(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rounds"
    file.write_bytes(content.encode())
    plain = tmp_path / "plain.csv"
    plain.write_text(HEADER + GOOD)
    assert [line.request for line in read_requests(file)] == [line.request for line in read_requests(plain)]


WRONG: list[tuple[bytes, list[str]]] = [
    (b"", ["empty"]),
    (HEADER.encode(), ["no records"]),
    (b"round_id,cohort,reports\na,phones,5\n", ["no column", "randomizer"]),
    (b"round_id,cohort,randomizer,reports,colour\n", ["unknown column", "colour"]),
    (b"round_id,round_id,cohort,randomizer,reports\n", ["twice", "round_id"]),
    (HEADER.encode() + b"b,phones,caf\xe9,5\n", ["line 2", "UTF-8"]),
    ((HEADER + GOOD + 'b,"phones,x\n').encode(), ["line 3", "CSV"]),
    ((HEADER + GOOD + "b,phones\n").encode(), ["line 3", "2 fields", "4"]),
    ((HEADER + GOOD + GOOD).encode(), ["line 3", "round_id", "'a'", "line 2"]),
    ((HEADER.strip() + ",count\n" + GOOD.strip() + ",2\n").encode(), ["count"]),
    ((HEADER + GOOD.replace("1000", "ten")).encode(), ["line 2", "reports", "'ten'", "a whole number"]),
    (RECORD.replace("1000", "1000.5").encode(), ["line 1", "reports", "a whole number"]),
    (RECORD.replace("1000", "true").encode(), ["line 1", "reports", "a whole number"]),
    (RECORD.replace("1000", "NaN").encode(), ["line 1", "NaN"]),
    (RECORD.replace("1000", "1e999").encode(), ["line 1", "1e999 is too large"]),
    (RECORD.replace("1000", "1" + "0" * 5000).encode(), ["line 1", "thousands of digits"]),
    (RECORD.replace("1000", "[" * 30_000 + "]" * 30_000).encode(), ["line 1", "too deeply"]),
    (RECORD.replace('"cohort"', '"round_id"').encode(), ["line 1", "twice"]),
    (f"{RECORD}\n{{".encode(), ["line 2", "one JSON object"]),
    (RECORD.replace('"reports"', '"colour"').encode(), ["line 1", "colour"]),
]


def test_what_is_wrong_is_named(phones: Run, directory: Path) -> None:
    before = phones("budget", "phones", "--json").stdout
    for content, words in WRONG:
        (directory / "rounds").write_bytes(content)
        answer = phones("round", "import", "rounds", "--json")
        assert answer.code == 2
        for word in ["rounds", *words]:
            assert word in answer.json["error"]["message"], content[:80]
    assert phones("budget", "phones", "--json").stdout == before


def test_files_have_limits(phones: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "rounds.csv").write_text(HEADER + GOOD + GOOD.replace("a,", "b,"))
    monkeypatch.setattr(table_files, "RECORDS_MAX", 1)
    assert "more than 1 records" in phones("round", "import", "rounds.csv").stderr
    monkeypatch.setattr(table_files, "FILE_BYTES_MAX", 10)
    assert "at most 10" in phones("round", "import", "rounds.csv").stderr


def test_line_700_of_the_year_is_named_and_nothing_is_written(directory: Path, run: Run) -> None:
    lines = (EXAMPLES / "rounds.csv").read_text().splitlines(keepends=True)
    assert len(lines) == 1273
    cells = lines[699].split('"')
    lines[699] = '"'.join([*cells[:2], ",minus five,,,\n"])
    (directory / "year.csv").write_text("".join(lines))
    answer = run("round", "import", "year.csv", "--cohorts", str(EXAMPLES / "cohorts.csv"), "--json")
    assert answer.code == 2
    error = answer.json["error"]
    assert (error["file"], error["line"], error["field"]) == ("year.csv", 700, "reports")
    assert "minus five" in error["value"]
    assert error["expected"] == "a whole number"
    assert run("cohort", "list", "--json").json == []
