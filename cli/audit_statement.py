"""`audit statement`: what was promised to a cohort's users, whether it was kept, and how anybody can tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Literal

import click

from cli.fields import calendar_date, whole_number
from cli.options import ledger_options
from cli.present import document_of
from cli.progress import progress_on
from cli.session import open_session, settings_from
from cli.statements.spreadsheet import spreadsheet
from ledger.auditing.making import AsOf, make_statement
from ledger.auditing.statement import Statement

Form = Literal["html", "pdf", "json", "csv"]


class AsOfType(click.ParamType[AsOf]):
    """Reads a sequence, a day (its end) or a moment (UTC unless it says otherwise)."""

    name = "an entry's sequence, a day as YYYY-MM-DD, or a moment as YYYY-MM-DDTHH:MM:SS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        if not isinstance(value, str):
            return None
        for read in (whole_number, _end_of_day, _moment):
            try:
                return read(value.strip())
            except ValueError:
                continue
        return self.fail(f"got {value!r}, expected {self.name}", param, ctx)


@click.command()
@click.argument("cohort", required=False)
@click.option("--all", "every", is_flag=True, help="All cohorts, in one statement.")
@click.option(
    "--as-of", type=AsOfType(), metavar="WHEN", help="What stood then: SEQUENCE, day or moment (UTC)."
)
@click.option(
    "--format", "form", type=click.Choice(["html", "pdf", "json", "csv"]), default="html", show_default=True
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="File; else standard output."
)
@ledger_options
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def statement(
    cohort: str | None,
    every: bool,
    as_of: AsOf,
    form: Form,
    output: Path | None,
    database_url: str | None,
    actor: str | None,
) -> None:
    """State what was promised to COHORT's users, and whether it was kept."""
    if (cohort is None) == (not every):
        raise click.UsageError("name one COHORT, or say --all")
    if every and isinstance(as_of, int):
        raise click.UsageError(
            "--as-of with --all takes a day or a moment: each cohort counts its own entries"
        )
    with (
        open_session(settings_from(database_url=database_url, actor=actor)) as session,
        progress_on(sys.stderr) as tell,
    ):
        names = [cohort] if cohort is not None else [each.name for each in session.store.cohorts()]
        made = make_statement(
            session.store, session.accountant, names, made_at=datetime.now(UTC), as_of=as_of, progress=tell
        )
        content = _SETTERS[form](made)
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        output.write_bytes(content)


def _html(made: Statement) -> bytes:
    from cli.statements.html import html  # noqa: PLC0415 - nobody should wait for Matplotlib in vain

    return html(made)


def _json(made: Statement) -> bytes:
    return (json.dumps(document_of(made), allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


def _csv(made: Statement) -> bytes:
    return spreadsheet(made)


_SETTERS: Mapping[Form, Callable[[Statement], bytes]] = {"html": _html, "json": _json, "csv": _csv}


def _end_of_day(text: str) -> datetime:
    return datetime.combine(calendar_date(text), time.max, tzinfo=UTC)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
