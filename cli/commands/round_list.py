"""`round list`: which rounds there are, and why each was refused."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
from rich.table import Table

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.files.fields import REGISTRATION_FIELDS
from shuffle_ledger.cli.files.round_tables import IMPORT_COLUMNS, csv_text, round_cells
from shuffle_ledger.cli.options import SINCE, asking_options, output_options
from shuffle_ledger.cli.rendering.present import Listing, coloured, present, shown
from shuffle_ledger.ledger.answers import STATES, ListedRound
from shuffle_ledger.ledger.values import refusal_in_words

_MORE_COLUMNS = (
    "state", "reason", "message", "epsilon_requested_upper", "registered_by", "registered_at", "sequence",
    "decided_at",
)  # fmt: skip


@click.command("list")
@click.argument("cohort")
@click.option("--outcome", type=click.Choice(STATES), help="Only rounds in this state now.")
@click.option("--since", type=SINCE, metavar="TIME", help="Only registered then or later; a day is of UTC.")
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Print CSV: the columns of an import, and more. A text that begins as a formula stays as it is.",
)
@asking_options
@output_options
def list_(
    cohort: str, outcome: Any, since: datetime | None, as_csv: bool, as_json: bool, **where: Any
) -> None:
    """List the rounds of COHORT in the order of registration, with why each was refused."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    with open_ledger(**where) as ledger:
        found = list(ledger.rounds(cohort, outcome=outcome, since=since))
    if as_csv:
        sys.stdout.write(csv_text((*IMPORT_COLUMNS, *_MORE_COLUMNS), map(_cells, found)))
        sys.stdout.flush()
        return
    present(found, lambda: _table(found), as_json=as_json)


def _cells(one: ListedRound) -> dict[str, object]:
    cells = round_cells(
        round_id=one.round_id,
        cohort=one.cohort,
        described=one.round,
        audience=one.audience,
        **{name: getattr(one, name) for name in REGISTRATION_FIELDS},
    )
    return {**cells, **{name: getattr(one, name) for name in _MORE_COLUMNS}}


def _table(found: list[ListedRound]) -> Table:
    table = Listing()
    table.add_column("round", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("registered", "collected on"):
        table.add_column(name, no_wrap=True)
    table.add_column("reports", justify="right", no_wrap=True)
    for name in ("randomizer", "refused because"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(
            one.round_id,
            coloured(one.state),
            f"{one.registered_at:%Y-%m-%d}",
            shown(one.collected_on),
            shown(one.round.reports),
            one.round.describe(),
            refusal_in_words(one.reason) if one.reason else "-",
        )
    return table
