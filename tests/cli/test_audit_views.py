"""What verification shows to people."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from shuffle_ledger.cli.rendering.audit_views import report_view
from shuffle_ledger.ledger.verification import CohortVerification, VerificationReport
from shuffle_ledger.ledger.verification.replay import Problem


def _chain(name: str, *problems: Problem) -> CohortVerification:
    said: dict[str, Any] = {"entries": 2, "head_sequence": 2, "head_digest": "0" * 64, "numbers_checked": 1}
    return CohortVerification(cohort=name, ok=not problems, problems=problems, status="open", **said)


def test_sound_periods_share_a_row_and_a_fault_has_its_own() -> None:
    fault = Problem(sequence=2, what="its digest is another")
    chains = [
        _chain("a"),
        *(_chain(f"a@2026-11-0{day}+7d") for day in range(1, 8)),
        _chain("b"),
        _chain("b@2026"),
    ]
    chains[3] = _chain(chains[3].cohort, fault)
    report = VerificationReport(ok=False, problems=(), cohorts=tuple(chains), against=None)
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as rendered:
        console.print(report_view(report))
    rows = [line.split() for line in rendered.get().splitlines()]
    assert rows[2:] == [
        ["a", "2", "1", "ok"],
        ["a:", "6", "periods", "or", "quotas", "12", "6", "ok"],
        ["a@2026-11-03+7d", "2", "1", "entry", "2:", "its", "digest", "is", "another"],
        ["b", "2", "1", "ok"],
        ["b@2026", "2", "1", "ok"],
    ]
