"""Databases that cannot be used: each message names the file or the server, and what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import unusable
from tests.cli.conftest import Run
from tests.ports import free_port


def _error(run: Run, url: str, command: tuple[str, ...] = ("budget", "phones")) -> tuple[int, str]:
    answer = run(*command, "--database-url", url, "--json")
    message = answer.json["error"]["message"]
    assert answer.stderr == f"shuffle-ledger: {message}\n"
    return answer.code, message


def test_a_file_that_cannot_be_one_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, said, there in (
        (tmp_path / "none" / "a.db", f"the folder {tmp_path / 'none'} does not exist", False),
        (tmp_path, f"{tmp_path} is a folder, expected a file", True),
        (tmp_path / "file" / "a.db", f"{tmp_path / 'file'} is no folder", False),
    ):
        url = f"sqlite:///{path}"
        wrong, missing = f"database_url {url}: {said}", f"there is no ledger in {url}: {said}"
        assert _error(run, url, ("init",)) == (2, wrong)
        assert _error(run, url) == ((2, wrong) if there else (1, missing))


def test_the_advice_to_initialise_names_the_option(run: Run, tmp_path: Path) -> None:
    url, advice = f"sqlite:///{tmp_path / 'new.db'}", "`shuffle-ledger init`, with the same --database-url"
    assert advice in _error(run, url)[1]
    (tmp_path / "new.db").touch()
    assert advice in _error(run, url)[1]
    assert run("init", "--database-url", url).code == 0
    assert _error(run, url)[0] == 4  # the ledger is there, the cohort is not


def test_a_file_that_is_no_database_is_named(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("a page of notes\n" * 200)
    said = f"there is no ledger in {other}: it is not a SQLite database (file is not a database)"
    for command in (("init",), ("budget", "phones")):
        assert _error(run, f"sqlite:///{other}", command) == (1, said)
    assert other.read_text() == "a page of notes\n" * 200


def test_a_damaged_file_is_named(directory: Path, run: Run) -> None:
    path = directory / "shuffle-ledger.db"
    os.truncate(path, path.stat().st_size // 2)
    said = f"{path}: its file is damaged (database disk image is malformed). Restore the ledger from a backup"
    for command in (("init",), ("budget", "phones")):
        assert _error(run, f"sqlite:///{path}", command) == (1, f"the database cannot be used: {said}")


def test_a_missing_table_is_named(directory: Path, run: Run) -> None:
    path = directory / "shuffle-ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE heads")
    place, restore = f"the database cannot be used: {path}: ", "Restore the ledger from a backup"
    said = f"{place}a table of the ledger is missing (no such table: heads). {restore}"
    assert _error(run, f"sqlite:///{path}", ("cohort", "list")) == (1, said)
    assert _error(run, f"sqlite:///{path}", ("init",)) == (
        1,
        f"tables of the ledger are missing: heads. {restore}",
    )


def test_a_file_that_may_not_be_read_or_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.db").touch()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may do everything
    url = make_url(f"sqlite:///{tmp_path / 'a.db'}")
    assert unusable.problem_of_file(url, creating=False) == f"the file {tmp_path / 'a.db'} may not be read"
    url = make_url(f"sqlite:///{tmp_path / 'b.db'}")
    assert unusable.problem_of_file(url, creating=True) == f"the folder {tmp_path} may not be written to"
    assert unusable.problem_of_file(url, creating=False) is None


def test_a_read_only_file_is_named(directory: Path, run: Run) -> None:
    url = "sqlite:///file:shuffle-ledger.db?mode=ro&uri=true"
    opening = ("cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6")
    code, said = _error(run, url, opening)
    assert directory.exists()
    assert code == 7
    assert said == (
        "the database cannot be used: file:shuffle-ledger.db: it cannot be written: the file or its folder is"
        " read only (attempt to write a readonly database)"
    )


def test_a_full_disk_is_named(directory: Path) -> None:
    path = directory / "shuffle-ledger.db"
    engine = engines.connect(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(Unavailable) as caught, engines.writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(100000) AS a")
    engine.dispose()
    said = f"the database cannot be used: {path}: it cannot be written: the disk is full"
    assert str(caught.value) == f"{said} (database or disk is full)"


def test_a_text_that_the_encoding_of_the_database_lacks_is_named(
    run: Run, new_latin_database: Callable[[], str]
) -> None:
    url = new_latin_database()
    assert run("init", "--database-url", url).code == 0
    opening = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
    assert run("cohort", "open", "téléphones", *opening, "--database-url", url).code == 0
    for command in (("cohort", "open", "電話", *opening), ("cohort", "show", "電話")):
        code, said = _error(run, url, command)
        assert code == 2
        assert said.startswith("a text cannot be stored in the database, ")
        assert 'has no equivalent in encoding "LATIN1"' in said
        assert said.endswith("a database with encoding UTF8 has all of them")


def test_a_server_that_cannot_be_reached_is_named_without_its_password(run: Run) -> None:
    port = free_port()
    for command in (("init",), ("budget", "phones")):
        code, said = _error(run, f"postgresql+psycopg://me:secret-word@127.0.0.1:{port}/privacy", command)
        assert code == 7
        assert said.startswith(f"the database cannot be used: privacy at 127.0.0.1, port {port}: ")
        assert "refused" in said
        assert "secret-word" not in said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql//me:secret-word@host/x",
        "postgresql://me:secret-word@host:port/x",
        "mysql://me:secret-word@host/x",
        "me:secret-word@host",
    ],
)
def test_a_wrong_address_is_named_without_its_password(run: Run, url: str) -> None:
    answer = run("init", "--database-url", url, "--json")
    error = answer.json["error"]
    assert (answer.code, error["field"]) == (2, "database_url")
    assert error["expected"] == "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    assert "secret-word" not in answer.stdout + answer.stderr
