"""The ledger a command works on: a database here, or a server. Commands do not know which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from accounting import ShuffledRound
from cli.failures import BadValue
from cli.losses_ahead import losses_ahead
from cli.session import Session, open_session, settings_from
from ledger import statements
from ledger.admission import (
    open_cohort,
    quote,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from ledger.budgets import Cohort, Outcome, Pending, Quote, RoundRecord, RoundRequest, Settled, Voided
from ledger.errors import NotFound
from ledger.statements import BudgetStatement

if TYPE_CHECKING:
    from ledger.client import LedgerClient

Awaits = AbstractContextManager[Callable[[ShuffledRound], None]]


class Ledger(Protocol):
    """What commands ask of a ledger. Errors are those of `ledger`, wherever it is."""

    def open_cohort(self, *, name: str, population: int, epsilon: float, delta: float, policy: str) -> Cohort:
        """See `ledger.admission.open_cohort`."""

    def cohorts(self) -> list[Cohort]:
        """Return the cohorts in the order of their names."""

    def cohort(self, name: str) -> Cohort:
        """Return a cohort; raises NotFound."""

    def budget(self, cohort: str) -> BudgetStatement:
        """See `ledger.statements.budget`."""

    def price(self, cohort: str, described: ShuffledRound) -> Quote:
        """See `ledger.admission.quote`."""

    def record(self, round_id: str) -> RoundRecord:
        """See `ledger.admission.round_record`."""

    def registered(self, round_id: str) -> RoundRequest | None:
        """Return what an identifier is bound to, None if to nothing."""

    def register(self, request: RoundRequest) -> tuple[Outcome | Pending, bool]:
        """Register a round and have it decided; also return whether it had been decided before."""

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `ledger.admission.settle`."""

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `ledger.admission.void`."""

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Awaits:
        """Compute the privacy losses of rounds ahead, where this program computes any."""


@dataclass(frozen=True, kw_only=True)
class DatabaseLedger:
    """A ledger in a database that this program opened."""

    session: Session

    def open_cohort(self, *, name: str, population: int, epsilon: float, delta: float, policy: str) -> Cohort:
        """See `Ledger`."""
        return open_cohort(
            self.session.store,
            name=name,
            population=population,
            epsilon=epsilon,
            delta=delta,
            policy=policy,
            actor=self.session.settings.actor,
        )

    def cohorts(self) -> list[Cohort]:
        """See `Ledger`."""
        return self.session.store.cohorts()

    def cohort(self, name: str) -> Cohort:
        """See `Ledger`."""
        return self.session.store.cohort(name)

    def budget(self, cohort: str) -> BudgetStatement:
        """See `Ledger`."""
        return statements.budget(self.session.store, self.session.accountant, cohort)

    def price(self, cohort: str, described: ShuffledRound) -> Quote:
        """See `Ledger`."""
        request = RoundRequest(round_id="quote", cohort=cohort, round=described)
        return quote(self.session.store, self.session.accountant, request)

    def record(self, round_id: str) -> RoundRecord:
        """See `Ledger`."""
        return round_record(self.session.store, round_id)

    def registered(self, round_id: str) -> RoundRequest | None:
        """See `Ledger`."""
        try:
            return RoundRequest.from_bytes(self.session.store.round(round_id).content)
        except NotFound:
            return None

    def register(self, request: RoundRequest) -> tuple[Outcome | Pending, bool]:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        if session.settings.broker_url is None:
            return register_and_admit(session.store, session.accountant, request, actor=actor)
        answer = register(session.store, request, actor=actor)
        if not isinstance(answer, Pending):
            return answer, True
        return decide(session, request.round_id), False

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        return settle(session.store, session.accountant, round_id, reports=reports, actor=actor)

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        return void(session.store, session.accountant, round_id, reason=reason, actor=actor)

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Awaits:
        """See `Ledger`."""
        here = self.session.settings.broker_url is None  # where workers decide, they compute
        return losses_ahead(self.session, rounds, processes=processes if here else 1)


@dataclass(frozen=True, kw_only=True)
class ServedLedger:
    """A ledger behind a server; the token names the actor."""

    client: LedgerClient
    wait_seconds: float

    def open_cohort(self, *, name: str, population: int, epsilon: float, delta: float, policy: str) -> Cohort:
        """See `Ledger`."""
        return self.client.open_cohort(
            name=name, population=population, epsilon=epsilon, delta=delta, policy=policy
        )

    def cohorts(self) -> list[Cohort]:
        """See `Ledger`."""
        return self.client.cohorts()

    def cohort(self, name: str) -> Cohort:
        """See `Ledger`."""
        return self.client.cohort(name)

    def budget(self, cohort: str) -> BudgetStatement:
        """See `Ledger`."""
        return self.client.budget(cohort)

    def price(self, cohort: str, described: ShuffledRound) -> Quote:
        """See `Ledger`."""
        return self.client.quote(cohort, [described]).quotes[0]

    def record(self, round_id: str) -> RoundRecord:
        """See `Ledger`."""
        return self.client.round(round_id)

    def registered(self, round_id: str) -> RoundRequest | None:
        """See `Ledger`."""
        try:
            return self.client.round(round_id).request
        except NotFound:
            return None

    def register(self, request: RoundRequest) -> tuple[Outcome | Pending, bool]:
        """See `Ledger`; only who looks first knows whether it had been decided before."""
        known = self._is_decided(request.round_id)
        return self.client.register(request, wait_seconds=self.wait_seconds), known

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `Ledger`."""
        return self.client.settle(round_id, reports=reports)

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `Ledger`."""
        return self.client.void(round_id, reason=reason)

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Awaits:
        """See `Ledger`; the server computes."""
        return nullcontext(lambda _: None)

    def _is_decided(self, round_id: str) -> bool:
        try:
            return self.client.round(round_id).outcome is not None
        except NotFound:
            return False


def decide(session: Session, round_id: str) -> Outcome | Pending:
    """Return a registered round's outcome, decided here or by a worker."""
    from workers.dispatch import decide as dispatched  # noqa: PLC0415 - Celery, which only rounds need

    return dispatched(session.store, session.accountant, session.settings, round_id)


@contextmanager
def open_ledger(
    *,
    server: str | None = None,
    database_url: str | None = None,
    broker_url: str | None = None,
    actor: str | None = None,
) -> Iterator[Ledger]:
    """Open the ledger that options and settings name, and close it again. Options win over the environment.

    Raises:
        BadValue: options for a database together with a server, or no token for it.
    """
    settings = settings_from(database_url=database_url, broker_url=broker_url, actor=actor, server=server)
    if server is None and (database_url is not None or settings.server is None):
        with open_session(settings) as session:
            yield DatabaseLedger(session=session)
        return
    for field, value in (("database_url", database_url), ("broker_url", broker_url), ("actor", actor)):
        if value is not None:
            raise BadValue(field, value, "it left out with a server, which has its own")
    from ledger.client import LedgerClient  # noqa: PLC0415 - an HTTP client, which only servers need

    token = settings.token.get_secret_value() if settings.token else ""
    if not token:
        raise BadValue("SHUFFLE_LEDGER_TOKEN", token, "a token for the server, such as sl_ID_SECRET")
    with LedgerClient(settings.server or "", token) as client:
        yield ServedLedger(client=client, wait_seconds=settings.decision_timeout_seconds)
