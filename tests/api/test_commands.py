"""The command line through a server: the same answers and exit codes as with a database, or a clear no."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.decisions import register
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.api.conftest import ROUND as PARAMETERS
from tests.api.conftest import Server

Run = Callable[..., tuple[int, Any]]
ROUND = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "1000")
TOO_MUCH = ("--randomizer", "generic(epsilon0=9)", "--reports", "10")
PLANNED = (
    *("cohort", "open", "planned", "--population", "5000", "--epsilon", "0.5", "--delta", "1e-6"),
    *("--policy", "plan"),
)
PLAN = (*PLANNED, "--plan", "plan.csv")
IMPORT = ("round", "import", "rounds.csv", "--cohorts", "cohorts.csv")
ORDERS: tuple[tuple[str, ...], ...] = (
    ("cohort", "open", "new", "--population", "500", "--epsilon", "1", "--delta", "1e-6"),
    ("cohort", "open", "x", "--population", "0", "--epsilon", "1", "--delta", "1e-6"),
    ("cohort", "list"),
    ("cohort", "show", "nobody"),
    ("round", "quote", "phones", *ROUND),
    ("round", "quote", "phones", *TOO_MUCH),
    ("round", "register", "phones", "--id", "a", *ROUND, "--collected-on", "2025-01-06", "--use-case", "é"),
    ("round", "register", "phones", "--id", "a", *ROUND, "--collected-on", "2025-01-06", "--use-case", "é"),
    ("round", "register", "phones", "--id", "a", *ROUND),
    ("round", "register", "phones", "--id", "b", *TOO_MUCH),
    ("round", "register", "phones", "--id", "c", *ROUND[:-1], "200000"),
    ("round", "register", "phones", "--id", "e", *ROUND),
    ("round", "show", "b"),
    ("round", "settle", "a", "--reports", "900"),
    ("round", "settle", "a", "--reports", "800"),
    ("round", "void", "e", "--reason", "never sent"),
    ("round", "show", "e"),
    (*IMPORT, "--dry-run"),
    IMPORT,
    (*IMPORT, "--dry-run"),
    IMPORT,
    ("round", "import", "bad.csv"),
    ("budget", "phones"),
    ("budget", "imported"),
    ("budget", "monthly"),
    ("budget", "nobody"),
    ("round", "list", "phones", "--outcome", "refused"),
    ("round", "list", "phones", "--since", "2999-01-01"),
    ("forecast", "phones", *ROUND, "--every", "week", "--from", "2025-01-06"),
    ("forecast", "phones", "--fit", "3"),
    ("forecast", "--audience", "phones,new", *ROUND, "--every", "week", "--from", "2025-01-06"),
    ("forecast", "--audience", "country=xx", *ROUND),
    # A plan.
    PLAN,
    (*PLANNED, "--plan", "large.csv"),
    (*PLANNED, "--plan", "other.csv"),  # nothing was decided: it is opened again
    PLAN,
    ("round", "register", "planned", "--id", "p1", *ROUND),
    (*PLANNED, "--plan", "other.csv"),
    ("round", "register", "planned", "--id", "p2", "--randomizer", "generic(epsilon0=4)", "--reports", "10"),
    ("cohort", "show", "planned"),
    ("forecast", "planned", "--every", "day", "--from", "2025-01-06", "--until", "2025-03-01"),
    # What only an administrator, an operator or an auditor asks.
    ("cohort", "budget", "new", "--epsilon", "2", "--reason", "agreed"),
    ("cohort", "budget", "new", "--epsilon", "0", "--reason", "agreed"),
    ("health",),
    ("round", "retry", "stuck"),
    ("round", "retry", "stuck"),
    ("round", "retry", "b"),
    ("audit", "heads"),
    ("audit", "verify", "phones", "--numbers", "all"),
    ("audit", "verify", "nobody"),
    ("audit", "verify", "--against", "forged.json"),
)

BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
CLOCK = ("opened_at", "decided_at", "registered_at", "digest", "head_digest", "at", "longest_wait_seconds")


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_clock(item) for name, item in value.items() if name not in CLOCK}
    return [_without_clock(item) for item in value] if isinstance(value, list) else value


HEADER = "randomizer,reports,count\n"
FILES = {
    "cohorts.csv": "cohort,population,epsilon,delta,per\nimported,5000,1,1e-6,\nmonthly,900,1,1e-6,month\n",
    "rounds.csv": "round_id,cohort,randomizer,reports\n"
    + "".join(f'i{number},imported,"krr(k=2, epsilon0=1)",{400 + number}\n' for number in range(8))
    + 'm,monthly,"krr(k=2, epsilon0=1)",400\n',
    "bad.csv": 'round_id,cohort,randomizer,reports\na,phones,"krr(k=2, epsilon0=1)",5\n',
    "plan.csv": HEADER + '"krr(k=2, epsilon0=0.5)",1000,2\n"krr(k=2, epsilon0=0.25)",1000,1\n',
    "other.csv": HEADER + '"krr(k=2, epsilon0=0.5)",1000,3\n',
    "large.csv": HEADER + '"krr(k=2, epsilon0=8)",1000,3\n',
    "forged.json": json.dumps(
        {
            "format": "shuffle-ledger-heads-1",
            "heads": [{"cohort": "phones", "sequence": 1, "digest": "0" * 64}],
        }
    ),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the working directory, with files to name and without settings of the environment."""
    for name in ("DATABASE_URL", "BROKER_URL", "SERVER", "TOKEN", "SIGNING_KEY", "CHECKPOINT"):
        monkeypatch.delenv(f"SHUFFLE_LEDGER_{name}", raising=False)
    monkeypatch.setenv("SHUFFLE_LEDGER_ACTOR", "admin")
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.fixture
def beside(server: Server, directory: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a second ledger, just like the one behind the server."""
    (directory / "beside.db").write_bytes(sqlite_template.read_bytes())
    url = f"sqlite:///{directory / 'beside.db'}"
    for name in ("phones", "secret"):
        assert run("cohort", "open", name, *BUDGET, "--database-url", url)[0] == 0
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["admin"])
    return url


def run(*order: str) -> tuple[int, Any]:
    result = CliRunner().invoke(main, [*order, "--json"])
    return result.exit_code, _without_clock(json.loads(result.stdout))


def _get_stuck(store: Store) -> None:
    request = RoundRequest(
        round_id="stuck", cohort="secret", round=ShuffledRound.from_mapping(dict(PARAMETERS))
    )
    register(store, request, actor="admin")
    for _ in range(ATTEMPTS_MAX):
        store.record_failure("stuck", "a fuse blew")


def _without_moments(page: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:+.]+|[0-9a-f]{64}|\d+ seconds", "...", page)


def _leaves(group: click.Group, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, *words, name)
        else:
            yield (*words, name), command


WITHOUT_A_SERVER = {
    ("amplify",): "asks no ledger",
    ("compose",): "asks no ledger",
    ("calibrate",): "works on a database only",
    ("cohort", "plan"): "without any ledger",
    ("audit", "keygen"): "asks no ledger",
    ("demo",): "a ledger of its own",
    ("gate",): "asks no ledger",
    ("permit", "keygen"): "asks no ledger",
    ("permit", "verify"): "receipts are compared with its chains",
    ("init",): "on a database only, for it makes and changes the tables",
    ("audit", "reconcile"): "on a database only, for the person who accepts a loss",
    ("audit", "recover"): "on a database only, for what it brings back",
    ("token", "create"): "on a database only, for no token may",
    ("token", "list"): "on a database only, for no token may",
    ("token", "revoke"): "on a database only, for no token may",
    ("token", "rotate"): "on a database only, for no token may",
    ("webhook", "add"): "on a database only, for webhooks are the operator's",
    ("webhook", "list"): "on a database only, for webhooks are the operator's",
    ("webhook", "remove"): "on a database only, for webhooks are the operator's",
    ("webhook", "resend"): "on a database only, for webhooks are the operator's",
    ("webhook", "deliver"): "on a database only, for webhooks are the operator's",
    ("serve",): "on a database only, for it is the server",
    ("worker",): "on a database only, for workers decide where",
    ("scheduler",): "on a database only, for workers decide where",
}


def _asks(command: click.Command) -> bool:
    return any(
        isinstance(option, click.Option) and option.name == "server" and not option.hidden
        for option in command.params
    )


def test_every_command_asks_a_server_or_says_why_not(directory: Path) -> None:
    asking = {words for words, command in _leaves(main) if _asks(command)}
    assert {order[:2] for order in ORDERS if order[0] not in ("health", "budget", "forecast")} <= asking
    every = {words for words, _ in _leaves(main)}
    assert every - asking == set(WITHOUT_A_SERVER)
    for words, why in WITHOUT_A_SERVER.items():
        result = CliRunner().invoke(main, [*words, "--server", "http://127.0.0.1:1"])
        assert result.exit_code == 2, words
        assert why in result.stderr, words


def test_a_server_in_the_environment_is_never_passed_over_in_silence(
    directory: Path, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_SERVER", "http://127.0.0.1:1")
    for words in (("init",), ("token", "list"), ("token", "create", "ann", "--role", "reader")):
        code, answer = run(*words)
        assert (code, answer["error"]["kind"]) == (2, "bad_usage")
        assert "SHUFFLE_LEDGER_SERVER is set" in answer["error"]["message"]
    assert not (directory / "shuffle-ledger.db").exists()
    assert run("token", "list", "--database-url", beside) == (0, [])
    monkeypatch.setenv("SHUFFLE_LEDGER_DATABASE_URL", beside)
    assert run("token", "list") == (0, [])


KRR = ("--randomizer", "krr(k=2, epsilon0=0.5)")
# One valid order of each command that asks a server, beside those of ORDERS.
MORE_ORDERS: tuple[tuple[str, ...], ...] = (
    ("cohort", "quota", "phones"),
    ("cohort", "close", "new", "--reason", "not needed"),
    ("round", "correct", "a", "--reports", "5", "--reason", "counted again"),
    ("incident", "record", "phones", "--id", "x", *KRR, "--reports", "10", "--reason", "found in a log"),
    ("audit", "statement", "phones", "--format", "json"),
    ("audit", "checkpoint", "--signing-key", "key.pem"),
    ("permit", "issue", "a"),
    ("permit", "keys"),
    ("permit", "revoked"),
)
OPEN = {("permit", "keys"), ("permit", "revoked")}  # a server answers everybody, whatever the token


@pytest.mark.slow
def test_every_command_exits_with_8_for_a_wrong_token_and_with_7_for_a_server_that_is_away(
    server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("audit", "keygen", "key.pem")[0] == 0
    (directory / "key.pem").chmod(0o600)
    asking = {words for words, command in _leaves(main) if _asks(command)}
    orders = {words: order for order in reversed((*ORDERS, *MORE_ORDERS)) if (words := _words(order, asking))}
    assert asking == orders.keys()
    defaults = LedgerClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "retry_seconds", 0.0)  # else each command tries for a minute
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", "sl_wrong")
    for url, expected, kind in ((server.url, 8, "unauthorized"), ("http://127.0.0.1:1", 7, "unavailable")):
        for order in (*orders.values(), ("round", "quote", "phones", "--check", "--id", "x", *ROUND)):
            if expected == 8 and order in OPEN:
                continue
            code, answer = run(*order, "--server", url)
            assert (code, answer["error"]["kind"]) == (expected, kind), order
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["reader"])
    for order in (orders["round", "register"], orders["cohort", "open"], orders["audit", "verify"]):
        code, answer = run(*order, "--server", server.url)
        assert (code, answer["error"]["kind"]) == (8, "forbidden"), order


def _words(order: tuple[str, ...], asking: set[tuple[str, ...]]) -> tuple[str, ...] | None:
    return next((words for words in (order[:2], order[:1]) if words in asking), None)


@pytest.mark.slow
def test_a_checkpoint_is_signed_here_about_chains_that_are_there(
    server: Server, beside: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("audit", "keygen", "key.pem")[0] == 0
    monkeypatch.setenv("SHUFFLE_LEDGER_SIGNING_KEY", "key.pem")
    through = ("--server", server.url)
    code, first = run("audit", "checkpoint", "-o", "kept.json", *through)
    assert code == 0
    assert [head["sequence"] for head in first["heads"]] == [1, 1]
    server.register("a")
    assert run("audit", "verify", "--against", "kept.json", *through)[0] == 0
    code, second = run("audit", "checkpoint", "-o", "kept.json", *through)
    assert [head["sequence"] for head in second["heads"]] == [2, 1]
    key = second["public_key"]
    for told, expected in ((("--public-key", key), (0, "trusted")), ((), (0, "valid"))):
        code, report = run("audit", "verify", "--against", "kept.json", *told, *through)
        assert (code, report["against"]["signature"]) == expected
    # Of another ledger: nothing replaces what was kept, and verification says so.
    before = (directory / "kept.json").read_bytes()
    code, answer = run("audit", "checkpoint", "-o", "kept.json", "--database-url", beside)
    assert (code, answer["error"]["kind"]) == (6, "behind_checkpoint")
    assert run("audit", "verify", "--against", "kept.json", "--database-url", beside)[0] == 6
    run("audit", "checkpoint", "-o", "theirs.json", "--database-url", beside)
    code, answer = run("audit", "checkpoint", "-o", "theirs.json", *through)
    assert (code, answer["error"]["kind"]) == (6, "behind_checkpoint")
    assert (directory / "kept.json").read_bytes() == before
    forged = json.loads(before) | {"software": "another"}
    (directory / "kept.json").write_text(json.dumps(forged))
    for order in (("audit", "verify", "--against", "kept.json"), ("audit", "checkpoint", "-o", "kept.json")):
        code, answer = run(*order, *through)
        assert (code, answer["error"]["kind"]) == (6, "bad_signature")


@pytest.mark.slow
def test_commands_answer_the_same_through_a_server_as_from_a_database(server: Server, beside: str) -> None:
    _get_stuck(server.store)
    with Store.connect(beside) as store:
        _get_stuck(store)
    codes: dict[tuple[str, ...], list[int]] = {}
    for order in ORDERS:
        here, through = run(*order, "--database-url", beside), run(*order, "--server", server.url)
        assert through == here, order
        codes.setdefault(order, []).append(through[0])
    assert {code for found in codes.values() for code in found} == {0, 1, 2, 3, 4, 5, 6}
    for repeated, expected in ((IMPORT, [0, 0]), (PLAN, [0, 0]), (("round", "retry", "stuck"), [0, 0])):
        assert codes[repeated] == expected
    tables: list[tuple[str, ...]] = [
        ("cohort", "show", "planned"),
        ("budget", "planned"),
        ("cohort", "list"),
        ("health",),
    ]
    for order in tables:
        pages = {_table(*order, *where) for where in (("--database-url", beside), ("--server", server.url))}
        assert len(pages) == 1, order
    assert "1 of 2 free: krr(epsilon0=0.5, k=2)" in _table(*tables[0], "--server", server.url)


@pytest.mark.slow
def test_an_auditor_states_and_proves_through_a_server(
    server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["auditor"])
    here, through = ("--database-url", f"sqlite:///{directory / 'ledger.db'}"), ("--server", server.url)
    server.register("a")
    run("audit", "heads", *through)
    (directory / "earlier.json").write_text(
        CliRunner().invoke(main, ["audit", "heads", "--json", *through]).stdout
    )
    server.register("b", use_case="é")
    server.register("large", randomizer="generic(epsilon0=8)", reports=100)
    server.ask("POST", "/v1/rounds/a/settle", json={"reports": 900})
    moment = datetime.now(UTC).isoformat()
    for order in (
        ("--all", "--extends", "earlier.json"),
        ("phones", "--as-of", "3"),
        ("phones", "--as-of", moment),
        ("phones", "--as-of", "2001-01-01"),
        ("nobody",),
        ("phones", "--extends", "forged.json"),
    ):
        (code, expected), found = (
            run("audit", "statement", *order, *here),
            run("audit", "statement", *order, *through),
        )
        assert _unmade(found[1]) == _unmade(expected), order
        assert found[0] == code
    for name, where in (("here", here), ("through", through)):
        files = ("-o", f"{name}.json", "--format", "json", "--bundle", f"{name}.zip")
        assert run("audit", "statement", "--all", *files, *where)[0] == 0
    assert (directory / "through.zip").read_bytes() == (directory / "here.zip").read_bytes()
    run("audit", "keygen", "key.pem")
    signed = ("--all", "-o", "signed.html", "--bundle", "signed.zip", "--signing-key", "key.pem")
    assert run("audit", "statement", *signed, *through)[0] == 0
    assert run("audit", "verify", "signed.zip", "--allow-unpinned")[0] == 0
    limited = server.issue("limited", "auditor", cohorts=["phones"])
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", limited)
    assert run("audit", "statement", "phones", *through)[0] == 0
    assert run("audit", "statement", "secret", *through)[0] == 4
    assert run("audit", "statement", "--all", *through)[0] == 8
    assert run("audit", "statement", "phones", "-o", "x.html", "--bundle", "x.zip", *through)[0] == 8
    assert not (directory / "x.zip").exists()


def _unmade(statement: Any) -> Any:
    return statement | {"made_at": None}


def _table(*order: str) -> str:
    # Wide enough for digests, which differ, on one line.
    return _without_moments(CliRunner(env={"COLUMNS": "120"}).invoke(main, order).stdout)


def test_options_choose_between_a_server_and_a_database(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*order: str) -> tuple[int, Any]:
        result = CliRunner().invoke(main, ["cohort", "list", *order, "--json"])
        return result.exit_code, json.loads(result.stdout)

    monkeypatch.delenv("SHUFFLE_LEDGER_TOKEN", raising=False)
    code, answer = run("--server", server.url)
    assert (code, answer["error"]["field"]) == (2, "SHUFFLE_LEDGER_TOKEN")
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["reader"])
    monkeypatch.setenv("SHUFFLE_LEDGER_SERVER", server.url)
    assert [each["name"] for each in run()[1]] == ["phones", "secret"]
    assert run("--database-url", f"sqlite:///{tmp_path / 'nothing.db'}")[0] == 1  # options win
    for option in (("--actor", "somebody"), ("--database-url", "sqlite:///x.db")):
        code, answer = run("--server", server.url, *option)
        assert (code, answer["error"]["kind"]) == (2, "bad_value")
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", "sl_wrong")
    code, answer = run()
    assert code == 8
    assert "set SHUFFLE_LEDGER_TOKEN, or token in shuffle-ledger.toml" in answer["error"]["message"]
