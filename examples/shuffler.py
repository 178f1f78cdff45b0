"""An example shuffler: it receives reports over HTTP, mixes them, and releases them through the gate alone.

    python examples/shuffler.py --folder FOLDER --keys permit-keys.json --name acme --signing-key acme.pem \\
        --ledger-url https://ledger.example --port 8800

    POST /rounds/ID/reports   one report, up to 4 kB, kept on the disk before it is answered
    POST /rounds/ID/release   the permit; answers with the receipt, or with why nothing leaves

What leaves is a file in FOLDER/released, in random order and without anything about who sent what. Reports
wait in FOLDER/held, and a mixed batch in FOLDER/mixed until the gate has let it through: all three on one
disk. It needs PyJWT, cryptography and `gate.py`. It leaves out what a real shuffler also has: TLS, sign-in of
devices, and a transport that hides their addresses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import threading
import urllib.request
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from shuffle_ledger.gate import Gate, GateRefused, read_permit

REPORT_BYTES_MAX, PERMIT_BYTES_MAX = 4096, 1 << 20
PATH, LENGTH = re.compile(r"/rounds/([\w.-]{1,200})/(reports|release)"), re.compile(r"[0-9]{1,7}")


class Answer(NamedTuple):
    """The answer to a client."""

    status: int
    document: dict[str, Any]


class Shuffler:
    """Reports of rounds, held until their permit comes."""

    def __init__(
        self, folder: Path, gate: Gate, keys: dict[str, Any], revoked_url: str, randomizer: str
    ) -> None:
        self._folder, self._gate, self._keys = folder, gate, keys
        self._revoked_url, self._randomizer = revoked_url, randomizer
        self._lock = threading.Lock()
        for name in ("held", "mixed", "released"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def hold(self, round_id: str, report: bytes) -> Answer:
        """Keep a report on the disk; a round that was mixed for its release takes none any more."""
        with self._lock:
            if self._place("mixed", round_id).exists() or self._place("released", round_id).exists():
                return Answer(409, {"error": "the round is closed: its batch was mixed"})
            with self._place("held", round_id).open("a+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * REPORT_BYTES_MAX - 1))
                torn = len(file.read().split(b"\n")[-1])  # by a crash: that report was not answered
                file.truncate(file.tell() - torn)
                file.write(report.hex().encode("ascii") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return Answer(202, {"held": True})

    def release(self, round_id: str, permit: str) -> Answer:
        """Release a round's batch if the gate lets it through.

        The order makes it safe after a crash at any point: the batch is mixed and on the disk, then the gate
        writes that its round was used, then the batch is renamed into `released`. After a crash before the
        gate's line, nothing has left. After a crash behind it, the next request renames the same batch, which
        it knows by its digest.
        """
        with self._lock:
            try:
                if read_permit(permit, self._keys).round_id != round_id:
                    return Answer(409, {"error": "the permit is of another round"})
                before = self._gate.released(permit)
                if before is not None:
                    return self._finish(round_id, before.batch_sha256, before.receipt)
                revoked = urllib.request.urlopen(self._revoked_url, timeout=10).read().decode("ascii")  # noqa: S310 - its owner gives the address
                batch = self._mixed(round_id)
                said = {"count": batch.count(b"\n"), "randomizer": self._randomizer, "revoked": revoked}
                digest = hashlib.sha256(batch).hexdigest()
                release = self._gate.release(permit, batch_sha256=digest, **said)
            except GateRefused as error:
                if error.kind != "state_unusable":  # else the round may have been used with this batch
                    self._place("mixed", round_id).unlink(missing_ok=True)  # the round goes on collecting
                return Answer(403, {"error": str(error), "kind": error.kind})
            except (OSError, ValueError, HTTPException) as error:
                return Answer(503, {"error": f"nothing was released: {error}"})
            return self._finish(round_id, release.batch_sha256, release.receipt)

    def _mixed(self, round_id: str) -> bytes:
        """Return the reports in random order, written to the disk as they will leave."""
        held = self._place("held", round_id)
        lines = (
            held.read_bytes().split(b"\n")[:-1] if held.exists() else []
        )  # a torn last line was not answered
        secrets.SystemRandom().shuffle(lines)
        batch = b"".join(line + b"\n" for line in lines)
        with self._place("mixed", round_id).open("wb") as file:
            file.write(batch)
            file.flush()
            os.fsync(file.fileno())
        return batch

    def _finish(self, round_id: str, digest: str | None, receipt: str | None) -> Answer:
        """Rename the batch that the gate let through; nothing else ever enters `released`."""
        mixed, released = self._place("mixed", round_id), self._place("released", round_id)
        if mixed.exists() and hashlib.sha256(mixed.read_bytes()).hexdigest() == digest:
            mixed.replace(released)
            self._place("held", round_id).unlink(missing_ok=True)
        if not released.exists():
            return Answer(
                409, {"error": "the round was released before, and its batch is gone", "receipt": receipt}
            )
        return Answer(200, {"released": str(released), "receipt": receipt})

    def _place(self, name: str, round_id: str) -> Path:
        return self._folder / name / f"{round_id}.reports"


def handler_of(shuffler: Shuffler) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests to a shuffler."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # of a client that sends nothing

        def do_POST(self) -> None:
            """Hold a report, or release a round."""
            found, length = PATH.fullmatch(self.path), self.headers.get("Content-Length", "")
            if found is None or found[1].strip(".") == "":
                self._answer(Answer(404, {"error": "no such round or action"}))
                return
            most = REPORT_BYTES_MAX if found[2] == "reports" else PERMIT_BYTES_MAX
            if not LENGTH.fullmatch(length) or not 0 < int(length) <= most:
                self._answer(Answer(413, {"error": f"expected a body of 1 to {most} bytes"}))
                return
            body = self.rfile.read(int(length))
            if len(body) < int(length):  # the client went away: half a report is none
                return
            if found[2] == "reports":
                self._answer(shuffler.hold(found[1], body))
            else:
                self._answer(shuffler.release(found[1], body.decode("ascii", "replace")))

        def log_message(self, *_details: object) -> None:
            """Log nothing: an address beside a time says who reported when."""

        def _answer(self, answer: Answer) -> None:
            body = json.dumps(answer.document).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


class Server(ThreadingHTTPServer):
    """A server that says nothing about its clients."""

    def handle_error(self, *_details: object) -> None:
        """Print nothing, as `log_message`: the connection ends."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="An example shuffler")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keys", type=Path, required=True, help="the ledger's keys of permits")
    parser.add_argument("--name", required=True, help="of this releaser")
    parser.add_argument("--signing-key", type=Path, required=True, help="signs receipts")
    parser.add_argument("--ledger-url", required=True, help="for the list of revoked permits")
    parser.add_argument("--randomizer", required=True, help="what the devices run")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    keys = json.loads(given.keys.read_text())
    given.folder.mkdir(parents=True, exist_ok=True)
    gate = Gate(
        keys,
        state=given.folder / "gate-state.jsonl",
        releaser=given.name,
        signing_key=given.signing_key.read_bytes(),
    )
    revoked_url = f"{given.ledger_url}/v1/permits/revoked"
    shuffler = Shuffler(given.folder, gate, keys, revoked_url, given.randomizer)
    with Server(("127.0.0.1", given.port), handler_of(shuffler)) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
