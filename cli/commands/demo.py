"""`demo`: a year of telemetry rounds for six cohorts, from the examples to tables and pictures."""

from __future__ import annotations

from pathlib import Path

import click

from shuffle_ledger.cli.commands.demo_run import run_demo
from shuffle_ledger.cli.commands.demo_views import demo_tables
from shuffle_ledger.cli.options import output_options, server_refused
from shuffle_ledger.cli.rendering.present import present


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Where the ledger, the pictures and the summary go; made afresh each time.",
)
@server_refused("the demo makes a ledger of its own")
@output_options
def demo(output: Path, as_json: bool) -> None:
    """Account a year of telemetry rounds for six cohorts, and draw it."""
    result = run_demo(output)
    present(result, lambda: demo_tables(result), as_json=as_json)
