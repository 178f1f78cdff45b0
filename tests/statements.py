"""Compiled statements, kept for all ledgers of a process.

SQLAlchemy keeps them for one engine, and a ledger that runs for long compiles each statement once. Tests open
thousands of ledgers, each of which would compile the same statements again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event


class Compiled(dict[Any, Any]):
    """What SQLAlchemy compiled, by the kind of database instead of by the engine that asked first."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        """Return what was compiled for this kind of database."""
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        super().__setitem__(_of_kind(key), value)


def _of_kind(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key with what its dialect is, instead of with the dialect itself, which each engine has."""
    dialect, *rest = key
    return (dialect.name, dialect.driver, dialect.server_version_info, *rest)


_KEPT = Compiled()


def keep_compiled() -> None:
    """From now on, give every connection of this process the same compiled statements."""
    event.listen(Engine, "engine_connect", _keep)


def pytest_configure() -> None:
    keep_compiled()


def _keep(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_KEPT)
