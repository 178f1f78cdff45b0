"""A statement as CSV: one line per entry, for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.evidence import CohortStatement, EpsilonBounds, Statement
from shuffle_ledger.ledger.values import document_of

COLUMNS = (
    *("cohort", "sequence", "recorded_at", "kind", "actor", "round_id", "use_case", "collected_on"),
    *("randomizer", "analysis", "reports_declared", "reports_accounted", "reports_settled"),
    *("sampled_from", "participation", "honest_fraction", "delta0"),
    *("epsilon_alone_upper", "epsilon_alone_lower", "epsilon_spent_upper", "epsilon_spent_lower"),
    *("epsilon_requested_upper", "epsilon_budget", "delta_budget", "reason", "digest"),
    "rounds_more_at_least",  # of rounds accounted alike, that this cohort would still admit now
    "interaction",
    "reports_per_user",
)
# A spreadsheet would take a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_Cells = dict[str, object]


def spreadsheet(statement: Statement) -> bytes:
    """Returns the file: UTF-8, a header, full precision, nothing where there is no finite number."""
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, COLUMNS, restval="", lineterminator="\r\n")
    writer.writeheader()
    for cohort in statement.cohorts:
        for cells in _lines(cohort):
            writer.writerow({name: _cell(value) for name, value in cells.items()})
    return written.getvalue().encode("utf-8")


def _lines(cohort: CohortStatement) -> Iterator[_Cells]:
    told: dict[int, _Cells] = {}
    more = {one.round: one.rounds_at_least for one in cohort.fits or ()}
    for stated in cohort.rounds:
        words: _Cells = {"use_case": stated.use_case, **_round(stated.declared)}
        words |= {"reports_accounted": stated.accounted.reports, **_alone(stated.alone)}
        words["rounds_more_at_least"] = more.get(stated.accounted)
        told[stated.sequence] = words
        if (closing := stated.closing) is not None:
            closed: _Cells = {"reports_settled": closing.reports, "reason": closing.reason}
            if closing.accounted is not None and closing.alone is not None:
                closed |= _round(closing.accounted) | _alone(closing.alone)
                closed |= {"reports_declared": None, "reports_accounted": closing.accounted.reports}
            told[closing.sequence] = closed
    for refused in cohort.refusals:
        told[refused.sequence] = {
            "use_case": refused.use_case,
            "reason": refused.reason,
            **_round(refused.declared),
        }
        if refused.requested is not None:
            told[refused.sequence]["epsilon_requested_upper"] = refused.requested.epsilon_upper
    for change in cohort.budget_changes:
        told[change.sequence] = {"reason": change.reason}
    for each in cohort.moments:
        yield {
            "cohort": cohort.cohort,
            "sequence": each.sequence,
            "recorded_at": each.recorded_at,
            "kind": str(each.kind),
            "actor": each.actor,
            "round_id": each.round_id,
            "collected_on": each.collected_on,
            "epsilon_spent_upper": each.spent.epsilon_upper,
            "epsilon_spent_lower": each.spent.epsilon_lower,
            "epsilon_budget": each.epsilon_budget,
            "delta_budget": cohort.promise.delta_budget,
            "digest": each.digest,
            **told.get(each.sequence, {}),
        }


def _round(shuffled: ShuffledRound) -> _Cells:
    return {
        "randomizer": shuffled.randomizer.describe(),
        "analysis": shuffled.analysis,
        "reports_declared": shuffled.reports,
        "sampled_from": shuffled.sampled_from,
        "participation": shuffled.participation,
        "honest_fraction": shuffled.honest_fraction,
        "delta0": shuffled.delta0,
        "interaction": shuffled.interaction,
        "reports_per_user": shuffled.reports_per_user,
    }


def _alone(bounds: EpsilonBounds) -> _Cells:
    return {"epsilon_alone_upper": bounds.epsilon_upper, "epsilon_alone_lower": bounds.epsilon_lower}


def _cell(value: object) -> object:
    plain = document_of(value)
    if plain is None:
        return ""
    if isinstance(plain, str) and plain.startswith(_FORMULA):
        return f"'{plain}"
    return repr(plain) if isinstance(plain, float) else plain
