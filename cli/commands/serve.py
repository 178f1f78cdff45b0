"""`serve`: the HTTP API and the pages for people."""

from __future__ import annotations

import functools
import ipaddress
from typing import TYPE_CHECKING, Any

import click

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.backends.database import health_of
from shuffle_ledger.cli.backends.session import Session, open_session
from shuffle_ledger.cli.commands.audit_statement import statement_files_here
from shuffle_ledger.cli.failures import BadValue, require
from shuffle_ledger.cli.options import broker_option, database_options, output_options
from shuffle_ledger.cli.rendering.started import present_start
from shuffle_ledger.ledger import logs, telemetry
from shuffle_ledger.ledger.decisions import admit
from shuffle_ledger.ledger.security_log import written_to_stderr
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values import Outcome, Pending

if TYPE_CHECKING:
    from shuffle_ledger.ledger.api import Dispatch


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port to listen on."
)
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    default="",
    help="Proxies, separated by commas, whose X-Forwarded-For and -Proto are believed. None by default.",
)
@click.option(
    "--root-path",
    metavar="PATH",
    default="",
    help="Path below which a proxy offers the server, such as /ledger. None by default.",
)
@database_options("it is the server that others ask")
@broker_option
@output_options
def serve(
    host: str,
    port: int,
    forwarded_allow_ips: str,
    root_path: str,
    settings: Settings,
    as_json: bool,
) -> None:
    """Serve the HTTP API and the pages until stopped. Tokens (`token create`) say who may use them."""
    # The libraries of the extra `server`, which only a server needs.
    require("fastapi")  # named before a library that it brings
    from shuffle_ledger.ledger.api import create_app, listener_on, run_server  # noqa: PLC0415 - an extra

    trusted_proxies = checked_proxies(forwarded_allow_ips)
    logging = logs.written_to_stderr(settings.log_format)
    exporting = telemetry.exported("server")
    listener = listener_on(host, port)
    with listener, open_session(settings) as session, logging, written_to_stderr(), exporting:
        app = create_app(settings, session.store, dispatch_of(session), root_path=root_path)
        where = f"http://{host}:{port}{root_path.rstrip('/')}"
        present_start({"serving": where}, f"Serving {where}", form=settings.log_format, as_json=as_json)
        run_server(app, listener, trusted_proxies=trusted_proxies)


def checked_proxies(text: str) -> str:
    """Returns addresses and networks of proxies, separated by commas; raises BadValue for anything else."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        try:
            ipaddress.ip_network(part)
        except ValueError:
            expected = "IP addresses or networks separated by commas, none of which stands for every address"
            raise BadValue("forwarded_allow_ips", part, expected) from None
        if ipaddress.ip_network(part).prefixlen == 0:
            raise BadValue("forwarded_allow_ips", part, "networks smaller than all addresses together")
    return ",".join(parts)


def dispatch_of(session: Session) -> Dispatch:
    """Returns how rounds get decided: by workers where there is a broker, else in this process."""
    from shuffle_ledger.ledger.api import Dispatch  # noqa: PLC0415 - as above

    shared: dict[str, Any] = {
        "decide": functools.partial(_decide_here, session),
        "health": functools.partial(health_of, session),
        "statement_files": statement_files_here(),
    }
    if session.settings.broker_url is None:
        return Dispatch(**shared)
    from shuffle_ledger.workers.celery_app import create_app as create_celery  # noqa: PLC0415 - a broker needs it
    from shuffle_ledger.workers.dispatch import publish_or_mark  # noqa: PLC0415 - as above

    celery = create_celery(session.settings)
    return Dispatch(**shared, publish=functools.partial(publish_or_mark, session.store, celery))


def _decide_here(session: Session, accountant: Accountant, round_id: str) -> Outcome | Pending:
    return admit(session.store, accountant, round_id)
