"""What every answer keeps of HTTP's rules: methods, media types, TLS, and whom the server believes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main
from tests.api.conftest import ROUND, Server

PROBLEM = "urn:shuffle-ledger:problem:"
GONE = {"x-request-id", "date"}
VARYING = {"/v1/metrics", "/metrics", "/v1/health"}  # what they say changes with every request


def _addresses(server: Server) -> list[str]:
    server.register("a")
    names = {
        "cohort": "phones",
        "round_id": "a",
        "sequence": "1",
        "version": "1",
    }
    found = server.ask("GET", "/v1/openapi.json").json()["paths"]
    gets = [path.format(**names) for path, operations in found.items() if "get" in operations]
    return [*gets, "/healthz", "/readyz", "/metrics", "/login", "/style.css", "/", "/v1/openapi.json"]


@pytest.mark.slow
def test_head_answers_as_get_without_the_content(server: Server) -> None:
    addresses = _addresses(server)
    assert len(addresses) >= 15
    for path in addresses:
        got, head = server.ask("GET", path), server.ask("HEAD", path)
        assert head.status_code == got.status_code, path
        assert head.content == b""
        for name, value in got.headers.items():
            if name not in GONE and not (path in VARYING and name == "content-length"):
                assert head.headers[name] == value, (path, name)


def test_head_needs_the_same_token_and_keeps_the_connection_in_step(server: Server) -> None:
    assert server.http.head("/v1/cohorts").status_code == 401
    assert server.ask("HEAD", "/v1/cohorts/absent").status_code == 404
    refused = server.ask("HEAD", "/v1/rounds/absent/settle")
    assert refused.status_code == 405
    assert refused.headers["Allow"] == "POST"
    allowed = server.ask("DELETE", "/v1/cohorts").headers["Allow"]
    assert allowed == "GET, HEAD, POST"
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as raw:
        ask = b"%s /healthz HTTP/1.1\r\nHost: x\r\n%s\r\n"
        raw.sendall(ask % (b"HEAD", b"") + ask % (b"GET", b"Connection: close\r\n"))
        said = b"".join(iter(lambda: raw.recv(4096), b""))
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.count(b'{"status":"ok"}') == 1


def test_a_body_of_another_type_is_415(server: Server) -> None:
    server.register("a")
    for media_type in (b"text/plain", "é".encode("latin-1"), b"", None):
        given = {} if media_type is None else {"Content-Type": media_type}
        for path in ("/v1/rounds", "/v1/cohorts/phones/quote", "/v1/rounds/a/settle", "/v1/rounds/a/retry"):
            answer = server.ask("POST", path, content=b'{"reports": 900}', headers=given)
            assert answer.status_code == 415, path
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.headers["Accept"] == "application/json"
            assert answer.json()["type"] == PROBLEM + "unsupported_media_type"
            assert "expected application/json" in answer.json()["detail"]
    assert server.ask("GET", "/v1/rounds/a").json()["state"] == "admitted"
    assert [entry.kind for entry in server.store.entries_of("phones")] == ["opened", "admitted"]


def test_json_is_read_however_its_type_is_written(server: Server) -> None:
    body = b'{"round_id": "a", "cohort": "phones", "randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000}'
    for media_type in ("application/json", "Application/JSON; charset=utf-8"):
        answer = server.ask("POST", "/v1/rounds", content=body, headers={"Content-Type": media_type})
        assert answer.status_code == 201
    assert server.ask("POST", "/v1/rounds/a/retry").status_code == 201  # no body, no type


def test_a_login_is_a_small_form(untouched: Server) -> None:
    answer = untouched.http.post("/login", json={"token": untouched.tokens["reader"]})
    assert answer.status_code == 415
    assert "Set-Cookie" not in answer.headers
    assert untouched.http.post("/login", data={"token": "x" * (1 << 15)}).status_code == 413


FORWARDED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}


@pytest.mark.slow
def test_forwarded_headers_count_for_nothing_unless_a_proxy_is_named(
    serve: Callable[..., Server],
) -> None:
    server = serve(authentication_failures=3)
    for number in range(3):
        headers = {**FORWARDED, "X-Forwarded-For": f"203.0.113.{number}", "Authorization": "Bearer x"}
        assert server.http.get("/v1/cohorts", headers=headers).status_code == 401
    headers = {**FORWARDED, "Authorization": "Bearer x"}
    locked = server.http.get("/v1/cohorts", headers=headers)
    assert locked.status_code == 429  # another claimed address is the same client
    assert "Strict-Transport-Security" not in locked.headers


@pytest.mark.slow
def test_the_server_asks_for_tls_where_a_request_came_by_it(serve: Callable[..., Server]) -> None:
    server = serve(trusted_proxies="127.0.0.1", authentication_failures=3)
    for path in ("/healthz", "/login", "/v1/cohorts", "/v1/absent"):
        answer = server.http.get(path, headers=FORWARDED)
        assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
        plain = server.http.get(path, headers={**FORWARDED, "X-Forwarded-Proto": "http"})
        assert "Strict-Transport-Security" not in plain.headers
    for number in range(5):
        headers = {**FORWARDED, "X-Forwarded-For": f"203.0.113.{number}", "Authorization": "Bearer x"}
        assert server.http.get("/v1/cohorts", headers=headers).status_code == 401  # five clients


def test_ipv4_addresses_in_the_form_of_ipv6_are_clients_of_their_own(serve: Callable[..., Server]) -> None:
    server = serve(trusted_proxies="127.0.0.1", authentication_failures=3)

    def asked(address: str) -> int:
        headers = {"X-Forwarded-For": address, "Authorization": "Bearer x"}
        return server.http.get("/v1/cohorts", headers=headers).status_code

    assert [asked("::ffff:203.0.113.5") for _ in range(4)] == [401, 401, 401, 429]
    assert asked("203.0.113.5") == 429  # the same client
    assert asked("::ffff:198.51.100.7") == 401


@pytest.mark.parametrize("given", ["*", "10.0.0.0/33", "0.0.0.0/0"])
def test_proxies_are_addresses(given: str) -> None:
    done = CliRunner().invoke(main, ["serve", "--forwarded-allow-ips", given])
    assert done.exit_code == 2
    assert "forwarded" in done.output


def test_names_that_no_address_can_contain_are_refused(untouched: Server) -> None:
    cohort: dict[str, Any] = {"population": 1000, "epsilon": 1.0, "delta": 1e-6}
    for name in (".", ".."):
        for path, body, field in (
            ("/v1/cohorts", {"name": name, **cohort}, "name"),
            ("/v1/rounds", {"round_id": name, "cohort": "phones", **ROUND}, "round_id"),
        ):
            answer = untouched.ask("POST", path, json=body)
            assert answer.status_code == 422, path
            assert answer.json()["field"] == field
            assert "a name other than . and .." in answer.json()["detail"]


def test_other_names_with_dots_are_taken_and_found(server: Server) -> None:
    for name in ("...", ".a", "a..", ". .", "a/.."):
        cohort: dict[str, Any] = {"name": name, "population": 1000, "epsilon": 1.0, "delta": 1e-6}
        assert server.ask("POST", "/v1/cohorts", json=cohort).status_code == 201
        path = httpx.URL(server.url).copy_with(
            raw_path=b"/v1/cohorts/" + name.replace("/", "%2F").replace(" ", "%20").encode()
        )
        shown = httpx.get(path, headers={"Authorization": f"Bearer {server.tokens['admin']}"})
        assert shown.json()["name"] == name
