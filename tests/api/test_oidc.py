"""OpenID Connect against a real provider: tokens of services, forged ones, and people who sign in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import flask
import httpx
import oidc_provider_mock
import pytest
import werkzeug.serving
from cryptography.hazmat.primitives import serialization
from joserfc import jws, jwt
from joserfc.jwk import RSAKey
from pydantic import SecretStr

from shuffle_ledger.cli.failures import failure_of
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.auth import issuer as issuers
from shuffle_ledger.ledger.api.auth.oidc_settings import BadToken, OidcSettings, SignInClient, actor_of
from shuffle_ledger.ledger.api.auth.sessions import COOKIE, Sessions
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.pages.sign_in import ATTEMPT_COOKIE
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, IssuerUnavailable
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import OTHERS_COOKIES, Server
from tests.ports import free_port

ROLES: dict[str, Any] = {
    "writers": {"role": "registrar", "cohorts": ["phones"], "team": "ads"},
    "bosses": "admin",
    "guests": "reader",
}
CALLBACK = "/login/callback"
DEEP = 5000  # levels, within the length that a token may have


@dataclass
class Provider:
    """A provider, its key, and the forms that its token endpoint got."""

    url: str
    key: RSAKey
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def token(self, key: Any = None, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """Return a token of the provider for our services; a claim of None is left out."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "ledger-api",
            "sub": "etl",
            "iat": now,
            "exp": now + 600,
            "groups": ["staff", "writers"],
            **changes,
        }
        given = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode({"alg": "RS256", **(header or {})}, given, key or self.key)


@contextmanager
def provider_on(port: int) -> Iterator[Provider]:
    app = oidc_provider_mock.app()
    found = Provider(url=f"http://localhost:{port}", key=RSAKey.generate_key(2048))

    def watch() -> None:
        storage = flask.g.oidc_provider_mock_storage
        found.key = RSAKey.import_key(storage.jwk.as_dict(is_private=True))
        found.asked.append((flask.request.path, flask.request.form.to_dict()))

    app.before_request(watch)
    server = werkzeug.serving.make_server("localhost", port, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        httpx.get(found.url + "/jwks")
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Yield a running provider."""
    with provider_on(free_port()) as found:
        yield found


def settings_of(issuer: str, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "oidc_issuer": issuer,
        "oidc_audience": "ledger-api",
        "oidc_roles_claim": "groups",
        "oidc_roles": ROLES,
        **changes,
    }
    return given


def asked(server: Server, token: str, path: str = "/v1/cohorts") -> httpx.Response:
    return server.http.get(path, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.slow
def test_a_service_with_a_token_of_the_issuer_acts_under_its_subject(
    serve: Callable[..., Server], provider: Provider
) -> None:
    server = serve(**settings_of(provider.url))
    token = provider.token()
    assert [each["name"] for each in asked(server, token).json()] == ["phones"]
    assert asked(server, token, "/v1/cohorts/secret").status_code == 404
    with LedgerClient(server.url, token) as client:
        assert [each.name for each in client.cohorts()] == ["phones"]
    body = {"round_id": "a", "cohort": "phones", "randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000}
    headers = {"Authorization": f"Bearer {token}"}
    assert server.http.post("/v1/rounds", json=body, headers=headers).status_code == 201
    entry = server.ask("GET", "/v1/cohorts/phones/entries", bearer="auditor").json()["entries"][-1]
    assert (entry["body"]["actor"], entry["body"]["details"]["request"]["team"]) == ("oidc:etl", "ads")
    boss = provider.token(sub="boss", groups="bosses")
    assert len(asked(server, boss).json()) == 2
    assert asked(server, server.tokens["reader"]).status_code == 200  # beside the ledger's own


def test_raising_a_budget_above_its_ceiling_takes_two_subjects(
    serve: Callable[..., Server], provider: Provider
) -> None:
    server = serve(**settings_of(provider.url))
    boss, other = (provider.token(sub=sub, groups=["bosses"]) for sub in ("boss", "other"))
    budget = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive", "ceiling": 2.0}
    server.ask("POST", "/v1/cohorts", json={"name": "tv", **budget})

    def asked_by(token: str, method: str, path: str, **body: Any) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return server.http.request(method, f"/v1/cohorts/tv/{path}", json=body, headers=headers).status_code

    assert asked_by(boss, "PUT", "proposal", epsilon=1.5, reason="agreed") == 200
    assert (
        asked_by(provider.token(sub="boss", groups="bosses"), "POST", "proposal/approve", epsilon=1.5) == 409
    )
    assert asked_by(other, "POST", "proposal/approve", epsilon=1.5) == 200


def _unsigned(claims: dict[str, Any], header: dict[str, Any], secret: bytes | None = None) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims)]
    content = b".".join(parts)
    mac = hmac.new(secret, content, hashlib.sha256).digest() if secret is not None else b""
    return (content + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def _signed(provider: Provider, claims: str) -> str:
    """Return a token of the provider with claims that no library would write."""
    return jws.serialize_compact({"alg": "RS256"}, claims, provider.key)


def _forged(provider: Provider) -> dict[str, str]:
    now = int(time.time())
    claims = {"iss": provider.url, "aud": "ledger-api", "sub": "etl", "exp": now + 600, "groups": "bosses"}
    pem = provider.key.public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = provider.token()
    deep = json.dumps(claims)[:-1] + ', "extra": ' + "[" * DEEP + "]" * DEEP + "}"
    return {
        "alg none": _unsigned(claims, {"alg": "none"}),
        "HS256 with the public key": _unsigned(claims, {"alg": "HS256", "typ": "JWT"}, pem),
        "another key, no name": provider.token(RSAKey.generate_key(2048)),
        "a key that is not published": provider.token(RSAKey.generate_key(2048), {"kid": "x"}),
        "a key inside": provider.token(
            other := RSAKey.generate_key(2048), {"jwk": other.as_dict(private=False), "kid": "y"}
        ),
        "another type": provider.token(header={"typ": "logout+jwt"}),
        "another issuer": provider.token(iss="https://issuer.example"),
        "another audience": provider.token(aud="others-api"),
        "no audience": provider.token(aud=None),
        "expired": provider.token(exp=now - issuers.LEEWAY_SECONDS - 5),
        "no end": provider.token(exp=None),
        "an end beyond floats": provider.token(exp=10**400),
        "an end that is infinite": _signed(provider, json.dumps({**claims, "exp": math.inf})),
        "a claim that is nested deep": _signed(provider, deep),
        "an end that is a text": provider.token(exp=str(now + 600)),
        "too early": provider.token(nbf=now + issuers.LEEWAY_SECONDS + 60),
        "no roles": provider.token(groups=None),
        "roles of no one": provider.token(groups=["staff"]),
        "roles of a wrong type": provider.token(groups={"bosses": True}),
        "a list of other things": provider.token(groups=["bosses", 7]),
        "no subject": provider.token(sub=None),
        "a subject that is a number": provider.token(sub=7),
        "changed": good[:-6] + ("AAAAAA" if good[-6:] != "AAAAAA" else "BBBBBB"),
        "halves": "a.b",
        "dots": "...",
    }


@pytest.mark.slow
def test_forged_and_foreign_tokens_get_the_same_answer_as_no_token(
    serve: Callable[..., Server], provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(**settings_of(provider.url))
    named = {"X-Request-Id": "test"}
    nothing = server.http.get("/v1/cohorts", headers=named)
    for what, token in _forged(provider).items():
        answer = server.http.get("/v1/cohorts", headers={"Authorization": f"Bearer {token}", **named})
        assert (answer.status_code, answer.content) == (401, nothing.content), what
    assert asked(server, provider.token(exp=int(time.time()) - issuers.LEEWAY_SECONDS + 10)).is_success
    assert not any(record.exc_info for record in caplog.records)
    limited = serve(**settings_of(provider.url), authentication_failures=3)
    answers = [asked(limited, provider.token(groups=None)).status_code for _ in range(4)]
    assert answers == [401, 401, 401, 429]


@pytest.mark.slow
def test_new_keys_are_found_at_a_limited_pace_and_an_absent_issuer_is_temporary(
    serve: Callable[..., Server],
) -> None:
    port, times = free_port(), [1000.0]
    server = serve(clock=lambda: times[0], **settings_of(f"http://localhost:{port}"))
    with provider_on(port) as provider:
        first = provider.token()
        assert asked(server, first).status_code == 200
        for number in range(5):
            assert (
                asked(server, provider.token(RSAKey.generate_key(2048), {"kid": str(number)})).status_code
                == 401
            )
        assert [path for path, _ in provider.asked].count("/.well-known/openid-configuration") == 1
    times[0] += issuers.KEYS_FRESH_SECONDS + 1
    assert asked(server, first).status_code == 200  # for a while with the keys that are known
    with provider_on(port) as provider:  # with another key
        second = provider.token()
        assert asked(server, second).status_code == 401
        times[0] += issuers.FETCH_SECONDS_MIN
        assert asked(server, second).status_code == 200
        assert asked(server, first).status_code == 401
    times[0] += issuers.KEYS_USED_SECONDS_MAX + 1
    answer = asked(server, second)
    assert (answer.status_code, answer.json()["type"]) == (
        503,
        "urn:shuffle-ledger:problem:issuer_unavailable",
    )
    assert answer.headers["Retry-After"]
    assert str(port) not in answer.text
    with (
        LedgerClient(server.url, second, retry_seconds=0) as client,
        pytest.raises(IssuerUnavailable) as error,
    ):
        client.cohorts()
    assert failure_of(error.value).code == 7
    assert asked(server, server.tokens["reader"]).status_code == 200


def _person(
    serve: Callable[..., Server], provider: Provider, sub: str, failures: int = 10**6, **claims: Any
) -> tuple[Server, httpx.Client]:
    port = free_port()
    changes = {
        "authentication_failures": failures,
        "oidc_client_id": "ledger-pages",
        "oidc_client_secret": SecretStr("s3cret/+"),
        "oidc_redirect_url": f"http://127.0.0.1:{port}{CALLBACK}",
    }
    server = serve(**settings_of(provider.url, **changes))
    httpx.put(f"{provider.url}/users/{sub}", json=claims)
    return server, httpx.Client(base_url=server.url)


def _sent_back(person: httpx.Client, sub: str) -> tuple[dict[str, str], str]:
    """Sign in at the provider; return what it was asked, and the way back with its query."""
    begun = person.get("/login/start?next=https://evil.example/", follow_redirects=False)
    assert begun.status_code == 303
    question = {
        name: values[0] for name, values in parse_qs(urlsplit(begun.headers["Location"]).query).items()
    }
    back = httpx.post(begun.headers["Location"], data={"sub": sub}).headers["Location"]
    return question, f"{CALLBACK}?{urlsplit(back).query}"


@pytest.mark.slow
def test_a_person_signs_in_acts_under_the_subject_and_signs_out(
    serve: Callable[..., Server], provider: Provider
) -> None:
    server, person = _person(serve, provider, "ann", groups=["bosses"])
    assert "/login/start" in person.get("/login").text
    question, back = _sent_back(person, "ann")
    assert question["redirect_uri"].endswith(CALLBACK)
    assert "evil" not in str(question) + back
    signed_in = person.get(back)
    assert (signed_in.status_code, signed_in.headers["Refresh"]) == (200, "0; url=/")
    cookies = signed_in.headers.get_list("Set-Cookie")
    [session] = [each for each in cookies if each.startswith(COOKIE)]
    assert "HttpOnly" in session
    assert "SameSite=strict" in session
    assert "Secure" not in session
    _, form = provider.asked[-1]
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
    assert (question["code_challenge"], question["code_challenge_method"]) == (challenge.decode(), "S256")
    page = person.get("/")
    assert "oidc:ann" in page.text
    assert "secret" in page.text
    copied = person.cookies[COOKIE]
    secret = page.text.split('name="form_secret" value="')[1][:64]
    assert person.post("/logout", data={"form_secret": secret}).headers["Location"] == "/login"
    assert person.post("/login", data={"token": provider.token()}).status_code == 401
    again = server.http.get("/", headers={"Cookie": f"{COOKIE}={copied}"})
    assert again.headers["Location"] == "/login"


@pytest.mark.slow
def test_a_sign_in_that_was_begun_elsewhere_or_allows_nothing_starts_no_session(
    serve: Callable[..., Server], provider: Provider
) -> None:
    server, person = _person(serve, provider, "eve", groups=["staff"])
    httpx.put(f"{provider.url}/users/ann", json={"groups": "guests"})

    def refused(browser: httpx.Client, back: str) -> None:
        answer = browser.get(back)
        assert answer.status_code == 401, back
        assert COOKIE not in answer.cookies
        assert "staff" not in answer.text

    refused(person, _sent_back(person, "eve")[1])  # no role
    _, back = _sent_back(person, "ann")
    refused(httpx.Client(base_url=server.url), back)  # a browser that did not begin it
    refused(person, back.replace("state=", "state=x"))
    forged = httpx.Client(
        base_url=server.url,
        cookies={ATTEMPT_COOKIE: f"{'s' * 43}.{'n' * 43}.{'v' * 43}.9999999999.{64 * '0'}"},
    )
    redeemed = [path for path, _ in provider.asked].count("/oauth2/token")
    refused(forged, back.replace(back.partition("state=")[2], "s" * 43))  # a cookie that another site set
    assert [path for path, _ in provider.asked].count("/oauth2/token") == redeemed
    refused(person, back)  # the attempt ended with the first answer
    _, back = _sent_back(person, "ann")
    refused(person, back + "&iss=https://issuer.example")
    _, back = _sent_back(person, "ann")
    refused(person, CALLBACK + "?error=access_denied&" + back.split("&", 1)[1])
    first, begun = _sent_back(person, "ann")[1], _sent_back(person, "ann")[1]
    mixed = first.split("&")[0] + "&" + begun.split("&")[1]
    refused(person, mixed)  # a code of another attempt: its nonce is another one
    assert serve().http.get("/login/start").status_code == 404
    assert serve(**settings_of(provider.url)).http.get("/login/start").status_code == 404


@pytest.mark.slow
def test_a_sign_in_lives_beside_others_cookies_and_callbacks_of_no_sign_in_lock_nobody_out(
    serve: Callable[..., Server], provider: Provider
) -> None:
    """Any page in the same network can have a browser ask for the way back; that must not count."""
    server, person = _person(serve, provider, "ann", failures=3, groups=["bosses"])
    for cookies in ("", f"{ATTEMPT_COOKIE}=x", f"{ATTEMPT_COOKIE}={'s' * 43}"):
        for _ in range(40 if not cookies else 4):
            answer = server.http.get(f"{CALLBACK}?code=x&state=y", headers={"Cookie": cookies})
            assert answer.status_code == 401
    assert asked(server, server.tokens["reader"]).status_code == 200
    _, back = _sent_back(person, "ann")
    cookies = f"{OTHERS_COOKIES}; {ATTEMPT_COOKIE}={person.cookies[ATTEMPT_COOKIE]}"
    signed_in = server.http.get(back, headers={b"Cookie": cookies.encode()})
    assert (signed_in.status_code, COOKIE in signed_in.cookies) == (200, True)
    for _ in range(6):  # a page may begin the sign-in, too
        _, back = _sent_back(person, "ann")
        state = back.partition("state=")[2]
        for query in ("code=x&state=y", f"code=&state={state}", f"code={'x' * 5000}&state={state}"):
            answer = server.http.get(
                f"{CALLBACK}?{query}",
                headers={"Cookie": f"{ATTEMPT_COOKIE}={person.cookies[ATTEMPT_COOKIE]}"},
            )
            assert (answer.status_code, "xxx" in answer.text) == (401, False)
    assert asked(server, server.tokens["reader"]).status_code == 200
    for status in (401, 401, 401, 429):  # codes that the issuer did not give
        _, back = _sent_back(person, "ann")
        answer = person.get(f"{CALLBACK}?code=x&state={back.partition('state=')[2]}")
        assert answer.status_code == status


def test_cookies_need_tls_where_people_come_back_by_it(
    serve: Callable[..., Server], provider: Provider
) -> None:
    """Whatever a proxy says of the host and of TLS."""
    changes = {"oidc_client_id": "pages", "oidc_redirect_url": f"https://ledger.example{CALLBACK}"}
    server = serve(**settings_of(provider.url, **changes))
    answers = [
        server.http.post("/login", data={"token": server.tokens["reader"]}),
        server.http.get("/login/start"),
    ]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert all("Secure" in answer.headers["Set-Cookie"] for answer in answers)


@pytest.mark.slow
def test_many_sign_ins_at_once_are_no_more_than_one_after_the_other(
    serve: Callable[..., Server], provider: Provider
) -> None:
    server, person = _person(serve, provider, "ann", failures=3, groups=["bosses"])
    _, back = _sent_back(person, "ann")
    headers = {"Cookie": f"{ATTEMPT_COOKIE}={person.cookies[ATTEMPT_COOKIE]}"}
    wrong = f"{CALLBACK}?code=x&state={back.partition('state=')[2]}"
    before = [path for path, _ in provider.asked].count("/oauth2/token")

    async def many() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as client:
            answers = await asyncio.gather(*(client.get(wrong) for _ in range(20)))
        return [answer.status_code for answer in answers]

    found = Counter(asyncio.run(many()))
    assert found == {401: 3, 429: 17}
    assert [path for path, _ in provider.asked].count("/oauth2/token") - before == 3


class _Slow(http.server.BaseHTTPRequestHandler):
    """An issuer that takes its time with codes, and answers them with a deep list."""

    url = ""
    most = now = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._say(
            {
                "issuer": self.url,
                **dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), self.url + "/x"),
                "keys": [],
            }
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            _Slow.now += 1
            _Slow.most = max(_Slow.most, _Slow.now)
        time.sleep(0.05)  # so that others come meanwhile
        with self.lock:
            _Slow.now -= 1
        self._say("[" * 200_000)

    def _say(self, content: object) -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_few_codes_are_redeemed_at_once_and_deep_answers_are_none() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    _Slow.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    client = SignInClient(
        client_id="pages", client_secret=None, redirect_url="https://a.example", scopes="openid"
    )

    async def many() -> list[BaseException | str]:
        issuer = issuers.Issuer(_Slow.url)
        asking = (issuer.redeem(client, code=str(one), verifier="v") for one in range(30))
        return await asyncio.gather(*asking, return_exceptions=True)

    try:
        found = asyncio.run(many())
    finally:
        server.shutdown()
        server.server_close()
    assert {type(each) for each in found} == {BadToken}
    assert 1 < _Slow.most <= issuers.CODES_AT_ONCE


def test_a_session_opens_nothing_under_another_issuer_client_or_claim_nor_beside_another_one() -> None:
    def sessions(issuer: str = "https://issuer.example", **changes: Any) -> Sessions:
        given = {"oidc_client_id": "pages", "oidc_redirect_url": f"https://a.example{CALLBACK}", **changes}
        return Sessions("k" * 40, OidcSettings.of(Settings(broker_url=None, **settings_of(issuer, **given))))

    ours = sessions()
    cookie, other = ours.start_of_subject("oidc:ann", "bosses"), ours.start_of_subject("oidc:eve", "guests")
    assert sessions().own([cookie]) == cookie
    assert ours.own(["of another application", cookie, cookie]) == cookie
    assert ours.own([cookie, other]) == ""
    assert sessions("https://other.example").own([cookie]) == ""
    assert sessions(oidc_client_id="others").own([cookie]) == ""
    assert sessions(oidc_roles_claim="roles").own([cookie]) == ""


def test_subjects_never_share_an_actor_and_no_token_has_the_name_of_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(b"\xc3\xa9").hexdigest()
    subjects = ["a", "A", "a ", " a", "é", "e\u0301", "x" * 195, "x" * 196, "x" * 197, "\ud800", "\udc00"]
    subjects += ["a\n", "sha256:" + digest, "oidc:a", "oidc-sha256:" + digest]
    actors = [actor_of(each) for each in subjects]
    assert None not in actors
    assert len(set(actors)) == len(subjects)
    assert all(1 <= len(str(each)) <= 200 and str(each).isascii() for each in actors)
    assert actor_of("") is None
    for name in ("oidc:a", "oidc-sha256:" + digest):
        with pytest.raises(InvalidValue, match="name"):
            issue(store, name=name, role="reader", actor="tester")
    monkeypatch.setattr("shuffle_ledger.ledger.access.is_subject", lambda _name: False)
    issue(store, name="oidc:a", role="reader", actor="an earlier release")
    monkeypatch.undo()
    settings = Settings(broker_url=None, **settings_of("https://issuer.example"))
    with pytest.raises(Conflict, match="revoke them"):
        create_app(settings, store, Dispatch(decide=lambda *_: pytest.fail("nothing")))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"oidc_issuer": None}, "ISSUER"),
        ({"oidc_issuer": "http://issuer.example"}, "ISSUER"),
        ({"oidc_issuer": "https://user@issuer.example"}, "ISSUER"),
        ({"oidc_audience": None}, "AUDIENCE"),
        ({"oidc_roles_claim": None}, "ROLES_CLAIM"),
        ({"oidc_roles": {}}, "ROLES"),
        ({"oidc_roles": {"a": "owner"}}, "ROLES"),
        ({"oidc_roles": {"a": {"role": "reader", "cohort": "phones"}}}, "ROLES"),
        ({"oidc_roles": {"a": {"role": "reader", "cohorts": []}}}, "ROLES"),
        ({"oidc_client_id": "x"}, "REDIRECT_URL"),
        ({"oidc_client_secret": SecretStr("x")}, "CLIENT_ID"),
        (
            {"oidc_client_id": "ledger-api", "oidc_redirect_url": "https://l.example/login/callback"},
            "AUDIENCE",
        ),
        ({"oidc_client_id": "x", "oidc_redirect_url": "https://l.example/elsewhere"}, "REDIRECT_URL"),
    ],
)
def test_incomplete_settings_are_refused(changes: dict[str, Any], field: str) -> None:
    settings = Settings(broker_url=None, **settings_of("https://issuer.example", **changes))
    with pytest.raises(InvalidValue, match=f"SHUFFLE_LEDGER_OIDC_{field}: "):
        OidcSettings.of(settings)


def test_a_claim_may_be_nested_and_the_first_mapped_value_counts() -> None:
    given = settings_of("https://issuer.example", oidc_roles_claim="/realm~1x/roles")
    found = OidcSettings.of(Settings(broker_url=None, **given))
    assert found is not None
    assert found.granting({"realm/x": {"roles": ["guests", "bosses", "writers"]}}) == "writers"
    assert found.granting({"realm/x": ["writers"]}) is None
    assert found.granting({"/realm~1x/roles": "writers"}) is None
