"""`audit`: what an auditor asks of the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from cli.failures import ExitCode
from cli.options import FILE, ledger_options, output_options
from cli.present import document_of, present, shown
from cli.session import open_session, settings_from
from ledger.statements import heads
from ledger.verification import VerificationReport, read_heads, verify


@click.group()
def audit() -> None:
    """Verify the ledger, and save its heads to verify against later."""


@audit.command("verify")
@click.argument("cohort", required=False)
@click.option("--against", type=FILE, help="Also compare with heads saved by `audit heads`.")
@click.option(
    "--numbers",
    type=click.Choice(["sampled", "all"]),
    default="sampled",
    show_default=True,
    help="Which certificates to compute again; the chain is always checked whole.",
)
@ledger_options
@output_options
def verify_(
    cohort: str | None,
    against: Path | None,
    numbers: Literal["sampled", "all"],
    database_url: str | None,
    actor: str | None,
    as_json: bool,
) -> int:
    """Replay COHORT's chain, or all, and compute numbers again: exits with 6 if anything is wrong."""
    saved = read_heads(against) if against else None
    with open_session(settings_from(database_url=database_url, actor=actor)) as session:
        report = verify(session.store, session.accountant, cohort, against=saved, numbers=numbers)
    present(document_of(report), lambda: report_table(report), as_json=as_json)
    return ExitCode.DONE if report.ok else ExitCode.NOT_VERIFIED


@audit.command("heads")
@ledger_options
@output_options
def heads_(database_url: str | None, actor: str | None, as_json: bool) -> None:
    """Print the head of every chain. Saved elsewhere, as --json, it shows a later rewriting or shortening."""
    with open_session(settings_from(database_url=database_url, actor=actor)) as session:
        found = heads(session.store)
    present(document_of(found), lambda: heads_table(found["heads"]), as_json=as_json)


def report_table(report: VerificationReport) -> Table:
    """Returns what verification found as a table for people."""
    table = Table(
        title="Everything holds." if report.ok else "Something is wrong.",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("cohort", overflow="fold")
    for name in ("entries", "numbers checked"):
        table.add_column(name, justify="right")
    table.add_column("found", overflow="fold")
    for found in report.cohorts:
        problems = "\n".join(
            f"entry {problem.sequence}: {problem.what}" if problem.sequence else problem.what
            for problem in found.problems
        )
        table.add_row(found.cohort, shown(found.entries), shown(found.numbers_checked), problems or "ok")
    return table


def heads_table(found: list[dict[str, object]]) -> Table:
    """Returns the heads as a table for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("cohort", "sequence", "digest"):
        table.add_column(name, overflow="fold")
    for head in found:
        table.add_row(*(str(head[name]) for name in ("cohort", "sequence", "digest")))
    return table
