"""`round import`: registers and decides the rounds of a file, or says what would be decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.commands.round_views import import_facts
from shuffle_ledger.cli.failures import BadValue, ExitCode
from shuffle_ledger.cli.files.output_files import checked_place, write_whole
from shuffle_ledger.cli.files.round_files import read_cohorts, read_requests
from shuffle_ledger.cli.files.round_import import RefusedLine, plan_import, rehearse_import, run_import
from shuffle_ledger.cli.files.round_tables import csv_text
from shuffle_ledger.cli.files.table_files import TableReading
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    deciding_options,
    output_options,
    team_option,
    yes_option,
)
from shuffle_ledger.cli.rendering.present import present_decision

_REFUSED_COLUMNS = ("line", "round_id", "cohort", "reason", "message")


@click.command("import")
@click.argument("file", type=FILE)
@click.option(
    "--cohorts",
    "cohort_file",
    type=FILE,
    help="Open cohorts that are missing: cohort,population,epsilon,delta.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be decided now. Writes nothing to the ledger.")
@click.option(
    "--refused-out",
    type=NEW_FILE,
    metavar="FILE",
    help="Write every refused round to this CSV file, with its line and the reason.",
)
@click.option(
    "--map", "renamed", metavar="OLD=NEW", multiple=True, help="FILE's column OLD is NEW. Repeat for more."
)
@click.option("--ignore-extra", is_flag=True, help="Leave out columns that a round does not have.")
@team_option
@yes_option
@deciding_options
@output_options
def import_(
    file: Path,
    cohort_file: Path | None,
    dry_run: bool,
    refused_out: Path | None,
    renamed: Sequence[str],
    ignore_extra: bool,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Register and decide every round of FILE, in file order.

    FILE is CSV with a header, or JSON lines, whatever its name: round_id, cohort (or audience), randomizer,
    reports and, as needed, collected_on, collected_until, use_case, sampled_from, participation,
    honest_fraction, delta0, analysis, reports_per_user. The whole file is checked before
    anything is written. An interrupted import is finished by running it again. Exits with 0 when every
    round is decided, also when the budget refused some: the answer lists them; with 7 while some are
    undecided. A round that is voided, or of a cohort that is frozen or overspent since it admitted the
    round, is a conflict (5).
    """
    if refused_out is not None:
        checked_place(refused_out)
    reading = TableReading(renamed=_renames(renamed), ignore_extra=ignore_extra, by_options=True)
    lines, cohorts = read_requests(file, reading), read_cohorts(cohort_file) if cohort_file else []
    with open_ledger(**where) as ledger:
        plan = plan_import(ledger, lines, cohorts, file=file, cohort_file=cohort_file, accept_warnings=yes)
        summary = rehearse_import(ledger, plan) if dry_run else run_import(ledger, plan)
    present_decision(summary, lambda: import_facts(summary), as_json=as_json)
    if refused_out is not None:
        write_whole(refused_out, csv_text(_REFUSED_COLUMNS, map(_cells, summary.refused)))
    return ExitCode.DONE if summary.rounds_pending == 0 else ExitCode.UNDECIDED


def _renames(given: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for one in given:
        old, equals, new = (part.strip() for part in one.partition("="))
        if not (old and equals and new) or old in found:
            raise BadValue("map", one, "OLD=NEW, each column of the file once")
        found[old] = new
    return found


def _cells(refused: RefusedLine) -> dict[str, object]:
    return {name: getattr(refused, name) for name in _REFUSED_COLUMNS}
