"""`audit recover`: bringing lost entries back from a bundle."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.failures import ExitCode
from shuffle_ledger.cli.options import FILE, TEXT, database_options, output_options
from shuffle_ledger.cli.rendering.present import facts, present
from shuffle_ledger.ledger.evidence import open_bundle
from shuffle_ledger.ledger.recovery import Recovered
from shuffle_ledger.ledger.recovery import recover as recover_entries
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Anchor
from shuffle_ledger.ledger.values import read_public_key


@click.command()
@click.argument("bundle", type=FILE)
@click.option("--against", type=FILE, required=True, help="The newest checkpoint there is.")
@click.option("--reason", type=TEXT, required=True, help="What happened, for the record.")
@click.option(
    "--nothing-later",
    is_flag=True,
    help="Attest that no entry was written after the checkpoint: its loss could not be detected.",
)
@click.option("--public-key", metavar="KEY", help="The key that must have signed it: hexadecimal, or a file.")
@database_options("what it brings back was lost from a database, not by a server")
@output_options
def recover(
    bundle: Path,
    against: Path,
    reason: str,
    nothing_later: bool,
    public_key: str | None,
    settings: Settings,
    as_json: bool,
) -> int:
    """Bring back what a restored database lost, from a BUNDLE: byte for byte, all that the checkpoint proves.

    Exits with 6 if some cohort still lacks entries. Nothing is written until they are brought back too, or
    `audit reconcile` accepts the loss.
    """
    if not nothing_later:
        raise click.UsageError("--nothing-later is needed: without it every cohort must be frozen")
    anchor = Anchor(path=against, trusted_public_key=read_public_key(public_key) if public_key else None)
    with open_session(settings) as session:
        done = recover_entries(
            session.store,
            anchor.read(),
            open_bundle(bundle.read_bytes()),
            reason=reason,
            actor=settings.actor,
        )
    present(done, lambda: _facts(done), as_json=as_json)
    return ExitCode.NOT_VERIFIED if done.unproven else ExitCode.DONE


def _facts(done: Recovered) -> Table:
    rows: dict[str, object] = {f"{name}, entries": count for name, count in done.entries.items()}
    rows |= {f"{each.cohort}, still lacking": each.why for each in done.unproven}
    return facts(f"Recovery {done.number}", rows)
