"""Opens what ledger commands work with: settings (options win over the environment), store, accountant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Anchor, Store


@dataclass(frozen=True, kw_only=True)
class Session:
    """One command's view of the ledger."""

    settings: Settings
    store: Store
    accountant: Accountant


def settings_from(
    *,
    database_url: str | None = None,
    broker_url: str | None = None,
    actor: str | None = None,
    server: str | None = None,
    team: str | None = None,
) -> Settings:
    """Returns the environment's settings with the given options in their place."""
    given: dict[str, Any] = {
        "database_url": database_url,
        "broker_url": broker_url,
        "actor": actor,
        "server": server,
        "team": team,
    }
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as problem:
        first = problem.errors()[0]
        field = "SHUFFLE_LEDGER_" + "_".join(map(str, first["loc"])).upper()
        raise BadValue(field, first.get("input"), f"something else ({first['msg']})") from problem


@contextmanager
def open_session(settings: Settings) -> Iterator[Session]:
    """Opens the ledger of `settings` and closes it again; raises SchemaError when it is not initialised."""
    with Store.connect(settings.database_url, anchor=Anchor.of(settings)) as store:
        yield Session(settings=settings, store=store, accountant=Accountant(precision=settings.precision))
