"""Runs the demo: a fresh ledger, the example rounds, a picture per cohort and a summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from sqlalchemy import URL

from shuffle_ledger.cli.backends.database import DatabaseLedger
from shuffle_ledger.cli.backends.session import Session, open_session
from shuffle_ledger.cli.failures import require
from shuffle_ledger.cli.files.round_files import read_cohorts, read_requests
from shuffle_ledger.cli.files.round_import import ImportSummary, plan_import, run_import
from shuffle_ledger.cli.rendering.present import document_of
from shuffle_ledger.ledger.answers import BudgetStatement
from shuffle_ledger.ledger.reports import HistoryPoint, budget, history
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import initialise
from shuffle_ledger.ledger.values import EntryKind

LEDGER_FILE = "ledger.db"
SUMMARY_FILE = "summary.json"
_DATABASE_SUFFIXES = ("", "-journal", "-shm", "-wal")


@dataclass(frozen=True, kw_only=True)
class DemoCohort:
    """One cohort after the year."""

    budget: BudgetStatement
    use_cases: Mapping[str, Mapping[str, int]]  # by use case: how many rounds were admitted and refused
    picture: str


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The whole year."""

    cohorts: list[DemoCohort]
    imported: ImportSummary
    database_url: str
    summary: str


def run_demo(output: Path, *, rounds: Path | None = None, cohorts: Path | None = None) -> DemoResult:
    """Imports `rounds` and `cohorts` (the examples) into a fresh ledger in `output`, and draws every cohort.

    Files of an earlier demo are replaced; nothing else in `output` is touched. No broker is used, whatever
    the environment says: the demo is the same everywhere.
    """
    require("matplotlib")  # before a year is accounted
    output.mkdir(parents=True, exist_ok=True)
    for suffix in _DATABASE_SUFFIXES:
        (output / f"{LEDGER_FILE}{suffix}").unlink(missing_ok=True)
    database_url = URL.create("sqlite", database=str(output / LEDGER_FILE)).render_as_string()
    settings = Settings(database_url=database_url, broker_url=None, actor="demo")
    initialise(settings.database_url)
    with open_session(settings) as session:
        imported = _import(session, rounds, cohorts)
        shown = [_cohort(session, cohort.name, output) for cohort in session.store.cohorts()]
    result = DemoResult(
        cohorts=shown,
        imported=imported,
        database_url=settings.database_url,
        summary=str(output / SUMMARY_FILE),
    )
    Path(result.summary).write_text(
        json.dumps(document_of(result), indent=2, allow_nan=False) + "\n", "utf-8"
    )
    return result


def _import(session: Session, rounds: Path | None, cohorts: Path | None) -> ImportSummary:
    examples = _examples()
    with as_file(examples / "rounds.csv") as year, as_file(examples / "cohorts.csv") as six:
        file, cohort_file = rounds or year, cohorts or six
        lines, opening = read_requests(file), read_cohorts(cohort_file)
        ledger = DatabaseLedger(session=session)
        plan = plan_import(ledger, lines, opening, file=file, cohort_file=cohort_file)
    return run_import(ledger, plan)


def _examples() -> Traversable:
    """Returns the folder of examples: in the installed package, or beside it in a checkout."""
    installed = files("shuffle_ledger") / "examples"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "examples"


def _cohort(session: Session, name: str, output: Path) -> DemoCohort:
    from shuffle_ledger.cli.rendering.charts import draw_cohort  # noqa: PLC0415 - help need not wait for Matplotlib

    statement = budget(session.store, session.accountant, name)
    points = list(history(session.store, name))
    picture = output / f"{name}.png"
    draw_cohort(statement, points, picture)
    return DemoCohort(budget=statement, use_cases=_use_cases(points), picture=str(picture))


def _use_cases(points: list[HistoryPoint]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[EntryKind]] = {}
    for point in points:
        if point.kind in (EntryKind.ADMITTED, EntryKind.REFUSED):
            counts.setdefault(point.use_case or "(none)", Counter())[point.kind] += 1
    kinds = (EntryKind.ADMITTED, EntryKind.REFUSED)
    return {name: {str(kind): counts[name][kind] for kind in kinds} for name in sorted(counts)}
