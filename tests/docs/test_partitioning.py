"""The operators' page about partitions, compared with the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Table, UniqueConstraint

from shuffle_ledger.ledger.storage.tables import entries, holdings, rounds

PAGE = Path(__file__).parents[2] / "docs" / "operations-reference.md"


def keys_of(table: Table) -> Iterator[list[str]]:
    """Yield the columns of every unique key of a table."""
    yield [column.name for column in table.primary_key.columns]
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield [column.name for column in constraint.columns]
    for index in table.indexes:
        if index.unique:
            yield [column.name for column in index.columns]


def test_the_keys_that_keep_tables_from_being_partitioned_by_cohort_are_named() -> None:
    page = PAGE.read_text("utf-8")
    (place,) = re.findall(r"^2\. \*\*Partitioning by cohort\*\*:.*?(?=^3\. )", page, re.DOTALL | re.MULTILINE)
    tables = (entries, rounds, holdings)
    keys = {
        f"{table.name} ({', '.join(key)})"
        for table in tables
        for key in keys_of(table)
        if "cohort" not in key
    }
    assert set(re.findall(r"`(\w+ \(\w+\))`", place)) == keys
