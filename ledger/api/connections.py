"""Bounds connections: how many there are, how long each makes the server wait, and what the log says of it.

A client that sends half a request, or does not read an answer, holds a file while the server lets it. The
limit on connections is derived from the process's limit on open files, so that the database and the broker
always find files. A new connection takes the place of the one that has made the server wait longest.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from shuffle_ledger.ledger.api.dependencies import Service
from shuffle_ledger.ledger.errors import InvalidValue, Unavailable
from shuffle_ledger.ledger.hangups import end_at_hangup

CONNECTIONS_MAX = 1000  # whatever the limit on files: each may hold a request's body in memory
CONNECTIONS_MIN = 16  # with fewer, `serve` does not start
# For the database (SQLite: three for each of 18 connections), the issuer and the broker.
RESERVED_FILES = 64
BACKLOG_MIN, BACKLOG_MAX = 8, 512
BURSTS = 4  # turns of the event loop from a connection's acceptance until the file of a dropped one is closed
UNKNOWN_FILES_OPEN = 32  # where the system does not list a process's open files
SHUTDOWN_SECONDS = 30  # for requests that are being answered
KEEP_ALIVE_SECONDS = 15
LOOK_SECONDS = 1.0  # how often each connection is looked at; limits below are exact up to this
REPEAT_SECONDS = 60.0  # the same warning is logged once in this long
REPEATS_KNOWN_MAX = 100  # different warnings that are remembered
_LOGGERS = ("asyncio", "uvicorn.error")  # may warn once for every connection or request

_log = logging.getLogger("uvicorn.error")


class Awaited(Enum):
    """Names the steps of a client that the server waits for."""

    REQUEST = "to send a request's line and headers"
    BODY = "to send the whole body of a request"
    READING = "to read more of an answer"


# How long the server waits for each, counted from when it began to. The gate answers a slow body after 30
# seconds; what is sent after that answer, or after any early answer, ends here.
PATIENCE_SECONDS = {Awaited.REQUEST: 15.0, Awaited.BODY: 40.0, Awaited.READING: 30.0}


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections fit under a limit on open files."""

    connections: int  # open at once
    backlog: int  # that the system may hold for the server, and that the server accepts in one turn


def limits_for(files_max: int, *, files_open: int) -> ConnectionLimits:
    """Return the limits under a limit on open files, `files_open` of which are in use already.

    **Guarantee**: `connections` and those accepted before one is dropped leave `RESERVED_FILES` files free.

    Raises:
        InvalidValue: fewer than `CONNECTIONS_MIN` connections would fit.
    """
    free = files_max - files_open - RESERVED_FILES
    backlog = max(BACKLOG_MIN, min(BACKLOG_MAX, free // (4 * BURSTS)))
    connections = min(CONNECTIONS_MAX, free - BURSTS * backlog)
    if connections < CONNECTIONS_MIN:
        least = files_open + RESERVED_FILES + BURSTS * BACKLOG_MIN + CONNECTIONS_MIN
        raise InvalidValue(
            field="limit of open files (ulimit -n)", value=files_max, expected=f"at least {least}"
        )
    return ConnectionLimits(connections=connections, backlog=backlog)


def limits_of_process() -> ConnectionLimits:
    """Return the limits that suit this process now; raises InvalidValue as `limits_for`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 20  # no limit, or a larger one, allows no more connections
    try:
        files_open = sum(1 for _ in Path("/dev/fd").iterdir())
    except OSError:
        files_open = UNKNOWN_FILES_OPEN
    return limits_for(most if soft == resource.RLIM_INFINITY else min(soft, most), files_open=files_open)


def listener_on(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; raises Unavailable if none can be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(f"nothing can listen on {host}, port {port}: {error.strerror or error}") from error


def run_server(app: FastAPI, listener: socket.socket, *, trusted_proxies: str) -> None:
    """Serve until a signal ends the process, SIGHUP as SIGTERM does.

    `trusted_proxies`: addresses separated by commas, or nothing.

    Raises:
        InvalidValue: the limit on open files is too low.
    """
    limits = limits_of_process()
    host, port = listener.getsockname()[:2]
    config = config_for(app, limits, host=host, port=port, trusted_proxies=trusted_proxies)
    server = DrainingServer(config, app)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(OncePerWhile())
    end_at_hangup()
    _log.info("At most %d connections at once", limits.connections)
    server.run(sockets=[listener])


def config_for(
    app: FastAPI, limits: ConnectionLimits, *, host: str, port: int, trusted_proxies: str
) -> uvicorn.Config:
    """Return the server's configuration."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=functools.partial(BoundedProtocol, connections_max=limits.connections),  # type: ignore[arg-type]
        ws="none",
        backlog=limits.backlog,
        log_config=None,  # `ledger.logs` writes what is logged
        log_level="info",
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


class DrainingServer(uvicorn.Server):
    """A server that goes on answering for a while after SIGTERM, or SIGHUP, and says at `/readyz` so.

    A load balancer sends it nothing more before its port closes. The length is the setting `drain_seconds`.
    SIGINT, and a second SIGTERM, end it at once.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, clock: Callable[[], float] = time.monotonic):
        super().__init__(config)
        self._service: Service = app.state.service
        self._clock = clock
        self._ends_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first SIGTERM; end at any other signal."""
        seconds = self._service.settings.drain_seconds
        begins = sig == signal.SIGTERM and seconds > 0 and self._ends_at is None and not self.should_exit
        super().handle_exit(sig, frame)
        if begins:
            self.should_exit = False
            self._ends_at = self._clock() + seconds
            self._service.is_ending = True
            _log.info("Asked to stop: not ready from now on, and ending in %s s", seconds)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        if self._ends_at is not None and self._clock() >= self._ends_at:
            self.should_exit = True
        return await super().on_tick(counter)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, which ends when its client makes the server wait too long."""

    def __init__(self, *arguments: Any, connections_max: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._connections_max = connections_max
        self.since = self.loop.time()  # when the server began to wait for what it waits for now
        self._seen: object = None  # what it waited for when the connection was last looked at
        self.given_up = False
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Take the connection in, in place of another if there are too many."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > self._connections_max:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def awaited(self) -> Awaited | None:
        """Return what the client has to do before anything else can happen; None while the server works."""
        if self.transport.get_write_buffer_size() > 0:
            return Awaited.READING
        if self.conn.their_state is h11.IDLE:
            return Awaited.REQUEST
        if self.conn.their_state is h11.SEND_BODY:
            return Awaited.BODY
        return None

    def _look(self) -> None:
        """Give the connection up if the client has not moved for too long, else look again later."""
        awaited, now = self.awaited(), self.loop.time()
        unread = self.transport.get_write_buffer_size()
        # A client that reads moves with every byte; one that sends has to complete the headers, or the body.
        seen = (awaited, self.cycle, unread if awaited is Awaited.READING else None)
        if seen != self._seen:
            self._seen, self.since = seen, now
        elif awaited is not None and now - self.since > PATIENCE_SECONDS[awaited]:
            waited = PATIENCE_SECONDS[awaited]
            _log.warning("A connection was closed: its client had %s s %s", waited, awaited.value)
            self.give_up()
            return
        self._next_look = self.loop.call_later(LOOK_SECONDS, self._look)

    def _make_room(self) -> None:
        """Drop the connections that have made the server wait longest, a sixteenth of those that do."""
        held = [each for each in self.connections if isinstance(each, BoundedProtocol) and not each.given_up]
        if len(held) <= self._connections_max:
            return
        waiting = [each for each in held if each is not self and each.awaited() is not None]
        waiting.sort(key=lambda each: each.since)
        for each in waiting[: 1 + len(waiting) // 16] or [self]:
            each.give_up()
        _log.warning(
            "All %d connections are in use: those that wait longest are closed", self._connections_max
        )

    def give_up(self) -> None:
        """Close the connection now."""
        self.given_up = True
        self.transport.abort()  # `close` would wait until the client has read all


class OncePerWhile(logging.Filter):
    """Lets the same warning pass once in a while, with how many of its kind were left out since."""

    def __init__(
        self, *, seconds: float = REPEAT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # when it was logged last, and how many were left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.levelno < logging.WARNING:
            return True
        error = repr(record.exc_info[1]) if record.exc_info else ""
        kind, now = f"{record.msg}".split("\n", 1)[0] + error[:200], self._clock()
        logged_at, left_out = self._kinds.pop(kind, (-self._seconds, 0))
        if now - logged_at < self._seconds:
            self._kinds[kind] = (logged_at, left_out + 1)
            return False
        if len(self._kinds) >= REPEATS_KNOWN_MAX:
            self._kinds.pop(next(iter(self._kinds)))
        self._kinds[kind] = (now, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more of these)", ()
        return True
