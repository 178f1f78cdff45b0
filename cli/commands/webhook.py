"""`webhook`: subscriptions of services to events, and their delivery."""

from __future__ import annotations

import click
from rich.table import Table

from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.failures import BadValue, ExitCode, require
from shuffle_ledger.cli.options import REAL, database_options, output_options
from shuffle_ledger.cli.rendering.present import Listing, document_of, facts, present
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values import Json
from shuffle_ledger.ledger.webhooks import (
    THRESHOLD,
    Delivered,
    NewSubscription,
    NoticeKind,
    Subscription,
    deliver,
    list_subscriptions,
    resume,
    subscribe,
    unsubscribe,
)

WHY_HERE = "webhooks are the operator's: no token may add, list or remove them"


@click.command("add")
@click.argument("url")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice([kind.value for kind in NoticeKind]),
    multiple=True,
    help="Only events of this kind; may be repeated. All kinds by default.",
)
@click.option(
    "--cohort", "cohorts", multiple=True, metavar="NAME", help="Only of this cohort; may be repeated."
)
@click.option(
    "--threshold",
    type=REAL,
    default=THRESHOLD,
    show_default=True,
    metavar="SHARE",
    help="Share of a budget from which it is nearly exhausted.",
)
@click.option(
    "--threshold-of",
    "thresholds",
    multiple=True,
    metavar="NAME=SHARE",
    help="Another share for this cohort; may be repeated.",
)
@click.option(
    "--from-start", is_flag=True, help="Begin with the first entry of the ledger, not with the next one."
)
@database_options(WHY_HERE)
@output_options
def add(
    url: str,
    kinds: tuple[str, ...],
    cohorts: tuple[str, ...],
    threshold: float,
    thresholds: tuple[str, ...],
    from_start: bool,
    settings: Settings,
    as_json: bool,
) -> None:
    """Send the events of this ledger to URL, signed with a new secret. It is shown now, never again.

    Needs SHUFFLE_LEDGER_WEBHOOK_KEY, from which the secret is derived, as the scheduler has it.
    """
    key = _key_of(settings)
    with open_session(settings) as session:
        made = subscribe(
            session.store,
            key,
            url=url,
            actor=settings.actor,
            kinds=kinds,
            cohorts=cohorts or None,
            threshold=threshold,
            thresholds=dict(map(_share_of, thresholds)),
            from_start=from_start,
        )
    document = document_of(made.subscription)
    shown: Json = {"secret": made.secret, **document} if isinstance(document, dict) else None
    present(shown, lambda: added_facts(made), as_json=as_json)


@click.command("list")
@database_options(WHY_HERE)
@output_options
def list_(settings: Settings, as_json: bool) -> None:
    """List all webhooks with their last errors, without the secrets, which are not stored."""
    with open_session(settings) as session:
        found = list_subscriptions(session.store)
    present(found, lambda: webhook_table(found), as_json=as_json)


@click.command("remove")
@click.argument("subscription_id", metavar="ID")
@database_options(WHY_HERE)
@output_options
def remove(subscription_id: str, settings: Settings, as_json: bool) -> None:
    """Remove the webhook ID."""
    with open_session(settings) as session:
        unsubscribe(session.store, subscription_id)
    present({"removed": subscription_id}, lambda: f"Removed {subscription_id}.", as_json=as_json)


@click.command("resend")
@click.argument("subscription_id", metavar="ID")
@database_options(WHY_HERE)
@output_options
def resend(subscription_id: str, settings: Settings, as_json: bool) -> None:
    """Have the webhook ID, which is paused, go on with the message that failed, with the next delivery."""
    with open_session(settings) as session:
        resume(session.store, subscription_id)
    present({"resumed": subscription_id}, lambda: f"Resumed {subscription_id}.", as_json=as_json)


@click.command("deliver")
@database_options(WHY_HERE)
@output_options
def deliver_(settings: Settings, as_json: bool) -> int:
    """Send the messages that are due now: for a timer, where no scheduler runs.

    Exits with 1 if a message was not taken, or a webhook failed for another reason, such as another key. Both
    are tried again later.
    """
    key = _key_of(settings)
    require("standardwebhooks")  # the extra that brings HTTPX, too
    with open_session(settings) as session:
        done = deliver(session.store, key)
    present(done, lambda: _said(done), as_json=as_json)
    return ExitCode.FAILED if done.failed or done.paused else ExitCode.DONE


def added_facts(made: NewSubscription) -> Table:
    """Returns a new webhook as a table for people, with its secret."""
    added = made.subscription
    return facts(
        "Give this secret to the receiver now: it is not shown again.",
        {
            "secret": made.secret,
            "id": added.subscription_id,
            "url": added.url,
            "kinds": ", ".join(added.kinds),
            "cohorts": _scope(added),
        },
    )


def webhook_table(found: list[Subscription]) -> Table:
    """Returns webhooks as a table for people."""
    table = Listing()
    for name in ("id", "url", "kinds", "cohorts", "paused", "failing since", "last error"):
        table.add_column(name, overflow="fold")
    for each in found:
        failing = each.failing_since.isoformat(timespec="seconds") if each.failing_since else "-"
        paused = "yes" if each.paused else "no"
        kinds = ", ".join(each.kinds)
        row = (each.subscription_id, each.url, kinds, _scope(each), paused, failing, each.last_error or "-")
        table.add_row(*row)
    return table


def _scope(webhook: Subscription) -> str:
    return "all" if webhook.cohorts is None else ", ".join(webhook.cohorts)


def _said(done: Delivered) -> str:
    return f"{done.sent} messages sent, {done.failed} failed, {done.paused} webhooks paused."


def _key_of(settings: Settings) -> str:
    if settings.webhook_key is None:
        raise BadValue(
            "SHUFFLE_LEDGER_WEBHOOK_KEY",
            None,
            "at least 32 characters, the same for every process that adds webhooks or delivers to them",
        )
    return settings.webhook_key.get_secret_value()


def _share_of(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    try:
        return name, float(share)
    except ValueError:
        raise BadValue("threshold-of", text, "NAME=SHARE, such as de-phone=0.9") from None
