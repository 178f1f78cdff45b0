"""Rounds that sample each cohort of their audience by itself: what may be told of them afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.courses import described_now
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.audiences import is_proven_of_strata
from shuffle_ledger.ledger.values.requests import RoundRecord, RoundRequest


def refuse_more_of_strata(store: Store, record: RoundRecord, reports: int) -> None:
    """Raise InvalidValue if more reports arrived than were told last, where each cohort was sampled by
    itself.

    They may all be of the cohort whose rate was the largest, so that nothing follows for that rate.
    """
    declared = described_now(record)
    if declared.sampled_from is None or reports <= declared.reports:
        return
    if _is_of_strata(store, record.request):
        expected = (
            f"at most {declared.reports}, as was told last, for each cohort was sampled by itself, and more"
            " may all be of one: if there were more, correct the round first, with `reports` and with"
            " `sampled_from`, which reports divided by the largest rate of a cohort give, or with none"
        )
        raise InvalidValue(field="reports", value=reports, expected=expected)


def refuse_unproven_of_strata(
    store: Store, record: RoundRecord, truth: ShuffledRound, changes: Mapping[str, object]
) -> None:
    """Raises InvalidValue if no bound is proven for the corrected round, whose cohorts were sampled
    separately.

    Args:
        store: the ledger.
        record: the round so far.
        truth: the corrected round.
        changes: the corrected fields.
    """
    if truth.sampled_from is not None and "sampled_from" not in changes:
        refuse_more_of_strata(store, record, truth.reports)
    refuse_unproven(store, record.request, truth)


def refuse_unproven(store: Store, request: RoundRequest, truth: ShuffledRound) -> None:
    """Raises InvalidValue if no bound is proven for what was released under an identifier, because its
    cohorts were sampled separately.

    Args:
        store: the ledger.
        request: the registration, or the incident's own.
        truth: the released round.
    """
    if not is_proven_of_strata(truth) and _is_of_strata(store, request):
        expected = (
            "none, for nothing is proven about a share of honest devices, a secret order or several reports"
            " of a user where cohorts are sampled by themselves"
        )
        raise InvalidValue(field="sampled_from", value=truth.sampled_from, expected=expected)


def refuse_unstated_rate(
    record: RoundRecord,
    truth: ShuffledRound,
    changes: Mapping[str, object],
    further: Collection[str],
) -> None:
    """Raises InvalidValue if nobody says at which rate a further cohort was sampled: it was no part of the
    population that the registration names, and the largest rate of the others says nothing about it.

    With several reports of a user the rate has no effect on the charge.

    Args:
        record: the round so far.
        truth: the corrected round.
        changes: the corrected fields.
        further: the cohorts whose users reported, too.
    """
    is_told = "sampled_from" in changes or truth.sampled_from is None or truth.reports_per_user > 1
    if is_told or set(further) <= set(record.request.members):
        return
    expected = (
        "a population, or that there was no sample: reports divided by it must be the largest rate at which"
        " any of the cohorts was sampled, with a further cohort too"
    )
    raise InvalidValue(field="sampled_from", value=None, expected=expected)


def _is_of_strata(store: Store, request: RoundRequest) -> bool:
    """Return whether each cohort was sampled by itself: also of an incident `ID+CHAIN`, if the round ID was
    registered so, or is itself such an incident."""
    while not request.stratified:
        round_id = request.round_id.removesuffix(f"+{request.cohort}")
        if round_id == request.round_id:
            return False
        try:
            request = RoundRequest.from_bytes(store.round(round_id).content)
        except (InvalidValue, NotFound):
            return False
    return True
