"""`forecast`: how many more rounds fit, what limits them, and when a schedule ends."""

from __future__ import annotations

from datetime import date
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.database import open_ledger
from shuffle_ledger.cli.options import (
    DATE,
    WHOLE,
    ledger_options,
    optional_round_options,
    output_options,
    server_option,
)
from shuffle_ledger.cli.rendering.present import document_of, facts, lower, present, shown
from shuffle_ledger.ledger.reports import EVERY, Forecast, ForecastWanted, KindForecast


@click.command("forecast")
@click.argument("cohort")
@optional_round_options
@click.option("--fit", type=WHOLE, metavar="N", help="Find the largest epsilon0 with which N more fit.")
@click.option("--every", type=click.Choice(EVERY), help="One round in each of these periods.")
@click.option("--until", type=DATE, metavar="DATE", help="The schedule's last day: is it reached?")
@click.option("--from", "first_on", type=DATE, metavar="DATE", help="Its first day (default: today, UTC).")
@ledger_options
@server_option
@output_options
def forecast(
    cohort: str,
    described: ShuffledRound | None,
    fit: int | None,
    every: Any,
    until: date | None,
    first_on: date | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Say how many more rounds of COHORT fit, what limits them, and on which day a schedule ends.

    Without --randomizer: of each kind that the cohort has had, or that its plan has, each kind by itself;
    with --every also of all kinds together. With --until and --randomizer: also the largest epsilon0 with
    which the whole schedule fits. Nothing is reserved, and nothing is promised.
    """
    wanted = ForecastWanted(round=described, fit=fit, every=every, until=until, first_on=first_on)
    with open_ledger(**where) as ledger:
        found = ledger.forecast(cohort, wanted)
    present(document_of(found), lambda: _shown(found), as_json=as_json)


def _shown(found: Forecast) -> Group:
    if not found.kinds:
        nothing = "No kind of rounds has been admitted yet: describe one with --randomizer and --reports."
        return Group(Text(nothing))
    tables = [_of_kind(found, kind) for kind in found.kinds]
    if found.together is not None:
        together = found.together
        rows: dict[str, object] = {
            "certainly fit": f"at least {shown(together.periods_at_least)} periods",
            "last one on": together.ends_on,
            **_until(found, together.periods_until, reached=together.reaches_until),
        }
        tables.append(facts(f"One of each kind, every {found.every}, all together", rows))
    if found.of_late is not None:
        late = found.of_late
        kinds = [f"{kind.describe()}, {shown(kind.reports)} reports" for kind in late.kinds]
        rows = {
            "certainly fit": f"at least {shown(late.periods_at_least)} periods",
            "last one on": late.ends_on,
        }
        tables.append(facts(f"As of late, one each every {late.every}: {'; '.join(kinds)}", rows))
    pending = (
        f"{shown(found.rounds_pending)} rounds are registered and undecided: they are not counted here. "
    )
    return Group(*tables, Text((pending if found.rounds_pending else "") + found.promise))


def _of_kind(found: Forecast, kind: KindForecast) -> Table:
    rows: dict[str, object] = {"certainly fit": f"at least {shown(kind.rounds_at_least)} more"}
    if kind.next_is_refused:
        rows["certainly fit"] = f"{shown(kind.rounds_at_least)} more; the next one is refused"
    rows["limit"] = kind.limit
    for one in kind.windows:
        rows[f"  each {one.window.kind}"] = (
            f"at least {shown(one.rounds_today)} more today; {shown(one.rounds_in_empty)} in an empty one"
        )
    if found.every is not None:
        rows["every"] = f"{found.every}, from {found.first_on}"
        rows["last one on"] = kind.ends_on
        rows |= _until(found, kind.rounds_until, reached=kind.reaches_until)
    if kind.largest is not None:
        epsilon0, rounds = kind.largest.epsilon0, shown(kind.largest.rounds)
        rows["largest epsilon0"] = (
            f"none was found with which {rounds} more fit"
            if epsilon0 is None
            else f"{lower(epsilon0)}, with which {rounds} more fit"
        )
    return facts(f"{kind.round.describe()}, {shown(kind.round.reports)} reports", rows)


def _until(found: Forecast, needed: int | None, *, reached: bool | None) -> dict[str, object]:
    if needed is None:
        return {}
    answer = "all of them fit" if reached else "not all of them are certain to fit"
    return {f"until {found.until}": f"{shown(needed)} are needed: {answer}"}
