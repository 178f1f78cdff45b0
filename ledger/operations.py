"""The table of operations: one row for each thing that a ledger can be asked, over HTTP and by programs.

The server's routes, the OpenAPI description and its reference, the client with and without asyncio, and the
command line's ledger behind a server are made of these rows. By hand there is one function for each row
(`ledger.answering`), and one method where arguments of a program differ from the fields of the question
(`ledger.methods`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote as quoted

from shuffle_ledger.ledger import answers, questions
from shuffle_ledger.ledger.errors import (
    BadSignature,
    BeyondBudget,
    Conflict,
    DoesNotExtend,
    InvalidValue,
    NotCollectable,
    NotFound,
    UnacceptedWarnings,
)
from shuffle_ledger.ledger.roles import Permission
from shuffle_ledger.ledger.values.documents import (
    DECISIONS,
    Json,
    NotADocument,
    decision_document,
    decision_of,
    document_of,
    record_document,
    record_of_document,
    value_of,
)
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    Corrected,
    Incident,
    Outcome,
    Pending,
    Quote,
    RoundRecord,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.values.texts import checked_text

if TYPE_CHECKING:
    from shuffle_ledger.ledger.answers.calculations import Amplification, Composition
    from shuffle_ledger.ledger.health import Health
    from shuffle_ledger.ledger.permits import IssuedPermit
    from shuffle_ledger.ledger.questions.fields import Body

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
_DECISIONS = tuple(DECISIONS.values())
_IN_PATH = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A statement or verification that is still made: the same request waits for it."""

    state: Literal["waiting", "making"]  # waiting: others are made before it
    step: str | None  # of the work
    done: int | None  # parts of this step
    of: int | None


@dataclass(frozen=True, kw_only=True)
class Audience:
    """The cohorts that a list of names or a selector means, in order."""

    audience: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """Whether a server takes requests."""

    status: Literal["ok", "ending", "unavailable"]


@dataclass(frozen=True, eq=False)
class Operation(Generic[Parameters, Answer]):
    """One thing that can be asked. Its name is its tag, and its function in `ledger.answering`."""

    name: str
    address: str  # the method, and the path with the fields that are in it
    permission: Permission | None  # what the token's role has to allow; None: it is open to all
    # The type of the question, or what makes one of a program's arguments; and the type of the answer. Their
    # modules are imported when the operation is asked.
    types: Callable[[], tuple[Callable[Parameters, Body], type[Answer] | UnionType | _Later[Answer]]]
    errors: tuple[type[Exception], ...]  # of statuses 404 and 409; any operation may have the others
    about: str
    status: int = 200
    schema: str | None = None  # the name of an answer's schema where the answer is not an object of a class
    query: tuple[str, ...] = ()  # fields of a body's question that are in the query instead
    unfinished: bool = False  # the answer may be `Unfinished`: then the same is asked again
    waits: bool = False  # a request says how long it waits for the answer
    media: str = "application/json"  # the type of the answer's content
    also: str | None = None  # another path where a server offers it
    long: bool = False  # the server may replay or compose while the caller waits

    @property
    def tag(self) -> str:
        """The group that it is in."""
        return self.name.partition("_")[0]

    @property
    def function(self) -> str:
        """The name of the function that answers it."""
        return self.name.partition("_")[2]

    @property
    def method(self) -> str:
        """The method of its requests."""
        return self.address.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path of its requests, with the names of fields in braces."""
        return self.address.partition(" ")[2]

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths where a server offers it."""
        return (self.path,) if self.also is None else (self.path, self.also)

    @cached_property
    def asked(self) -> Callable[Parameters, Body]:
        """What makes the question of a program's arguments."""
        return self.types()[0]

    @property
    def question(self) -> type[Body]:
        """The type of the question."""
        kind: Any = self.asked
        return getattr(kind, "__self__", kind)  # type: ignore[no-any-return]  # a class, or a method of one

    @cached_property
    def kind(self) -> Any:
        """The type of the answer."""
        answer = self.types()[1]
        return answer.found() if isinstance(answer, _Later) else answer

    @cached_property
    def places(self) -> Mapping[str, str]:
        """Where in a request each field of the question is: in its `path`, its `query` or its `body`."""
        in_query = self.query if self.method != "GET" else self.names
        return {
            name: "path" if name in self.needs else "query" if name in in_query else "body"
            for name in self.names
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields of the question."""
        return tuple(field.name for field in dataclasses.fields(self.question))  # type: ignore[arg-type]  # a dataclass

    @property
    def needs(self) -> set[str]:
        """The fields that are in its path."""
        return set(_IN_PATH.findall(self.path))

    @property
    def has_body(self) -> bool:
        """Whether a request has a body."""
        return "body" in self.places.values()

    def request(self, asked: Body) -> dict[str, Any]:
        """Return the method, the path below `/v1/`, the query and the body of a question; fields with their
        defaults are left out. Raises InvalidValue as `Body.check`, and for what cannot be a name."""
        asked.check()
        found: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for name, value in _given(asked):
            found[self.places[name]][name] = value
        path = {name: _segment(checked_text(name, value)) for name, value in found["path"].items()}
        return {
            "method": self.method,
            "path": self.path.removeprefix("/v1/").format_map(path),
            "query": found["query"] or None,
            "body": found["body"] if self.has_body else None,
            "long": self.long,
        }

    def read(self, content: Any) -> Answer:
        """Return the answer that the content of a response states; raises NotADocument."""
        found: Any = content
        is_object = isinstance(content, Mapping)
        if is_object and "outcome" in content and self.kind is not RoundRecord:
            found = decision_of(content)
        elif self.unfinished and is_object and "state" in content:
            return value_of(Unfinished, content)  # type: ignore[return-value]  # which the caller waits for
        elif self.kind is RoundRecord:
            found = record_of_document(content)
        elif self.kind not in (bytes, dict[str, Any]):
            found = value_of(self.kind, content)
        expected = {Outcome | Pending: _DECISIONS[:3]}.get(self.kind, self.kind)
        if isinstance(expected, type | tuple | UnionType) and not isinstance(found, expected):
            raise NotADocument(f"{self.name}: expected {self.kind}, got {found!r:.200}")
        return found  # type: ignore[no-any-return]  # of the kind


def document(answer: object) -> Json:
    """Return an answer as the content of a response has it: the inverse of `Operation.read`."""
    if isinstance(answer, _DECISIONS):
        return decision_document(answer)
    return record_document(answer) if isinstance(answer, RoundRecord) else document_of(answer)


def _given(asked: Any) -> Iterator[tuple[str, Json]]:
    """Yield the fields of a question that are not as they would be if they were left out."""
    for field in dataclasses.fields(asked):
        value = getattr(asked, field.name)
        left_out = field.default
        if field.default_factory is not dataclasses.MISSING:
            left_out = field.default_factory()
        if left_out is dataclasses.MISSING or (value is not left_out and value != left_out):
            yield field.name, _written(value)


def _written(value: object) -> Json:
    if isinstance(value, questions.fields.Body):
        return dict(_given(value))
    if isinstance(value, tuple | list):
        return [_written(each) for each in value]
    return value.to_mapping() if hasattr(value, "to_mapping") else document_of(value)


def _segment(name: str) -> str:
    """Return a name as one segment of a path; "." and ".." would be taken for steps."""
    return quoted(name, safe="").replace(".", "%2E") if name in (".", "..") else quoted(name, safe="")


@dataclass(frozen=True)
class _Later(Generic[Answer]):
    """A type whose module few programs need; or a union, which type checkers do not take for a type."""

    module: str
    name: str

    def found(self) -> type[Answer]:
        """Return the type."""
        kind: type[Answer] = getattr(import_module(f"shuffle_ledger.ledger.{self.module}"), self.name)
        return kind


_NAMED = (NotFound,)
READ, REGISTER, MANAGE = Permission.READ, Permission.REGISTER, Permission.MANAGE
ENTRIES, METRICS = Permission.ENTRIES, Permission.METRICS
_STATEMENT: _Later[Any] = _Later("evidence.statement", "Statement")
_FINDINGS: _Later[Any] = _Later("verification.verifier", "VerificationReport")
_PERMIT: _Later[IssuedPermit] = _Later("permits", "IssuedPermit")
_AMPLIFIED: _Later[Amplification] = _Later("answers.calculations", "Amplification")
_COMPOSED: _Later[Composition] = _Later("answers.calculations", "Composition")
_CHANGED = (NotFound, InvalidValue, Conflict)
_OPENED = (InvalidValue, UnacceptedWarnings, BeyondBudget, Conflict)
_SIGNED = (InvalidValue, BadSignature, DoesNotExtend)

# fmt: off
OPEN_COHORT = Operation(
    "cohorts_open", "POST /v1/cohorts", MANAGE, lambda: (questions.cohorts.OpenCohort.of, Cohort), _OPENED,
    """Open a cohort with a budget. The same name with the same content changes nothing. With other content it
is opened again while nothing was decided about it, no round waits and it has neither periods nor quotas that
are open: that replaces what was opened. Later it is a conflict.

`409` (`unaccepted_warnings`): its values are unusual; `accept_warnings` says that they are meant.""",
    status=201, long=True,
)
LIST_COHORTS = Operation(
    "cohorts_list", "GET /v1/cohorts", READ,
    lambda: (questions.cohorts.ListCohorts, list[answers.ListedCohort]), (),
    """List the cohorts that the token sees, in the order of their names, with what is used and left of each
promise, and when it renews.""",
)
SHOW_COHORT = Operation(
    "cohorts_show", "GET /v1/cohorts/{cohort}", READ,
    lambda: (questions.cohorts.OfCohort, answers.ShownCohort), _NAMED,
    "Show a cohort, with how often it was opened, the slots of its plan and how many of each are taken.",
)
SHOW_BUDGET = Operation(
    "cohorts_show_budget", "GET /v1/cohorts/{cohort}/budget", READ,
    lambda: (questions.cohorts.ShowBudget, answers.BudgetStatement), (*_NAMED, InvalidValue),
    """Show each promise of a cohort: what it may spend, has spent and has left, and when it renews.

The numbers beside `promises` are those of the promise that has the least left.""",
)
CHANGE_BUDGET = Operation(
    "cohorts_change_budget", "PUT /v1/cohorts/{cohort}/budget", MANAGE,
    lambda: (questions.cohorts.ChangeBudget, Cohort), _CHANGED,
    "Change a cohort's epsilon, by an entry that says who did it and why. Repeating it changes nothing.",
)
CLOSE_COHORT = Operation(
    "cohorts_close", "POST /v1/cohorts/{cohort}/close", MANAGE,
    lambda: (questions.cohorts.CloseCohort, Cohort), _CHANGED,
    """Close a cohort that is not needed any more: it, its periods and its quotas admit nothing from then on.
Its record stays, and how rounds of before ended is still recorded. Repeating it changes nothing.""",
)
QUOTAS = Operation(
    "cohorts_quotas", "GET /v1/cohorts/{cohort}/quotas", READ,
    lambda: (questions.cohorts.OfCohort, tuple[answers.QuotaReading, ...]), _NAMED,
    "List what teams may use of a cohort's budget, and have used.",
)
SET_QUOTA = Operation(
    "cohorts_set_quota", "PUT /v1/cohorts/{cohort}/quotas/{team}", MANAGE,
    lambda: (questions.cohorts.SetQuota, answers.QuotaReading), _CHANGED,
    "Set what a team's rounds may use of a cohort's budget. It is a limit, and reserves nothing.",
)
QUOTE = Operation(
    "cohorts_quote", "POST /v1/cohorts/{cohort}/quote", READ,
    lambda: (questions.cohorts.QuoteRounds.of, answers.BatchQuote), _CHANGED,
    "Price rounds as if they were registered now, in this order. Leaves no trace and promises nothing.",
)
FORECAST = Operation(
    "cohorts_forecast", "POST /v1/cohorts/{cohort}/forecast", READ,
    lambda: (questions.cohorts.ForecastRounds.of, answers.Forecast), _CHANGED,
    "Say how many more rounds fit, what limits them, and on which day a schedule ends. Reserves nothing.",
    long=True,
)
REGISTER_ROUND: Operation[..., Any] = Operation(
    "rounds_register", "POST /v1/rounds", REGISTER,
    lambda: (questions.rounds.RegisterRound.asking, Outcome | Pending),
    (*_CHANGED, NotCollectable, UnacceptedWarnings),
    """Register a round of one cohort, or of an audience, under an identifier you choose, and have it decided.

`201` admitted, which permits one release of this round; `409` refused; `202` while it is undecided: ask
at `Location`, or repeat the request. With `Prefer: wait=N` the answer waits up to N seconds for the
outcome. A repeated request answers with the round's present state: `409` (`not_collectable`) once it is
voided or settled, or its cohort is frozen or overspent. `409` (`unaccepted_warnings`): it is the first
round of its cohort and a sample of a kind of which declared slots would admit more than 1.25 times as many;
nothing is registered, and `accept_warnings` says that it is meant.""",
    status=201, waits=True,
)
QUOTE_FOR_ALL = Operation(
    "rounds_quote", "POST /v1/quote", READ, lambda: (questions.rounds.QuoteForAll.asking, Quote), _CHANGED,
    "Price a round of an audience as if it were registered now. Leaves no trace and promises nothing.",
)
REHEARSE = Operation(
    "rounds_rehearse", "POST /v1/rehearsal", READ,
    lambda: (questions.rounds.RehearseRounds.of, tuple[Quote, ...]), _CHANGED,
    """Say what would be decided about new rounds of any cohorts, registered in this order, also in cohorts
that are still to be opened. Of a refused round of several budgets, `reason` is the one in the entry of the
first of them. Leaves no trace and promises nothing.""",
    long=True,
)
FORECAST_FOR_ALL = Operation(
    "rounds_forecast", "POST /v1/forecast", READ,
    lambda: (questions.rounds.ForecastForAll.of, answers.JointForecast), _CHANGED,
    "Say how many more rounds of an audience fit, and which budget ends them. Reserves nothing.",
    long=True,
)
AUDIENCE = Operation(
    "rounds_audience", "GET /v1/audience", READ,
    lambda: (questions.rounds.ResolveAudience, Audience), (NotFound, InvalidValue),
    "Say which cohorts a list of names or a selector over labels means now.",
)
LIST_ROUNDS = Operation(
    "rounds_list", "GET /v1/rounds", READ, lambda: (questions.rounds.ListRounds, answers.RoundPage), _NAMED,
    """List rounds that the token sees in the order of registration, with why each was refused.

Go on with `after` until it is null: a page may have fewer rounds than `limit`, or none, before the end.""",
)
SHOW_ROUND = Operation(
    "rounds_show", "GET /v1/rounds/{round_id}", READ, lambda: (questions.rounds.OfRound, RoundRecord), _NAMED,
    "Show a round and all that has happened to it.",
)
RETRY_ROUND: Operation[..., Any] = Operation(
    "rounds_retry", "POST /v1/rounds/{round_id}/retry", REGISTER,
    lambda: (questions.rounds.OfRound, Outcome | Pending), (*_CHANGED, NotCollectable),
    "Have a round decided that was left alone after too many failures. Answers like a registration.",
    status=201, waits=True,
)
SETTLE = Operation(
    "rounds_settle", "POST /v1/rounds/{round_id}/settle", REGISTER,
    lambda: (questions.rounds.SettleRound, Settled), _CHANGED,
    "Record what a round really collected; fewer reports than planned cost more.",
)
VOID = Operation(
    "rounds_void", "POST /v1/rounds/{round_id}/void", REGISTER,
    lambda: (questions.rounds.VoidRound, Voided), _CHANGED,
    "Close a round of which nothing was or will be released. It gives back what it reserved.",
)
CORRECT = Operation(
    "rounds_correct", "POST /v1/rounds/{round_id}/corrections", REGISTER,
    lambda: (questions.rounds.CorrectRound.of, Corrected), _CHANGED,
    """Tell what a released round truly was. It is charged at its true cost, even beyond the budget; what was
charged does not shrink. What else it was collected from is an incident of each cohort or period that
lacks it.""",
)
RECORD_INCIDENT = Operation(
    "rounds_record_incident", "POST /v1/cohorts/{cohort}/incidents", REGISTER,
    lambda: (questions.rounds.RecordIncident.of, Incident), _CHANGED,
    """Record a release that nothing admitted, under a new identifier or that of a round that is undecided,
refused or voided. It is charged, even beyond the budget.""",
)
ISSUE_PERMIT = Operation(
    "permits_issue", "POST /v1/rounds/{round_id}/permit", REGISTER,
    lambda: (questions.permits.IssuePermit, _PERMIT), (*_CHANGED, NotCollectable),
    """Get the permit of an admitted round, for the gate that releases its reports. Asked again, it is the
same.""",
)
SETTLE_BY_RECEIPT: Operation[[str], Settled | Incident] = Operation(
    "permits_settle_by_receipt", "POST /v1/receipts", REGISTER,
    lambda: (questions.permits.SettleByReceipt, Settled | Incident), (*_CHANGED, BadSignature),
    """Settle a round with the number of reports that the releaser signed. A release that nothing here admits
is recorded as an incident.""",
)
PERMIT_KEYS = Operation(
    "permits_keys", "GET /v1/permits/keys", None, lambda: (questions.fields.Nothing, dict[str, Any]), (),
    "Read the public keys of permits, retired ones included. Needs no token.",
    schema="PermitKeys", also="/.well-known/jwks.json",
)
REVOKED_PERMITS = Operation(
    "permits_revoked", "GET /v1/permits/revoked", None, lambda: (questions.fields.Nothing, str), (Conflict,),
    "Read the signed list of permits that count no more, by the events that admitted. Needs no token.",
    media="application/jwt",
)
AMPLIFY = Operation(
    "calculators_amplify", "POST /v1/amplify", READ,
    lambda: (questions.calculators.AmplifyRound.asking, _AMPLIFIED), (InvalidValue,),
    "Bound the privacy loss of one round, as the command `amplify --json` does.",
)
COMPOSE = Operation(
    "calculators_compose", "POST /v1/compose", READ,
    lambda: (questions.calculators.ComposeRounds.of, _COMPOSED), (InvalidValue,),
    "Bound the privacy loss of many rounds together, as the command `compose --json` does.",
)
CALIBRATE = Operation(
    "calculators_calibrate", "POST /v1/calibrate", READ,
    lambda: (questions.calculators.CalibrateRounds.asking, answers.CalibratedRounds), (InvalidValue,),
    """Find the largest epsilon0, the least common noise, or the least number of dummies, with which rounds
meet a target, as the command `calibrate --json` does without a cohort.""",
)
LIST_ENTRIES = Operation(
    "auditing_entries", "GET /v1/cohorts/{cohort}/entries", ENTRIES,
    lambda: (questions.audits.ListEntries, answers.PublishedPage), _NAMED,
    "Read a cohort's chain in pages: go on with `after` until it is null.",
)
LIST_EVENTS = Operation(
    "auditing_events", "GET /v1/events", ENTRIES,
    lambda: (questions.audits.ListEvents, answers.EventPage), _CHANGED,
    "Read the entries of all chains the token sees, once each, in one order: go on with `after`.",
)
LIST_HEADS = Operation(
    "auditing_list_heads", "GET /v1/heads", ENTRIES, lambda: (questions.audits.ListHeads, dict[str, Any]), (),
    """Read the heads of all chains the token sees: saved elsewhere, they show a later rewriting.

Without parameters, all of one moment. With `after` or `limit`, a page: go on with its `after` until it is
null; each page is of another moment.""",
    schema="Heads",
)
VERIFY_COHORT: Operation[..., Any] = Operation(
    "auditing_verification_of_one", "POST /v1/cohorts/{cohort}/verification", ENTRIES,
    lambda: (questions.audits.VerifyCohort, _FINDINGS), (NotFound, InvalidValue),
    """Replay a cohort's chain, and compute an even sample of its numbers again.

`200` with the findings, or `202` as `POST /v1/verification`.""",
    query=("entries",), unfinished=True, waits=True, long=True,
)
VERIFY: Operation[..., Any] = Operation(
    "auditing_verification", "POST /v1/verification", ENTRIES,
    lambda: (questions.audits.VerifyChains.of, _FINDINGS), (NotFound, *_SIGNED),
    """Replay one chain or all, compute numbers again, and compare with heads that were kept elsewhere.

`200` with the findings, if there are any within 25 seconds or as long as `Prefer: wait=N` says; else
`202`: it goes on, and the same request waits for it.""",
    unfinished=True, waits=True, long=True,
)
STANDING = Operation(
    "auditing_standing", "POST /v1/standing", ENTRIES,
    lambda: (questions.audits.LedgerStanding.of, answers.Standing), _SIGNED,
    """Read which ledger this is and where all its chains end, to sign it with a key that is not here.

Answers `503`, type `...:behind_checkpoint`, when the ledger lacks what the earlier checkpoint has seen.""",
)
MAKE_STATEMENT: Operation[..., Any] = Operation(
    "auditing_statement", "POST /v1/statements", ENTRIES,
    lambda: (questions.audits.MakeStatement.of, _STATEMENT), (NotFound, *_SIGNED),
    """State what was promised to the users of cohorts, and whether it was kept.

`200` with the statement, if it is made within 25 seconds or as long as `Prefer: wait=N` says; else `202`:
it goes on, and the same request waits for it.""",
    unfinished=True, waits=True, long=True,
)
MAKE_BUNDLE = Operation(
    "auditing_bundle", "POST /v1/bundles", ENTRIES,
    lambda: (questions.audits.MakeBundle.of, bytes), (NotFound, *_SIGNED),
    "Read the evidence of cohorts in one file, verified where no ledger is. It names every cohort.",
    media="application/zip", long=True,
)
ALIVE = Operation(
    "operations_healthz", "GET /v1/healthz", None, lambda: (questions.fields.Nothing, ServerState), (),
    "Say that the server is alive. Needs no token.",
    also="/healthz",
)
READY = Operation(
    "operations_readyz", "GET /v1/readyz", None, lambda: (questions.fields.Nothing, ServerState), (),
    """Say whether this server takes requests: its database has the right schema, and it is not ending.

A broker that cannot be reached changes nothing here: rounds are registered and read without it, and a
load balancer would otherwise send requests to no server at all. `health` has an alarm for the broker.""",
    also="/readyz",
)
HEALTH: Operation[[], Health] = Operation(
    "operations_health", "GET /v1/health", METRICS,
    lambda: (questions.fields.Nothing, _Later("health", "Health")), (),
    "Read what waits, what is stuck and what verification found, in every cohort.",
)
SHOW_METRICS = Operation(
    "operations_show_metrics", "GET /v1/metrics", METRICS, lambda: (questions.fields.Nothing, str), (),
    "Read the metrics, for Prometheus. A token limited to some cohorts may not: they are about all.",
    media="text/plain", also="/metrics",
)
# fmt: on
OPERATIONS: tuple[Operation[..., Any], ...] = tuple(
    row for row in list(globals().values()) if isinstance(row, Operation)
)
