"""What `audit` shows to people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from shuffle_ledger.cli.rendering.present import Listing, facts, shown
from shuffle_ledger.ledger.recovery import Reconciled
from shuffle_ledger.ledger.values import Checkpoint, Signature
from shuffle_ledger.ledger.verification import CohortVerification, Comparison, VerificationReport

PARTS_LISTED = 3  # of one cohort, each in a row; more of them share one
_SIGNED = {
    "trusted": "signed by the given key",
    "valid": "signed by a key that was not compared with a trusted one: pin it with --public-key",
    "none": "not signed: anyone with write access to the file can change it",
}


def report_view(report: VerificationReport) -> RenderableType:
    """Returns what verification found, for people: a sentence or two, and a table."""
    listed = [found.cohort for found in report.cohorts if found.status == "overspent"]
    frozen = [found.cohort for found in report.cohorts if found.status == "frozen"]
    said = [*alarm_lines(listed, frozen), verdict(report.ok, alarming=bool(listed or frozen))]
    said += report.problems
    if report.against is not None:
        said.append(_compared(report.against))
    table = Listing()
    table.add_column("cohort", overflow="fold")
    for name in ("entries", "numbers checked"):
        table.add_column(name, justify="right")
    table.add_column("found", overflow="fold")
    for name, chains in _rows(report.cohorts):
        problems = "\n".join(
            f"entry {problem.sequence}: {problem.what}" if problem.sequence else problem.what
            for found in chains
            for problem in found.problems
        )
        entries = sum(found.entries for found in chains)
        numbers = sum(found.numbers_checked for found in chains)
        table.add_row(name, shown(entries), shown(numbers), problems or "ok")
    return Group(*said, table)


def _rows(cohorts: Sequence[CohortVerification]) -> Iterator[tuple[str, list[CohortVerification]]]:
    """Yields a name and the chains of each row: one, or all parts of a cohort in which nothing was found, if
    they are many."""
    parts: dict[str, list[CohortVerification]] = defaultdict(list)
    for found in cohorts:
        if not found.problems:
            parts[_owner(found)].append(found)
    for found in cohorts:
        owner = _owner(found)
        together = parts[owner] if owner and not found.problems else [found]
        if len(together) <= PARTS_LISTED:
            yield found.cohort, [found]
        elif found is together[0]:
            yield f"{owner}: {len(together):,} periods or quotas", together


def _owner(found: CohortVerification) -> str:
    """Returns the cohort of a period or quota; empty: it is a cohort itself."""
    return found.cohort.rpartition("@")[0]


def verdict(ok: bool, *, alarming: bool) -> str:
    """Returns what verification found, in a sentence; a broken promise is no fault of the record."""
    if not ok:
        return "Something is wrong."
    return "The record itself holds: every entry verifies." if alarming else "Everything holds."


def alarm_lines(overspent: Sequence[str], frozen: Sequence[str]) -> list[str]:
    """Returns a line for the overspent cohorts and one for the frozen ones, where there are any."""
    found = []
    if overspent:
        reason = "The budget did not cover what was released or promised."
        found.append(f"OVERSPENT: {', '.join(overspent)}. {reason}")
    if frozen:
        found.append(f"FROZEN: {', '.join(frozen)}. Entries were lost, and what was spent is unknown.")
    return found


def signature_text(signature: Signature) -> str:
    """Returns how far a signature can be believed, for people."""
    return _SIGNED[signature]


def heads_text(count: int) -> str:
    """Returns a number of heads with its noun."""
    return "1 head" if count == 1 else f"{shown(count)} heads"


def heads_table(found: list[dict[str, object]]) -> Table:
    """Returns the heads as a table for people."""
    table = Listing()
    for name in ("cohort", "sequence", "digest"):
        table.add_column(name, overflow="fold")
    for head in found:
        table.add_row(*(str(head[name]) for name in ("cohort", "sequence", "digest")))
    return table


def checkpoint_facts(made: Checkpoint, file: Path | None) -> Table:
    """Returns a checkpoint's table for people."""
    return facts(
        "Checkpoint",
        {
            "ledger": made.ledger_id,
            "cohorts": len(made.heads),
            "created at": made.created_at.isoformat(timespec="seconds"),
            "public key": made.public_key.hex(),
            "file": str(file) if file else "none: printed by --json, written by --output",
        },
    )


def reconciled_facts(done: Reconciled) -> Table:
    """Returns the table of an accepted loss for people."""
    return facts(
        f"Reconciliation {done.number}",
        {
            "frozen for ever": ", ".join(done.frozen) or None,
            "lost, never opened again": ", ".join(done.lost) or None,
        },
    )


def _compared(against: Comparison) -> str:
    return f"Compared with {heads_text(against.heads)} kept elsewhere, {_SIGNED[against.signature]}."
