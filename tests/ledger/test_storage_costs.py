"""What one admission costs PostgreSQL: five index rows (`ledger/storage/tables.py`), in two round trips."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import register_and_admit
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from tests.conftest import POSTGRESQL
from tests.ledger.clerk import open_as_usual

MakeRequest = Callable[..., RoundRequest]

WARM = 12  # admissions, after which every statement is prepared
MEASURED = 8
CHUNK = 2**16
INDEX_ROWS = {
    "pk_entries": 1,
    "uq_entries_position": 1,
    "pk_rounds": 1,
    "ix_rounds_in_order": 1,
    "uq_rounds_round": 1,
}
ROUND_TRIPS = 2
# Index rows that the log has of this database alone: other databases of the server write beside it.
INSERTED = """
SELECT index.relname, count(*)
  FROM pg_get_wal_records_info(%s, %s) AS record
  CROSS JOIN LATERAL regexp_match(record.block_ref, 'rel \\d+/(\\d+)/(\\d+) fork main') AS place
  JOIN pg_database AS own ON own.datname = current_database() AND own.oid = place[1]::oid
  JOIN pg_class AS index ON index.relfilenode = place[2]::oid AND index.relnamespace = 'public'::regnamespace
 WHERE record.resource_manager = 'Btree'
   AND record.record_type IN ('INSERT_LEAF', 'SPLIT_L', 'SPLIT_R', 'INSERT_POST')
 GROUP BY index.relname
"""


class Counting:
    """Passes bytes between a client and a server, and counts how often the client waits for the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.trips = 0
        self._answered = True
        for source, sink, is_client in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pass_on, args=(source, sink, is_client), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        while data := source.recv(CHUNK):
            if is_client and self._answered:
                self.trips += 1
            self._answered = not is_client
            sink.sendall(data)
        sink.close()


@contextmanager
def counting(url: str) -> Iterator[tuple[str, list[Counting]]]:
    """Yield the address of a database behind something that counts, and the connections so far."""
    address, connections = make_url(url), list[Counting]()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                server = socket.create_connection((address.host or "127.0.0.1", address.port or 5432))
                connections.append(Counting(client, server))

        threading.Thread(target=accept, daemon=True).start()
        behind = address.set(host="127.0.0.1", port=listening.getsockname()[1])
        yield behind.render_as_string(hide_password=False), connections
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def watching(new_postgresql_ledger: Callable[[], str]) -> Iterator[tuple[str, psycopg.Connection]]:
    """Yield the address of a ledger, and a session that reads the log of its server."""
    url = new_postgresql_ledger()
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as session:
        query = "SELECT 1 FROM pg_available_extensions WHERE name = 'pg_walinspect'"
        offered = session.execute(query).fetchone()
        if offered is None and POSTGRESQL not in os.environ:
            pytest.skip("our own PostgreSQL has no pg_walinspect: nobody counted what an admission writes")
        session.execute("CREATE EXTENSION pg_walinspect")
        yield url, session


def end_of_log(session: psycopg.Connection) -> str:
    (end,) = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
    return str(end)


def test_an_admission_is_five_index_rows_in_two_round_trips(
    watching: tuple[str, psycopg.Connection], accountant: Accountant, make_request: MakeRequest
) -> None:
    url, session = watching
    with counting(url) as (behind, connections), Store.connect(behind) as store:
        open_as_usual(store, "phones", epsilon=50.0)

        def admit(name: str) -> int:
            before = sum(each.trips for each in connections)
            outcome, _ = register_and_admit(store, accountant, make_request(name), actor="tester")
            assert isinstance(outcome, Admitted)
            return sum(each.trips for each in connections) - before

        for number in range(WARM):
            admit(f"warm {number}")
        begin = end_of_log(session)
        trips = [admit(f"measured {number}") for number in range(MEASURED)]
        found: dict[str, int] = dict(session.execute(INSERTED, (begin, end_of_log(session))).fetchall())
    assert Counter(found) == Counter({name: MEASURED * rows for name, rows in INDEX_ROWS.items()})
    assert trips == [ROUND_TRIPS] * MEASURED
