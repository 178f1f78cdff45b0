"""Why a database cannot be used, in words that name it: its file or its address, without the password."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy.engine import URL

_SECRET = re.compile(r"([^/@:]*):[^/]*@")  # a password in an address, also in one that cannot be parsed
_STATEMENT = re.compile(r" LINE \d+: .*")  # where in a statement PostgreSQL found its error
_OPTIONS = "file:"  # begins the name of a SQLite database that has options; its file is not looked at
_BY_SQLITE = {
    "unable to open database file": "it cannot be opened",
    "attempt to write a readonly database": "it cannot be written: the file or its folder is read only",
    "database or disk is full": "it cannot be written: the disk is full",
    "disk I/O error": "its disk reports an error",
    "file is not a database": "it is not a SQLite database",
    "disk image is malformed": "its file is damaged",
    "malformed database schema": "its file is damaged",
    "no such table": "a table of the ledger is missing",
}
_RUINED_BY_SQLITE = ("disk image is malformed", "malformed database schema", "no such table")
_RUINED_BY_POSTGRESQL = frozenset({"42P01", "XX001", "XX002"})  # no such table; damaged data; damaged index


def hidden(address: str) -> str:
    """Return a database's address without the password that it may have."""
    return _SECRET.sub(r"\1:***@", address)


def place_of(url: URL) -> str:
    """Return which database an address is: a file, or a database at a server, without the password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    name = url.database or url.username or "the default database"
    return f"{name} at {url.host or 'localhost'}, port {url.port or 5432}"


def problem_of_file(url: URL, *, creating: bool) -> str | None:
    """Return why there can be no ledger in the file of a SQLite address; None if there may be one.

    Args:
        url: the address.
        creating: whether a file that does not exist is created.
    """
    if url.database is None or url.database.startswith(_OPTIONS):
        return None
    file = Path(url.database)
    folder = file.parent
    if not folder.exists():
        return f"the folder {folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is no folder"
    if file.is_dir():
        return f"{file} is a folder, expected a file"
    if not file.exists():
        writable = os.access(folder, os.W_OK | os.X_OK) or not creating
        return None if writable else f"the folder {folder} may not be written to"
    return None if os.access(file, os.R_OK) else f"the file {file} may not be read"


def reason_for(url: URL, reason: str) -> str:
    """Return what a driver says of a database, after the database's name and in plain words."""
    place = place_of(url)
    if url.get_backend_name() != "sqlite":
        return f"{place}: {_STATEMENT.sub('', reason)}"
    said = next((words for text, words in _BY_SQLITE.items() if text in reason), None)
    known = problem_of_file(url, creating=True)
    return f"{place}: {known or said or reason}" + (f" ({reason})" if known or said else "")


def is_no_database(reason: str) -> bool:
    """Return whether SQLite says that a file is not a database."""
    return "file is not a database" in reason


def is_ruined(reason: str, sqlstate: str | None) -> bool:
    """Return whether a driver says that the database is damaged, or that tables are missing."""
    return sqlstate in _RUINED_BY_POSTGRESQL or any(text in reason for text in _RUINED_BY_SQLITE)
