"""An empty database of each kind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a database that nobody initialised."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server = os.environ.get("SHUFFLE_LEDGER_TEST_POSTGRES_URL")
    if server is None:
        pytest.skip("SHUFFLE_LEDGER_TEST_POSTGRES_URL is not set: this was not run on PostgreSQL")
    address = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"shuffle_ledger_test_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        url = make_url(server).set(drivername="postgresql+psycopg", database=name)
        yield url.render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
