"""Answers about rounds. A server registers them and has them decided itself: see `api.served`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answers
from shuffle_ledger.ledger.answers.forecasts import JointForecast
from shuffle_ledger.ledger.answers.rounds import RoundPage
from shuffle_ledger.ledger.decisions import incidents, restatements
from shuffle_ledger.ledger.decisions.opening import check_new_cohort
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.decisions.quoting import price
from shuffle_ledger.ledger.decisions.quoting import rehearse as rehearsed
from shuffle_ledger.ledger.errors import NotAllowed
from shuffle_ledger.ledger.questions import rounds as asking
from shuffle_ledger.ledger.reports.forecasts import joint_forecast
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds, without_audience
from shuffle_ledger.ledger.values.requests import Corrected, Incident, Quote, RoundRecord, Settled, Voided


@answers(operations.QUOTE_FOR_ALL, at="pricing")
def quote(call: Call, asked: asking.QuoteForAll) -> Quote:
    names = call.audience(asked.named())
    request = asked.request_for(names, round_id="quote", team=call.team)
    return price(call.store, call.accountant, request)


@answers(operations.REHEARSE, at="auditing")  # each of its rounds may take a computation
def rehearse(call: Call, asked: asking.RehearseRounds) -> tuple[Quote, ...]:
    opening = {cohort.name: cohort for cohort in asked.opened()}
    for name in opening:
        if not call.sees(name):
            raise NotAllowed("the token is limited to other cohorts")
    for open_ in call.store.cohorts_among(opening):
        del opening[open_.name]
    for cohort in opening.values():
        check_new_cohort(cohort)
    requests = [
        each.request_for(_seen(call, each.named()), round_id="rehearsal", team=call.team)
        for each in asked.rounds
    ]
    found: list[Quote] = []
    for answer in rehearsed(call.store, call.accountant, requests, list(opening.values())):
        found.append(answer)
        call.progress("rounds", len(found), len(requests))
    return tuple(found)


def _seen(call: Call, named: str | Sequence[str]) -> Sequence[str]:
    """Return the cohorts of a round, which need not be open yet; raises NotFound, NotAllowed."""
    return call.audience(named) if isinstance(named, str) else tuple(map(call.cohort, named))


@answers(operations.FORECAST_FOR_ALL, at="pricing")
def forecast(call: Call, asked: asking.ForecastForAll) -> JointForecast:
    names, today = call.audience(asked.audience), datetime.now(UTC).date()
    wanted = asked.wanted()
    return joint_forecast(call.store, call.accountant, names, wanted, today=today, team=call.team)


@answers(operations.AUDIENCE)
def audience(call: Call, asked: asking.ResolveAudience) -> operations.Audience:
    return operations.Audience(audience=call.audience(asked.select, round_id=asked.round_id))


@answers(operations.LIST_ROUNDS)
def list_(call: Call, asked: asking.ListRounds) -> RoundPage:
    cohorts = call.cohorts
    if asked.cohort is not None:
        cohorts = (call.cohort(asked.cohort),)
        call.store.cohort(asked.cohort)
    wanted = RoundFilter(cohorts=cohorts, outcome=asked.outcome, since=asked.since)
    page = list_rounds(call.store, wanted, after=asked.after, limit=asked.limit)
    shown = (
        each if all(map(call.sees, each.audience)) else without_audience(each, call.sees)
        for each in page.rounds
    )
    return replace(page, rounds=tuple(shown))


@answers(operations.SHOW_ROUND)
def show(call: Call, asked: asking.OfRound) -> RoundRecord:
    return round_record(call.store, call.round(asked.round_id))


@answers(operations.SETTLE, at="deciding")
def settle(call: Call, asked: asking.SettleRound) -> Settled:
    name = call.round(asked.round_id)
    return restatements.settle(
        call.store, call.accountant, name, reports=asked.reports, actor=call.actor, dry_run=asked.dry_run
    )


@answers(operations.VOID, at="deciding")
def void(call: Call, asked: asking.VoidRound) -> Voided:
    name = call.round(asked.round_id)
    return restatements.void(
        call.store, call.accountant, name, reason=asked.reason, actor=call.actor, dry_run=asked.dry_run
    )


@answers(operations.CORRECT, at="deciding")
def correct(call: Call, asked: asking.CorrectRound) -> Corrected:
    return restatements.correct(
        call.store,
        call.accountant,
        call.round(asked.round_id),
        asked.changes(),
        reason=asked.reason,
        actor=call.actor,
        dry_run=asked.dry_run,
    )


@answers(operations.RECORD_INCIDENT, at="deciding")
def record_incident(call: Call, asked: asking.RecordIncident) -> Incident:
    name = call.cohort(asked.cohort)
    incidents.cohort_or_parent(call.store, name)  # raises first: a period may not be open
    return incidents.record_incident(
        call.store,
        call.accountant,
        name,
        round_id=asked.round_id,
        described=None if asked.round is None else asked.round.described(),
        released=asked.released(),
        reason=asked.reason,
        actor=call.actor,
        collected_on=asked.collected_on,
        collected_until=asked.collected_until,
        reaches=call.sees,
        dry_run=asked.dry_run,
    )
