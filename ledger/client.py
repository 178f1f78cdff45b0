"""A client for the HTTP API: the ledger's own values, through a server.

Requests are repeated when an answer is lost, which is safe: identifiers make every one of them idempotent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote as quoted

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from accounting import ShuffledRound
from ledger.budgets import (
    REASON_LENGTH_MAX,
    Cohort,
    Outcome,
    Pending,
    RoundRecord,
    RoundRequest,
    Settled,
    Voided,
    checked_text,
)
from ledger.documents import NotADocument, Value, decision_of, document_of, record_of_document, value_of
from ledger.errors import (
    BehindCheckpoint,
    Conflict,
    InvalidValue,
    LedgerError,
    NotAllowed,
    NotFound,
    RoundStuck,
    TryAgain,
    Unauthorized,
    Unavailable,
)
from ledger.published import PublishedEntry, PublishedPage
from ledger.quoting import BatchQuote
from ledger.statements import BudgetStatement
from ledger.verification import VerificationReport

PROBLEM = "urn:shuffle-ledger:problem:"
TIMEOUT_SECONDS = 90.0
RETRY_SECONDS = 60.0
RETRY_WAIT_MAX_SECONDS = 5.0
WAIT_SECONDS = 60.0  # for a decision, where workers make them
_SERVER_WAIT_MAX_SECONDS = 30.0  # in one request; a longer wait is several
_PAGE = 500
_KINDS: Mapping[str, type[LedgerError]] = {
    "unauthorized": Unauthorized,
    "forbidden": NotAllowed,
    "not_found": NotFound,
    "conflict": Conflict,
    "behind_checkpoint": BehindCheckpoint,
    "stuck": RoundStuck,
    "busy": TryAgain,
    "too_many_failures": TryAgain,
    "unavailable": Unavailable,
}


class _Transient(Exception):
    """An answer that asks to be asked again; `error` is what it means if it stays the last one."""

    def __init__(self, error: LedgerError, wait_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_seconds = wait_seconds


class LedgerClient:
    """A ledger behind a server.

    Methods return what the functions of `ledger` of the same name return, and raise the same errors; besides

    Raises:
        Unauthorized: the token is none, expired or revoked.
        NotAllowed: its role or its scope does not include this.
        Unavailable: the server cannot be reached or does not answer, for as long as `retry_seconds`.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet.

        Raises:
            InvalidValue: `url` is not that of a server, or `token` cannot be sent.
        """
        if not url.startswith(("http://", "https://")):
            raise InvalidValue(
                field="server", value=url, expected="an address such as https://ledger.example"
            )
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidValue(field="token", value="(hidden)", expected="a token such as sl_ID_SECRET")
        self._url = url
        self._retry_seconds = retry_seconds
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1/",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout_seconds,
            follow_redirects=False,  # a token goes to the server it was given for
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()

    # Cohorts

    def open_cohort(self, *, name: str, population: int, epsilon: float, delta: float, policy: str) -> Cohort:
        """Open a cohort, or return it if it was opened with the same parameters."""
        Cohort(name=name, population=population, epsilon_budget=epsilon, delta_budget=delta, policy=policy)
        body = {"name": name, "population": population, "epsilon": epsilon, "delta": delta, "policy": policy}
        return value_of(Cohort, self._ask("POST", "cohorts", body))

    def cohorts(self) -> list[Cohort]:
        """Return the cohorts that the token sees, in the order of their names."""
        found: list[Cohort] = []
        while True:
            after = found[-1].name if found else ""
            page = self._ask("GET", "cohorts", query={"after": after, "limit": _PAGE})
            found += [value_of(Cohort, each) for each in page]
            if len(page) < _PAGE:
                return found

    def cohort(self, name: str) -> Cohort:
        """Return a cohort."""
        return value_of(Cohort, self._ask("GET", f"cohorts/{_segment(name)}"))

    def budget(self, cohort: str) -> BudgetStatement:
        """Return the budget of a cohort."""
        name = checked_text("cohort", cohort)
        return value_of(BudgetStatement, self._ask("GET", f"cohorts/{_segment(name)}/budget"))

    def change_budget(self, cohort: str, *, epsilon: float, reason: str) -> Cohort:
        """Change a cohort's epsilon; a budget that is the present one already stays."""
        reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
        path = f"cohorts/{_segment(checked_text('cohort', cohort))}/budget"
        return value_of(Cohort, self._ask("PUT", path, {"epsilon": epsilon, "reason": reason}))

    def quote(self, cohort: str, rounds: Sequence[ShuffledRound], *, fits: bool = False) -> BatchQuote:
        """Return the price of rounds, one after the other; `fits` also asks what would fit instead."""
        body = {"rounds": [_parameters(each) for each in rounds], "fits": fits}
        return value_of(BatchQuote, self._ask("POST", f"cohorts/{_segment(cohort)}/quote", body))

    # Rounds

    def register(self, request: RoundRequest, *, wait_seconds: float = WAIT_SECONDS) -> Outcome | Pending:
        """Register a round and return its outcome; Pending if it is undecided after `wait_seconds`."""
        body = {
            "round_id": request.round_id,
            "cohort": request.cohort,
            "collected_on": document_of(request.collected_on),
            "use_case": request.use_case,
            **_parameters(request.round),
        }
        ends = time.monotonic() + wait_seconds
        while True:
            left = max(0.0, ends - time.monotonic())
            prefer = {"Prefer": f"wait={round(min(left, _SERVER_WAIT_MAX_SECONDS))}"}
            answer = decision_of(self._ask("POST", "rounds", body, headers=prefer))
            if isinstance(answer, Settled | Voided):
                raise NotADocument(f"a registration was answered with {answer!r:.200}")
            if not isinstance(answer, Pending) or time.monotonic() >= ends:
                return answer

    def round(self, round_id: str) -> RoundRecord:
        """Return a registered round and all that has happened to it."""
        return record_of_document(self._ask("GET", f"rounds/{_segment(round_id)}"))

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """Record what a round really collected."""
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/settle"
        answer = decision_of(self._ask("POST", path, {"reports": reports}))
        return _expected(Settled, answer)

    def void(self, round_id: str, *, reason: str) -> Voided:
        """Give back what a round reserved, because nothing of it was or will be released."""
        reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/void"
        answer = decision_of(self._ask("POST", path, {"reason": reason}))
        return _expected(Voided, answer)

    # The chain

    def entries(self, cohort: str, *, after: int = 0) -> Iterator[PublishedEntry]:
        """Yield a cohort's entries in order, from the one behind sequence `after`."""
        last: int | None = after
        while last is not None:
            query = {"after": last, "limit": _PAGE}
            page = value_of(
                PublishedPage, self._ask("GET", f"cohorts/{_segment(cohort)}/entries", query=query)
            )
            yield from page.entries
            last = page.after

    def heads(self) -> dict[str, Any]:
        """Return the heads of all chains that the token sees, as `ledger.statements.heads` does."""
        found: dict[str, Any] = self._ask("GET", "heads")
        return found

    def verify(self, cohort: str) -> VerificationReport:
        """Have the server replay a cohort's chain."""
        return value_of(VerificationReport, self._ask("POST", f"cohorts/{_segment(cohort)}/verification"))

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        def once() -> Any:
            try:
                answer = self._http.request(method, path, json=body, params=query, headers=headers)
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
                unavailable = Unavailable(f"the server {self._url} cannot be reached: {reason}")
                raise _Transient(unavailable) from error
            return _content(answer)

        trying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, _Transient)),
            stop=stop_after_delay(self._retry_seconds),
            wait=_wait,
            reraise=True,
        )
        try:
            return trying(once)
        except _Transient as last:
            raise last.error from last


_backing_off = wait_random_exponential(multiplier=0.1, max=RETRY_WAIT_MAX_SECONDS)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Transient) and error.wait_seconds is not None:
        return min(error.wait_seconds, RETRY_WAIT_MAX_SECONDS)
    return _backing_off(state)


def _content(answer: httpx.Response) -> Any:
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
    if kind in ("bad_value", "contradiction"):
        given = _as_given(str(document.get("value")))
        return InvalidValue(
            field=str(document.get("field")), value=given, expected=str(document.get("expected"))
        )
    error = _KINDS.get(kind, LedgerError)(detail)
    if answer.status_code in (429, 502, 503, 504) and not isinstance(error, BehindCheckpoint):
        wait = answer.headers.get("Retry-After", "")
        return _Transient(error, float(wait) if wait.isdigit() else None)
    return error


def _as_given(text: str) -> object:
    """Return a number that the server showed as a text as the number; everything else as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def _expected(kind: type[Value], answer: object) -> Value:
    if not isinstance(answer, kind):
        raise NotADocument(f"expected {kind.__name__}, got {answer!r:.200}")
    return answer


def _parameters(shuffled: ShuffledRound) -> dict[str, Any]:
    return dict(shuffled.to_mapping())


def _segment(name: str) -> str:
    """Return a name as one segment of a path; "." and ".." would be taken for steps."""
    return quoted(name, safe="").replace(".", "%2E") if name in (".", "..") else quoted(name, safe="")
