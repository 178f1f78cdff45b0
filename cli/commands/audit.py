"""`audit`: what an auditor asks of the ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.backends.settings import settings_from
from shuffle_ledger.cli.commands.audit_bundle import bundle_in, verify_file
from shuffle_ledger.cli.failures import BadValue, ExitCode
from shuffle_ledger.cli.files.output_files import write_whole
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    NO_LEDGER,
    REAL,
    TEXT,
    asking_options,
    database_options,
    output_options,
    server_refused,
    signing_key_option,
)
from shuffle_ledger.cli.rendering.audit_views import (
    checkpoint_facts,
    heads_table,
    reconciled_facts,
    report_view,
)
from shuffle_ledger.cli.rendering.present import document_of, present
from shuffle_ledger.cli.rendering.progress import progress_on
from shuffle_ledger.ledger.checkpoints import sign_standing
from shuffle_ledger.ledger.evidence import BundleNumbers
from shuffle_ledger.ledger.recovery import reconcile
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Anchor
from shuffle_ledger.ledger.values import SigningKey, read_public_key, read_saved_heads


@click.command("verify")
@click.argument("target", metavar="[COHORT|BUNDLE]", required=False)
@click.option("--cohort", metavar="NAME", help="A cohort, whatever files there are.")
@click.option(
    "--against", type=FILE, help="Also compare with a checkpoint, or with heads saved by `audit heads`."
)
@click.option(
    "--public-key",
    metavar="KEY",
    help="The key that must have signed the checkpoint: hexadecimal, or a file.",
)
@click.option(
    "--numbers",
    type=click.Choice(["sampled", "all", "none"]),
    default="sampled",
    show_default=True,
    help="Which certificates to compute again; the chain is always checked whole. none: of a bundle only.",
)
@click.option("--precision", type=REAL, metavar="P", help="How finely to compute a bundle's numbers again.")
@click.option(
    "--allow-unpinned",
    is_flag=True,
    help="Exit with 0 if a bundle is consistent, although no key and no kept heads show who wrote it.",
)
@asking_options
@output_options
def verify_(
    target: str | None,
    cohort: str | None,
    against: Path | None,
    public_key: str | None,
    numbers: BundleNumbers,
    precision: float | None,
    allow_unpinned: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Replay COHORT's chain, or all, and compute numbers again: exits with 6 if anything is wrong.

    A BUNDLE made by `audit statement --bundle` is verified without the ledger, on any computer. Only
    --public-key or --against show who wrote it: without them the command exits with 6 as well.
    """
    if target is not None and cohort is not None:
        raise click.UsageError("name a cohort once")
    path = bundle_in(target)
    if path is None and public_key and not against:
        raise click.UsageError("--public-key is the key of the checkpoint in --against, which is not given")
    trusted = read_public_key(public_key) if public_key else None
    saved = read_saved_heads(against, trusted) if against else None
    if path is not None:
        return verify_file(
            path,
            trusted=trusted,
            against=saved,
            numbers=numbers,
            precision=precision,
            allow_unpinned=allow_unpinned,
            as_json=as_json,
        )
    if numbers == "none" or precision is not None or allow_unpinned:
        raise click.UsageError("--numbers none, --precision and --allow-unpinned are for bundles")
    cohort = cohort or target
    opening = open_ledger(**where)
    with opening as ledger, progress_on(sys.stderr) as tell:
        report = ledger.verify(cohort, against=saved, numbers=numbers, progress=tell)
    present(report, lambda: report_view(report), as_json=as_json)
    return ExitCode.DONE if report.ok else ExitCode.NOT_VERIFIED


@click.command("heads")
@asking_options
@output_options
def heads_(as_json: bool, **where: Any) -> None:
    """Print the head of every chain. Saved elsewhere, as --json, it shows a later rewriting or shortening."""
    with open_ledger(**where) as ledger:
        found = ledger.heads()
    present(found, lambda: heads_table(found["heads"]), as_json=as_json)


@click.command()
@click.argument("file", type=NEW_FILE)
@server_refused(NO_LEDGER)
@output_options
def keygen(file: Path, as_json: bool) -> None:
    """Make a key that signs checkpoints, in the new FILE (only you may read it); print its public half."""
    key = SigningKey.generate()
    key.save(file)
    found = {"file": str(file), "public_key": key.public_key_bytes.hex()}
    present(found, lambda: f"public key {found['public_key']}", as_json=as_json)


@click.command()
@signing_key_option
@click.option("--output", "-o", type=NEW_FILE, help="Write the checkpoint to this file, to keep elsewhere.")
@asking_options
@output_options
def checkpoint(signing_key: Path | None, output: Path | None, as_json: bool, **where: Any) -> None:
    """Sign the head of every chain. Kept elsewhere, it shows a later rewriting, shortening or restoring."""
    settings = settings_from()
    path = signing_key or settings.signing_key
    if path is None:
        raise BadValue("--signing-key", None, "a key file, here or in SHUFFLE_LEDGER_SIGNING_KEY")
    key = SigningKey.load(path)
    before = Anchor(path=output) if output and output.exists() else None
    first = output == settings.checkpoint and before is None  # which has nothing to follow
    with open_ledger(anchored=not first, **where) as ledger:
        made = sign_standing(ledger.standing(follows=before.read() if before else None), key)
    document = document_of(made.to_json())
    if output is not None:
        write_whole(output, json.dumps(document, ensure_ascii=False) + "\n")
    present(document, lambda: checkpoint_facts(made, output), as_json=as_json)


@click.command("reconcile")
@click.option("--against", type=FILE, required=True, help="The newest checkpoint there is.")
@click.option("--reason", type=TEXT, required=True, help="What happened, for the record.")
@click.option(
    "--nothing-later",
    is_flag=True,
    help="Attest that no entry was written after the checkpoint; else every cohort is frozen.",
)
@click.option("--public-key", metavar="KEY", help="The key that must have signed it: hexadecimal, or a file.")
@database_options("the person who accepts a loss must be able to restore the newer state instead")
@output_options
def reconcile_(
    against: Path,
    reason: str,
    nothing_later: bool,
    public_key: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Accept that the database was put back to an earlier state: what may have lost entries is frozen."""
    anchor = Anchor(path=against, trusted_public_key=read_public_key(public_key) if public_key else None)
    with open_session(settings) as session:
        done = reconcile(
            session.store, anchor.read(), reason=reason, actor=settings.actor, nothing_later=nothing_later
        )
    present(done, lambda: reconciled_facts(done), as_json=as_json)
