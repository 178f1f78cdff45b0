"""Answers for auditors: the chain, its heads, and the replay of both."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answers
from shuffle_ledger.ledger.answers.entries import PAGE_MAX, EventPage, PublishedPage
from shuffle_ledger.ledger.answers.heads import Standing
from shuffle_ledger.ledger.questions import audits as asking
from shuffle_ledger.ledger.reports.budgets import heads, heads_page
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.reports.listing import entries_after
from shuffle_ledger.ledger.reports.published_entries import page_of
from shuffle_ledger.ledger.storage.anchor import standing_after

if TYPE_CHECKING:
    from shuffle_ledger.ledger.evidence.statement import Statement
    from shuffle_ledger.ledger.verification.verifier import VerificationReport


@answers(operations.LIST_ENTRIES)
def entries(call: Call, asked: asking.ListEntries) -> PublishedPage:
    name = call.cohort(asked.cohort)
    return page_of(entries_after(call.store, name, after=asked.after, limit=asked.limit))


@answers(operations.LIST_EVENTS)
def events(call: Call, asked: asking.ListEvents) -> EventPage:
    cohorts = call.cohorts
    if asked.cohort is not None:
        cohorts = (call.cohort(asked.cohort),)
        call.store.cohort(asked.cohort)  # a name that was misspelled is not an empty feed
    return events_after(call.store, after=asked.after, limit=asked.limit, cohorts=cohorts, kinds=asked.kind)


@answers(operations.LIST_HEADS)
def list_heads(call: Call, asked: asking.ListHeads) -> dict[str, Any]:
    if asked.after is not None or asked.limit is not None:
        sees = None if call.cohorts is None else call.sees
        return heads_page(call.store, after=asked.after or "", limit=asked.limit or PAGE_MAX, sees=sees)
    found = heads(call.store)
    return {**found, "heads": [head for head in found["heads"] if call.sees(head["cohort"])]}


@answers(operations.STANDING)
def standing(call: Call, asked: asking.LedgerStanding) -> Standing:
    call.about_all()
    return standing_after(call.store, asked.earlier())


@answers(operations.VERIFY, at="auditing")
def verification(call: Call, asked: asking.VerifyChains) -> VerificationReport:
    from shuffle_ledger.ledger.verification.verifier import verify  # noqa: PLC0415 - few questions need it

    call.named(asked.cohorts)
    if call.token is None and asked.against is None:  # which would find the same, cohort by cohort
        call.store.check_anchor()
    return verify(
        call.store,
        call.accountant,
        cohort=asked.cohort,
        against=asked.saved(),
        numbers=asked.numbers,
        progress=call.progress,
    )


@answers(operations.MAKE_STATEMENT, at="auditing")
def statement(call: Call, asked: asking.MakeStatement) -> Statement:
    wanted = asked.wanted(call.named(asked.cohorts))
    now = datetime.now(UTC)
    return wanted.made(call.store, call.accountant, made_at=now, progress=call.progress)


@answers(operations.MAKE_BUNDLE, at="auditing")
def bundle(call: Call, asked: asking.MakeBundle) -> bytes:
    from shuffle_ledger.ledger.evidence.bundle import make_bundle  # noqa: PLC0415 - few questions need it
    from shuffle_ledger.ledger.evidence.statement_request import cohort_names  # noqa: PLC0415 - as above

    call.about_all()
    names = cohort_names(call.store, call.named(asked.cohorts))
    if asked.cohorts is not None:  # a promise per period is kept or broken in the period's chain
        begun = [each.name for name in names for each in call.store.periods_after(name, date.min)]
        names = (*names, *begun)
    return make_bundle(call.store, names, checkpoint=asked.signed(), progress=call.progress).data
