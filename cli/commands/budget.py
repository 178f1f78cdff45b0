"""`budget`: the budget of a cohort, and its spending."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import click
from rich.table import Table

from shuffle_ledger.accounting import AccountsReading
from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.commands.plan_slots import slot_facts
from shuffle_ledger.cli.options import DATE, asking_options, check_watch, output_options, watch_option
from shuffle_ledger.cli.rendering.present import (
    Bar,
    bounds,
    facts,
    lower,
    present,
    shown,
    upper,
    watched,
)
from shuffle_ledger.ledger.answers import (
    ASSUMES,
    FITS_IF,
    KINDS_SHOWN_MAX,
    BudgetStatement,
    PromiseReading,
    fits_in_words,
    state_in_words,
    used_percent,
    worth_showing,
)


@click.command()
@click.argument("cohort")
@click.option("--on", type=DATE, metavar="DATE", help="A day of collection, UTC; without it, today.")
@watch_option
@asking_options
@output_options
def budget(cohort: str, on: date | None, watch: float | None, as_json: bool, **where: Any) -> None:
    """Show what each budget of COHORT may spend, has spent and has left, and when it renews."""
    check_watch(watch, as_json=as_json)
    with open_ledger(**where) as ledger:

        def show() -> None:
            statement = ledger.budget(cohort, on=on)
            present(statement, lambda: budget_facts(statement), as_json=as_json)

        watched(show, watch)


def budget_facts(statement: BudgetStatement) -> Table:
    """Returns a cohort's budget as a table for people."""
    alarm = "" if statement.least_status == "open" else f"{statement.least_status.upper()}: "
    decided_by, _, _ = statement.decided_by.partition("; ")
    return facts(
        f"{alarm}{statement.budget}: {budget_text(statement)}",
        {
            **_first_facts(statement),
            "": Bar(fraction=statement.epsilon_spent_upper / statement.epsilon_budget),
            "spent": spent_text(statement),
            "remaining": _remaining_text(statement),
            **promise_facts(statement),
            "decided by": decided_by,
            "holds if": "\n".join(ASSUMES.get(statement.policy, ())),
            **filter_facts(statement),
            **plan_facts(statement),
            **({} if statement.budget == statement.cohort else {"in all periods": f"of {statement.cohort}"}),
            "admitted": statement.rounds_admitted,
            "refused": statement.rounds_refused,
            "settled, voided": f"{shown(statement.rounds_settled)}, {shown(statement.rounds_voided)}",
            "pending": statement.rounds_pending,
            "without the shuffler": _local_text(statement),
            "population": statement.population,
            "policy, status": f"{statement.policy}, {statement.least_status}",
            **({"closed": statement.closure.described} if statement.closure else {}),
            "head": f"{statement.head.sequence} {statement.head.digest}",
        },
    )


def _first_facts(statement: BudgetStatement) -> dict[str, str]:
    """Returns the facts that people look for: how much is used, and what still fits."""
    used = used_percent(statement.epsilon_spent_upper, statement.epsilon_budget)
    used = "unknown" if statement.least_status == "frozen" else used
    state = state_in_words(
        statement.least_status,
        statement.epsilon_spent_upper,
        statement.epsilon_budget,
        () if statement.on_refused else statement.fits,  # which the day refuses, not the budget
        is_over=statement.is_over,
    )
    return {"used": f"{used}, {state}", **fit_facts(statement)}


def _local_text(statement: BudgetStatement) -> str:
    if not math.isfinite(statement.local_epsilon_upper):
        return "nothing bounds epsilon"
    spent = f"at most epsilon {upper(statement.local_epsilon_upper)}"
    if statement.local_budget is not None:
        spent += f" of {shown(statement.local_budget)}"
    return f"{spent}, at delta {upper(statement.local_delta_upper)}" if statement.local_delta_upper else spent


def promise_facts(statement: BudgetStatement) -> dict[str, str]:
    """Returns what is used and left of each promise, and when it renews, if some promise renews."""
    if not statement.windows and not statement.booked:
        return {}
    today = statement.today
    rows = {f"  {one.name}": promise_text(one, today) for one in worth_showing(statement.promises)}
    booked = {f"  {one.name}": promise_text(one, today) for one in worth_showing(statement.booked)}
    later = {"booked already": "budgets of later periods", **booked} if booked else {}
    day = "today" if statement.on is None else f"on {statement.on.isoformat()}"
    return {"budgets": f"of a round collected {day}, which must fit into all of them", **rows, **later}


def promise_text(promise: PromiseReading, today: date | None) -> str:
    """Returns what is used and left of a promise, and when it renews; each number on its safe side."""
    used = f"epsilon {upper(promise.epsilon_spent_upper)} of {shown(promise.epsilon_budget)} used"
    left = f"at least {promise.left} left at delta {shown(promise.delta_budget)}"
    state = "" if promise.status == "open" else f"; {promise.status.upper()}"
    if promise.is_over(today):
        return f"{used} at delta {shown(promise.delta_budget)}; ended on {promise.last}{state}"
    return f"{used}, {left}; {promise.renewal}{state}"


def fit_facts(statement: BudgetStatement) -> dict[str, str]:
    """Returns how many more rounds of the kinds seen so far certainly fit, each kind by itself."""
    if statement.on_refused:
        return {"still fits": f"nothing: {statement.on_refused}"}
    if statement.is_over:
        return {"still fits": "nothing: the period is over"}
    if statement.closure is not None:
        return {"still fits": "nothing: the cohort is closed"}
    if not statement.fits:
        return {"still fits": "no kind of rounds has been admitted yet: ask round quote"}
    day = f", and all are collected on {statement.on}" if statement.windows else ""
    which = (
        "each kind"
        if len(statement.fits) < KINDS_SHOWN_MAX
        else f"the {KINDS_SHOWN_MAX} most frequent kinds, each"
    )
    condition = f"({which} by itself, {FITS_IF}{day})"
    return {"still fits": "\n".join((*fits_in_words(statement.fits), condition))}


def filter_facts(statement: BudgetStatement) -> dict[str, str]:
    """Returns what each filter says, and what the same rounds would cost if they were fixed in advance."""
    if not statement.filters:
        return {}
    readings = {
        f"  {one.name}": f"epsilon {upper(one.epsilon_upper)} at its share {upper(one.delta)} of delta"
        for one in statement.filters
    }
    composed = bounds(statement.composition_epsilon_lower, statement.composition_epsilon_upper)
    accounts = account_facts(statement.delta_accounts)
    return {
        "filters": "accounting methods: the smallest total counts",
        **readings,
        **accounts,
        "composition": f"epsilon {composed}; valid only for rounds fixed in advance",
    }


def account_facts(accounts: AccountsReading | None) -> dict[str, str]:
    """Returns the delta that approximate rounds have used, and the delta that is set aside for them."""
    if accounts is None:
        return {}
    certain = (accounts.certain_loss_used_upper, accounts.certain_loss_share)
    slack = (accounts.slack_used_upper, accounts.slack_share)
    return {
        "delta accounts": "for approximate rounds: a round must fit in both",
        "  certain loss": f"{upper(certain[0])} used of {lower(certain[1])}",
        "  local delta": f"{upper(slack[0])} used of {lower(slack[1])}, at epsilon {shown(accounts.epsilon)}",
    }


def plan_facts(statement: BudgetStatement) -> dict[str, str]:
    """Returns what of a plan is still free, and what all of it costs."""
    if statement.epsilon_promised_upper is None:
        return {}
    promised = f"all of it costs at most epsilon {upper(statement.epsilon_promised_upper)}"
    return {"plan": promised, **slot_facts(statement.slots)}


def budget_text(statement: BudgetStatement) -> str:
    """Returns the budget as people read it."""
    return f"epsilon {shown(statement.epsilon_budget)} at delta {shown(statement.delta_budget)}"


def _remaining_text(statement: BudgetStatement) -> str:
    """Epsilon that is left, and delta for approximate rounds, which needs both."""
    if statement.is_over:
        return "nothing: the period is over"
    # A bound: while the sliding reserve decides, more rounds fit than it tells.
    epsilon, accounts = f"at least {lower(statement.epsilon_remaining)}", statement.delta_accounts
    if accounts is None:
        return epsilon
    certain = max(0.0, accounts.certain_loss_share - accounts.certain_loss_used_upper)
    slack = max(0.0, accounts.slack_share - accounts.slack_used_upper)
    return f"{epsilon}; of delta {lower(certain)} for certain losses and {lower(slack)} for local deltas"


def spent_text(statement: BudgetStatement) -> str:
    """Returns the certified interval as people read it."""
    return bounds(statement.epsilon_spent_lower, statement.epsilon_spent_upper)
