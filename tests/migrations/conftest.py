"""An empty database of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the URL of a database that was not initialised."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    new_database: Callable[[], str] = request.getfixturevalue("new_postgresql_database")
    return new_database()
