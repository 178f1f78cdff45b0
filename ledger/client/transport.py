"""The wire of `client.client`: requests, repeated when an answer is lost; problems as the ledger's errors."""

from __future__ import annotations

import json
import logging
import math
import random
import ssl
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from shuffle_ledger.ledger.errors import (
    KINDS,
    AnswerLost,
    BehindCheckpoint,
    BeyondBudget,
    ClockOff,
    Difference,
    InvalidValue,
    LedgerError,
    NotCollectable,
    OtherContent,
    TryAgain,
    UnacceptedWarning,
    UnacceptedWarnings,
    Unavailable,
    UnsafeSession,
)

_log = logging.getLogger(__name__)

PROBLEM = "urn:shuffle-ledger:problem:"
TIMEOUT_SECONDS = 90.0
LONG_SECONDS = 1800.0  # for what the server replays or composes while we wait
RETRY_SECONDS = 60.0
RETRY_WAIT_MAX_SECONDS = 5.0
PORT_MAX = 65535
_OTHERS = {"too_many_failures": TryAgain}  # kinds that no error has
_LASTING = (BehindCheckpoint, ClockOff, UnsafeSession)  # with status 503, and asking again does not help

# For plain HTTP: trusts no authority, and reads no file of them, which takes longer than a request.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class _Transient(Exception):
    """An answer that allows another try; `error` is raised if all tries end so."""

    def __init__(self, error: LedgerError, wait_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_seconds = wait_seconds


class _Requests:
    """The requests to one server, with one token."""

    client: ClassVar[type[httpx.Client | httpx.AsyncClient]]

    def __init__(
        self, url: str, token: str, *, timeout_seconds: float, retry_seconds: float, transport: object
    ) -> None:
        """Does not connect yet; raises InvalidValue for an invalid address or token."""
        if not _is_address(url):
            shown = "(hidden)" if "@" in url else url  # it may have a password
            expected = "an address such as https://ledger.example, without a user name and a password"
            raise InvalidValue(field="server", value=shown, expected=expected)
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidValue(field="token", value="(hidden)", expected="a token such as sl_ID_SECRET")
        self._url = url
        self._timeout_seconds = timeout_seconds
        accepted = "application/json, application/zip, application/jwt"
        connecting: Any = self.client
        self._http = connecting(
            transport=transport,
            base_url=url.rstrip("/") + "/v1/",
            headers={"Authorization": f"Bearer {token}", "Accept": accepted},
            follow_redirects=False,  # a token goes to the server it was given for
            verify=url.startswith("https://") or _NO_AUTHORITIES,
        )
        self._retry_seconds = retry_seconds

    def _sent(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as httpx takes it."""
        return {
            "method": request["method"],
            "url": request["path"],
            "json": request["body"],
            "params": request["query"],
            "headers": request["headers"],
            "timeout": LONG_SECONDS if request["long"] else self._timeout_seconds,
        }


def _is_address(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    usable = bool(parts.host) and (parts.port is None or 1 <= parts.port <= PORT_MAX)
    return url.startswith(("http://", "https://")) and usable and not parts.userinfo and " " not in url


class _Attempts:
    """The attempts of one request: one whose answer was lost decides what is known of all of them."""

    def __init__(self, url: str, seconds: float) -> None:
        """Begin the attempts, which end after a number of seconds."""
        self._url, self._seconds = url, seconds
        self._ends = time.monotonic() + seconds
        self._made = 0
        self._lost: AnswerLost | None = None

    def pause(self, last: _Transient) -> float:
        """Return the seconds until the next attempt; raise the error of the last one if there is none.

        The first pause is logged, so that the caller knows why it waits.
        """
        if time.monotonic() >= self._ends:
            raise last.error from last
        self._made += 1
        if self._made == 1:
            _log.warning("%s: trying again for up to %d seconds", last, self._seconds)
        if last.wait_seconds is not None:
            return min(last.wait_seconds, RETRY_WAIT_MAX_SECONDS)
        # Random, so that clients that failed together do not come back together.
        return random.uniform(0, min(0.1 * 2 ** min(self._made - 1, 10), RETRY_WAIT_MAX_SECONDS))  # noqa: S311 - no secret

    def failed(self, error: httpx.TransportError) -> _Transient:
        """Return what an attempt without an answer means."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, _UNSENT):
            source = f"the server {self._url}"
            self._lost = AnswerLost("the request was carried out", reason, source=source)
        unavailable = Unavailable(f"the server {self._url} cannot be reached: {reason}")
        return _Transient(self._lost or unavailable)


class Wire(_Requests):
    """The connections to one server, with one token."""

    client = httpx.Client

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the content of the answer: a JSON value, or the bytes of a bundle.

        Args:
            request: its method, path below `/v1/`, query, body and headers, None where there are none; and
                whether the server may take `long`.

        Raises:
            LedgerError: what the server's problem document says.
            Unavailable: there is no answer, for as long as `retry_seconds`; AnswerLost where a request was
                sent.
        """
        sent = self._sent(request)
        attempts = _Attempts(self._url, self._retry_seconds)
        while True:
            try:
                return _content(self._http.request(**sent))
            except httpx.TransportError as error:
                pause = attempts.pause(attempts.failed(error))
            except _Transient as last:
                pause = attempts.pause(last)
            time.sleep(pause)


class AsyncWire(_Requests):
    """As `Wire`, for one event loop."""

    client = httpx.AsyncClient

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the content of the answer; as `Wire.ask`."""
        import asyncio  # noqa: PLC0415 - what awaits has it; a blocking program does not wait for it

        sent = self._sent(request)
        attempts = _Attempts(self._url, self._retry_seconds)
        while True:
            try:
                return _content(await self._http.request(**sent))
            except httpx.TransportError as error:
                pause = attempts.pause(attempts.failed(error))
            except _Transient as last:
                pause = attempts.pause(last)
            await asyncio.sleep(pause)


def _content(answer: httpx.Response) -> Any:
    media = answer.headers.get("Content-Type") if answer.is_success else None
    if media in ("application/zip", "application/jwt"):
        return answer.content if media == "application/zip" else answer.text
    try:
        content = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        problem = Unavailable(f"no ledger answers there: {answer.status_code} {answer.reason_phrase}")
        if answer.status_code >= 500:  # a proxy whose server is away
            raise _Transient(problem) from error
        raise problem from error
    if answer.is_success:
        return content
    if isinstance(content, Mapping) and content.get("outcome") == "refused":
        return content
    raise _error_of(answer, content)


def _error_of(answer: httpx.Response, content: Any) -> Exception:
    document = content if isinstance(content, Mapping) else {}
    kind = str(document.get("type", "")).removeprefix(PROBLEM)
    detail = str(document.get("detail", f"the server answered {answer.status_code}"))
    error = _with_members(kind, detail, document) or KINDS.get(kind, _OTHERS.get(kind, LedgerError))(detail)
    if answer.status_code in (429, 502, 503, 504) and not isinstance(error, _LASTING):
        wait = answer.headers.get("Retry-After", "")
        return _Transient(error, float(wait) if wait.isdigit() else None)
    return error


def _with_members(kind: str, detail: str, document: Mapping[str, Any]) -> LedgerError | None:
    """Return the error of a problem document whose kind has further members; None for other kinds."""
    match kind:
        case "bad_value" | "contradiction":
            given, expected = _as_given(document.get("value")), str(document.get("expected"))
            return InvalidValue(
                field=str(document.get("field")), value=given, expected=expected, message=detail
            )
        case "beyond_budget":
            numbers = ("epsilon_upper", "epsilon_budget", "delta_budget")
            upper, epsilon, delta = (_number(document.get(name)) for name in numbers)
            return BeyondBudget(upper, epsilon=epsilon, delta=delta)
        case "not_collectable":
            present = {name: str(document.get(name)) for name in ("round_id", "state", "cohort_status")}
            return NotCollectable(detail, **present)
        case "unaccepted_warnings":
            warnings = [
                UnacceptedWarning(field=str(one.get("field")), message=str(one.get("message")))
                for one in _objects(document.get("warnings"))
            ]
            round_id = None if document.get("round_id") is None else str(document["round_id"])
            return UnacceptedWarnings(str(document.get("cohort")), warnings, round_id=round_id)
        case "conflict" if "differences" in document:
            differences = [
                Difference(field=str(one.get("field")), stored=one.get("stored"), given=one.get("given"))
                for one in _objects(document["differences"])
            ]
            return OtherContent(detail, differences=differences)
    return None


def _objects(listed: object) -> list[Mapping[str, Any]]:
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def _as_given(text: object) -> object:
    """Return a number that the server showed as a text as the number; everything else as it is."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.inf  # which JSON has as null
