"""`reserve`: what a ceiling keeps beyond a budget, released by two persons."""

from __future__ import annotations

import click
from rich.table import Table

from shuffle_ledger.cli.backends.database import open_ledger
from shuffle_ledger.cli.commands.cohort import cohort_facts, proposed_facts
from shuffle_ledger.cli.options import REAL, TEXT, ledger_options, output_options, server_option
from shuffle_ledger.cli.rendering.present import document_of, facts, present
from shuffle_ledger.ledger.values import Proposal


@click.command("release")
@click.argument("name")
@click.option("--epsilon", type=REAL, metavar="E", required=True, help="What the budget would be raised to.")
@click.option("--reason", type=TEXT, metavar="TEXT", required=True, help="Why, for the record.")
@ledger_options
@server_option
@output_options
def release_(
    name: str,
    epsilon: float,
    reason: str,
    database_url: str | None,
    actor: str | None,
    server: str | None,
    as_json: bool,
) -> None:
    """Propose to raise the budget of the cohort NAME up to its ceiling; another person has to approve it.

    It takes the place of what was proposed before, and ends after 7 days or with the next change.
    """
    with open_ledger(server=server, database_url=database_url, actor=actor) as ledger:
        proposal = ledger.propose(name, epsilon=epsilon, reason=reason)
    present(document_of(proposal), lambda: _proposal_facts(proposal), as_json=as_json)


@click.command("approve")
@click.argument("name")
@click.option("--epsilon", type=REAL, metavar="E", required=True, help="What was proposed.")
@ledger_options
@server_option
@output_options
def approve_(
    name: str, epsilon: float, database_url: str | None, actor: str | None, server: str | None, as_json: bool
) -> None:
    """Approve what somebody else proposed for the cohort NAME, so that its budget is raised."""
    with open_ledger(server=server, database_url=database_url, actor=actor) as ledger:
        raised = ledger.approve(name, epsilon=epsilon)
    present(document_of(raised), lambda: cohort_facts(raised), as_json=as_json)


def _proposal_facts(proposal: Proposal) -> Table:
    return facts(f"Proposed for cohort {proposal.cohort}", proposed_facts(proposal))
