"""A server below a path of a host, behind a proxy that removes the path and behind one that does not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from shuffle_ledger.ledger.api.root_path import checked_root_path
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import InvalidValue
from tests.api.conftest import ROUND, Server

ROOT = "/our/ledger"


@pytest.fixture(params=["removes", "keeps"])
def proxied(request: pytest.FixtureRequest, serve: Callable[..., Server]) -> Iterator[tuple[Server, str]]:
    """Yield a server with a root path, and the host of a proxy in front of it, which has nothing else."""
    server = serve(root_path=f"{ROOT}/")

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != ROOT and not self.path.startswith(f"{ROOT}/"):
                self.send_error(404, "nothing of the ledger is here")
                return
            path = self.path.removeprefix(ROOT) or "/" if request.param == "removes" else self.path
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            answer = httpx.request(self.command, server.url + path, content=body, headers=dict(self.headers))
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server, f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()
        thread.join()


def test_a_person_behind_a_proxy_never_leaves_the_path(proxied: tuple[Server, str]) -> None:
    server, host = proxied
    with httpx.Client(base_url=host, timeout=60) as person:
        for path in (ROOT, f"{ROOT}/", f"{ROOT}/cohorts/phones"):
            answer = person.get(path)
            assert (answer.status_code, answer.headers["Location"]) == (303, f"{ROOT}/login")
        answer = person.post(f"{ROOT}/login", data={"token": server.tokens["reader"]})
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{ROOT}/")
        assert f"; Path={ROOT};" in answer.headers["Set-Cookie"]
        for path in (f"{ROOT}/", f"{ROOT}/cohorts/phones", f"{ROOT}/login"):
            page = person.get(path)
            assert page.status_code == 200
            addresses = re.findall(r' (?:href|action|src)="([^"]*)"', page.text)
            assert f"{ROOT}/style.css" in addresses
            assert all(each.startswith((f"{ROOT}/", "data:", "#")) for each in addresses), addresses
        assert person.get(f"{ROOT}/style.css").headers["Content-Type"].startswith("text/css")
        form = {
            "form_secret": re.findall(r'name="form_secret" value="(.*?)"', person.get(f"{ROOT}/").text)[0]
        }
        answer = person.post(f"{ROOT}/logout", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{ROOT}/login")
        assert f"; Path={ROOT};" in answer.headers["Set-Cookie"]
        assert not person.cookies


@pytest.mark.slow
def test_a_program_behind_a_proxy_finds_what_it_registered(proxied: tuple[Server, str]) -> None:
    server, host = proxied
    name = "our/ledger/v1"  # one segment, which is no root path
    bearer = {"Authorization": f"Bearer {server.tokens['admin']}"}
    with httpx.Client(base_url=host, headers=bearer, timeout=60) as program:
        body = {"round_id": name, "cohort": "phones", **ROUND}
        answer = program.post(f"{ROOT}/v1/rounds", json=body)
        assert answer.status_code == 201
        assert answer.headers["Location"] == f"{ROOT}/v1/rounds/our%2Fledger%2Fv1"
        assert program.get(answer.headers["Location"]).json()["round_id"] == name
        described = program.get(f"{ROOT}/v1/openapi.json").json()
        assert described["servers"] == [{"url": ROOT}]
        assert "/v1/rounds" in described["paths"]
        assert program.get(f"{ROOT}x/v1/rounds").status_code == 404
        assert program.get(f"{ROOT}/readyz").status_code == 200
    with LedgerClient(host + ROOT, server.tokens["admin"], retry_seconds=5) as client:
        assert client.round(name).request.round_id == name


def test_without_a_root_path_nothing_has_one(server: Server) -> None:
    assert "servers" not in server.ask("GET", "/v1/openapi.json").json()
    assert server.register("a").headers["Location"] == "/v1/rounds/a"
    assert server.ask("GET", f"{ROOT}/v1/rounds/a").status_code in (303, 404)


def test_paths_that_could_be_taken_for_our_own_are_refused() -> None:
    for path, kept in (("", ""), ("/", ""), ("/ledger", "/ledger"), ("/a/v1/", "/a/v1")):
        assert checked_root_path(path) == kept
    own = "cohorts, healthz, login, logout, metrics, readyz, style.css, v1"
    for path in (
        "ledger",
        "/v1",
        "/cohorts/x",
        "//x",
        "/a//b",
        "/..",
        "/a/.",
        "/a b",
        "/a%2F",
        "/é",
        "http://x",
    ):
        with pytest.raises(InvalidValue) as caught:
            checked_root_path(path)
        assert str(caught.value) == (
            f"root_path: got {path!r}, expected a path such as /ledger, of letters, digits and -._~, whose"
            f" first segment is none of {own}"
        )
