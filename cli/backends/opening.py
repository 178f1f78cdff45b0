"""Opens the ledger that a command works on, and imports what that takes: a database, or a server's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shuffle_ledger.cli import surroundings
from shuffle_ledger.cli.backends.settings import settings_from
from shuffle_ledger.cli.failures import BadValue, TokenNotAccepted
from shuffle_ledger.ledger.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.database import Ledger

_GIVE_TOKEN = f"set SHUFFLE_LEDGER_TOKEN, or token in {SETTINGS_FILE}"


@contextmanager
def open_ledger(
    *,
    server: str | None = None,
    database_url: str | None = None,
    broker_url: str | None = None,
    actor: str | None = None,
    team: str | None = None,
    anchored: bool = True,
) -> Iterator[Ledger]:
    """Open the ledger that options and settings name, and close it again. Options win over the environment.

    Unless `anchored`, a database is not compared with the checkpoint that the settings name.

    Raises:
        BadValue: options for a database together with a server, or no token for it.
    """
    options = {"database_url": database_url, "broker_url": broker_url, "actor": actor, "team": team}
    settings = settings_from(server=server, **options)
    if server is None and (database_url is not None or settings.server is None):
        if not anchored:
            settings = settings.model_copy(update={"checkpoint": None})
        from shuffle_ledger.cli.backends.database import DatabaseLedger  # noqa: PLC0415 - SQLAlchemy, which only databases need
        from shuffle_ledger.cli.backends.session import open_session  # noqa: PLC0415 - as above

        with open_session(settings) as session:
            yield DatabaseLedger(session=session)
        return
    for field, value in options.items():
        if value is not None:
            raise BadValue(field, value, "it left out with a server, which has its own")
    from shuffle_ledger.ledger.errors import InvalidValue, Unauthorized  # noqa: PLC0415 - as above

    if settings.token is None:
        needed = f"a token is needed for the server, such as sl_ID_SECRET: {_GIVE_TOKEN}"
        raise BadValue("SHUFFLE_LEDGER_TOKEN", None, "a token, such as sl_ID_SECRET", needed)
    token, wait_seconds = settings.token.get_secret_value(), settings.decision_timeout_seconds
    try:
        # HTTPX would load its own command line, and Trio where that is installed, which nothing here uses: a
        # third of the time of a small command.
        with surroundings.without("httpx._main", "trio"):
            from shuffle_ledger.cli.backends.served import ServedLedger  # noqa: PLC0415 - an HTTP client, which only servers need

            served = ServedLedger(settings.server or "", token, wait_seconds=wait_seconds)
        with served:
            yield served
    except Unauthorized as error:
        said = (
            f"the server does not accept the token, which may be unknown, expired or revoked: {_GIVE_TOKEN}"
        )
        raise TokenNotAccepted(said) from error
    except InvalidValue as error:
        if error.field != "token":
            raise
        said = f"the token is not written as tokens are, sl_ID_SECRET: {_GIVE_TOKEN}"
        raise BadValue("SHUFFLE_LEDGER_TOKEN", error.value, error.expected, said) from error
