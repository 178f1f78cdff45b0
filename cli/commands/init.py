"""`init`: makes the ledger's tables, or brings them up to date."""

from __future__ import annotations

import click

from shuffle_ledger.cli.options import database_options, output_options
from shuffle_ledger.cli.rendering.present import present
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import initialise


@click.command()
@database_options("it makes and changes the tables")
@output_options
def init(settings: Settings, as_json: bool) -> None:
    """Make the ledger's tables, or bring them up to date. Safe to repeat."""
    initialise(settings.database_url)
    present({"initialised": True}, lambda: "The ledger is ready.", as_json=as_json)
