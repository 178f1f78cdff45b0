"""Files of rounds and of cohorts, read whole: every line is good, or the first bad one is named."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shuffle_ledger.accounting import MAXIMUM_ROUNDS, InvalidParameter, ShuffledRound
from shuffle_ledger.cli.failures import BadLine, BadValue, CommandLineError
from shuffle_ledger.cli.files.fields import DATE, REAL, ROUND_FIELDS, TEXT, WHOLE, round_from_fields
from shuffle_ledger.cli.files.table_files import Record, read_records
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values import POLICY_ADAPTIVE, Cohort, RoundRequest, checked_new_name

_REGISTRATION_FIELDS = {"round_id": TEXT, "cohort": TEXT, "collected_on": DATE, "use_case": TEXT}
_COHORT_FIELDS = {"cohort": TEXT, "population": WHOLE, "epsilon": REAL, "delta": REAL, "policy": TEXT}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RequestLine:
    """A round to register, and the line of the file that asks for it."""

    line: int
    request: RoundRequest


@dataclass(frozen=True, kw_only=True)
class CohortLine:
    """A cohort to open where it is missing, and the line of the file that asks for it."""

    line: int
    cohort: Cohort


def read_requests(path: Path) -> list[RequestLine]:
    """Returns the rounds of an import file in file order; their ids differ. Raises like `read_records`."""
    columns = {**_REGISTRATION_FIELDS, **ROUND_FIELDS}
    records = read_records(path, columns, required=("round_id", "cohort", "randomizer", "reports"))
    _refuse_repeated(path, records, "round_id")
    return _each(path, records, _request_line)


def read_cohorts(path: Path) -> list[CohortLine]:
    """Returns the cohorts of a cohort file in file order; their names differ. Raises like `read_records`."""
    records = read_records(path, _COHORT_FIELDS, required=("cohort", "population", "epsilon", "delta"))
    _refuse_repeated(path, records, "cohort")
    return _each(path, records, _cohort_line)


def read_composition(path: Path) -> dict[ShuffledRound, int]:
    """Returns how often each round of a `compose` file happens; it may have the columns of an import."""
    columns = {**_REGISTRATION_FIELDS, **ROUND_FIELDS, "count": WHOLE}
    records = read_records(path, columns, required=("randomizer", "reports"))
    counts: dict[ShuffledRound, int] = {}
    total = 0

    def add(record: Record) -> None:
        nonlocal total
        count: int = record.fields.get("count", 1)
        if not 1 <= count <= MAXIMUM_ROUNDS:
            raise BadValue("count", count, f"a whole number from 1 to {MAXIMUM_ROUNDS}")
        described, total = round_from_fields(record.fields), total + count
        if total > MAXIMUM_ROUNDS:
            raise BadValue("count", count, f"no more than {MAXIMUM_ROUNDS} rounds in the file altogether")
        counts[described] = counts.get(described, 0) + count

    _each(path, records, add)
    return counts


def _request_line(record: Record) -> RequestLine:
    fields = record.fields
    request = RoundRequest(
        round_id=checked_new_name("round_id", fields["round_id"]),
        cohort=fields["cohort"],
        round=round_from_fields(fields),
        collected_on=fields.get("collected_on"),
        use_case=fields.get("use_case"),
    )
    return RequestLine(line=record.line, request=request)


def _cohort_line(record: Record) -> CohortLine:
    fields = record.fields
    cohort = Cohort(
        name=checked_new_name("cohort", fields["cohort"]),
        population=fields["population"],
        epsilon_budget=fields["epsilon"],
        delta_budget=fields["delta"],
        policy=fields.get("policy", POLICY_ADAPTIVE),
    )
    return CohortLine(line=record.line, cohort=cohort)


def _each(path: Path, records: Iterable[Record], make: Callable[[Record], T]) -> list[T]:
    made: list[T] = []
    for record in records:
        try:
            made.append(make(record))
        except (InvalidParameter, InvalidValue, CommandLineError) as problem:
            raise BadLine(str(path), record.line, problem) from problem
    return made


def _refuse_repeated(path: Path, records: Iterable[Record], field: str) -> None:
    seen: dict[str, int] = {}
    for record in records:
        value = unicodedata.normalize("NFC", str(record.fields[field]))
        if value in seen:
            expected = f"each {field} once (line {seen[value]} has it too)"
            raise BadLine(str(path), record.line, BadValue(field, value, expected))
        seen[value] = record.line
