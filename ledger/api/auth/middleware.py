"""The gate in front of every route: a request needs a token and must not be larger than allowed.

It comes before the framework looks at a request. So a stranger learns neither which addresses exist nor what
a well-formed request is, and the body of such a request is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import anyio
from fastapi import HTTPException
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import AccessToken, authenticate
from shuffle_ledger.ledger.api.auth.oidc_settings import BadToken
from shuffle_ledger.ledger.api.auth.rate_limits import FailureLimit
from shuffle_ledger.ledger.api.auth.sessions import COOKIE, Sessions
from shuffle_ledger.ledger.api.problems import (
    BUSY,
    TOO_LARGE,
    TOO_MANY_FAILURES,
    UNAUTHORIZED,
    problem,
    problem_of,
)
from shuffle_ledger.ledger.operations import OPERATIONS
from shuffle_ledger.ledger.security_log import SecurityEvent
from shuffle_ledger.ledger.storage.store import Store

if TYPE_CHECKING:  # its libraries are an extra's
    from shuffle_ledger.ledger.api.auth.issuer import OpenIdConnect

API_PREFIX = "/v1/"
# What strangers may see: whether the server lives, the page that asks for a token, and what gates need.
OPEN_PATHS = frozenset(
    {"/login", "/style.css", *(path for row in OPERATIONS if row.permission is None for path in row.paths)}
)
BODY_BYTES_MAX = 1 << 20
OPEN_BODY_BYTES_MAX = 1 << 14  # of a client without a token or a session: a form with a token
BODY_SECONDS_MAX = 30.0
# JSON of 1 MiB can become values of 25 MiB. More at once need more memory; fewer make large requests wait.
LARGE_BODIES_AT_ONCE = 4
LARGE_BODY_BYTES = 1 << 16  # a body above this is large
_UNAUTHORIZED_DETAIL = "Send a valid token: Authorization: Bearer sl_..."
_BUSY_DETAIL = "The server is busy with other large requests; try again."


class Door:
    """Finds the token of a request, and makes clients with too many wrong tokens wait."""

    def __init__(self, store: Store, failures: FailureLimit, oidc: OpenIdConnect | None = None) -> None:
        self._store = store
        self._failures = failures
        self.oidc = oidc  # None: only the ledger's own tokens open it

    def let_guess(self, token: AccessToken) -> None:
        """Raise a 429 if a token met too many identifiers of cohorts that it does not see."""
        wait = self._failures.wait_seconds(_bearer(token))
        if wait > 0:
            raise HTTPException(TOO_MANY_FAILURES.status, headers={"Retry-After": str(wait)})

    def count_guess(self, token: AccessToken) -> None:
        """Count an identifier of a cohort that a token does not see: against the token, not its address."""
        self._failures.count(_bearer(token))
        wait = self._failures.wait_seconds(_bearer(token))
        if wait > 0:
            security_log.record(
                SecurityEvent.LOCKED_OUT, token_id=token.token_id, name=token.name, wait_seconds=wait
            )

    async def check(
        self, scope: Scope, credentials: str, *, only_own: bool = False
    ) -> AccessToken | Response:
        """Return whose token it is, or the answer to a wrong one, which is counted.

        `only_own`: tokens of the issuer of OpenID Connect are wrong, too.

        Raises:
            IssuerUnavailable: the issuer's keys are not known.
        """
        wait = self.must_wait(scope)
        if wait is not None:
            return wait
        try:
            found = await self._access(credentials, only_own=only_own)
        except BadToken as error:
            return self.refuse(scope, why=str(error))
        return self.refuse(scope) if found is None else found

    def must_wait(self, scope: Scope) -> Response | None:
        """Return the answer to an address that showed too many wrong tokens; None: it may show one."""
        wait = self._failures.wait_seconds(address_of(scope))
        if wait <= 0:
            return None
        detail = f"Too many wrong tokens came from your address; try again in {wait} s."
        return problem(TOO_MANY_FAILURES, detail, headers={"Retry-After": str(wait)})

    def refuse(self, scope: Scope, *, why: str | None = None) -> Response:
        """Count a wrong token, and return the answer to it: the same for all; only the log has the reason."""
        address = address_of(scope)
        self._failures.count(address)
        security_log.record(SecurityEvent.WRONG_TOKEN, address=address, why=why)
        wait = self._failures.wait_seconds(address)
        if wait > 0:
            security_log.record(SecurityEvent.LOCKED_OUT, address=address, wait_seconds=wait)
        return problem(UNAUTHORIZED, _UNAUTHORIZED_DETAIL)

    async def _access(self, credentials: str, *, only_own: bool) -> AccessToken | None:
        # No token of the ledger has a dot, and every JSON web token has.
        if self.oidc is not None and "." in credentials and not only_own:
            return await self.oidc.bearer(credentials)
        return await anyio.to_thread.run_sync(partial(authenticate, self._store, credentials))


class Gate:
    """ASGI middleware: authentication, then the limits of a request."""

    def __init__(self, app: ASGIApp, *, store: Store, door: Door, sessions: Sessions, root_path: str) -> None:
        self._app = app
        self._store = store
        self._door = door
        self._sessions = sessions
        self._login = f"{root_path}/login"
        self._large_bodies = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no websockets: the server closes the connection
        scope["path"] = _segments(scope)
        answer = await self._admit(scope)
        if answer is None:
            body = await _whole_body(scope, receive)
            if body is None:
                return  # the client left in the middle: half a request is not one
            if isinstance(body, bytes):
                await self._pass_on(body, scope, receive, send)
                return
            answer = body
        await answer(scope, receive, send)

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer a request; where its body is large, after a few others at most."""
        replayed = _replayed(body, receive)
        if len(body) <= LARGE_BODY_BYTES:
            await self._app(scope, replayed, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                await self._large_bodies.acquire()
        except TimeoutError:
            await problem(BUSY, _BUSY_DETAIL)(scope, receive, send)
            return
        try:
            await self._app(scope, replayed, send)
        finally:
            self._large_bodies.release()

    async def _admit(self, scope: Scope) -> Response | None:
        scope.setdefault("state", {})["token"] = None
        path: str = scope["path"]
        if path in OPEN_PATHS:
            return None
        try:
            if path.startswith(API_PREFIX) or path == "/metrics":
                return await self._admit_bearer(scope)
            return await self._admit_person(scope)
        except Exception as error:  # noqa: BLE001 - who cannot be checked does not get in
            return problem_of(error)

    async def _admit_bearer(self, scope: Scope) -> Response | None:
        credentials = _credentials(scope)
        if credentials is None:
            return problem(UNAUTHORIZED, _UNAUTHORIZED_DETAIL)
        found = await self._door.check(scope, credentials)
        if isinstance(found, AccessToken):
            scope["state"]["token"] = found
            return None
        return found

    async def _admit_person(self, scope: Scope) -> Response | None:
        # A proxy that signs people in sends a token of the issuer with each request of theirs.
        if self._door.oidc is not None and "." in (_credentials(scope) or ""):
            refused = await self._admit_bearer(scope)
            if refused is None:
                scope["state"]["csrf"] = self._sessions.form_secret(scope["state"]["token"].token_id)
            return refused
        cookie = session_cookie(scope, self._sessions)
        token = await anyio.to_thread.run_sync(partial(self._sessions.bearer, self._store, cookie))
        if token is None:
            return RedirectResponse(self._login, status_code=303)
        scope["state"]["token"] = token
        scope["state"]["csrf"] = self._sessions.form_secret(cookie)
        return None


def _credentials(scope: Scope) -> str | None:
    """Return the token of a request's header; None without one."""
    scheme, _, credentials = Headers(scope=scope).get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


def _bearer(token: AccessToken) -> str:
    return f"token {token.token_id}"


def address_of(scope: Scope) -> str:
    """Return the client's address, as a trusted proxy gave it if there is one."""
    return str(scope["client"][0]) if scope.get("client") else "unknown"


def session_cookie(scope: Scope, sessions: Sessions) -> str:
    """Return the session's cookie as the client sent it, whatever other applications of the host have set;
    empty without one. See `Sessions.own`."""
    pairs = (pair.partition("=") for pair in Headers(scope=scope).get("cookie", "").split(";"))
    return sessions.own(value.strip() for found, _, value in pairs if found.strip() == COOKIE)


def _segments(scope: Scope) -> str:
    """Return the path with its segments as the client separated them: `%2F` inside a name stays inside."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8")
    segments = raw.split(b"?", 1)[0].decode("latin-1").split("/")
    return "/".join(
        quote(unquote(segment), safe=_KEPT) if "%" in segment else segment for segment in segments
    )


_KEPT = "!$&'()*+,;=:@-._~"


async def _whole_body(scope: Scope, receive: Receive) -> bytes | Response | None:
    """Return a request's body, or the answer to one that is too large or slow; None if the client left."""
    declared = Headers(scope=scope).get("content-length", "0")
    bytes_max = OPEN_BODY_BYTES_MAX if scope["path"] in OPEN_PATHS else BODY_BYTES_MAX
    too_large = f"A body may have at most {bytes_max} bytes, and arrive within {BODY_SECONDS_MAX:g} s."
    if not declared.isdigit() or int(declared) > bytes_max:
        return problem(TOO_LARGE, too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > bytes_max:
                    return problem(TOO_LARGE, too_large)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return problem(TOO_LARGE, too_large)


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    messages = iter(({"type": "http.request", "body": body, "more_body": False},))

    async def again() -> Message:
        return next(messages, None) or await receive()

    return again
