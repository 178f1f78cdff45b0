"""Tokens of an issuer of OpenID Connect: of services, of people whom a proxy signs in, and forged ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from joserfc import jws, jwt
from joserfc.jwk import RSAKey

from shuffle_ledger.cli.failures import failure_of
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.auth import issuer as issuers
from shuffle_ledger.ledger.api.auth.oidc_settings import OidcSettings, actor_of
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, IssuerUnavailable
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import Server
from tests.ports import answering, free_port

ROLES: dict[str, Any] = {
    "writers": {"role": "registrar", "cohorts": ["phones"], "team": "ads"},
    "bosses": "admin",
    "guests": "reader",
}
DEEP = 5000  # levels, within the length that a token may have


@dataclass
class Provider:
    """An issuer, its key, and what it was asked for."""

    url: str
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))
    asked: list[str] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)

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
    found = Provider(url=f"http://localhost:{port}")
    found.answers["/.well-known/openid-configuration"] = {
        "issuer": found.url,
        "jwks_uri": found.url + "/jwks",
    }
    found.answers["/jwks"] = {"keys": [found.key.as_dict(private=False)]}

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            content = found.answers[self.path]
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Answering, "localhost", port):
        yield found


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
        assert provider.asked.count("/.well-known/openid-configuration") == 1
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


@pytest.mark.slow
def test_a_person_behind_a_proxy_that_signs_in_acts_under_the_subject(
    serve: Callable[..., Server], provider: Provider
) -> None:
    """The proxy adds the header, and a browser that a foreign page sends brings it too."""
    server = serve(**settings_of(provider.url))
    ann = {"Authorization": f"Bearer {provider.token(sub='ann', groups=['bosses'])}"}
    page = server.http.get("/", headers=ann)
    assert (page.status_code, "oidc:ann" in page.text, "secret" in page.text) == (200, True, True)
    eve = {"Authorization": f"Bearer {provider.token(sub='eve', groups=['guests'])}"}
    other = server.http.get("/", headers=eve).text
    secrets = [text.split('name="form_secret" value="')[1][:64] for text in (page.text, other)]
    assert secrets[0] != secrets[1]
    for secret, status in (("", 403), (secrets[1], 403), (secrets[0], 303)):
        answer = server.http.post("/logout", headers=ann, data={"form_secret": secret})
        assert answer.status_code == status
    assert server.http.post("/login", data={"token": provider.token()}).status_code == 401
    wrong = {"Authorization": f"Bearer {provider.token(groups=None)}"}
    assert server.http.get("/", headers=wrong).status_code == 401
    basic = server.http.get("/", headers={"Authorization": "Basic YTpiLmM="})
    assert (basic.status_code, basic.headers["Location"]) == (303, "/login")
    without = serve()
    assert without.http.get("/", headers=ann).headers["Location"] == "/login"


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", ["[" * 200_000, {"issuer": "https://issuer.example"}, {"jwks_uri": "http://keys.example"}]
)
def test_an_issuer_that_does_not_publish_itself_and_its_keys_is_temporarily_unavailable(
    serve: Callable[..., Server], said: Any
) -> None:
    with provider_on(free_port()) as provider:
        place = "/.well-known/openid-configuration"
        provider.answers[place] = {**provider.answers[place], **said} if isinstance(said, dict) else said
        assert asked(serve(**settings_of(provider.url)), provider.token()).status_code == 503


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
    assert found.granting({"realm/x": {"roles": ["guests", "bosses", "writers"]}}) == found.grants["writers"]
    assert found.granting({"realm/x": ["writers"]}) is None
    assert found.granting({"/realm~1x/roles": "writers"}) is None
