"""`cohort quota`: how much of a cohort's budget the rounds of one team may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from shuffle_ledger.accounting import lower_text, upper_text
from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.options import REAL, TEXT, asking_options, output_options
from shuffle_ledger.cli.rendering.present import Listing, present, shown
from shuffle_ledger.ledger.answers import QuotaReading

_WHOLE = 1.0  # the shares of all teams together, beyond which not all can use theirs


@click.command("quota")
@click.argument("name")
@click.option("--team", type=TEXT, metavar="TEAM", help="Set the quota of this team.")
@click.option("--epsilon", type=REAL, metavar="E", help="The team's quota from now on.")
@click.option("--reason", type=TEXT, metavar="TEXT", help="Why, for the record.")
@asking_options
@output_options
def quota_(
    name: str, team: str | None, epsilon: float | None, reason: str | None, as_json: bool, **where: Any
) -> None:
    """List the quotas that teams have in the cohort NAME, or set that of --team.

    A quota limits what a team's rounds may use of the budget, as if they were alone. It reserves nothing, and
    promises nothing to users. A first quota begins with the team's next round. Ask `budget NAME@team=TEAM`
    and `forecast NAME@team=TEAM` for more.
    """
    given = {"--team": team, "--epsilon": epsilon, "--reason": reason}
    missing = [option for option, value in given.items() if value is None]
    with open_ledger(**where) as ledger:
        if team is not None and epsilon is not None and reason is not None:
            ledger.set_quota(name, team=team, epsilon=epsilon, reason=reason)
        elif len(missing) != len(given):
            raise click.UsageError(f"to set a quota, give {' and '.join(missing)} too")
        found = ledger.quotas(name)
    present(found, lambda: quota_table(found), as_json=as_json)


def quota_table(found: Sequence[QuotaReading]) -> Table:
    """Returns the table of a cohort's quotas for people."""
    table = Listing()
    table.add_column("team", overflow="fold")
    for column in ("quota", "used, at most", "left, at least", "rounds", "share of the budget, about"):
        table.add_column(column, justify="right")
    for one in found:
        used, left = upper_text(one.epsilon_used_upper), lower_text(one.epsilon_remaining)
        share = f"{lower_text(100 * one.share, digits=3)} %"
        table.add_row(one.team, shown(one.epsilon), used, left, shown(one.rounds), share)
    if sum(one.share for one in found) > _WHOLE:
        table.caption = "The shares are more than the whole budget: not every team can use all of its quota."
        table.caption_justify = "left"
    return table
