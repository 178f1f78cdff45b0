"""Pages for people: rendered here, without scripts; every number is one that the API gives too."""

from __future__ import annotations

import asyncio
import csv
import hmac
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound, bounds_text
from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.answers.budgets import PromiseReading, least_promise, worth_showing
from shuffle_ledger.ledger.answers.summaries import ASSUMES
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.api.auth.middleware import address_of, session_cookie
from shuffle_ledger.ledger.api.auth.sessions import COOKIE, SESSION_SECONDS
from shuffle_ledger.ledger.api.dependencies import (
    Asked,
    Reader,
    Service,
    in_thread,
    seen_cohort,
    service_of,
)
from shuffle_ledger.ledger.api.overview import COMPUTED_AT_ONCE, Outlook
from shuffle_ledger.ledger.api.pages import charts
from shuffle_ledger.ledger.api.pages.first_row import (
    COMPUTING,
    ON_ITS_PAGE,
    FirstRow,
    detail_of,
    first_row,
    row_of,
)
from shuffle_ledger.ledger.api.pages.spending import Continuation, drawn_until, spending_picture
from shuffle_ledger.ledger.api.strict_body import check_media_type
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.decisions.quotas import quotas_of
from shuffle_ledger.ledger.decisions.quoting import fits_instead, quote_batch
from shuffle_ledger.ledger.errors import InvalidValue, NotAllowed
from shuffle_ledger.ledger.evidence.conditions import OF_SEVERAL_REPORTS
from shuffle_ledger.ledger.health import VERIFIED_ALARM_SECONDS
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.reports.budgets import history, history_point
from shuffle_ledger.ledger.reports.chain_outlines import REFUSALS_COUNTED_MAX, refused_since
from shuffle_ledger.ledger.reports.forecasts import kind_forecast, recent_schedule, schedule_spending
from shuffle_ledger.ledger.reports.listing import (
    EVERY_ENTRY,
    CohortHead,
    EntryFilter,
    cohort_heads,
    latest_entries,
    matching_entries,
)
from shuffle_ledger.ledger.reports.profile import ProfilePoint, profile_of
from shuffle_ledger.ledger.reports.promises import promises_of
from shuffle_ledger.ledger.reports.spent_by_day import spent_by_day
from shuffle_ledger.ledger.reports.urgency import urgent
from shuffle_ledger.ledger.roles import Permission
from shuffle_ledger.ledger.security_log import SecurityEvent
from shuffle_ledger.ledger.storage.rows import CohortView, StoredVerification
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.days import NotADay, day_from
from shuffle_ledger.ledger.values.documents import document_of
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import Quote, RoundRequest, refusal_in_words, worst_status
from shuffle_ledger.ledger.verification.verifier import without_names

COHORTS_ON_PAGE = 100
REFUSED_DAYS = 30  # whose refusals the overview counts
ENTRIES_DRAWN = 1000
ENTRIES_LISTED = 50
ENTRIES_SEARCHED = 5_000  # through which one page of a filtered history looks at most
PROFILE_SECONDS = 0.4  # after that the page comes without it, and the next one finds it
PROFILE_SECONDS_NEXT = 5  # after which a page without its profile is asked for again
MAXIMUM_SEQUENCE = 2**63 - 1
HISTORY_COLUMNS = (
    *("sequence", "kind", "round_id", "actor", "recorded_at", "collected_on", "use_case"),
    *("epsilon_spent_upper", "epsilon_spent_lower", "epsilon_requested_upper", "reason"),
)
FORM_FIELDS = (
    *("randomizer", "reports", "collected_on", "collected_until"),
    *("sampled_from", "honest_fraction", "reports_per_user"),
)
_WHOLE = re.compile(
    r"\d{1,20}|\d{1,3}(?:([, ])\d{3})(?:\1\d{3}){0,5}", re.ASCII
)  # 3000000, 3,000,000, 3 000 000
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

router = APIRouter(include_in_schema=False)
_templates = Environment(
    loader=PackageLoader("shuffle_ledger.ledger.api.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "upper": charts.upper,
    "lower": charts.lower,
    "bounds": bounds_text,
    "plain": charts.plain,
    "segment": lambda name: quote(name, safe=""),
    "refusal_in_words": refusal_in_words,
    "worth_showing": worth_showing,
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry as the history lists it."""

    sequence: int
    at: datetime
    collected_on: date | None
    kind: str
    round_id: str | None
    what: str | None
    reports: int | None
    spent: float
    reason: str | None
    actor: str


@dataclass(frozen=True, kw_only=True)
class _HistoryShown:
    """Which entries the history shows."""

    before: int | None = None
    wanted: EntryFilter = EVERY_ENTRY

    @property
    def query(self) -> str:
        """The filter as the query of an address."""
        fields = {
            "kind": self.wanted.kind,
            "randomizer": self.wanted.randomizer,
            "use_case": self.wanted.use_case,
            "first": self.wanted.first,
            "last": self.wanted.last,
        }
        return urlencode({name: str(value) for name, value in fields.items() if value is not None})


_LAST = _HistoryShown()


@router.get("/style.css")
async def style() -> Response:
    """Answer the pages' style."""
    text = (files("shuffle_ledger.ledger.api.pages") / "templates" / "style.css").read_text("utf-8")
    return Response(text, media_type="text/css", headers={"Cache-Control": "max-age=3600"})


@router.get("/login")
async def login_form(request: Request) -> HTMLResponse:
    """Ask for a token."""
    return _login_page(request, wrong=None)


@router.post("/login")
async def log_in(request: Request, service: Asked) -> Response:
    """Start a session for a valid token."""
    _refuse_other_sites(request)
    text = (await _form(request)).get("token", "").strip()
    found = await service.door.check(request.scope, text, only_own=True)
    if not isinstance(found, AccessToken):
        wrong = (
            "This token is not valid." if found.status_code == 401 else "Too many wrong tokens: wait a while."
        )
        return _login_page(request, status=found.status_code, wrong=wrong)
    security_log.record(
        SecurityEvent.LOGGED_IN,
        token_id=found.token_id,
        name=found.name,
        role=found.role,
        address=address_of(request.scope),
    )
    return _with_session(request, service.sessions.start(found), location="/", seconds=SESSION_SECONDS)


@router.post("/logout")
async def log_out(request: Request, token: Reader, service: Asked) -> Response:
    """End the session, here and wherever else its cookie is."""
    await checked_form(request)
    await in_thread(service.sessions.end, service.store, session_cookie(request.scope, service.sessions))
    security_log.record(
        SecurityEvent.LOGGED_OUT,
        token_id=token.token_id,
        name=token.name,
        role=token.role,
        address=address_of(request.scope),
    )
    return _with_session(request, "", location="/login", seconds=0)


@router.get("/")
async def cohorts(
    *,
    request: Request,
    token: Reader,
    service: Asked,
    after: Annotated[str, Query(max_length=200)] = "",
    search: Annotated[str, Query(max_length=200)] = "",
    sort: Annotated[Literal["urgency", "name"], Query()] = "urgency",
) -> HTMLResponse:
    """Shows a page of the cohorts that the token may see, with the rest of their budgets: the most urgent
    first, or by their names; all, or those with a text in their names."""
    asked = partial(urgent, service.store, token, datetime.now(UTC).date(), limit=COHORTS_ON_PAGE)
    found = await in_thread(partial(asked, after=after, search=search.strip(), by_name=sort == "name"))
    heads = await in_thread(cohort_heads, service.store, only=found.names)
    await in_thread(service.store.check_anchor)
    listed = {head.body.cohort: head for head in heads}
    # How many wait in all cohorts is not for whom some of them do not exist.
    waiting = await in_thread(service.store.waiting) if token.cohorts is None else None
    cards = await _cards(service, [listed[name] for name in found.names if name in listed])
    values: dict[str, Any] = {
        "refusals": {"days": REFUSED_DAYS, "counted_max": REFUSALS_COUNTED_MAX},
        "cards": cards,
        "urgent": found,
        "waiting": waiting,
        "after": after,
        "search": search.strip(),
        "sort": sort,
        "query": urlencode({"search": search.strip(), "sort": sort}),
        "following": found.names[-1] if found.more else None,
    }
    answer = page("cohorts.html.jinja", request, **values)
    if any(card.unknown == COMPUTING for card in cards):
        answer.headers["Refresh"] = str(PROFILE_SECONDS_NEXT)  # as of a cohort's page
    return answer


@dataclass(frozen=True, kw_only=True)
class Card:
    """One cohort on the overview."""

    head: CohortHead
    promises: tuple[PromiseReading, ...]  # that a round collected today is charged to
    spark: charts.Spark | None
    refused_of_late: int
    outlook: Outlook | None  # None: not computed, as `unknown` says
    unknown: str | None
    verified_at: datetime | None  # on a schedule; None: never

    @property
    def row(self) -> FirstRow:
        """The first row of the card: about the promise that has the least left."""
        outlook = self.outlook
        least = least_promise(self.promises)
        return first_row(
            status=worst_status(self.head.status, least.status),
            spent=least.epsilon_spent_upper,
            budget=least.epsilon_budget,
            detail=detail_of(least),
            fits=outlook.fits if outlook is not None else (),
            late=outlook.of_late if outlook is not None else None,
            unknown=self.unknown,
            renews=least.renews if self.head.status == "open" else None,
        )

    @property
    def state(self) -> str:
        """The state of the cohort, in words: the most urgent that holds."""
        if self.row.state != "open":
            return self.row.state
        since = self.verified_at or self.head.opened_at
        late = datetime.now(UTC) - since > timedelta(seconds=VERIFIED_ALARM_SECONDS)
        return "unverified" if late else "open"


async def _cards(service: Service, heads: Sequence[CohortHead]) -> list[Card]:
    """Return the cards of some cohorts, by a bounded number of statements and of computations."""
    now = datetime.now(UTC)
    names = [head.body.cohort for head in heads]
    outlines = await in_thread(service.overview.outlines, heads)
    listed = await in_thread(partial(service.store.cohorts, only=names))
    promises = await in_thread(promises_of, service.store, listed, now.date())
    since = now - timedelta(days=REFUSED_DAYS)
    refused = await in_thread(refused_since, service.store, names, since)
    verified = await in_thread(partial(service.store.verifications, only=names))
    ordered = [(name, outlines[name]) for name in names]
    outlooks = service.overview.known_outlooks(ordered, today=now.date())
    if len(outlooks) < len(names) and not service.reading.waiting:
        computing = partial(service.overview.outlooks, seen=ordered, today=now.date())
        outlooks = await service.reading.run(computing)
        service.begin(_computed_while_idle(service.reading, partial(computing, seconds=0.0)))
    return [
        Card(
            head=head,
            promises=promises[name],
            spark=charts.sparkline(outlines[name].curve, budget=head.body.epsilon_budget)
            if head.has_life
            else None,
            refused_of_late=refused.get(name, 0),
            outlook=outlooks.get(name),
            unknown=COMPUTING if name not in outlooks else ON_ITS_PAGE if outlooks[name] is None else None,
            verified_at=verified[name].verified_at if name in verified else None,
        )
        for name, head in zip(names, heads, strict=True)
    ]


async def _computed_while_idle(thread: AccountantThread, one_more: Callable[[Accountant], object]) -> None:
    """Compute forecasts that a page left out, for the next one, until another request is in line."""
    for _ in range(COMPUTED_AT_ONCE):
        if thread.waiting:
            return
        await thread.run(one_more)


@router.get("/cohorts/{cohort}")
async def cohort_page(
    *,
    cohort: str,
    request: Request,
    token: Reader,
    service: Asked,
    before: Annotated[int | None, Query(ge=2, le=MAXIMUM_SEQUENCE)] = None,
    kind: Annotated[EntryKind | Literal[""] | None, Query()] = None,
    randomizer: Annotated[str, Query(max_length=100)] = "",
    use_case: Annotated[str, Query(max_length=200)] = "",
    first: Annotated[date | Literal[""] | None, Query()] = None,
    last: Annotated[date | Literal[""] | None, Query()] = None,
) -> HTMLResponse:
    """Show a cohort: its budget over time, its profile, its rounds.

    Args:
        cohort: its name.
        request: for the page.
        token: whose page it is.
        service: the server's.
        before: the history shows entries before this one; None: the last ones.
        kind: the history shows only these entries; and so with the next fields.
        randomizer: the name of the randomizer of their rounds.
        use_case: the use case of their rounds.
        first: the first day of collection; of entries without one, the day on which they were recorded.
        last: the last day.
    """
    wanted = EntryFilter(
        kind=kind or None,
        randomizer=randomizer.strip() or None,
        use_case=use_case.strip() or None,
        first=first or None,
        last=last or None,
    )
    listed = _HistoryShown(before=before, wanted=wanted)
    return await _cohort(request, service, seen_cohort(token, cohort), listed=listed)


@router.get("/cohorts/{cohort}/history.csv")
async def history_csv(cohort: str, token: Reader, service: Asked) -> StreamingResponse:
    """Answer a cohort's whole history as CSV."""
    name = seen_cohort(token, cohort)
    await in_thread(service.store.cohort, name)
    headers = {"Content-Disposition": 'attachment; filename="history.csv"', "Cache-Control": "no-store"}
    return StreamingResponse(_history_lines(service.store, name), media_type="text/csv", headers=headers)


@router.post("/cohorts/{cohort}/quote")
async def quote_page(cohort: str, request: Request, token: Reader, service: Asked) -> HTMLResponse:
    """Show what a planned round would cost, on the cohort's page."""
    name = seen_cohort(token, cohort)
    form = await checked_form(request)
    asked = {field: form.get(field, "").strip() for field in FORM_FIELDS}
    priced: Priced | None = None
    wrong = None
    try:
        wanted = asked_for("quote", name, asked, team=token.team)
        priced = await service.pricing.run(lambda accountant: _priced(service.store, accountant, wanted))
    except (InvalidParameter, InvalidValue) as error:
        wrong = str(error)
    return await _cohort(request, service, name, asked=asked, priced=priced, wrong=wrong)


@dataclass(frozen=True, kw_only=True)
class Priced:
    """The answer that a round would get, and what would fit."""

    quote: Quote
    more: str | None  # how many such rounds fit; None: it would be refused
    epsilon0: float | None  # of a refused round: with this one it would be admitted; None: none is known


def _priced(store: Store, accountant: Accountant, wanted: RoundRequest) -> Priced:
    """Return the price of a round, with the number that `forecast` gives of its kind."""
    (answer,) = quote_batch(store, accountant, [wanted]).quotes
    if answer.would_be != "admitted":
        instead = fits_instead(store, accountant, wanted)
        return Priced(quote=answer, more=None, epsilon0=instead.epsilon0)
    losses, view = LossSource(store=store, accountant=accountant, keep=False), store.view(wanted.cohort)
    day = wanted.collected_on or datetime.now(UTC).date()
    found = kind_forecast(losses, view, wanted.round, today=day)
    count = f"{found.rounds_at_least:,}{'' if found.next_is_refused else ' or more'} of these fit now"
    count += f", collected on {day}" if found.windows else ""
    return Priced(quote=answer, more=count if found.rounds_at_least else None, epsilon0=None)


def page(template: str, request: Request, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page; every one says who is logged in."""
    state = request.scope.get("state", {})
    root = service_of(request).root_path
    shared = {"bearer": state.get("token"), "form_secret": state.get("csrf", ""), "root": root}
    text = _templates.get_template(template).render({**shared, **values})
    return HTMLResponse(text, status, {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


async def _cohort(
    request: Request,
    service: Service,
    name: str,
    *,
    asked: Mapping[str, str] | None = None,
    priced: Priced | None = None,
    wrong: str | None = None,
    listed: _HistoryShown = _LAST,
) -> HTMLResponse:
    statement = await service.reading.run(lambda accountant: service.budgets.budget(accountant, name))
    view = await in_thread(service.store.view, name)
    entries = await in_thread(latest_entries, service.store, name, limit=ENTRIES_DRAWN)
    bodies, today = [entry.content() for entry in entries], datetime.now(UTC).date()
    points = [history_point(body) for body in bodies]
    searching = partial(matching_entries, limit=ENTRIES_LISTED, searched_max=ENTRIES_SEARCHED)
    searching = partial(searching, before=listed.before)
    found_entries, older = await in_thread(searching, service.store, name, listed.wanted)
    rows = [_row(body) for body in found_entries]
    has_life = view.cohort.has_life  # else no number of the whole life is drawn
    profile = await _profile(service, view) if has_life else ()
    verified = await in_thread(_verified, service.store, name, bearer_of(request))
    continuation, is_computed = await _continuation(service, view, drawn_until(points, today), today)
    leading, drawn = await in_thread(_leading, service.store, view, statement.budget, bodies)
    limit: dict[str, Any] = {"budget": leading.cohort.epsilon_budget, "budget_word": "budget"}
    found = page(
        "cohort.html.jinja",
        request,
        status=422 if wrong else 200,
        statement=statement,
        held=view.held,
        verified=verified,
        statement_files=sorted(service.dispatch.statement_files),
        spending=spending_picture(
            [history_point(body) for body in drawn],
            await in_thread(spent_by_day, service.store, leading, drawn),
            continuation=continuation if leading is view else None,
            today=today,
            **limit,
        )
        if leading.cohort.has_life
        else None,
        drawn_of=None if leading is view else statement.least,
        assumes=ASSUMES.get(statement.policy, ()),
        first=row_of(
            statement,
            continuation.late if continuation is not None else None,
            unknown=None if is_computed else COMPUTING,
        ),
        profile=charts.profile_chart(
            profile, epsilon=view.cohort.epsilon_budget, delta=view.cohort.delta_budget
        ),
        rows=rows,
        shown=len(rows),
        listed=listed,
        kinds=[kind.value for kind in EntryKind],
        randomizers=sorted({str(each.randomizer.to_mapping()["kind"]) for each in view.local}),
        older=older,
        cohort=view.cohort,
        quotas=await in_thread(quotas_of, service.store, name) if view.cohort.parent is None else (),
        may={permission.value for permission in Permission if bearer_of(request).may(permission)},
        asked=asked or dict.fromkeys(FORM_FIELDS, ""),
        priced=priced,
        wrong=wrong,
        of_several=_of_several((*view.held, *(slot.round for slot in statement.slots))),
    )
    if ((has_life and not profile and view.held) or not is_computed) and request.method == "GET":
        found.headers["Refresh"] = str(PROFILE_SECONDS_NEXT)  # browsers ask again by themselves
    return found


def _leading(
    store: Store, view: CohortView, budget: str, bodies: list[EntryBody]
) -> tuple[CohortView, list[EntryBody]]:
    """Return the chain whose spending is drawn, and its last entries: of the promise with the least left, or
    of the cohort if that has no entries yet."""
    if budget == view.cohort.name or not store.cohorts(only=[budget]):
        return view, bodies
    return store.view(budget), [
        entry.content() for entry in latest_entries(store, budget, limit=ENTRIES_DRAWN)
    ]


def _verified(store: Store, name: str, token: AccessToken) -> StoredVerification | None:
    """Return what verification found of a cohort last, as the token may read it: a fault in a round of
    several cohorts names those that the token may not see, as entries do."""
    found = store.verifications(only=[name]).get(name)
    if found is None or found.problem is None or token.cohorts is None or token.may(Permission.ENTRIES):
        return found
    return replace(found, problem=without_names(found.problem))


def bearer_of(request: Request) -> AccessToken:
    """Return who asks for a page that needs a token."""
    token: AccessToken = request.state.token
    return token


def _history_lines(store: Store, name: str) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HISTORY_COLUMNS)
    for point in history(store, name):
        writer.writerow([_cell(getattr(point, column)) for column in HISTORY_COLUMNS])
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _cell(value: object) -> object:
    """Return a value as CSV has it; an apostrophe before a text that a program would take for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return document_of(value)


def _of_several(kinds: Iterable[ShuffledRound]) -> str | None:
    """Return the condition under which the page's numbers hold, if a user may send several reports."""
    several = any(kind.reports_per_user > 1 for kind in kinds)
    return OF_SEVERAL_REPORTS.holds_when if several else None


async def _profile(service: Service, view: CohortView) -> tuple[ProfilePoint, ...]:
    """Return a cohort's profile, or nothing while it is computed."""

    async def computed() -> tuple[ProfilePoint, ...]:
        return await service.pricing.run(lambda accountant: profile_of(service.store, accountant, view))

    key = (view.cohort, view.spent)
    try:
        return await asyncio.wait_for(service.profiles.get(key, computed), PROFILE_SECONDS)
    except TimeoutError:
        return ()


async def _continuation(
    service: Service, view: CohortView, until: date, today: date
) -> tuple[Continuation | None, bool]:
    """Return how a cohort could go on at its present pace, None without one; and whether that is computed."""

    def work(accountant: Accountant) -> Continuation | None:
        losses = LossSource(store=service.store, accountant=accountant, keep=False)
        late = recent_schedule(losses, view, today=today)
        if late is None:
            return None
        foreseen = schedule_spending(losses, view, late, today=today, until=until)
        return Continuation(late=late, foreseen=foreseen)

    async def computed() -> Continuation | None:
        return await service.pricing.run(work)

    key = (view.cohort.name, view.head_digest, until)
    try:
        return await asyncio.wait_for(service.continuations.get(key, computed), PROFILE_SECONDS), True
    except TimeoutError:
        return None, False


def _row(body: EntryBody) -> Row:
    asked = body.details.get("request", {}).get("round")
    described = ShuffledRound.from_mapping(asked) if asked else None
    reason = body.details.get("reason")
    if body.kind is EntryKind.REFUSED:
        requested, reason = body.details.get("requested"), refusal_in_words(str(reason))
        if requested:
            reason += f": ε would have been {charts.upper(requested['epsilon_upper'])}"
    return Row(
        sequence=body.sequence,
        at=body.recorded_at,
        collected_on=collected_on(body),
        kind=str(body.kind).replace("_", " "),
        round_id=body.round_id,
        what=described.describe() if described else None,
        reports=described.reports if described else body.details.get("reports"),
        spent=body.spent.epsilon_upper,
        reason=reason,
        actor=body.actor,
    )


def planned(asked: Mapping[str, str]) -> ShuffledRound:
    """Return the round that a form's fields describe; raises InvalidParameter, InvalidValue."""
    fields: dict[str, object] = {
        "randomizer": asked.get("randomizer", ""),
        "reports": whole("reports", asked.get("reports", "")),
    }
    if asked.get("sampled_from"):
        fields["sampled_from"] = whole("sampled_from", asked["sampled_from"])
    if asked.get("reports_per_user"):
        fields["reports_per_user"] = whole("reports_per_user", asked["reports_per_user"])
    if asked.get("honest_fraction"):
        try:
            fields["honest_fraction"] = float(asked["honest_fraction"])
        except ValueError:
            given = asked["honest_fraction"]
            raise InvalidValue(field="honest_fraction", value=given, expected="a number") from None
    return ShuffledRound.from_mapping(fields)


def whole(field: str, text: str) -> int:
    """Return the number that a form's field says: 3000000, 3,000,000 or 3 000 000; raises InvalidValue."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise InvalidValue(field=field, value=text, expected="a whole number, such as 3,000,000")
    return int(text.replace(",", "").replace(" ", ""))


def asked_for(round_id: str, cohort: str, asked: Mapping[str, str], *, team: str | None) -> RoundRequest:
    """Return the registration that a form asks for; raises InvalidParameter, InvalidValue."""
    return RoundRequest(
        round_id=round_id,
        cohort=cohort,
        round=planned(asked),
        collected_on=_day("collected_on", asked.get("collected_on", "")),
        collected_until=_day("collected_until", asked.get("collected_until", "")),
        use_case=asked.get("use_case", "").strip() or None,
        team=team,
    )


def _day(field: str, text: str) -> date | None:
    """Return the day that a form's field says, None for nothing; raises InvalidValue."""
    if not text.strip():
        return None
    try:
        return day_from(text.strip())
    except NotADay as error:
        raise InvalidValue(field=field, value=text, expected=str(error)) from None


def _with_session(request: Request, cookie: str, *, location: str, seconds: int) -> Response:
    """Returns a redirection that sets the session's cookie for `seconds` seconds; 0 removes the cookie."""
    root = service_of(request).root_path
    answer = RedirectResponse(root + location, status_code=303, headers={"Cache-Control": "no-store"})
    answer.set_cookie(
        COOKIE,
        cookie,
        max_age=seconds,
        path=root or "/",
        httponly=True,
        samesite="strict",
        # Without TLS a session may cross this machine only.
        secure=request.url.scheme == "https" or request.url.hostname not in _LOOPBACK,
    )
    return answer


def _login_page(request: Request, *, status: int = 200, wrong: str | None) -> HTMLResponse:
    """Return the page that starts sessions, with what was wrong with the last attempt."""
    return page("login.html.jinja", request, status=status, wrong=wrong)


async def _form(request: Request) -> dict[str, str]:
    check_media_type(request, "application/x-www-form-urlencoded")
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=20))


async def checked_form(request: Request) -> dict[str, str]:
    """Return a form's fields; raises NotAllowed unless one of this session's own pages sent it."""
    _refuse_other_sites(request)
    form = await _form(request)
    expected = str(request.scope.get("state", {}).get("csrf") or "")
    if not expected or not hmac.compare_digest(form.get("form_secret", "").encode(), expected.encode()):
        raise NotAllowed("the form is of another session, or of none: nothing was done")
    return form


def _refuse_other_sites(request: Request) -> None:
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site") not in (None, "same-origin", "none") or (
        origin not in (None, "null") and urlsplit(origin or "").netloc != request.headers.get("host")
    ):
        raise NotAllowed("the form was sent by another site")
