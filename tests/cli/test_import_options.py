"""`round import`: rehearsals, refused rounds in full, files with other columns, and all bad lines at once."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

HEADER = "round_id,cohort,randomizer,reports\n"
# Three of these fit into the budget (1, 1e-6) of "phones".
LARGE = "krr(k=2, epsilon0=0.3)"


def rounds(count: int, *, reports: int = 1, cohort: str = "phones") -> str:
    return "".join(f'{cohort}-{n},{cohort},"{LARGE}",{reports}\n' for n in range(count))


def decisions(answer: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in answer.items() if name not in ("dry_run", "rounds_known")}


@pytest.mark.slow
def test_a_dry_run_says_what_the_import_then_does_and_writes_nothing(phones: Run, directory: Path) -> None:
    (directory / "rounds.csv").write_text(HEADER + rounds(5) + rounds(4, cohort="tablets"))
    (directory / "cohorts.csv").write_text("cohort,population,epsilon,delta\ntablets,1000,0.7,1e-6\n")
    order = ("round", "import", "rounds.csv", "--cohorts", "cohorts.csv", "--json")
    before = (phones("budget", "phones", "--json").stdout, phones("cohort", "list", "--json").stdout)
    rehearsed = phones(*order, "--dry-run")
    assert (rehearsed.code, rehearsed.json["dry_run"]) == (0, True)
    assert (phones("budget", "phones", "--json").stdout, phones("cohort", "list", "--json").stdout) == before
    done = phones(*order)
    assert decisions(done.json) == decisions(rehearsed.json)
    assert (done.json["rounds_refused"], done.json["dry_run"]) == (len(done.json["refused"]), False)
    again = phones(*order, "--dry-run")
    assert (decisions(again.json), again.json["rounds_known"]) == (
        {**decisions(done.json), "cohorts_opened": 0},
        9,
    )


@pytest.mark.slow
def test_a_dry_run_opens_cohorts_with_periods_as_the_import_does(phones: Run, directory: Path) -> None:
    (directory / "rounds.csv").write_text(HEADER + rounds(5, cohort="tablets"))
    (directory / "cohorts.csv").write_text(
        "cohort,population,epsilon,delta,per\ntablets,1000,0.7,1e-6,year\n"
    )
    order = ("round", "import", "rounds.csv", "--cohorts", "cohorts.csv", "--json")
    rehearsed = phones(*order, "--dry-run")
    assert rehearsed.code == 0
    done = phones(*order)
    assert decisions(done.json) == decisions(rehearsed.json)
    assert done.json["rounds_refused"] > 0


def test_every_refused_round_is_listed_and_written(phones: Run, directory: Path) -> None:
    (directory / "rounds.csv").write_text(HEADER + rounds(30))
    answer = phones("round", "import", "rounds.csv", "--refused-out", "refused.csv")
    assert answer.code == 0
    with (directory / "refused.csv").open(newline="") as file:
        refused = list(csv.DictReader(file))
    assert [int(row["line"]) for row in refused] == list(range(32 - len(refused), 32))
    assert {row["reason"] for row in refused} == {"budget_exceeded"}
    line, name = refused[0]["line"], refused[0]["round_id"]
    told = f"line {line}: {name}: Refused by the budget of phones: it would be"
    assert told in " ".join(answer.stdout.split())
    assert f"and {len(refused) - 20} more refused" in answer.stdout
    assert len(refused) > 20
    missing = phones("round", "import", "rounds.csv", "--refused-out", "nowhere/refused.csv", "--json")
    assert (missing.code, missing.json["error"]["field"]) == (2, "output")


def test_columns_are_renamed_and_left_out(phones: Run, directory: Path) -> None:
    content = "id,country,randomizer,n,owner\n" + f'a,phones,"{LARGE}",24.0,ann\n'
    (directory / "rounds.csv").write_text(content)
    names = ("--map", "id=round_id", "--map", "country=cohort", "--map", "n=reports")
    assert "'owner'" in phones("round", "import", "rounds.csv", *names).stderr
    answer = phones("round", "import", "rounds.csv", *names, "--ignore-extra", "--json")
    assert (answer.code, answer.json["rounds_admitted"]) == (0, 1)
    assert phones("round", "show", "a", "--json").json["round"]["reports"] == 24
    record = {"id": "b", "country": "phones", "randomizer": LARGE, "n": 24, "owner": "ann"}
    (directory / "rounds.jsonl").write_text(json.dumps(record))
    answer = phones("round", "import", "rounds.jsonl", *names, "--ignore-extra", "--json")
    assert (answer.code, answer.json["rounds_admitted"]) == (0, 1)


def test_a_column_that_is_misspelt_is_not_left_out(phones: Run, directory: Path) -> None:
    for name in ("honest_fractoin", "honestfraction", "sampled_form", "Delta0"):
        content = f'round_id,cohort,randomizer,reports,{name}\na,phones,"{LARGE}",24,0.5\n'
        (directory / "rounds.csv").write_text(content)
        answer = phones("round", "import", "rounds.csv", "--ignore-extra")
        assert answer.code == 2
        assert f"--map {name}=" in answer.stderr
    assert phones("round", "show", "a").code == 4


def test_a_renaming_that_is_none_is_named(phones: Run, directory: Path) -> None:
    (directory / "rounds.csv").write_text(HEADER + rounds(1))
    for given in ("a", "=b", "a=", "a=colour", "colour=reports"):
        answer = phones("round", "import", "rounds.csv", "--map", given, "--json")
        assert (answer.code, answer.json["error"]["field"]) == (2, "map")


def test_all_bad_lines_are_named_at_once_and_nothing_is_written(phones: Run, directory: Path) -> None:
    lines = [f'r{n},phones,"{LARGE}",{"many" if n % 2 else 5}' for n in range(130)]
    (directory / "rounds.csv").write_text(HEADER + "\n".join(lines) + "\n")
    error = phones("round", "import", "rounds.csv", "--json").json["error"]
    assert (error["lines_bad"], len(error["lines"])) == (65, 50)
    assert [each["line"] for each in error["lines"]] == list(range(3, 103, 2))
    assert {each["field"] for each in error["lines"]} == {"reports"}
    assert phones("round", "list", "phones", "--json").json == []


def test_all_that_the_ledger_would_not_take_is_named_at_once(phones: Run, directory: Path) -> None:
    content = HEADER + rounds(1, reports=10**9) + rounds(1, cohort="nobody") + f'b,phones,"{LARGE}",5\n'
    (directory / "rounds.csv").write_text(content)
    error = phones("round", "import", "rounds.csv", "--json").json["error"]
    assert [each["line"] for each in error["lines"]] == [2, 3]
    assert phones("round", "list", "phones", "--json").json == []


HINTS: tuple[tuple[bytes, str], ...] = (
    (HEADER.replace(",", ";").encode() + b"a;phones;krr;5\n", "separated by ';'; expected ','"),
    (HEADER.encode("utf-16"), "looks like UTF-16"),
    (b"PK\x03\x04 and so on", "is a workbook (.xlsx), or another ZIP archive; save it as CSV UTF-8"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "is a workbook (.xls); save it as CSV UTF-8"),
    (b"PAR1 and so on", "is a Parquet file; write it as CSV or as JSON lines (pandas: to_csv)"),
    (json.dumps([{"round_id": "a"}]).encode(), "a JSON array; expected JSON lines"),
    ((HEADER + f'a,phones,"{LARGE}","30,000"\n').encode(), "without thousands separators, as 30000"),
    ((HEADER + f',phones,"{LARGE}",5\n').encode(), "round_id: is empty"),
)


def test_a_file_of_another_kind_gets_a_hint(phones: Run, directory: Path) -> None:
    for content, hint in HINTS:
        (directory / "rounds").write_bytes(content)
        answer = phones("round", "import", "rounds")
        assert answer.code == 2
        assert hint in answer.stderr


@pytest.mark.parametrize(
    ("written", "reports"), [("24912209.0", 24_912_209), ("1e4", 10_000), ("2.5E3", 2_500)]
)
def test_integral_floats_are_whole_numbers(directory: Path, written: str, reports: int) -> None:
    from shuffle_ledger.cli.files.round_files import read_requests

    for name, content in (
        ("rounds.csv", HEADER + f'a,phones,"{LARGE}",{written}\n'),
        (
            "rounds.jsonl",
            f'{{"round_id": "a", "cohort": "phones", "randomizer": "{LARGE}", "reports": {written}}}\n',
        ),
    ):
        (directory / name).write_text(content)
        assert [line.request.round.reports for line in read_requests(directory / name)] == [reports]


@pytest.mark.parametrize("written", ["", "NaN"])
def test_a_cell_that_holds_nothing_is_absent(directory: Path, written: str) -> None:
    from shuffle_ledger.cli.files.round_files import read_requests

    columns = "sampled_from,participation,collected_on,use_case,analysis\n"
    line = f'a,phones,"{LARGE}",24' + f",{written}" * 5
    (directory / "rounds.csv").write_text(HEADER.rstrip() + "," + columns + line + "\n")
    (found,) = read_requests(directory / "rounds.csv")
    (directory / "rounds.csv").write_text(HEADER + f'a,phones,"{LARGE}",24\n')
    (plain,) = read_requests(directory / "rounds.csv")
    assert found.request == plain.request


@pytest.mark.parametrize("field", ["honest_fraction", "delta0"])
def test_nan_is_not_the_value_at_which_a_round_costs_least(phones: Run, directory: Path, field: str) -> None:
    (directory / "rounds.csv").write_text(HEADER.rstrip() + f',{field}\na,phones,"{LARGE}",24,NaN\n')
    answer = phones("round", "import", "rounds.csv", "--json")
    assert (answer.code, answer.json["error"]["field"], answer.json["error"]["line"]) == (2, field, 2)
