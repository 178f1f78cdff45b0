"""Descriptions of rounds: with another number of reports than declared, or with other fields."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping
from fractions import Fraction

from shuffle_ledger.accounting import InvalidParameter, LocalGaussian, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.gone_names import gone_sentence
from shuffle_ledger.ledger.policies.base import in_clear
from shuffle_ledger.ledger.values.requests import RoundRecord, Settled, checked_reports, one_randomizer
from shuffle_ledger.ledger.values.texts import POPULATION_MAX


def with_reports(declared: ShuffledRound, reports: int) -> ShuffledRound:
    """Returns the declared round with the number of reports that were really shuffled.

    A sampled user who sent nothing was at risk all the same: with fewer reports than declared the sampling
    rate stays (rounded up), with more it rises.

    Guarantee: it dominates the release, if only the number of reports differs from the declaration.
    """
    changes = {"reports": reports}
    if declared.sampled_from is not None:
        changes["sampled_from"] = _population(declared, reports)
    try:
        return ShuffledRound.from_mapping(declared.to_mapping() | changes)
    except InvalidParameter:
        return alone(declared)


def check_sizes(described: ShuffledRound, population: int, *, cohorts: int = 1) -> None:
    """Raise InvalidValue if a round has more reports, or a larger population to sample, than its cohorts."""
    checked_reports(
        described.reports,
        field="reports",
        population=population,
        cohorts=cohorts,
        per_user=described.reports_per_user,
    )
    if described.sampled_from is not None:
        checked_reports(described.sampled_from, field="sampled_from", population=population, cohorts=cohorts)


def described_otherwise(described: ShuffledRound, changes: Mapping[str, object]) -> ShuffledRound:
    """Returns a round with some fields changed.

    Args:
        described: the round as recorded so far.
        changes: fields of the JSON form with their new values. If only the number of reports changes, the
            result is that of `with_reports`. With the randomizer the analysis changes: unless it is named, it
            is the one that a registration assumes. A randomizer that names its local delta brings it along.

    Raises:
        InvalidParameter: the changed round is not valid.
    """
    for name in changes:
        gone = gone_sentence(name)
        if gone is not None:
            raise InvalidParameter(name, changes[name], "nothing", gone)
    reports = changes.get("reports")
    if set(changes) == {"reports"} and type(reports) is int and 1 <= reports <= POPULATION_MAX:
        return with_reports(described, reports)
    fields = {**described.to_mapping(), **changes}
    if type(reports) is int and "sampled_from" not in changes and described.sampled_from is not None:
        fields["sampled_from"] = _population(described, reports)
    _check_rate_is_stated(described, fields, changes)
    if "randomizer" in changes:
        if "delta0" not in changes and isinstance(parse_randomizer(changes["randomizer"]), LocalGaussian):
            fields["delta0"] = 0.0  # it names its own
        fields = {name: fields[name] for name in fields if name != "analysis" or name in changes}
    return one_randomizer(ShuffledRound.from_mapping(fields))


def described_now(record: RoundRecord) -> ShuffledRound:
    """Returns the present description of a round: as declared, settled, corrected, or recorded as an incident
    last."""
    described = record.request.round
    for one in record.restatements:
        described = (
            with_reports(described, one.reports) if isinstance(one, Settled) else one.round or in_clear()
        )
    return described


def refuse_larger_sample(record: RoundRecord, reports: int) -> None:
    """Raises InvalidValue if there are more reports than recorded so far, where several cohorts were sampled.

    All of them may be of one cohort, so its sampling rate may have risen by more than the average. Several
    reports of a user earn no credit for samples, so that the rate has no effect on the charge there.
    """
    known = described_now(record)
    if known.sampled_from is None or known.reports_per_user > 1 or reports <= known.reports:
        return
    if len(record.request.members) > 1:
        expected = (
            f"at most {known.reports}, as recorded last, for several cohorts were sampled, and more may"
            " all be of one: if there were more, correct the round first, with `reports` and `sampled_from`,"
            " which reports divided by the largest rate of a cohort give, or with none"
        )
        raise InvalidValue(field="reports", value=reports, expected=expected)


def _check_rate_is_stated(
    described: ShuffledRound, fields: Mapping[str, object], changes: Mapping[str, object]
) -> None:
    """Refuses to take the number of reports for that of sampled users, where users may have sent several."""
    becomes_single = described.reports_per_user > 1 and fields.get("reports_per_user") == 1
    if becomes_single and fields["sampled_from"] is not None and "sampled_from" not in changes:
        expected = (
            "a value with reports_per_user = 1, or none: reports divided by it are then the sampling rate,"
            " which several reports of a user do not tell"
        )
        raise InvalidParameter("sampled_from", described.sampled_from, expected)


def local_kind(kinds: Iterable[ShuffledRound]) -> ShuffledRound:
    """Returns the kind as which a round counts without the shuffler.

    Args:
        kinds: the accounted kinds at admission and after each correction. The result starts with the first
            one, and becomes each later one whose local privacy it does not cover.
    """
    first, *later = kinds
    for kind in later:
        is_covered = all(map(operator.le, local_privacy(kind), local_privacy(first)))
        first = first if is_covered else kind
    return first


def local_privacy(shuffled: ShuffledRound) -> tuple[Fraction | float, Fraction]:
    """Returns the epsilon, which may be infinite, and the delta that a user loses without the shuffler: those
    of one report times the number of reports of a user, exactly."""
    epsilon0, times = shuffled.randomizer.epsilon0, shuffled.reports_per_user
    epsilon = epsilon0 if math.isinf(epsilon0) else times * Fraction(epsilon0)
    return epsilon, times * Fraction(shuffled.delta0)


def alone(shuffled: ShuffledRound) -> ShuffledRound:
    """Return what to charge where too few reports arrived for another honest one to hide the user."""
    try:
        return dataclasses.replace(
            shuffled, reports=shuffled.reports_per_user, sampled_from=None, honest_fraction=1.0
        )
    except InvalidParameter:
        return in_clear()  # a protocol that promises nothing for one user alone


def _population(declared: ShuffledRound, reports: int) -> int:
    """Return what a sample of another size counts as drawn from: the rate stays, or rises."""
    population = declared.sampled_from or reports
    if declared.reports_per_user > 1:  # it has no effect on the charge
        return max(population, -(-reports // declared.reports_per_user))
    return min(population * reports // declared.reports, max(population, reports))
