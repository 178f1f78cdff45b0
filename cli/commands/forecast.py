"""`forecast`: how many more rounds fit, what limits them, and when a schedule ends."""

from __future__ import annotations

from datetime import date
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.backends.settings import settings_from
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.options import (
    DATE,
    WHOLE,
    asking_options,
    audience_option,
    names_given,
    optional_round_options,
    output_options,
    team_option,
)
from shuffle_ledger.cli.rendering.present import facts, lower, present, shown
from shuffle_ledger.ledger.answers import (
    Forecast,
    JointForecast,
    KindForecast,
    LargestEpsilon0,
    WindowForecast,
    pace_in_words,
)
from shuffle_ledger.ledger.reports import SEARCH
from shuffle_ledger.ledger.values import EVERY, ForecastWanted


@click.command("forecast")
@click.argument("cohort", required=False)
@audience_option
@optional_round_options
@click.option("--fit", type=WHOLE, metavar="N", help="Find the largest epsilon0 with which N more fit.")
@click.option("--every", type=click.Choice(EVERY), help="One round in each of these periods.")
@click.option("--until", type=DATE, metavar="DATE", help="The schedule's last day: is it reached?")
@click.option("--from", "first_on", type=DATE, metavar="DATE", help="Its first day (default: today, UTC).")
@team_option
@asking_options
@output_options
def forecast(
    cohort: str | None,
    audience: str | None,
    described: ShuffledRound | None,
    fit: int | None,
    every: Any,
    until: date | None,
    first_on: date | None,
    team: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Say how many more rounds of COHORT, or of --audience, fit, what limits them, and until when.

    With --audience or --team a round is charged to several budgets: those of all these cohorts, and the
    team's quotas in them. Describe the round with --randomizer and --reports. The budget that is used up
    first gives the answer. A server takes the team from the token, and counts its quotas with --audience.

    Without --randomizer: of the eight kinds that the cohort has had most often, or of its plan, each kind by
    itself; with --every also of all kinds together. With --until and --randomizer: also the largest epsilon0
    with which the whole schedule fits. Both that and --fit search in place of the epsilon0 that is given.
    Nothing is reserved, and nothing is promised.
    """
    for option, field, given in (("--from", "first_on", first_on), ("--until", "until", until)):
        if given is not None and every is None:
            needed = f"{option} is a day of a schedule: give --every beside it ({', '.join(EVERY)})"
            raise BadValue(field, given.isoformat(), "--every beside it", needed)
    wanted = ForecastWanted(round=described, fit=fit, every=every, until=until, first_on=first_on)
    named = names_given(cohort, audience)
    settings = settings_from(team=team, **where)
    is_of_several = audience is not None or team is not None
    if is_of_several and described is None:
        raise click.UsageError(
            "--audience and --team are about one kind of round: describe it with --randomizer and --reports"
        )
    is_of_team = settings.team is not None and settings.server is None and described is not None
    with open_ledger(team=team, **where) as ledger:
        if not (is_of_several or is_of_team):
            found = ledger.forecast(named, wanted)
            present(found, lambda: _shown(found), as_json=as_json)
            return
        names = (named,) if audience is None else ledger.audience(named, round_id=None)
        joint = ledger.forecast_for_all(names, wanted)
    present(joint, lambda: _shown_of_all(joint), as_json=as_json)


def _shown(found: Forecast) -> Group:
    if not found.kinds:
        nothing = "No kind of rounds has been admitted yet: describe one with --randomizer and --reports."
        return Group(Text(nothing))
    tables = [_of_kind(found, kind) for kind in found.kinds]
    if found.together is not None:
        together = found.together
        rows: dict[str, object] = {
            "still fit": f"{shown(together.periods_at_least)} or more periods",
            "last one on": together.ends_on,
            **_until(found, together.periods_until, reached=together.reaches_until),
        }
        tables.append(facts(f"One of each kind, every {found.every}, all together", rows))
    if found.of_late is not None:
        late = found.of_late
        kinds = [kind.in_words for kind in late.kinds]
        rows = {
            "at this pace": pace_in_words(late),
            "still fit": f"{shown(late.periods_at_least)} or more periods",
            "last one on": late.ends_on,
        }
        tables.append(facts(f"The present pace: one each every {late.every} of {'; '.join(kinds)}", rows))
    pending = (
        f"{shown(found.rounds_pending)} rounds are registered and undecided: they are not counted here. "
    )
    return Group(*tables, Text((pending if found.rounds_pending else "") + found.promise))


def _shown_of_all(joint: JointForecast) -> Group:
    rows: dict[str, object] = {
        "still fit": _count(joint.rounds_at_least, joint.limited_by, is_exact=joint.next_is_refused),
        "limit": f"{joint.limited_by}: {joint.limit}",
    }
    rows |= _schedule(joint, joint)
    rows |= {f"  {one.cohort}": f"{shown(one.kinds[0].rounds_at_least)} or more" for one in joint.budgets}
    title = f"{joint.round.in_words}, charged to {', '.join(joint.audience)}"
    is_pending = any(one.rounds_pending for one in joint.budgets)
    pending = "Rounds are registered and undecided: they are not counted here. " if is_pending else ""
    return Group(facts(title, rows), Text(pending + joint.promise))


def _of_kind(found: Forecast, kind: KindForecast) -> Table:
    count = _count(kind.rounds_at_least, kind.limited_by, is_exact=kind.next_is_refused)
    rows: dict[str, object] = {"still fit": count}
    if kind.limited_by != SEARCH:
        rows["limit"] = kind.limit
    if kind.slots_would_help is not None:
        rows["declared slots"] = kind.slots_would_help.described
    rows |= {f"  each {one.window.kind}": _window_text(one) for one in kind.windows}
    rows |= _schedule(found, kind)
    return facts(kind.round.in_words, rows)


def _window_text(one: WindowForecast) -> str:
    """Returns how many rounds fit into a window's present period, and into one without other rounds."""
    now, fresh, window = shown(one.rounds_today), shown(one.rounds_in_empty), one.window
    if window.sliding is not None:
        return f"collected today {now} more fit; {window.kind} without other rounds hold {fresh}"
    this = "today" if window.unit == "day" else f"this {window.unit}"
    return f"{this} {now} more fit; a fresh {window.unit} holds {fresh}"


def _count(rounds: int, limited_by: str, *, is_exact: bool) -> str:
    """Returns how many rounds fit, and whether one more is refused."""
    if limited_by == SEARCH:
        return f"{shown(rounds)} or more (the search stops there)"
    return f"{shown(rounds)} more; the next one is refused" if is_exact else f"{shown(rounds)} or more"


def _schedule(asked: Forecast | JointForecast, found: KindForecast | JointForecast) -> dict[str, object]:
    """Return the rows of the schedule that was asked about, and of the epsilon0 that was searched for."""
    rows: dict[str, object] = {}
    if asked.every is not None:
        rows = {"every": f"{asked.every}, from {asked.first_on}", "last one on": found.ends_on}
        rows |= _until(asked, found.rounds_until, reached=found.reaches_until)
    if found.largest is not None:
        rows["largest epsilon0"] = _largest(found.largest)
    return rows


def _largest(found: LargestEpsilon0) -> str:
    rounds = shown(found.rounds)
    if found.epsilon0 is None:
        return f"none was found with which {rounds} more fit"
    return f"{lower(found.epsilon0)}, with which {rounds} more fit"


def _until(found: Forecast | JointForecast, needed: int | None, *, reached: bool | None) -> dict[str, object]:
    if needed is None:
        return {}
    answer = "all of them fit" if reached else "not all of them are certain to fit"
    return {f"until {found.until}": f"{shown(needed)} are needed: {answer}"}
