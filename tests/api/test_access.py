"""Access: no request passes without a token or with a wrong one, and a token shows only its cohorts."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.access import (
    authenticate,
    end_session,
    issue,
    revoke,
    rotate,
    session_ended,
    tokens,
)
from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.decisions import incidents, record_incident, register_and_admit
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.roles import Role
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import access_tokens
from shuffle_ledger.ledger.values.requests import Incident, Refused, request_of
from tests.api.conftest import ROUND, Server
from tests.api.test_pages import _login
from tests.ledger.desk import rewrite

PATHS = (  # beside those of the published description
    ("GET", "/v1/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/v1/no/such/address"),
    ("DELETE", "/v1/cohorts/phones"),
    ("OPTIONS", "/v1/cohorts"),
)


ON_BOTH = pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """Return a ledger with the cohorts "phones" and "secret", on SQLite unless another database is named."""
    found: Store = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_store")
    return found


def _answer(response: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    headers = [(name, value) for name, value in response.headers.items() if name != "date"]
    return response.status_code, response.content, headers


def _credentials(server: Server) -> dict[str, str | None]:
    """Everything a stranger may come with."""
    right = server.tokens["admin"]
    expired = server.issue("expired", "admin", lifetime_days=1e-9)
    revoked = server.issue("revoked", "admin")
    revoke(server.store, revoked.split("_")[1])
    _, token_id, secret = right.split("_")
    wrong = "0" * 64 if not secret.startswith("0") else "1" * 64
    return {
        "nothing": None,
        "another scheme": f"Basic {right}",
        "no token": "Bearer",
        "nonsense": "Bearer é".encode().decode("latin-1"),
        "unknown": f"Bearer sl_{'0' * 16}_{wrong}",
        "wrong secret": f"Bearer sl_{token_id}_{wrong}",
        "right secret, wrong case": f"Bearer SL_{token_id}_{secret}",
        "expired": f"Bearer {expired}",
        "revoked": f"Bearer {revoked}",
    }


# What there is, and what there is not, of the same length.
EXISTING = {
    "cohort": "secret",
    "round_id": "theirs",
    "team": "ads",
}
MISSING = {
    "cohort": "absent",
    "round_id": "nobody",
    "team": "ads",
}


def _requests(server: Server, names: dict[str, str]) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Yield a request to every operation of the published description, about these names."""
    published = server.ask("GET", "/v1/openapi.json").json()
    for path, operations in published["paths"].items():
        for method, operation in operations.items():
            body = None
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                body = dict(published["components"]["schemas"][reference.rsplit("/", 1)[1]]["examples"][0])
                body |= {"cohort": names["cohort"]} if "cohort" in body else {}
                body |= {"cohorts": [names["cohort"]]} if "cohorts" in body else {}
                body |= {"name": names["cohort"]} if "name" in body else {}
            yield method.upper(), path.format(**names), body


@pytest.mark.slow
def test_strangers_all_get_the_same_answer_everywhere(server: Server) -> None:
    server.register("theirs", cohort="secret")
    asked = [*_requests(server, EXISTING)]
    asked = [(method, path, body) for method, path, body in asked if path not in OPEN_PATHS]
    assert len(asked) >= 20
    asked += [(method, path, None) for method, path in PATHS]
    answers = set()
    for what, credentials in _credentials(server).items():
        headers = {b"X-Request-Id": b"the-same"}
        if credentials is not None:
            headers[b"Authorization"] = credentials.encode("latin-1")
        more = _requests(server, MISSING) if what == "nothing" else ()
        for method, path, body in (*asked, *(each for each in more if each[1] not in OPEN_PATHS)):
            answers.add(str(_answer(server.http.request(method, path, headers=headers, json=body))))
        answers.add(str(_answer(server.http.post("/v1/rounds", headers=headers, content=b"{not json"))))
    assert len(answers) == 1
    assert "401" in answers.pop()


@pytest.mark.slow
@pytest.mark.parametrize("role", Role)
def test_a_token_of_another_cohort_cannot_tell_what_exists(server: Server, role: Role) -> None:
    server.register("theirs", cohort="secret")
    server.issue("limited", role, cohorts=["phones"])
    before = [entry.digest for name in ("phones", "secret") for entry in server.store.entries_of(name)]
    pairs = zip(_requests(server, EXISTING), _requests(server, MISSING), strict=True)
    named = 0
    for (method, path, body), (_, other_path, other_body) in pairs:
        if (path, body) == (other_path, other_body):
            continue  # about nothing in particular
        named += 1
        theirs = server.ask(method, path, bearer="limited", json=body)
        absent = server.ask(method, other_path, bearer="limited", json=other_body)
        assert theirs.status_code in (403, 404), path
        told = absent.content
        for kind, name in MISSING.items():
            told = told.replace(name.encode(), EXISTING[kind].encode())
        same = httpx.Response(absent.status_code, headers=absent.headers, content=told)
        assert _answer(theirs) == _answer(same), path
    assert named >= 13
    assert before == [
        entry.digest for name in ("phones", "secret") for entry in server.store.entries_of(name)
    ]
    listed = server.ask("GET", "/v1/cohorts", bearer="limited").json()
    assert [cohort["name"] for cohort in listed] == ["phones"]


def test_what_is_about_all_is_not_for_who_sees_some(server: Server) -> None:
    server.issue("limited", "auditor", cohorts=["phones"])
    heads = server.ask("GET", "/v1/heads", bearer="limited").json()
    assert [head["cohort"] for head in heads["heads"]] == ["phones"]
    for method, path in (
        ("GET", "/v1/metrics"),
        ("GET", "/v1/health"),
        ("POST", "/v1/verification"),
        ("POST", "/v1/standing"),
        ("POST", "/v1/statements"),
        ("POST", "/v1/bundles"),
    ):
        body: dict[str, Any] | None = {} if method == "POST" else None
        assert server.ask(method, path, bearer="limited", json=body).status_code == 403, path


@pytest.mark.slow
def test_an_identifier_of_others_says_that_it_cannot_be_used_and_nothing_else(
    serve: Callable[..., Server],
) -> None:
    now = [1000.0]
    server = serve(authentication_failures=4, clock=lambda: now[0])
    server.register("theirs", cohort="secret", use_case="plans")
    server.register("large", cohort="secret", randomizer="generic(epsilon0=9)")
    server.ask("POST", "/v1/rounds/theirs/void", json={"reason": "cancelled"})
    server.register("ours")
    server.issue("limited", "registrar", cohorts=["phones"])
    server.issue("another", "registrar", cohorts=["phones"])

    def registered(round_id: str, bearer: str = "limited", **more: Any) -> httpx.Response:
        body = {"round_id": round_id, "cohort": "phones", **ROUND, **more}
        return server.ask("POST", "/v1/rounds", bearer=bearer, json=body)

    answers = [registered("theirs"), registered("large", reports=77)]
    answers += [registered("theirs", use_case="plans")]
    expected = {"type": "urn:shuffle-ledger:problem:conflict", "status": 409}
    for name, answer in zip(("theirs", "large", "theirs"), answers, strict=True):
        assert answer.json() == expected | {
            "title": answers[0].json()["title"],
            "detail": f"round '{name}': this identifier cannot be used",
            "request_id": "test",
        }
    # One's own conflicts say what they are, and are not counted.
    for _ in range(6):
        assert "other content" in registered("ours", reports=77).json()["detail"]
    assert registered("theirs").status_code == 409
    for round_id in ("theirs", "ours", "new"):  # the same answer for all, until a while has passed
        answer = registered(round_id)
        assert (answer.status_code, answer.json()["type"]) == (
            429,
            "urn:shuffle-ledger:problem:too_many_failures",
        )
    assert registered("another's", bearer="another").status_code == 201
    assert server.ask("GET", "/v1/cohorts", bearer="limited").status_code == 200
    now[0] += float(registered("new").headers["Retry-After"])
    assert registered("new").status_code == 201
    # A token for all cohorts gets the true reason.
    assert "other content" in registered("theirs", bearer="registrar").json()["detail"]


def test_a_name_in_a_body_is_meant_as_it_is_written(server: Server) -> None:
    for name in ("a/b", "a%2Fb"):
        opening = {"name": name, "population": 5000, "epsilon": 1, "delta": 1e-6}
        assert server.ask("POST", "/v1/cohorts", json=opening).status_code == 201
    server.issue("limited", "registrar", cohorts=["a/b"])
    body = {"round_id": "x", "cohort": "a%2Fb", **ROUND}
    assert server.ask("POST", "/v1/rounds", bearer="limited", json=body).status_code == 404
    assert (
        server.ask("POST", "/v1/rounds", bearer="limited", json={**body, "cohort": "a/b"}).status_code == 201
    )
    assert server.ask("GET", "/v1/cohorts/a%2Fb", bearer="limited").json()["name"] == "a/b"
    assert server.ask("GET", "/v1/cohorts/a%252Fb", bearer="limited").status_code == 404


EVERY = set(Role)
AUDITORS = {Role.AUDITOR, Role.ADMIN}
WATCHERS = {Role.AUDITOR, Role.READER, Role.ADMIN}
REGISTRARS = {Role.REGISTRAR, Role.ADMIN}
ALLOWED: tuple[tuple[str, str, set[Role], dict[str, Any] | None], ...] = (
    ("GET", "/v1/cohorts", EVERY, None),
    ("GET", "/v1/cohorts/phones/budget", EVERY, None),
    ("POST", "/v1/cohorts/phones/quote", EVERY, {"rounds": [ROUND]}),
    ("POST", "/v1/amplify", EVERY, {**ROUND, "delta": 1e-6}),
    ("GET", "/v1/cohorts/phones/entries", AUDITORS, None),
    ("GET", "/v1/events", AUDITORS, None),
    ("GET", "/v1/heads", AUDITORS, None),
    ("POST", "/v1/cohorts/phones/verification", AUDITORS, None),
    ("POST", "/v1/verification", AUDITORS, {}),
    ("POST", "/v1/standing", AUDITORS, {}),
    ("POST", "/v1/statements", AUDITORS, {"cohorts": ["phones"]}),
    ("POST", "/v1/bundles", AUDITORS, {}),
    ("GET", "/v1/metrics", WATCHERS, None),
    ("GET", "/v1/health", WATCHERS, None),
    ("POST", "/v1/cohorts", {Role.ADMIN}, {"name": "n", "population": 900, "epsilon": 1, "delta": 1e-4}),
    ("PUT", "/v1/cohorts/phones/budget", {Role.ADMIN}, {"epsilon": 1.0, "reason": "as it is"}),
    ("POST", "/v1/rounds", REGISTRARS, {"round_id": "r", "cohort": "phones", **ROUND}),
    ("POST", "/v1/rounds/r/retry", REGISTRARS, None),
    ("POST", "/v1/rounds/r/void", REGISTRARS, {"reason": "nothing was sent"}),
)


@pytest.mark.slow
def test_a_role_may_do_what_is_written_here_and_nothing_else(server: Server) -> None:
    for method, path, allowed, body in ALLOWED:
        before = server.store.count_entries("phones")
        for role in EVERY - allowed:
            answer = server.ask(method, path, bearer=role, json=body)
            assert answer.status_code == 403, (path, role)
            assert answer.json()["type"] == "urn:shuffle-ledger:problem:forbidden"
        assert server.store.count_entries("phones") == before
        for role in allowed:
            assert server.ask(method, path, bearer=role, json=body).status_code in (200, 201), (path, role)


def test_entries_name_the_bearer(server: Server) -> None:
    server.issue("collection pipeline", "registrar")
    body = {"round_id": "a", "cohort": "phones", **ROUND}
    server.ask("POST", "/v1/rounds", bearer="collection pipeline", json=body)
    server.ask("POST", "/v1/rounds/a/void", bearer="registrar", json={"reason": "cancelled"})
    page = server.ask("GET", "/v1/cohorts/phones/entries", bearer="auditor").json()
    assert [entry["body"]["actor"] for entry in page["entries"]] == [
        "tester",
        "collection pipeline",
        "registrar",
    ]


def test_a_token_ends_when_it_is_revoked(server: Server) -> None:
    assert server.ask("GET", "/v1/cohorts", bearer="reader").status_code == 200
    token_id = server.tokens["reader"].split("_")[1]
    first = revoke(server.store, token_id)
    assert server.ask("GET", "/v1/cohorts", bearer="reader").status_code == 401
    assert revoke(server.store, token_id) == first  # for ever, and since then


def test_too_many_wrong_tokens_have_to_wait_and_then_may_try_again(
    serve: Callable[..., Server],
) -> None:
    now = [1000.0]
    server = serve(authentication_failures=5, clock=lambda: now[0])
    wrong = {"Authorization": "Bearer sl_wrong"}
    for _ in range(5):
        assert server.http.get("/v1/cohorts", headers=wrong).status_code == 401
    limited = server.http.get("/v1/cohorts", headers=wrong)
    assert limited.status_code == 429
    assert int(limited.headers["Retry-After"]) >= 1
    assert server.ask("GET", "/v1/cohorts").status_code == 429  # nothing is looked at any more
    assert server.http.get("/v1/healthz").status_code == 200
    now[0] += float(limited.headers["Retry-After"])
    assert server.ask("GET", "/v1/cohorts").status_code == 200
    assert server.ask("GET", "/v1/cohorts").status_code == 200  # right ones cost nothing


def test_secrets_are_neither_stored_nor_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = server.issue("somebody", "admin")
    secret = token.split("_")[2]
    server.ask("GET", "/v1/cohorts", bearer="somebody")
    with engine.reading(server.store.engine) as connection:
        rows = connection.execute(select(access_tokens)).all()
    assert hashlib.sha256(secret.encode()).digest() in [row.secret_digest for row in rows]
    for row in rows:
        assert secret not in str(row._mapping)
    assert secret not in caplog.text
    assert secret not in repr(tokens(server.store))


@ON_BOTH
def test_ended_sessions_are_kept_until_they_would_have_expired(store: Store) -> None:
    now = datetime.now(UTC)
    for number, left in enumerate((-1, 3600, 3600, -1, 3600)):
        assert end_session(store, f"{number:032x}", expires_at=now + timedelta(seconds=left))
    assert not end_session(store, f"{1:032x}", expires_at=now + timedelta(seconds=3600))
    assert [session_ended(store, f"{number:032x}") for number in range(6)] == [
        False,  # expired, and removed: its cookie says so itself
        True,
        True,
        False,
        True,
        False,  # never ended
    ]


def test_tokens_that_make_no_sense_are_not_issued(store: Store) -> None:
    changes: list[dict[str, Any]] = [
        *({"role": "root"}, {"name": ""}, {"name": "a\nb"}, {"cohorts": []}, {"cohorts": ["\x00"]}),
        *({"lifetime_days": 0}, {"lifetime_days": float("nan")}, {"lifetime_days": 1e9}),
    ]
    for changed in changes:
        wanted: dict[str, Any] = {"name": "x", "role": "reader", "actor": "tester", **changed}
        with pytest.raises(InvalidValue):
            issue(store, **wanted)
    assert tokens(store) == []


@pytest.mark.slow
def test_a_rotated_token_has_the_same_rights_and_the_old_one_goes_on_until_it_is_revoked(
    server: Server,
) -> None:
    old = server.issue("ann", "reader", cohorts=["phones"], lifetime_days=30)
    old_id = old.split("_")[1]
    made = rotate(server.store, old_id, actor="operator").new
    server.tokens["new"] = made.token
    before = next(each for each in tokens(server.store) if each.token_id == old_id)
    assert (made.issued.name, made.issued.role, made.issued.cohorts) == ("ann", "reader", ("phones",))
    assert made.issued.created_by == "operator"
    lifetime = before.expires_at - before.created_at
    assert abs((made.issued.expires_at - made.issued.created_at) - lifetime) < timedelta(seconds=1)
    for bearer in ("ann", "new"):
        assert server.ask("GET", "/v1/cohorts/phones", bearer=bearer).status_code == 200
        assert server.ask("GET", "/v1/cohorts/secret", bearer=bearer).status_code == 404
    revoke(server.store, old_id)
    assert server.ask("GET", "/v1/cohorts/phones", bearer="ann").status_code == 401
    assert server.ask("GET", "/v1/cohorts/phones", bearer="new").status_code == 200
    with pytest.raises(Conflict, match="was revoked"):
        rotate(server.store, old_id, actor="operator")
    with pytest.raises(NotFound):
        rotate(server.store, "0" * 16, actor="operator")


def test_a_rotated_token_ends_after_the_overlap(server: Server) -> None:
    old = server.issue("ann", "reader", lifetime_days=30)
    old_id = old.split("_")[1]
    made = rotate(server.store, "ann", actor="operator", overlap=timedelta(hours=1))
    server.tokens["new"] = made.new.token
    for bearer in ("ann", "new"):
        assert server.ask("GET", "/v1/cohorts", bearer=bearer).status_code == 200
    stored = next(each for each in tokens(server.store) if each.token_id == old_id)
    assert stored == made.old
    assert (
        timedelta(minutes=59)
        < stored.expires_at - made.new.issued.created_at
        <= timedelta(hours=1, seconds=9)
    )
    with pytest.raises(Conflict, match="2 tokens of 'ann' are valid: name one of them by its id: "):
        rotate(server.store, "ann", actor="operator")
    longer = rotate(server.store, old_id, actor="operator", overlap=timedelta(days=99)).old
    assert longer.expires_at == stored.expires_at  # never a longer life
    ended = rotate(server.store, old_id, actor="operator", overlap=timedelta(microseconds=1)).old
    assert ended.expires_at < stored.expires_at
    time.sleep(0.002)  # SQLite's clock has milliseconds: within one the token has not ended
    assert server.ask("GET", "/v1/cohorts", bearer="ann").status_code == 401
    with pytest.raises(InvalidValue, match="overlap"):
        rotate(server.store, old_id, actor="operator", overlap=timedelta(-1))


def test_a_name_means_its_only_valid_token(store: Store) -> None:
    first = issue(store, name="ann", role="reader", actor="tester").issued
    revoke(store, first.token_id)
    with pytest.raises(NotFound, match="no token 'ann', and none that is valid of this name"):
        rotate(store, "ann", actor="operator")
    with pytest.raises(NotFound, match=r"^no token 'bob'$"):
        rotate(store, "bob", actor="operator")
    second = issue(store, name="ann", role="reader", actor="tester").issued
    assert rotate(store, "ann", actor="operator", overlap=timedelta()).old.token_id == second.token_id


def test_the_command_ends_the_old_token_after_the_overlap(store: Store) -> None:
    def run(*words: str) -> Any:
        given = ("--database-url", str(store.engine.url), "--actor", "operator")
        return CliRunner().invoke(main, ["token", *words, *given], catch_exceptions=False)

    first = json.loads(run("create", "ann", "--role", "reader", "--json").stdout)
    done = run("rotate", "ann", "--overlap", "12h", "--json")
    second = json.loads(done.stdout)
    assert (second["replaces"], second["old_revoked"]) == (first["token_id"], False)
    assert second["old_expires_at"] < first["expires_at"]
    rotated = json.loads(done.stderr.splitlines()[-1])  # events of one name are limited in a process
    assert (rotated["event"], rotated["token_id"]) == ("token_rotated", first["token_id"])
    assert (rotated["new_token_id"], rotated["actor"]) == (second["token_id"], "operator")
    shown = run("rotate", second["token_id"], "--overlap", "0")
    assert f"{second['token_id']} ends" in shown.stdout
    assert authenticate(store, second["token"]) is None
    for wrong in ("12", "1w", "-1h", "1.5h", ""):
        refused = run("rotate", first["token_id"], "--overlap", wrong)
        assert refused.exit_code == 2
        assert "expected a duration with its unit, as 90s, 30m, 12h or 7d; or 0" in refused.stderr
    both = run("rotate", first["token_id"], "--overlap", "1h", "--revoke-old")
    assert both.exit_code == 2


def test_the_command_revokes_the_old_token_only_when_told(store: Store) -> None:
    given = ["--database-url", str(store.engine.url), "--json"]

    def run(*words: str) -> Any:
        done = CliRunner().invoke(main, ["token", *words, *given], catch_exceptions=False)
        return json.loads(done.stdout)

    first = run("create", "ann", "--role", "registrar")
    second = run("rotate", first["token_id"])
    assert (second["replaces"], second["old_revoked"], second["role"]) == (
        first["token_id"],
        False,
        "registrar",
    )
    assert authenticate(store, first["token"]) is not None
    third = run("rotate", second["token_id"], "--revoke-old", "--expires-in-days", "1")
    assert authenticate(store, second["token"]) is None
    assert authenticate(store, third["token"]) is not None
    assert run("rotate", second["token_id"])["error"]["kind"] == "conflict"


def test_what_is_told_of_a_release_reaches_no_cohort_that_the_token_does_not_see(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    leak = {"round_id": "leak", "audience": ["phones", "secret"], "randomizer": "generic(epsilon0=9)"}
    assert server.ask("POST", "/v1/rounds", json=leak | {"reports": 9}).status_code == 409
    server.issue("limited", "registrar", cohorts=["phones"])
    before = {each.cohort.name: each.head_sequence for each in server.store.views(["secret", "phones"])}
    path, body = "/v1/cohorts/phones/incidents", {"round_id": "leak", "round": None, "reason": "a bug"}
    answer = server.ask("POST", path, bearer="limited", json=body)
    assert answer.status_code == 409
    assert "cannot be used" in answer.json()["detail"]
    assert "secret" not in answer.text
    after = {each.cohort.name: each.head_sequence for each in server.store.views(["secret", "phones"])}
    assert after == before


def test_a_release_is_not_told_to_others_under_an_identifier_that_they_take_at_this_moment(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identifier was free when the server looked."""
    server = serve()
    server.issue("limited", "registrar", cohorts=["phones"])
    too_much = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=9)"), reports=9)
    joint = request_of(("phones", "secret"), too_much, round_id="leak")

    def second(store: Store, accountant: Accountant, *words: Any, **more: Any) -> Incident:
        assert isinstance(register_and_admit(store, accountant, joint, actor="ada")[0], Refused)
        return record_incident(store, accountant, *words, **more)

    monkeypatch.setattr(incidents, "record_incident", second)
    body = {"round_id": "leak", "round": None, "reason": "a bug"}
    answer = server.ask("POST", "/v1/cohorts/phones/incidents", bearer="limited", json=body)
    assert answer.status_code == 409
    assert "cannot be used" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert {server.store.cohort(name).status for name in ("phones", "secret")} == {"open"}


@pytest.mark.slow
def test_a_fault_in_a_round_of_several_cohorts_names_none_that_a_reader_does_not_see(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    body = {"round_id": "joint", "audience": ["phones", "secret"], **ROUND}
    assert server.ask("POST", "/v1/rounds", json=body).status_code == 201
    rewrite(server.store, 2, lambda entry: replace(entry, actor="eve"), cohort="secret")
    assert "phones" in verify_oldest(server.store, Accountant(), enough=lambda: False)
    for role in ("reader", "registrar", "auditor"):
        server.issue(f"limited {role}", role, cohorts=["phones"])
        page = _login(server, f"limited {role}").get("/cohorts/phones").text
        assert "found a fault" in page
        assert "entry 2" in page
        assert ("&#39;secret&#39;" in page) == (role == "auditor"), "who reads entries reads their names"
    assert "&#39;secret&#39;" in _login(server, "reader").get("/cohorts/phones").text
