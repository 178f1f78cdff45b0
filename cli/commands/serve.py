"""`serve`: the HTTP API and the pages for people."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.backends.database import health_of
from shuffle_ledger.cli.backends.session import Session, open_session, settings_from
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.options import broker_option, database_options, output_options
from shuffle_ledger.cli.rendering.present import present
from shuffle_ledger.ledger.decisions import admit_in_order
from shuffle_ledger.ledger.values import Outcome, Pending

if TYPE_CHECKING:
    from shuffle_ledger.ledger.api import Dispatch

SHUTDOWN_SECONDS = 30  # for requests that are being answered
KEEP_ALIVE_SECONDS = 15
BROKER_TIMEOUT_SECONDS = 2


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port to listen on."
)
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    default="127.0.0.1",
    show_default=True,
    help="Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
)
@database_options("it is the server that others ask")
@broker_option
@output_options
def serve(
    host: str,
    port: int,
    forwarded_allow_ips: str,
    database_url: str | None,
    actor: str | None,
    broker_url: str | None,
    as_json: bool,
) -> None:
    """Serve the HTTP API and the pages until stopped. Tokens (`token create`) say who may use them."""
    import uvicorn  # noqa: PLC0415 - the libraries of the extra `server`, which only a server needs

    from shuffle_ledger.ledger.api import create_app  # noqa: PLC0415 - as above

    settings = settings_from(database_url=database_url, broker_url=broker_url, actor=actor)
    if "*" in forwarded_allow_ips:
        raise BadValue("forwarded_allow_ips", forwarded_allow_ips, "addresses: nobody's word counts for all")
    with open_session(settings) as session:
        app = create_app(settings, session.store, dispatch_of(session))
        where = f"http://{host}:{port}"
        present({"serving": where}, lambda: f"Serving {where}", as_json=as_json)
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="info",
            access_log=False,
            server_header=False,
            forwarded_allow_ips=forwarded_allow_ips,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )


def dispatch_of(session: Session) -> Dispatch:
    """Returns how rounds get decided: by workers where there is a broker, else in this process."""
    from shuffle_ledger.ledger.api import Dispatch  # noqa: PLC0415 - as above

    if session.settings.broker_url is None:
        return Dispatch(decide=functools.partial(_decide_here, session))
    from shuffle_ledger.workers.celery_app import create_app as create_celery  # noqa: PLC0415 - a broker needs it
    from shuffle_ledger.workers.dispatch import publish  # noqa: PLC0415 - as above

    celery = create_celery(session.settings)

    def broker_answers() -> bool:
        try:
            with celery.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=BROKER_TIMEOUT_SECONDS)
        except Exception:  # noqa: BLE001 - whatever the transport raises, it does not answer
            return False
        return True

    return Dispatch(
        decide=functools.partial(_decide_here, session),
        publish=functools.partial(publish, celery),
        health=functools.partial(health_of, session),
        broker_answers=broker_answers,
    )


def _decide_here(session: Session, accountant: Accountant, round_id: str) -> Outcome | Pending:
    return admit_in_order(session.store, accountant, round_id)
