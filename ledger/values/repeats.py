"""Decides, here alone, how a repeated request for a round is answered: by the round's present state.

An admission permits one release. It ends when the round is voided or settled, and when its cohort is frozen
or overspent. No identifier is used for a second collection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.values.differences import other_round
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Cohort,
    CohortStatus,
    Quote,
    RoundRecord,
    RoundRequest,
    RoundState,
    epsilon_left,
    openness,
)


def least_open(cohorts: Sequence[Cohort]) -> Cohort:
    """Return the cohort of a round that permits least."""
    return min(cohorts, key=lambda cohort: openness(cohort.status))


def refuse_uncollectable(round_id: str, state: RoundState, cohort: str, status: CohortStatus) -> None:
    """Raise NotCollectable if a round in this state, of a cohort with this status, must not be collected now,
    although it was admitted once or is recorded as released; a pending or refused round passes.
    """
    match state, status:
        case "incident", _:
            message = (
                f"round {round_id!r} was released although nothing admitted it, and that is recorded: it must"
                " not be released again. An identifier is never used twice: register another collection under"
                " a new one"
            )
        case "voided", _:
            message = (
                f"round {round_id!r} was voided: it must not be collected or released. An identifier is never"
                " used twice: register another collection under a new one"
            )
        case "settled", _:
            message = (
                f"round {round_id!r} is settled: its one release is over. An identifier is never used twice:"
                " register another collection under a new one"
            )
        case "admitted", "frozen":
            message = (
                f"round {round_id!r} was admitted, and its cohort {cohort!r} is frozen since, for entries"
                " were lost: whether the round was voided or settled in them is unknown, so it must not be"
                " collected or released"
            )
        case "admitted", "overspent":
            message = (
                f"round {round_id!r} was admitted, and its cohort {cohort!r} is overspent since: its budget"
                " did not cover what was released or promised, so the round must not be collected or"
                " released. Void it if nothing of it was released; settle it if something was"
            )
        case _:
            return
    raise NotCollectable(message, round_id=round_id, state=state, cohort_status=status)


def refuse_other_content(request: RoundRequest, registered: RoundRequest) -> None:
    """Raise OtherContent unless a request repeats, byte for byte, what its identifier is bound to."""
    if not request.repeats(registered.to_bytes()):
        raise other_round(registered, request)


def quote_repeated(request: RoundRequest, record: RoundRecord, status: CohortStatus, now: Quote) -> Quote:
    """Return the quote of a request whose identifier is registered: what registering it again would answer.

    Args:
        record: the round that the identifier is bound to; `status` is that of its cohort.
        now: the quote of the same parameters under a new identifier.

    Raises:
        Conflict: the identifier is bound to other content.
        NotCollectable: as `refuse_uncollectable`.
    """
    refuse_other_content(request, record.request)
    decided, state = record.outcome, record.state
    if record.incident is not None and decided is not None:  # what was decided stands
        state = "voided" if record.closing else "refused"
    refuse_uncollectable(request.round_id, state, request.cohort, status)
    if decided is None:
        return now
    unchanged = dataclasses.replace(
        now,
        epsilon_requested_lower=None,
        # Of several budgets, a lower bound: what would be left after one more such round.
        epsilon_remaining=now.epsilon_remaining
        if now.audience
        else epsilon_left(now.epsilon_budget, now.epsilon_spent_upper),
    )
    if isinstance(decided, Admitted):
        return dataclasses.replace(
            unchanged,
            would_be="admitted",
            reason=None,
            message="The round is registered and admitted: what is spent contains it.",
            accounted=decided.accounted,
            epsilon_requested_upper=now.epsilon_spent_upper,
            refused_by=(),
        )
    return dataclasses.replace(
        unchanged,
        would_be="refused",
        reason=decided.reason,
        message=decided.message,
        epsilon_requested_upper=decided.epsilon_requested_upper,
        refused_by=decided.refused_by,
    )
