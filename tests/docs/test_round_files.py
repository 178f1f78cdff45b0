"""The page about files of rounds: its examples are read, and its table has every column."""

from __future__ import annotations

import re
from pathlib import Path

from shuffle_ledger.cli.files.round_files import read_cohorts, read_requests
from shuffle_ledger.cli.files.round_tables import IMPORT_COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "round-files.md").read_text("utf-8")


def test_both_forms_of_the_example_are_the_same_rounds(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(?:csv|json)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    paths = [tmp_path / str(number) for number in range(3)]
    for path, block in zip(paths, blocks, strict=True):
        path.write_text(block, "utf-8")
    from_csv, from_json = ([line.request for line in read_requests(path)] for path in paths[:2])
    assert from_csv == from_json
    assert [request.round.sampled_from for request in from_csv] == [None, 40_000]
    (opened,) = read_cohorts(paths[2])
    assert {request.cohort for request in from_csv} == {opened.cohort.name}


def test_the_table_has_every_column() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == set(IMPORT_COLUMNS)
