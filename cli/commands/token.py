"""`token`: who may use the HTTP API."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.table import Table

from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.options import DURATION, REAL, TEXT, database_options, output_options
from shuffle_ledger.cli.rendering.present import Listing, document_of, facts, present
from shuffle_ledger.ledger.access import (
    LIFETIME_DAYS,
    AccessToken,
    IssuedToken,
    issue,
    revoke,
    rotate,
    tokens,
)
from shuffle_ledger.ledger.roles import Role
from shuffle_ledger.ledger.security_log import written_to_stderr
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values import Json

WHY_HERE = "no token may make, list or revoke tokens: who may is who reaches the database"


@click.command("create")
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in Role]), required=True, help="What the bearer may do."
)
@click.option(
    "--cohort", "cohorts", multiple=True, metavar="NAME", help="Limit it to this cohort; may be repeated."
)
@click.option("--team", type=TEXT, metavar="TEAM", help="Charge its rounds to the quotas of this team, too.")
@click.option(
    "--expires-in-days",
    "lifetime_days",
    type=REAL,
    default=LIFETIME_DAYS,
    show_default=True,
    metavar="N",
    help="How long it is valid.",
)
@database_options(WHY_HERE)
@output_options
def create_(
    name: str,
    role: str,
    cohorts: tuple[str, ...],
    team: str | None,
    lifetime_days: float,
    settings: Settings,
    as_json: bool,
) -> None:
    """Create a token for NAME, the actor of what is done with it. It is shown now and never again."""
    with open_session(settings) as session, written_to_stderr():
        issued = issue(
            session.store,
            name=name,
            role=role,
            actor=settings.actor,
            cohorts=cohorts or None,
            team=team,
            lifetime_days=lifetime_days,
        )
    document = document_of(issued.issued)
    shown: Json = {"token": issued.token, **document} if isinstance(document, dict) else None
    present(shown, lambda: issued_facts(issued), as_json=as_json)


@click.command("list")
@database_options(WHY_HERE)
@output_options
def list_(settings: Settings, as_json: bool) -> None:
    """List all tokens, present and past, without their secrets, which are not stored."""
    with open_session(settings) as session:
        found = tokens(session.store)
    present(found, lambda: token_table(found), as_json=as_json)


@click.command("revoke")
@click.argument("token_id", metavar="ID")
@database_options(WHY_HERE)
@output_options
def revoke_(token_id: str, settings: Settings, as_json: bool) -> None:
    """Revoke the token ID, from now on and for ever."""
    with open_session(settings) as session, written_to_stderr():
        revoked = revoke(session.store, token_id, actor=settings.actor)
    present(revoked, lambda: token_table([revoked]), as_json=as_json)


@click.command("rotate")
@click.argument("token", metavar="ID|NAME")
@click.option(
    "--expires-in-days", "lifetime_days", type=REAL, metavar="N", help="How long the new one is valid."
)
@click.option(
    "--overlap",
    type=DURATION,
    metavar="DURATION",
    help="End the old one after this: 90s, 30m, 12h, 7d; 0 ends it at once. Else it stays valid for now.",
)
@click.option("--revoke-old", is_flag=True, help="The same as --overlap 0.")
@database_options(WHY_HERE)
@output_options
def rotate_(
    token: str,
    lifetime_days: float | None,
    overlap: timedelta | None,
    revoke_old: bool,
    settings: Settings,
    as_json: bool,
) -> None:
    """Create a token like the token ID, or NAME's only valid one: same actor, role, cohorts and lifetime.

    It is shown once. Hand the new one over, then `token revoke` the old one, or let it end after --overlap:
    its bearer is never locked out.
    """
    if revoke_old and overlap:
        raise click.UsageError("--revoke-old ends the old token at once: leave it out with --overlap")
    ends = timedelta() if revoke_old else overlap
    with open_session(settings) as session, written_to_stderr():
        made = rotate(session.store, token, actor=settings.actor, lifetime_days=lifetime_days, overlap=ends)
    document = document_of(made.new.issued)
    replaced: dict[str, Json] = {
        "replaces": made.old.token_id,
        "old_revoked": made.old.revoked_at is not None,
        "old_expires_at": made.old.expires_at.isoformat(),
    }
    shown: Json = {"token": made.new.token, **document, **replaced} if isinstance(document, dict) else None
    present(shown, lambda: issued_facts(made.new, replaced=made.old), as_json=as_json)


def issued_facts(issued: IssuedToken, *, replaced: AccessToken | None = None) -> Table:
    """Returns a new token for people, and when the one that it replaces ends."""
    ends = {} if replaced is None else {f"{replaced.token_id} ends": _end_of(replaced)}
    return facts(
        "Keep this token now: it is not shown again.",
        {
            "token": issued.token,
            "actor": issued.issued.name,
            "role": issued.issued.role,
            "cohorts": _scope(issued.issued),
            "expires": issued.issued.expires_at.isoformat(timespec="seconds"),
            **ends,
        },
    )


def _end_of(token: AccessToken) -> str:
    return "now" if token.revoked_at is not None else token.expires_at.isoformat(timespec="seconds")


def token_table(found: list[AccessToken]) -> Table:
    """Returns tokens as a table for people."""
    table = Listing()
    for name in ("id", "actor", "role", "cohorts", "created by", "expires", "revoked"):
        table.add_column(name, overflow="fold")
    for each in found:
        revoked = each.revoked_at.isoformat(timespec="seconds") if each.revoked_at else "-"
        expires = each.expires_at.isoformat(timespec="seconds")
        table.add_row(each.token_id, each.name, each.role, _scope(each), each.created_by, expires, revoked)
    return table


def _scope(token: AccessToken) -> str:
    return "all" if token.cohorts is None else ", ".join(token.cohorts)
