"""A client for the HTTP API: the ledger's own values, through a server.

Requests are repeated when an answer is lost, which is safe: identifiers make every one of them idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote as quoted

import httpx

from shuffle_ledger.accounting import CALIBRATION_POLICIES, ShuffledRound
from shuffle_ledger.ledger.checkpoints.saved_heads import SavedHeads, document_of_heads
from shuffle_ledger.ledger.client.operations import (
    Ask,
    Awaiting,
    Blocking,
    Found,
    Listing,
    Operation,
    Pages,
    Pause,
    Steps,
    collected,
)
from shuffle_ledger.ledger.client.transport import PROBLEM, RETRY_SECONDS, TIMEOUT_SECONDS, AsyncWire, Wire
from shuffle_ledger.ledger.decisions.quotas import QuotaReading
from shuffle_ledger.ledger.decisions.quoting import BatchQuote
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.permits import IssuedPermit
from shuffle_ledger.ledger.reports.budgets import BudgetStatement
from shuffle_ledger.ledger.reports.events import Event, EventPage
from shuffle_ledger.ledger.reports.forecasts import Forecast, ForecastWanted
from shuffle_ledger.ledger.reports.joint_forecasts import JointForecast, described_in
from shuffle_ledger.ledger.reports.listing import ShownCohort
from shuffle_ledger.ledger.reports.published_entries import PublishedEntry, PublishedPage
from shuffle_ledger.ledger.reports.round_lists import ListedRound, RoundPage
from shuffle_ledger.ledger.storage.rows import Standing, StoredHead
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.audiences import checked_audience
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, CheckpointHead, read_head
from shuffle_ledger.ledger.values.documents import (
    Json,
    NotADocument,
    Value,
    decision_of,
    document_of,
    record_of_document,
    value_of,
)
from shuffle_ledger.ledger.values.quotas import checked_team
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    Cohort,
    Corrected,
    Incident,
    Opening,
    Outcome,
    Pending,
    Quote,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
    RoundState,
    Settled,
    Voided,
    checked_epsilon,
    cohort_from_opening,
)
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.verification.verifier import Entries, Numbers, VerificationReport

__all__ = ["PROBLEM", "AsyncLedgerClient", "LedgerClient"]

WAIT_SECONDS = 60.0  # for a decision, where workers make them
_BEGUN_MAX = 20  # for one that a restarted server lost, or that another server is asked for
_SERVER_WAIT_MAX_SECONDS = 30.0  # in one request; a longer wait is several
PAGE_ROWS = 500  # asked for at once; fewer make more requests


class _Operations:
    """The operations of a server, which both clients have."""

    _wait_seconds: float  # for a decision, where a call names no other number

    # Cohorts

    @Operation
    def open_cohort(
        self,
        *,
        plan: Mapping[ShuffledRound, int] | None = None,
        approximate_share: float | None = None,
        accept_warnings: bool = False,
        **opening: Unpack[Opening],
    ) -> Steps[Cohort]:
        """Open a cohort, or return it if it was opened with the same parameters; see `Opening` for them.

        Raises:
            UnacceptedWarnings: it would be new, and its parameters are unusual; `accept_warnings` says that
                they are meant.
        """
        checked = cohort_from_opening(**opening)
        given = {**opening, "labels": dict(checked.labels), "windows": document_of(checked.windows)}
        given |= {"accept_warnings": accept_warnings, "approximate_share": approximate_share}
        # What says nothing is left out: an older server does not know every field.
        body: dict[str, Any] = {name: value for name, value in given.items() if value}
        if plan is not None:
            body["plan"] = [{**_parameters(each), "count": count} for each, count in plan.items()]
        return value_of(Cohort, (yield Ask("POST", "cohorts", body, long=plan is not None)))

    @Operation
    def cohorts(self) -> Steps[list[Cohort]]:
        """Return the cohorts that the token sees, in the order of their names."""
        return (yield from collected(_cohort_pages("")))

    @Listing
    def each_cohort(self, *, after: str = "") -> Pages[Cohort]:
        """Yield the cohorts that the token sees, in the order of their names, those behind `after`: in pages,
        so that the first ones are there soon."""
        return _cohort_pages(after)

    @Operation
    def cohort(self, name: str) -> Steps[ShownCohort]:
        """Return a cohort, with the slots of its plan."""
        return value_of(ShownCohort, (yield Ask("GET", f"cohorts/{_segment(name)}")))

    @Operation
    def budget(self, cohort: str) -> Steps[BudgetStatement]:
        """Return the budget of a cohort."""
        name = checked_text("cohort", cohort)
        return value_of(BudgetStatement, (yield Ask("GET", f"cohorts/{_segment(name)}/budget")))

    @Operation
    def change_budget(self, cohort: str, *, epsilon: float, reason: str) -> Steps[Cohort]:
        """Change a cohort's epsilon; a budget that is the present one already stays."""
        path = f"cohorts/{_segment(checked_text('cohort', cohort))}/budget"
        return value_of(Cohort, (yield Ask("PUT", path, _changed_to(epsilon, reason))))

    @Operation
    def quotas(self, cohort: str) -> Steps[tuple[QuotaReading, ...]]:
        """Return the quotas that teams have in a cohort, in the order of the teams."""
        answer = yield Ask("GET", f"cohorts/{_segment(checked_text('cohort', cohort))}/quotas")
        return tuple(value_of(QuotaReading, each) for each in answer)

    @Operation
    def set_quota(self, cohort: str, *, team: str, epsilon: float, reason: str) -> Steps[QuotaReading]:
        """Set what a team's rounds may use of a cohort's budget; see `decisions.quotas.set_quota`."""
        path = f"cohorts/{_segment(checked_text('cohort', cohort))}/quotas/{_segment(checked_team(team))}"
        return value_of(QuotaReading, (yield Ask("PUT", path, _changed_to(epsilon, reason))))

    @Operation
    def quote(self, cohort: str, rounds: Sequence[ShuffledRound], *, fits: bool = False) -> Steps[BatchQuote]:
        """Return the price of rounds, one after the other; `fits` also asks what would fit instead."""
        body = {"rounds": [_parameters(each) for each in rounds], "fits": fits}
        return value_of(BatchQuote, (yield Ask("POST", f"cohorts/{_segment(cohort)}/quote", body)))

    @Operation
    def quote_for_all(self, request: RoundRequest) -> Steps[Quote]:
        """Return the price of a round of several cohorts, or of the days of its collection."""
        body = {**_cohorts_of(request), **_days_of(request), **_parameters(request.round)}
        return value_of(Quote, (yield Ask("POST", "quote", body)))

    @Operation
    def audience(self, audience: str, *, round_id: str | None = None) -> Steps[tuple[str, ...]]:
        """Return the cohorts that a selector or a list means, as `decisions.audiences.resolve_audience`."""
        query: dict[str, Any] = {"select": audience, **({"round_id": round_id} if round_id else {})}
        found = yield Ask("GET", "audience", query=query)
        return checked_audience(found.get("audience") if isinstance(found, dict) else None)

    @Operation
    def forecast(self, cohort: str, wanted: ForecastWanted) -> Steps[Forecast]:
        """Return how many more rounds fit, as `reports.forecasts.forecast` does, by the server's day."""
        path = f"cohorts/{_segment(checked_text('cohort', cohort))}/forecast"
        return value_of(Forecast, (yield Ask("POST", path, _question(wanted), long=True)))

    @Operation
    def forecast_for_all(self, audience: Sequence[str], wanted: ForecastWanted) -> Steps[JointForecast]:
        """Return how many more rounds of some cohorts fit, as `reports.joint_forecasts.joint_forecast` does.

        For the team of the token, by the server's day.
        """
        described_in(wanted)
        body = {"audience": list(checked_audience(audience)), **_question(wanted)}
        return value_of(JointForecast, (yield Ask("POST", "forecast", body, long=True)))

    # Calculators: they ask of no cohort

    @Operation
    def amplify(
        self, described: ShuffledRound, *, delta: float | None = None, epsilon: float | None = None
    ) -> Steps[dict[str, Json]]:
        """Return what `amplify --json` prints of a round: epsilon at a delta, or delta at an epsilon."""
        return (
            yield from self._calculated(
                "amplify", {**_parameters(described), "delta": delta, "epsilon": epsilon}
            )
        )

    @Operation
    def compose(
        self,
        rounds: Mapping[ShuffledRound, int],
        *,
        delta: float | None = None,
        epsilon: float | None = None,
    ) -> Steps[dict[str, Json]]:
        """Return what `compose --json` prints of rounds, each with how often it happens."""
        listed = [{**_parameters(each), "count": count} for each, count in rounds.items()]
        return (
            yield from self._calculated("compose", {"rounds": listed, "delta": delta, "epsilon": epsilon})
        )

    @Operation
    def calibrate(
        self,
        described: Mapping[str, object],
        *,
        epsilon: float,
        delta: float,
        rounds: int = 1,
        policy: str = CALIBRATION_POLICIES[0],
    ) -> Steps[dict[str, Json]]:
        """Return what `calibrate --json` prints; arguments are as of `accounting.calibrate`."""
        target = {"epsilon": epsilon, "delta": delta, "rounds": rounds, "policy": policy}
        return (yield from self._calculated("calibrate", {**described, **target}))

    def _calculated(self, name: str, question: Mapping[str, object]) -> Steps[dict[str, Json]]:
        answer = yield Ask("POST", name, question)
        if not isinstance(answer, dict):
            raise NotADocument(f"expected an answer of {name}, got {answer!r:.200}")
        return answer

    # Rounds

    @Operation
    def register(
        self, request: RoundRequest, *, wait_seconds: float | None = None
    ) -> Steps[Outcome | Pending]:
        """Register a round and return its outcome; Pending if it is undecided after `wait_seconds`,
        by default those of the client.

        A repeated registration answers with the round's present state. Admitted permits one release.

        Raises:
            Conflict: the identifier is bound to other content.
            NotCollectable: the round was admitted before, and is voided or settled, or its cohort is frozen
                or overspent (`state`, `cohort_status`).
        """
        body = {
            "round_id": request.round_id,
            **_cohorts_of(request),
            "collected_on": None,
            **_days_of(request),
            "use_case": request.use_case,
            **_parameters(request.round),
        }
        return (yield from self._decided("rounds", body, wait_seconds))

    @Operation
    def retry(self, round_id: str, *, wait_seconds: float | None = None) -> Steps[Outcome | Pending]:
        """Have a round decided that was left alone after too many failures; otherwise as `register`."""
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/retry"
        return (yield from self._decided(path, None, wait_seconds))

    @Operation
    def round(self, round_id: str) -> Steps[RoundRecord]:
        """Return a registered round and all that has happened to it."""
        return record_of_document((yield Ask("GET", f"rounds/{_segment(round_id)}")))

    @Listing
    def rounds(
        self,
        cohort: str | None = None,
        *,
        outcome: RoundState | None = None,
        since: datetime | None = None,
    ) -> Pages[ListedRound]:
        """Yield rounds in the order of registration, as `reports.round_lists.list_rounds` lists them.

        Args:
            cohort: only of this one; None: of every cohort that the token sees.
            outcome: only rounds that are in this state now.
            since: only those registered then or later; with its zone.
        """
        asked = {"cohort": cohort, "outcome": outcome, "since": since and canonical.spelled_moment(since)}
        query: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        while True:
            page = value_of(RoundPage, (yield Ask("GET", "rounds", query={**query, "limit": PAGE_ROWS})))
            yield Found(page.rounds)
            if page.after is None:
                return
            query["after"] = page.after

    @Operation
    def settle(self, round_id: str, *, reports: int) -> Steps[Settled]:
        """Record what a round really collected."""
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/settle"
        answer = decision_of((yield Ask("POST", path, {"reports": reports})))
        return _expected(Settled, answer)

    @Operation
    def permit(self, round_id: str, *, releaser: str | None = None) -> Steps[IssuedPermit]:
        """Return the permit of an admitted round, as `permits.issue_permit`."""
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/permit"
        return value_of(IssuedPermit, (yield Ask("POST", path, {"releaser": releaser})))

    @Operation
    def permit_keys(self) -> Steps[dict[str, Any]]:
        """Return the public keys of permits: a JWK set."""
        return dict((yield Ask("GET", "permits/keys")))

    @Operation
    def revoked_permits(self) -> Steps[str]:
        """Return the signed list of revoked permits."""
        return bytes((yield Ask("GET", "permits/revoked"))).decode("ascii")

    @Operation
    def settle_by_receipt(self, receipt: str) -> Steps[Settled | Incident]:
        """Settle a round with the number of reports in a receipt, as `receipts.settle_by_receipt`."""
        answer = decision_of((yield Ask("POST", "receipts", {"receipt": receipt})))
        return answer if isinstance(answer, Incident) else _expected(Settled, answer)

    @Operation
    def void(self, round_id: str, *, reason: str) -> Steps[Voided]:
        """Give back what a round reserved, because nothing of it was or will be released."""
        reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/void"
        answer = decision_of((yield Ask("POST", path, {"reason": reason})))
        return _expected(Voided, answer)

    @Operation
    def correct(self, round_id: str, changes: Mapping[str, object], *, reason: str) -> Steps[Corrected]:
        """Tell what a released round truly was, as `decisions.correct` does."""
        reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
        path = f"rounds/{_segment(checked_text('round_id', round_id))}/corrections"
        return _expected(Corrected, decision_of((yield Ask("POST", path, {**changes, "reason": reason}))))

    @Operation
    def record_incident(
        self,
        cohort: str,
        *,
        round_id: str,
        described: ShuffledRound | None,
        reason: str,
        released: ReleaseTimes | None = None,
        collected_on: date | None = None,
        collected_until: date | None = None,
    ) -> Steps[Incident]:
        """Record a release that nothing admitted, as `decisions.incidents.record_incident` does."""
        times = (released or ReleaseTimes()).to_mapping()
        body = {
            "round_id": checked_text("round_id", round_id),
            "round": None if described is None else _parameters(described),
            "reason": checked_text("reason", reason, length_max=REASON_LENGTH_MAX),
            **{f"released_{name}": moment for name, moment in times.items()},
        }
        days = {"collected_on": collected_on, "collected_until": collected_until}
        body.update({name: day.isoformat() for name, day in days.items() if day is not None})
        path = f"cohorts/{_segment(checked_text('cohort', cohort))}/incidents"
        return _expected(Incident, decision_of((yield Ask("POST", path, body))))

    # The chain

    @Listing
    def entries(self, cohort: str, *, after: int = 0) -> Pages[PublishedEntry]:
        """Yield a cohort's entries in order, from the one behind sequence `after`."""
        last: int | None = after
        while last is not None:
            query = {"after": last, "limit": PAGE_ROWS}
            page = value_of(
                PublishedPage, (yield Ask("GET", f"cohorts/{_segment(cohort)}/entries", query=query))
            )
            yield Found(page.entries)
            last = page.after

    @Listing
    def events(
        self,
        *,
        after: str | None = None,
        cohort: str | None = None,
        kinds: Sequence[str] = (),
        poll_seconds: float | None = None,
    ) -> Pages[Event]:
        """Yield the entries of all chains that the token sees, as `reports.events.events_after` orders them.

        Args:
            after: the `cursor` of the last event that was handled; None: from the first entry.
            cohort: only of this one, and of the periods of its windows.
            kinds: only of these kinds; empty: of all.
            poll_seconds: pause at the end of the feed before it is asked again, for ever; None: ends there.

        Raises:
            Conflict: the ledger has no event with this cursor.
        """
        asked = {"cohort": cohort, "kind": list(kinds) or None}
        query: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        while True:
            position = {} if after is None else {"after": after}
            found = yield Ask("GET", "events", query={**query, **position, "limit": PAGE_ROWS})
            page = value_of(EventPage, found)
            yield Found(page.events)
            after = page.after
            if page.more:
                continue
            if poll_seconds is None:
                return
            yield Pause(poll_seconds)

    @Operation
    def heads(self) -> Steps[dict[str, Any]]:
        """Return the heads of all chains that the token sees, as `reports.budgets.heads` does: of one
        moment."""
        found: dict[str, Any] = yield Ask("GET", "heads")
        return found

    @Listing
    def each_head(self, *, after: str = "") -> Pages[CheckpointHead]:
        """Yield the heads of the chains that the token sees, in the order of their names, those behind
        `after`: in pages, each of another moment."""
        position: str | None = after
        while position is not None:
            page = yield Ask("GET", "heads", query={"after": position, "limit": PAGE_ROWS})
            yield Found([read_head(each) for each in page["heads"]])
            position = page.get("after")  # an older server answers with all heads, and without it

    @Operation
    def standing(self, *, follows: Checkpoint | None = None) -> Steps[Standing]:
        """Return where all chains end, to be signed, as `storage.anchor.standing_after` does."""
        body = {"follows": follows.to_json() if follows else None}
        found = yield Ask("POST", "standing", body)
        try:
            listed = [read_head(each) for each in found["heads"]]
            return Standing(
                ledger_id=str(found["ledger_id"]),
                at=datetime.fromisoformat(found["at"]),
                heads=tuple(
                    StoredHead(
                        cohort=each.cohort, sequence=each.sequence, digest=bytes.fromhex(each.digest_hex)
                    )
                    for each in listed
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise NotADocument(f"not where a ledger's chains end: {error}") from error

    @Operation
    def verify(
        self,
        cohort: str | None = None,
        *,
        against: SavedHeads | None = None,
        numbers: Numbers = "sampled",
        entries: Entries = "all",
        progress: Progress | None = None,
    ) -> Steps[VerificationReport]:
        """Have the server replay one chain or all, as `verification.verifier.verify` does.

        With `entries="new"`, from the position that its scheduler verified and signed last. What takes long
        is done in the server's background, as for `statement`.

        Args:
            cohort: whose chain; None: all.
            against: heads that were kept elsewhere.
            numbers: which numbers are computed again.
            entries: which entries are replayed.
            progress: told what the server is doing, if that takes long.
        """
        body: dict[str, Any] = {"numbers": numbers}
        if entries != "all":  # else left out: an older server does not know the field
            body["entries"] = entries
        if cohort is not None:
            body["cohort"] = checked_text("cohort", cohort)
        if against is not None:
            body["against"], trusted = document_of_heads(against)
            body["public_key"] = trusted.hex() if trusted else None
        asked = Ask("POST", "verification", body, long=True)
        return value_of(VerificationReport, (yield from _made(asked, "verification", progress)))

    @Operation
    def statement(self, wanted: StatementWanted, *, progress: Progress | None = None) -> Steps[Statement]:
        """Return a statement, made when the server says, as `evidence.statement_builder.make_statement` does.

        A statement that takes long is made in the server's background, and asked for until it is finished. A
        server that restarted meanwhile is asked to make it again.

        Args:
            wanted: what to state.
            progress: told what the server is doing, if that takes long.
        """
        as_of = wanted.as_of
        body = {
            "cohorts": None if wanted.cohorts is None else list(wanted.cohorts),
            "as_of": as_of.isoformat() if isinstance(as_of, datetime) else as_of,
            "since": wanted.since,
            "kept": [
                {"cohort": cohort, "sequence": head.sequence, "digest": head.digest}
                for cohort, head in wanted.kept
            ],
        }
        asked = Ask("POST", "statements", body, long=True)
        return value_of(Statement, (yield from _made(asked, "statement", progress)))

    @Operation
    def bundle(self, cohorts: Sequence[str] | None, *, checkpoint: Checkpoint | None = None) -> Steps[bytes]:
        """Return the evidence of cohorts, all if None, as `evidence.bundle.make_bundle` does."""
        body = {
            "cohorts": None if cohorts is None else list(cohorts),
            "checkpoint": None if checkpoint is None else checkpoint.to_json(),
        }
        found = yield Ask("POST", "bundles", body, long=True)
        if not isinstance(found, bytes):
            raise NotADocument("a bundle is not JSON")
        return found

    @Operation
    def health(self) -> Steps[Health]:
        """Return what `health.health` returns, and how long the broker's queues are."""
        return value_of(Health, (yield Ask("GET", "health")))

    def _decided(
        self, path: str, body: Mapping[str, Any] | None, wait_seconds: float | None
    ) -> Steps[Outcome | Pending]:
        ends = time.monotonic() + (self._wait_seconds if wait_seconds is None else wait_seconds)
        while True:
            left = max(0.0, ends - time.monotonic())
            prefer = {"Prefer": f"wait={round(min(left, _SERVER_WAIT_MAX_SECONDS))}"}
            answer = decision_of((yield Ask("POST", path, body, headers=prefer)))
            if isinstance(answer, Settled | Voided | Corrected | Incident):
                raise NotADocument(f"a registration was answered with {answer!r:.200}")
            if not isinstance(answer, Pending) or time.monotonic() >= ends:
                return answer


class LedgerClient(_Operations, Blocking):
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
        wait_seconds: float = WAIT_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet.

        Raises:
            InvalidValue: `url` is not that of a server, or `token` cannot be sent.
        """
        self._wait_seconds = wait_seconds
        self._wire = Wire(
            url, token, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds, transport=transport
        )

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()


class AsyncLedgerClient(_Operations, Awaiting):
    """The same for programs that use asyncio: methods are awaited, and iterators are asynchronous.

        async with AsyncLedgerClient(url, token) as ledger:
            budget = await ledger.budget("de-phone")
            async for event in ledger.events(): ...

    One client serves any number of tasks of one event loop. Errors are those of `LedgerClient`.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet; raises as `LedgerClient` does."""
        self._wait_seconds = wait_seconds
        self._wire = AsyncWire(
            url, token, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds, transport=transport
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()


def _cohort_pages(after: str) -> Pages[Cohort]:
    while True:
        page = yield Ask("GET", "cohorts", query={"after": after, "limit": PAGE_ROWS})
        found = [value_of(Cohort, each) for each in page]
        yield Found(found)
        if len(page) < PAGE_ROWS:
            return
        after = found[-1].name


def _expected(kind: type[Value], answer: object) -> Value:
    if not isinstance(answer, kind):
        raise NotADocument(f"expected {kind.__name__}, got {answer!r:.200}")
    return answer


def _cohorts_of(request: RoundRequest) -> dict[str, Any]:
    """Return how a body names the cohorts of a round: as ever, if there is one."""
    if not request.audience:
        return {"cohort": request.cohort}
    return {"audience": list(request.audience)}


def _question(wanted: ForecastWanted) -> dict[str, Any]:
    """Return a question about the future as a body has it."""
    asked = {name: document_of(value) for name, value in vars(wanted).items() if name != "round"}
    return {"round": None if wanted.round is None else _parameters(wanted.round), **asked}


def _days_of(request: RoundRequest) -> dict[str, Any]:
    """Return the days of collection as a body has them: only those there are."""
    days = {"collected_on": request.collected_on, "collected_until": request.collected_until}
    return {name: document_of(day) for name, day in days.items() if day is not None}


def _parameters(shuffled: ShuffledRound) -> dict[str, Any]:
    """Return the words that described a round: the server reads them with its own defaults."""
    return shuffled.asked_mapping()


def _changed_to(epsilon: float, reason: str) -> dict[str, Any]:
    checked = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    return {"epsilon": checked_epsilon(epsilon), "reason": checked}


def _made(asked: Ask, kind: str, progress: Progress | None) -> Steps[Any]:
    """Return what a request asks for, made in the server's background if it takes long.

    A server that restarted meanwhile is asked to make it again.
    """
    begun = 1
    while True:
        found = yield asked
        try:
            return (yield from _finished(found, kind, progress))
        except NotFound:
            if not _is_unfinished(found, kind) or begun == _BEGUN_MAX:
                raise
        begun += 1


def _finished(found: Any, kind: str, progress: Progress | None) -> Steps[Any]:
    """Return an answer once the server has made it in its background."""
    while _is_unfinished(found, kind):
        if progress is not None and found["step"] is not None:
            progress(str(found["step"]), int(found["done"]), int(found["of"]))
        found = yield Ask("GET", f"{kind}s/{_segment(str(found[f'{kind}_id']))}", long=True)
    return found


def _is_unfinished(found: Any, kind: str) -> bool:
    """Return whether an answer says that what was asked for is still made."""
    return isinstance(found, Mapping) and f"{kind}_id" in found


def _segment(name: str) -> str:
    """Return a name as one segment of a path; "." and ".." would be taken for steps."""
    return quoted(name, safe="").replace(".", "%2E") if name in (".", "..") else quoted(name, safe="")
