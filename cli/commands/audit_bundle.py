"""`audit verify BUNDLE`: everything an auditor can check without the ledger."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.failures import BadValue, ExitCode
from shuffle_ledger.cli.rendering.audit_views import alarm_lines, heads_text, signature_text, verdict
from shuffle_ledger.cli.rendering.present import Listing, lower, present, shown, upper
from shuffle_ledger.cli.rendering.progress import progress_on
from shuffle_ledger.ledger.evidence import (
    CONTAINER_BYTES_MAX,
    BundleNumbers,
    BundleReport,
    CohortFound,
    Finding,
    verify_bundle,
)
from shuffle_ledger.ledger.values import SavedHeads

PRECISION = 1e-3  # finer than the ledger's own, unless that was set
OTHERS_SHOWN_MAX = 10  # chains of which the heads know and that the bundle lacks
UNPINNED = (
    "Proof of origin is missing: the chains are consistent, but nothing shows who wrote them. Give the"
    " ledger's key (--public-key) or heads that you kept of every cohort (--against)."
)


def bundle_in(target: str | None) -> Path | None:
    """Returns the file that `target` means; None when it is a cohort's name.

    Raises:
        UsageError: there is a file of that name, and it may be a cohort's name as well.
        BadValue: it looks like a bundle, and there is no such file.
    """
    if target is None:
        return None
    path = Path(target)
    clearly_a_path = target.endswith(".zip") or "/" in target
    if path.is_file():
        if clearly_a_path:
            return path
        message = f"{target!r} is a file here: write ./{target} for the bundle, or --cohort for the cohort"
        raise click.UsageError(message)
    if target.endswith(".zip"):
        raise BadValue("BUNDLE", target, "a file that exists (a cohort of that name: --cohort)")
    return None


def verify_file(
    path: Path,
    *,
    trusted: bytes | None,
    against: SavedHeads | None,
    numbers: BundleNumbers,
    precision: float | None,
    allow_unpinned: bool,
    as_json: bool,
) -> int:
    """Verifies a bundle; returns the exit code.

    Nothing in a bundle shows who made it: one that holds, but that neither a given key nor kept heads vouch
    for, is not verified unless `allow_unpinned`.
    """
    if path.stat().st_size > CONTAINER_BYTES_MAX:
        raise BadValue("BUNDLE", str(path), f"a file of at most {CONTAINER_BYTES_MAX} bytes")
    accountant = Accountant(precision=precision or PRECISION)
    with progress_on(sys.stderr) as tell:
        report = verify_bundle(
            path.read_bytes(),
            accountant,
            trusted_public_key=trusted,
            against=against,
            numbers=numbers,
            progress=tell,
        )
    present(report, lambda: bundle_view(report), as_json=as_json)
    is_enough = report.ok and (report.vouched or allow_unpinned)
    return ExitCode.DONE if is_enough else ExitCode.NOT_VERIFIED


def bundle_view(report: BundleReport) -> RenderableType:
    """Returns the report for people: the answer, the signer, each cohort, the findings."""
    broken = [each.cohort for each in report.cohorts if each.promise_kept is False]
    unknown = [each.cohort for each in report.cohorts if each.ok and each.promise_kept is None]
    missing = [] if report.vouched or not report.ok else [UNPINNED]
    parts: list[RenderableType] = [*missing, *alarm_lines(broken, unknown)]
    if not missing:
        parts.append(verdict(report.ok, alarming=bool(broken or unknown)))
    parts.append(f"Bundle SHA-256 {report.sha256}")
    if report.public_key is not None:
        made = f", made {report.created_at}" if report.created_at else ""
        parts.append(f"Heads {signature_text(report.signature)}{made}\npublic key {report.public_key}")
    elif any(found.member == "heads.json" for found in report.findings):
        parts.append("The signature of the heads was not accepted: see what was found.")
    else:
        parts.append(f"Heads {signature_text('none')}")
    if report.compared_with:
        parts.append(f"Compared with {heads_text(report.compared_with)} kept elsewhere.")
    if report.not_in_bundle:
        others = ", ".join(report.not_in_bundle[:OTHERS_SHOWN_MAX])
        more = len(report.not_in_bundle) - OTHERS_SHOWN_MAX
        others += f" and {more:,} more" if more > 0 else ""
        parts.append(f"The heads also list {others}: ask for their bundles if they shared rounds with these.")
    parts.append(_cohorts(report.cohorts))
    parts += [
        f"{each.releaser} signed receipts of {shown(each.receipts)} releases, {shown(each.reports)} reports;"
        f" public key {each.public_key}"
        for each in report.releasers
    ]
    without = sorted({kind for each in report.cohorts for kind in each.kinds_without})
    if without:
        parts.append("\n".join(["No second method answers for:", *(f"  {kind}" for kind in without)]))
    if report.findings:
        parts.append(_findings(report.findings, "found"))
    if report.notes:
        parts.append(_findings(report.notes, "worth knowing"))
    return Group(*parts)


def _cohorts(cohorts: tuple[CohortFound, ...]) -> Table:
    table = Listing()
    table.add_column("cohort", overflow="fold")
    table.add_column("promise")
    for name in ("entries", "budget", "spent at most", "at least"):
        table.add_column(name, justify="right")
    table.add_column("computed again", overflow="fold")
    table.add_column("by a second method", overflow="fold")
    today = datetime.now(UTC).date()
    for each in cohorts:
        has_budget = each.epsilon_budget is None or math.isfinite(each.epsilon_budget)
        table.add_row(
            each.cohort,
            each.promise_in_words(today),
            shown(each.entries),
            shown(each.epsilon_budget) if has_budget else "-",
            "-" if each.epsilon_spent_upper is None or not has_budget else upper(each.epsilon_spent_upper),
            "-" if each.epsilon_spent_lower is None or not has_budget else lower(each.epsilon_spent_lower),
            _computed(each),
            _seconded(each),
        )
    return table


def _computed(found: CohortFound) -> str:
    agreeing = sum(check.agrees for check in found.numbers)
    return f"{len(found.numbers):,} of {found.numbers_stated:,} numbers, {agreeing:,} agree"


def _seconded(found: CohortFound) -> str:
    second = [check.second for check in found.numbers if check.second is not None]
    agreeing = sum(each.agrees for each in second)
    numbers = f"{len(second):,} numbers, {agreeing:,} agree"
    return f"{numbers}; {found.kinds_confirmed:,} of {found.kinds:,} kinds of rounds confirmed"


def _findings(findings: tuple[Finding, ...], title: str) -> Table:
    table = Listing()
    for name in ("in", "entry", title):
        table.add_column(name, overflow="fold")
    for each in findings:
        place = each.member or each.cohort or "the archive"
        table.add_row(place, "" if each.sequence is None else shown(each.sequence), each.what)
    return table
