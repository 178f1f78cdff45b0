"""Answers about rounds as tables for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shuffle_ledger import accounting
from shuffle_ledger.cli.commands.budget import account_facts
from shuffle_ledger.cli.rendering.present import Listing, facts, lower, shown, upper
from shuffle_ledger.ledger.values import (
    Decision,
    Incident,
    Member,
    Quote,
    RefusalReason,
    RefusedBy,
    ReleaseTimes,
    RoundRecord,
    most_spent,
    refusal_in_words,
)

if TYPE_CHECKING:
    from shuffle_ledger.cli.files.round_import import ImportSummary
    from shuffle_ledger.ledger.answers import Fits

_NAMES = {
    "epsilon_requested_upper": "epsilon with it, at most",
    "epsilon_requested_lower": "epsilon with it, at least",
    "chosen_after": "may have been known when the cohort was opened",
}
_OF_BUDGET = ("epsilon_budget", "delta_budget", "epsilon_spent_upper", "epsilon_spent_lower")
COHORTS_SHOWN_MAX = 20
REFUSED_SHOWN_MAX = 20


def decision_facts(decision: Decision) -> Table:
    """Returns the decision as a table for people."""
    rows, outcome = _rows(decision, leave_out=("round_id", "dry_run")), _outcome(decision)
    if getattr(decision, "dry_run", False):
        would_be = "recorded as an incident" if outcome == "incident" else outcome
        return facts(f"Nothing was recorded. Round {decision.round_id} would be {would_be}", rows)
    return facts(f"Round {decision.round_id}: {outcome}", rows)


def quote_facts(quote: Quote, fits: Fits | None = None) -> Table:
    """Returns a quote as a table for people, with what would fit instead of a refused round."""
    rows = _rows(quote, leave_out=("would_be", "delta_accounts", "audience", "slots_would_help"))
    if quote.audience and quote.would_be == "admitted":
        rows["cohort"] = f"{quote.cohort}, which has the least left of all {len(quote.audience)}"
    rows |= account_facts(quote.delta_accounts)
    if fits is not None:
        several = f"at least {shown(fits.rounds)} such rounds" if fits.rounds else "no such round"
        single = "" if fits.epsilon0 is None else f"; one with epsilon0 {lower(fits.epsilon0)}"
        rows["would fit instead"] = several + single
    if quote.slots_would_help is not None:
        rows["declared slots"] = quote.slots_would_help.described
    by_all = f" by all {len(quote.audience)} budgets" if quote.audience and quote.reason is None else ""
    return facts(f"The round would be {quote.would_be}{by_all}", rows)


def record_facts(record: RoundRecord) -> Table:
    """Returns a round's history as a table for people."""
    declared = _described("round", record.request.round)
    rows: dict[str, object] = {
        "cohorts" if record.request.audience else "cohort": ", ".join(record.request.cohorts),
        "declared": "nothing: it is unknown what was released" if _is_unknown(record) else declared,
        "registered": f"{record.registered_at:%Y-%m-%d %H:%M:%S} UTC by {record.registered_by}",
        "failed attempts": record.attempts,
        "last error": record.last_error or "none",
    }
    for answer in (record.outcome, record.closing):
        if answer is not None:
            rows |= _rows(answer, leave_out=("round_id", "cohort", "dry_run"))
    rows["corrections"] = len(record.corrections)
    for restated in (record.incident, *record.corrections[-1:]):
        if restated is not None:
            rows |= _rows(restated, leave_out=("round_id", "cohort", "dry_run"))
    return facts(f"Round {record.request.round_id}: {record.state}", rows)


def _is_unknown(record: RoundRecord) -> bool:
    """Returns whether the identifier was first heard of by an incident of which nothing is known."""
    return record.outcome is None and record.incident is not None and record.incident.round is None


def import_facts(summary: ImportSummary) -> RenderableType:
    """Returns an import's counts by cohort, with their sum, and its refused rounds, for people."""
    parts: list[RenderableType] = [_import_counts(summary)]
    if summary.rounds_known:
        parts.append(f"Decided before this run: {summary.rounds_known:,} of {summary.rounds:,} rounds.")
    if summary.dry_run:
        parts.append("Nothing was written. These are the decisions that an import would make now.")
    shortlist = summary.refused[:REFUSED_SHOWN_MAX]
    parts += [Text(f"line {one.line}: {one.round_id}: {one.message}") for one in shortlist]
    if len(summary.refused) > REFUSED_SHOWN_MAX:
        more = len(summary.refused) - REFUSED_SHOWN_MAX
        parts.append(f"and {more:,} more refused: --refused-out FILE writes all, round list shows them")
    return Group(*parts)


def _import_counts(summary: ImportSummary) -> Table:
    table = Listing(show_footer=len(summary.cohorts) > 1)
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
    several = getattr(answer, "audience", ())
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name in leave_out or value is None or value == ():
            continue
        if several and field.name.startswith("epsilon_spent"):
            continue  # a row for each budget says what is spent of it
        if field.name in _OF_BUDGET and math.isinf(getattr(answer, "epsilon_budget", 0.0)):
            continue  # the cohort has no budget of its life
        if field.name in ("audience", "refused_by"):
            rows |= _by_cohort(value)
            continue
        name = _NAMES.get(field.name, field.name.replace("_", " "))
        if several and field.name == "epsilon_remaining":
            name = "least epsilon remaining"
        rows[name] = ("no", "yes")[value] if isinstance(value, bool) else _described(field.name, value)
    if isinstance(answer, Incident) and answer.unprotected_because is not None:
        rows["accounted"] = f"as the unprotected data, because {answer.unprotected_because}"
    return rows


def _by_cohort(members: Sequence[Member | RefusedBy]) -> dict[str, object]:
    """Returns a line for each budget of a round of several: of a sliding window, of the period of which most
    is spent; and of the first budgets if there are many."""
    lines: dict[str, object] = {}
    members = most_spent(members)
    for member in members[:COHORTS_SHOWN_MAX]:
        if isinstance(member, RefusedBy):
            lines[f"refused by {member.cohort}"] = member.described
        else:
            spent, over = upper(member.epsilon_spent_upper), ", overspent" if member.overspent else ""
            lines[f"in {member.cohort}"] = f"spent {spent}, left {lower(member.epsilon_remaining)}{over}"
    if len(members) > COHORTS_SHOWN_MAX:
        lines["and in others"] = len(members) - COHORTS_SHOWN_MAX
    return lines


def _described(field: str, value: object) -> object:
    if isinstance(value, accounting.ShuffledRound):
        return f"{value.in_words}, by {value.stated_analysis}"
    if isinstance(value, float) and field.endswith("_upper"):
        return upper(value)
    if isinstance(value, float) and field.endswith(("_lower", "_remaining")):
        return lower(value)
    if isinstance(value, RefusalReason):
        return refusal_in_words(value)
    if isinstance(value, ReleaseTimes):
        known = [f"{name} {moment}" for name, moment in value.to_mapping().items() if moment]
        return ", ".join(known) or "no time is attested"
    return value
