"""Files of rounds and of cohorts, read whole: every line is good, or the first bad one is named."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from shuffle_ledger.accounting import MAXIMUM_ROUNDS, ShuffledRound
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.files.fields import (
    AUDIENCE,
    REAL,
    REGISTRATION_FIELDS,
    ROUND_FIELDS,
    TEXT,
    WHOLE,
    round_from_fields,
)
from shuffle_ledger.cli.files.problems import Problems
from shuffle_ledger.cli.files.table_files import PLAIN, Record, TableReading, read_records
from shuffle_ledger.ledger.values import (
    POLICY_ADAPTIVE,
    Cohort,
    Opening,
    RoundRequest,
    Window,
    checked_new_name,
    cohort_from_opening,
    named_in,
    request_of,
)

_COLUMNS = {"round_id": TEXT, "cohort": TEXT, **REGISTRATION_FIELDS, "audience": AUDIENCE, **ROUND_FIELDS}
_UNNAMED = "audience"  # in place of a cohort's name, until the names of an audience are there
_COHORT_FIELDS = {
    "cohort": TEXT,
    "population": WHOLE,
    "epsilon": REAL,
    "delta": REAL,
    "policy": TEXT,
    "per": TEXT,
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RequestLine:
    """A round to register, and the line of the file that asks for it.

    Attributes:
        line: counted from 1.
        request: the round; while there is a selector, that stands in place of the cohort's name.
        selector: labels such as `device=phone`, whose cohorts the ledger knows; None once they are found.
    """

    line: int
    request: RoundRequest
    selector: str | None = None

    def selected(self, names: Sequence[str]) -> RequestLine:
        """Returns the line of the cohorts that the selector means; raises InvalidValue."""
        return replace(self, request=_request(self.request, names), selector=None)


@dataclass(frozen=True, kw_only=True)
class CohortLine:
    """A cohort to open where it is missing, and the line of the file that asks for it."""

    line: int
    cohort: Cohort


def read_requests(path: Path, reading: TableReading = PLAIN) -> list[RequestLine]:
    """Returns the rounds of an import file in file order; their ids differ.

    Raises:
        FileRefused, BadValue: as `read_records`.
        BadLine, BadLines: lines that cannot be accepted.
    """
    columns, problems = _COLUMNS, Problems(path)
    required = ("round_id", "cohort", "randomizer", "reports")
    records = read_records(
        path,
        columns,
        required=required,
        problems=problems,
        reading=reading,
        instead={"cohort": "audience"},
    )
    _refuse_repeated(records, "round_id", problems)
    return _each(records, _request_line, problems)


def read_cohorts(path: Path) -> list[CohortLine]:
    """Returns the cohorts of a cohort file in file order; their names differ. Raises like `read_requests`."""
    required, problems = ("cohort", "population", "epsilon", "delta"), Problems(path)
    records = read_records(path, _COHORT_FIELDS, required=required, problems=problems)
    _refuse_repeated(records, "cohort", problems)
    return _each(records, _cohort_line, problems)


def read_composition(path: Path) -> dict[ShuffledRound, int]:
    """Returns how often each round of a `compose` file happens; it may have the columns of an import."""
    columns, problems = {**_COLUMNS, "count": WHOLE}, Problems(path)
    records = read_records(path, columns, required=("randomizer", "reports"), problems=problems)
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

    _each(records, add, problems)
    return counts


def _request_line(record: Record) -> RequestLine:
    fields = record.fields
    audience = fields.get("audience")
    if audience is not None and "cohort" in fields:
        raise BadValue("audience", audience, "it left out where cohort is given")
    is_selector = isinstance(audience, str) and "=" in audience
    request = RoundRequest(
        round_id=checked_new_name("round_id", fields["round_id"]),
        cohort=fields["cohort"] if audience is None else str(audience) if is_selector else _UNNAMED,
        round=round_from_fields(fields),
        **{name: fields[name] for name in REGISTRATION_FIELDS if name in fields},
    )
    line = RequestLine(line=record.line, request=request, selector=str(audience) if is_selector else None)
    if audience is None or is_selector:
        return line
    return line.selected(audience if isinstance(audience, list) else named_in(audience))


def _request(described: RoundRequest, names: Sequence[str]) -> RoundRequest:
    """Returns the request of a round of some cohorts; raises InvalidValue."""
    more = {name: getattr(described, name) for name in REGISTRATION_FIELDS}
    return request_of(names, described.round, round_id=described.round_id, **more)


def _cohort_line(record: Record) -> CohortLine:
    fields = record.fields
    opening: Opening = {
        "name": checked_new_name("cohort", fields["cohort"]),
        "population": fields["population"],
        "policy": fields.get("policy", POLICY_ADAPTIVE),
    }
    if "per" in fields:
        window = {"per": fields["per"], "epsilon": fields["epsilon"], "delta": fields["delta"]}
        opening["windows"] = [Window.from_mapping(window)]
    else:
        opening |= {"epsilon": fields["epsilon"], "delta": fields["delta"]}
    cohort = cohort_from_opening(**opening)
    return CohortLine(line=record.line, cohort=cohort)


def _each(records: Iterable[Record], make: Callable[[Record], T], problems: Problems) -> list[T]:
    made: list[T] = []
    for record in records:
        with problems.of(record.line):
            made.append(make(record))
    problems.refuse()
    return made


def _refuse_repeated(records: Iterable[Record], field: str, problems: Problems) -> None:
    seen: dict[str, int] = {}
    for record in records:
        value = unicodedata.normalize("NFC", str(record.fields[field]))
        if value in seen:
            expected = f"each {field} once (line {seen[value]} has it too)"
            problems.add(record.line, BadValue(field, value, expected))
        seen.setdefault(value, record.line)
