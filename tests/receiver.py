"""A service that receives webhooks, and checks their signatures with the library of their receivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from standardwebhooks import Webhook

from tests.ports import answering


@dataclass
class Receiver:
    """The messages that came, and the answers to the next ones."""

    url: str
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # then 204

    def read(self, secret: str) -> list[Any]:
        """Return the messages so far, checked, and forget them."""
        found = [Webhook(secret).verify(body, headers) for headers, body in self.got]
        for (headers, _), content in zip(self.got, found, strict=True):
            assert headers["webhook-id"] == content["id"]
            assert headers["content-type"].startswith("application/cloudevents+json")
        self.got.clear()
        return found


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.answers.pop(0) if found.answers else 204
            found.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if status in (302, 307):
                self.send_header("Location", found.url + "elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with answering(Handler) as port:
        found = Receiver(url=f"http://127.0.0.1:{port}/")
        yield found
