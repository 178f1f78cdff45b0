"""Answers about rounds as tables for people."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.commands.budget import account_facts
from shuffle_ledger.cli.files.round_import import ImportSummary
from shuffle_ledger.cli.rendering.present import facts, lower, shown, upper
from shuffle_ledger.ledger.values import Decision, Quote, ReleaseTimes, RoundRecord


def decision_facts(decision: Decision) -> Table:
    """Returns the decision as a table for people."""
    return facts(f"Round {decision.round_id}: {_outcome(decision)}", _rows(decision, leave_out=("round_id",)))


def quote_facts(quote: Quote) -> Table:
    """Returns a quote as a table for people."""
    rows = _rows(quote, leave_out=("would_be", "delta_accounts"))
    return facts(f"The round would be {quote.would_be}", {**rows, **account_facts(quote.delta_accounts)})


def record_facts(record: RoundRecord) -> Table:
    """Returns a round's history as a table for people."""
    rows: dict[str, object] = {
        "cohort": record.request.cohort,
        "declared": _described("round", record.request.round),
        "registered": f"{record.registered_at:%Y-%m-%d %H:%M:%S} UTC by {record.registered_by}",
        "failed attempts": record.attempts,
        "last error": record.last_error or "none",
    }
    for answer in (record.outcome, record.closing):
        if answer is not None:
            rows |= _rows(answer, leave_out=("round_id", "cohort"))
    rows["corrections"] = len(record.corrections)
    for told in (record.incident, *record.corrections[-1:]):
        if told is not None:
            rows |= _rows(told, leave_out=("round_id", "cohort"))
    return facts(f"Round {record.request.round_id}: {record.state}", rows)


def import_facts(summary: ImportSummary) -> Table:
    """Returns an import's counts by cohort, with their sum, as a table for people."""
    table = Table(box=None, pad_edge=False, show_footer=len(summary.cohorts) > 1)
    totals = (
        summary.rounds_admitted,
        summary.rounds_refused,
        summary.rounds_pending,
        summary.rounds_settled,
    )
    table.add_column("cohort", footer="all", overflow="fold")
    for word, total in zip(("admitted", "refused", "pending", "settled"), totals, strict=True):
        table.add_column(word, footer=shown(total), justify="right")
    for name, counts in summary.cohorts.items():
        table.add_row(name, *(shown(count) for count in counts.values()))
    return table


def _outcome(decision: Decision) -> str:
    return type(decision).__name__.lower()


def _rows(answer: Decision | Quote, *, leave_out: tuple[str, ...]) -> dict[str, object]:
    rows: dict[str, object] = {}
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name in leave_out or value is None:
            continue
        rows[field.name.replace("_", " ")] = _described(field.name, value)
    return rows


def _described(field: str, value: object) -> object:
    if isinstance(value, ShuffledRound):
        return f"{value.describe()}, {value.reports:,} reports"
    if isinstance(value, float) and field.endswith("_upper"):
        return upper(value)
    if isinstance(value, float) and field.endswith(("_lower", "_remaining")):
        return lower(value)
    if isinstance(value, ReleaseTimes):
        known = [f"{name} {moment}" for name, moment in value.to_mapping().items() if moment]
        return ", ".join(known) or "at a time that is not attested"
    return value
