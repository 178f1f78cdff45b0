"""`cohort`: the groups of users whose budgets are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Table

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.commands.budget_groups import GroupedBudgets
from shuffle_ledger.cli.commands.plan_slots import plan_facts, quote_plan, slot_facts
from shuffle_ledger.cli.failures import BadValue, ExitCode, NeedsYes
from shuffle_ledger.cli.options import (
    FILE,
    REAL,
    TEXT,
    WHOLE,
    asking_options,
    output_options,
    server_refused,
    yes_option,
)
from shuffle_ledger.cli.rendering.messages import at_terminal, say
from shuffle_ledger.cli.rendering.present import (
    Listing,
    coloured,
    facts,
    present,
    shown,
    tell_overspent,
    upper,
)
from shuffle_ledger.ledger.answers import (
    ASSUMES,
    Closure,
    ListedCohort,
    PromiseReading,
    SlotReading,
    state_in_words,
)
from shuffle_ledger.ledger.errors import InvalidValue, NotFound, UnacceptedWarnings
from shuffle_ledger.ledger.values import (
    POLICIES,
    POLICY_ADAPTIVE,
    POLICY_PLAN,
    Cohort,
    Window,
    worst_status,
)

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.database import Ledger


@click.command("open", cls=GroupedBudgets)
@click.argument("name")
@click.option("--population", type=WHOLE, metavar="N", help="Users in the cohort.")
@click.option(
    "--like",
    type=TEXT,
    metavar="COHORT",
    help="What no option says is as in this cohort: users, policy, labels, rounds per user, and, if no budget"
    " is named, all budgets. A plan and an approximate share are not copied.",
)
@click.option(
    "--life",
    is_flag=True,
    expose_value=False,
    help="A budget of the cohort's whole life; the first one needs no --life.",
)
@click.option(
    "--per",
    type=TEXT,
    metavar="UNIT",
    expose_value=False,
    help="A budget for every year, quarter, month, week or day.",
)
@click.option(
    "--rolling",
    type=TEXT,
    metavar="7d",
    expose_value=False,
    help="A budget for any 7 days in a row; also 4w, 12m.",
)
@click.option("--epsilon", type=REAL, metavar="E", help="The epsilon of the budget named before it.")
@click.option("--delta", type=REAL, metavar="D", help="The delta of the budget named before it.")
@click.option(
    "--policy",
    type=TEXT,
    metavar="POLICY",
    help=f"One of: {', '.join(POLICIES)} (default: {POLICY_ADAPTIVE}).",
)
@click.option(
    "--plan",
    type=FILE,
    metavar="FILE",
    help="Declared rounds, as for `compose`: all of policy plan; else with 3/4 of delta, beside filters.",
)
@click.option(
    "--approximate-share",
    type=REAL,
    metavar="S",
    help="The part of delta, at most 0.9, that policy adaptive sets aside for rounds with a local delta or a"
    " loss that is certain, in windows and quotas too. It never changes; without it, 1/64.",
)
@click.option(
    "--label",
    "labels",
    type=TEXT,
    metavar="NAME=VALUE",
    multiple=True,
    help="A label that audiences may select by, such as device=phone. It never changes.",
)
@click.option(
    "--window",
    "windows",
    type=TEXT,
    metavar="per=UNIT,epsilon=E,delta=D",
    multiple=True,
    help="The same as --per UNIT --epsilon E --delta D; or rolling=7d in place of per. It never changes.",
)
@click.option(
    "--ceiling",
    type=REAL,
    metavar="E",
    help="The most that epsilon may be raised to; the promise is that of the ceiling. It never changes.",
)
@click.option(
    "--local-budget",
    type=REAL,
    metavar="E",
    help="A limit on the sum of epsilon0 over a user's rounds, in the budget named before it. It never"
    " changes. With local deltas the promise is (E, sum of delta0).",
)
@click.option(
    "--rounds-per-user",
    type=WHOLE,
    metavar="K",
    help="No device takes part in more than K rounds, whatever its data are: only K are counted. Policy"
    " adaptive only; it never changes.",
)
@yes_option
@asking_options
@output_options
def open_(
    name: str,
    like: str | None,
    plan: Path | None,
    labels: tuple[str, ...],
    windows: tuple[str, ...],
    yes: bool,
    database_url: str | None,
    actor: str | None,
    server: str | None,
    as_json: bool,
    **content: Any,
) -> None:
    """Open the cohort NAME with budgets: of its life, of periods, or of both.

    --life, --per and --rolling each begin a budget; --epsilon, --delta and --local-budget belong to the last
    of them: --per year --epsilon 1 --delta 1e-9. Years and weeks are those of the calendar, in UTC. The same
    name with the same content changes nothing. With other content it is opened again, while nothing was
    decided: that replaces what was opened.

    An epsilon above 10, a delta of at least 1 divided by the population, and fewer than 100 users need --yes.
    """
    from shuffle_ledger.cli.files.round_files import read_composition  # noqa: PLC0415 - other commands read none

    planned = read_composition(plan) if plan is not None else None
    content |= {"labels": _labels(labels), "windows": [Window.from_text(text) for text in windows]}
    if like is None and content["population"] is None:
        raise click.UsageError("--population is missing")
    with open_ledger(server=server, database_url=database_url, actor=actor) as ledger:
        given = {"name": name, "plan": planned, **_completed(content, like and ledger.cohort(like))}
        _check_plan(given["policy"], plan)
        try:
            opened = ledger.open_cohort(**given, accept_warnings=yes)
        except UnacceptedWarnings as refused:
            _ask(refused, may_ask=not as_json)
            opened = ledger.open_cohort(**given, accept_warnings=True)
        closure = ledger.cohort(name).closure if opened.status != "open" and not as_json else None
    present(opened, lambda: cohort_facts(opened, closure=closure), as_json=as_json)


@click.command("plan")
@click.argument("file", type=FILE)
@click.option("--epsilon", type=REAL, metavar="E", required=True, help="The budget's epsilon.")
@click.option("--delta", type=REAL, metavar="D", required=True, help="The budget's delta.")
@server_refused("a plan is priced here, without any ledger; `cohort open --plan` sends it to one")
@output_options
def plan_(file: Path, epsilon: float, delta: float, as_json: bool) -> None:
    """Say what the rounds in FILE cost together, whether a budget holds them, and what epsilon0 would fit."""
    quote = quote_plan(file, epsilon=epsilon, delta=delta)
    present(quote, lambda: facts(f"The plan in {file}", plan_facts(quote)), as_json=as_json)


@click.command("budget")
@click.argument("name")
@click.option("--epsilon", type=REAL, metavar="E", required=True, help="The budget's epsilon from now on.")
@click.option("--reason", type=TEXT, metavar="TEXT", required=True, help="Why, for the record.")
@asking_options
@output_options
def budget_(name: str, epsilon: float, reason: str, as_json: bool, **where: Any) -> int:
    """Change the budget of the cohort NAME, by an entry that says who did it and why.

    Exits with 3 if the cohort is overspent after it.
    """
    with open_ledger(**where) as ledger:
        changed = _changed(ledger, name, epsilon=epsilon, reason=reason)
    present(changed, lambda: cohort_facts(changed), as_json=as_json)
    if changed.status != "overspent":
        return ExitCode.DONE
    tell_overspent([changed.name])
    return ExitCode.REFUSED


@click.command()
@click.argument("name")
@click.option("--reason", type=TEXT, metavar="TEXT", required=True, help="Why, for the record.")
@asking_options
@output_options
def close(name: str, reason: str, as_json: bool, **where: Any) -> None:
    """Close the cohort NAME, which admits nothing any more; its record stays.

    So do its periods and quotas, those to come too. How rounds of before ended, and what else was released,
    is still recorded. A closed cohort is never opened again.
    """
    with open_ledger(**where) as ledger:
        closed = ledger.close_cohort(name, reason=reason)
        closure = None if as_json else ledger.cohort(name).closure
    present(closed, lambda: cohort_facts(closed, closure=closure), as_json=as_json)


def _changed(ledger: Ledger, name: str, *, epsilon: float, reason: str) -> Cohort:
    """Change a budget; the operation may be repeated, so the present one is read first."""
    try:
        same = ledger.cohort(name).epsilon_budget == epsilon
    except NotFound:
        same = False  # other errors have precedence
    changed = ledger.change_budget(name, epsilon=epsilon, reason=reason)
    if same:
        raise InvalidValue(field="epsilon", value=epsilon, expected="another budget than the present one")
    return changed


@click.command("list")
@asking_options
@output_options
def list_(as_json: bool, **where: Any) -> None:
    """List every cohort, with what is used and left of each promise, and when it renews."""
    with open_ledger(**where) as ledger:
        cohorts = ledger.cohorts()
    present(cohorts, lambda: cohort_table(cohorts), as_json=as_json)


@click.command()
@click.argument("name")
@asking_options
@output_options
def show(name: str, as_json: bool, **where: Any) -> None:
    """Show the cohort NAME."""
    with open_ledger(**where) as ledger:
        found = ledger.cohort(name)
    present(
        found,
        lambda: cohort_facts(found, found.slots, openings=found.openings, closure=found.closure),
        as_json=as_json,
    )


def _ask(refused: UnacceptedWarnings, *, may_ask: bool) -> None:
    """Ask at a terminal whether unusual values are meant; raise NeedsYes unless they are."""
    if may_ask and at_terminal():
        say(refused.reasons)
        if click.confirm("Is that meant? Open it", err=True):
            return
    raise NeedsYes(refused)


def _completed(content: dict[str, Any], like: Cohort | Literal[""] | None) -> dict[str, Any]:
    """Return what a cohort is opened with: as options say, and else as in the cohort that --like names.

    Raises:
        BadValue: --like names a period of a cohort or a team's quota.
    """
    copied: dict[str, Any] = {}
    if like:
        if like.parent is not None:
            raise BadValue("like", like.name, f"a cohort itself, such as {like.parent!r}")
        copied = {name: getattr(like, name) for name in ("population", "policy", "labels", "rounds_per_user")}
        if not any(content[name] for name in ("epsilon", "delta", "windows")):
            life = (like.epsilon_budget, like.delta_budget) if like.has_life else (None, None)
            copied |= {"epsilon": life[0], "delta": life[1], "windows": list(like.windows)}
            copied |= {"ceiling": like.ceiling, "local_budget": like.local_budget}
    given = {name: value for name, value in content.items() if value not in (None, {}, [])}
    return {**content, "policy": POLICY_ADAPTIVE, **copied, **given}


def _check_plan(policy: str, plan: Path | None) -> None:
    """Raise BadValue if policy plan has no plan."""
    if policy == POLICY_PLAN and plan is None:
        raise BadValue("plan", "", "a file of the plan's rounds", "policy plan needs --plan FILE")


def _labels(given: Sequence[str]) -> dict[str, str]:
    """Returns labels from the texts of options."""
    pairs = [text.partition("=") for text in given]
    for text, (_, sign, _) in zip(given, pairs, strict=True):
        if not sign:
            raise BadValue("label", text, "a name and a value: device=phone")
    labels = {name: value for name, _, value in pairs}
    if len(labels) != len(pairs):
        raise BadValue("label", ", ".join(given), "each name once")
    return labels


def cohort_facts(
    found: Cohort,
    slots: Sequence[SlotReading] = (),
    *,
    openings: int = 1,
    closure: Closure | None = None,
) -> Table:
    """Returns a cohort's table for people."""
    again = {"openings": f"{openings}: the last one is in force"} if openings > 1 else {}
    labels = ", ".join(f"{name}={value}" for name, value in found.labels.items())
    return facts(
        f"Cohort {found.name}",
        {
            "population": found.population,
            "budget of its life": _life_text(found),
            "policy": found.policy,
            "holds if": "\n".join(ASSUMES[found.policy]),
            "status": found.status,
            **({"closed": closure.described} if closure else {}),
            **({"labels": labels} if labels else {}),
            **{f"each {window.described}": window_text(window) for window in found.windows},
            **_part_facts(found),
            **_limit_facts(found),
            "opened at": found.opened_at.isoformat(timespec="seconds") if found.opened_at else None,
            **again,
            **slot_facts(slots),
        },
    )


def _life_text(found: Cohort) -> str:
    if not found.has_life:
        return "none: each period has its own budget"
    return f"epsilon {shown(found.epsilon_budget)} at delta {shown(found.delta_budget)}"


def window_text(window: Window) -> str:
    """Returns the budget of each period of a window."""
    local = "" if window.local_budget is None else f", local budget {shown(window.local_budget)}"
    return f"epsilon {shown(window.epsilon)} at delta {shown(window.delta)}{local}"


def _part_facts(found: Cohort) -> dict[str, str]:
    if found.quota is not None:
        return {"the quota of": f"team {found.quota.team}", "in": found.quota.cohort}
    if found.period is None:
        return {}
    days = f"{found.period.first.isoformat()} to {found.period.last.isoformat()}, UTC"
    return {"a period of": found.period.cohort, "days": days}


def _limit_facts(found: Cohort) -> dict[str, str]:
    given = {
        "ceiling": found.ceiling,
        "local budget": found.local_budget,
        "rounds per user": found.rounds_per_user,
    }
    meant = {
        "ceiling": "to which the budget may be raised; the promise is at this epsilon",
        "local budget": "for the sum of epsilon0 over a user's rounds",
        "rounds per user": "at most, by a rule that does not depend on the user's data",
    }
    return {name: f"{shown(value)}, {meant[name]}" for name, value in given.items() if value is not None}


def _renews(promise: PromiseReading) -> str:
    if promise.is_sliding and not promise.epsilon_spent_upper:
        return "-"  # nothing counts in it
    return "never" if promise.renews is None else promise.renews.isoformat()


def cohort_table(cohorts: list[ListedCohort]) -> Table:
    """Returns the table of all cohorts for people: a line for each promise, numbers on their safe sides."""
    table = Listing()
    table.add_column("cohort", overflow="fold")
    table.add_column("population", justify="right")
    table.add_column("budget")
    for name in ("used", "left", "at delta"):
        table.add_column(name, justify="right")
    for name in ("renews", "policy", "status", "labels"):
        table.add_column(name, overflow="fold")
    for found in cohorts:
        labels = ", ".join(f"{name}={value}" for name, value in found.labels.items())
        before = found.name, shown(found.population)
        for one in found.promises:
            status = worst_status(one.status, found.status)
            state = state_in_words(status, one.epsilon_spent_upper, one.epsilon_budget)
            behind = found.policy, coloured(state), labels
            table.add_row(
                *before,
                one.name,
                f"{upper(one.epsilon_spent_upper)} of {shown(one.epsilon_budget)}",
                one.left,
                shown(one.delta_budget),
                _renews(one),
                *behind,
            )
            before, labels = ("", ""), ""
    return table
