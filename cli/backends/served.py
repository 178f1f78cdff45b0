"""The ledger of a command behind a server: `backends.database.Ledger` in the words of
`ledger.client.client`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.checkpoints import SavedHeads
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.decisions import Collected, QuotaReading, least_open, quote_repeated
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.evidence import Progress, Statement, StatementWanted
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.reports import (
    BudgetStatement,
    Forecast,
    ForecastWanted,
    ListedRound,
    RoundFilter,
    ShownCohort,
)
from shuffle_ledger.ledger.storage import Standing
from shuffle_ledger.ledger.values import (
    Checkpoint,
    Cohort,
    Corrected,
    Incident,
    Outcome,
    Pending,
    Proposal,
    Quote,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
    Settled,
    Voided,
    Window,
)
from shuffle_ledger.ledger.verification import Numbers, VerificationReport

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.database import Awaits


@dataclass(frozen=True, kw_only=True)
class ServedLedger:
    """A ledger behind a server; the token names the actor."""

    client: LedgerClient
    wait_seconds: float

    def open_cohort(
        self,
        *,
        name: str,
        population: int,
        epsilon: float,
        delta: float,
        policy: str,
        plan: Mapping[ShuffledRound, int] | None = None,
        labels: Mapping[str, str] | None = None,
        windows: Sequence[Window] = (),
        ceiling: float | None = None,
        local_budget: float | None = None,
        rounds_per_user: int | None = None,
        windows_only: bool = False,
        accept_warnings: bool = False,
    ) -> Cohort:
        """See `Ledger`."""
        budget = {"epsilon": epsilon, "delta": delta}
        return self.client.open_cohort(
            name=name,
            population=population,
            policy=policy,
            plan=plan,
            labels=labels,
            windows=windows,
            ceiling=ceiling,
            local_budget=local_budget,
            rounds_per_user=rounds_per_user,
            windows_only=windows_only,
            accept_warnings=accept_warnings,
            **budget,
        )

    def open_many(self, cohorts: Sequence[Cohort]) -> None:
        """See `Ledger`; each is one request."""
        for cohort in cohorts:
            self.client.open_cohort(
                name=cohort.name,
                population=cohort.population,
                epsilon=cohort.epsilon_budget,
                delta=cohort.delta_budget,
                policy=cohort.policy,
                accept_warnings=True,
            )

    def change_budget(self, cohort: str, *, epsilon: float, reason: str) -> Cohort:
        """See `Ledger`; requests may be repeated, so the present budget is read first."""
        try:
            same = self.client.cohort(cohort).epsilon_budget == epsilon
        except NotFound:
            same = False  # other errors have precedence
        changed = self.client.change_budget(cohort, epsilon=epsilon, reason=reason)
        if same:
            raise InvalidValue(field="epsilon", value=epsilon, expected="another budget than the present one")
        return changed

    def cohorts(self) -> list[Cohort]:
        """See `Ledger`."""
        return self.client.cohorts()

    def cohort(self, name: str) -> ShownCohort:
        """See `Ledger`."""
        return self.client.cohort(name)

    def budget(self, cohort: str) -> BudgetStatement:
        """See `Ledger`."""
        return self.client.budget(cohort)

    def price(self, cohort: str, described: ShuffledRound) -> Quote:
        """See `Ledger`."""
        return self.client.quote(cohort, [described]).quotes[0]

    def price_named(self, request: RoundRequest) -> Quote:
        """See `Ledger`; only registering finds an identifier of a cohort that the token does not see."""
        now = self.price_for_all(request)
        record = self.registered(request.round_id)
        if record is None:
            return now
        least = least_open([self.cohort(name) for name in request.cohorts])
        return quote_repeated(request, record, least.status, now)

    def audience(self, audience: str, *, round_id: str | None) -> tuple[str, ...]:
        """See `Ledger`."""
        return self.client.audience(audience, round_id=round_id)

    def price_for_all(self, request: RoundRequest) -> Quote:
        """See `Ledger`."""
        return self.client.quote_for_all(request)

    def forecast(self, cohort: str, wanted: ForecastWanted) -> Forecast:
        """See `Ledger`."""
        return self.client.forecast(cohort, wanted)

    def record(self, round_id: str) -> RoundRecord:
        """See `Ledger`."""
        return self.client.round(round_id)

    def rounds(self, wanted: RoundFilter) -> Iterator[ListedRound]:
        """See `Ledger`."""
        (cohort,) = wanted.cohorts or (None,)
        return self.client.rounds(cohort, outcome=wanted.outcome, since=wanted.since)

    def registered(self, round_id: str) -> RoundRecord | None:
        """See `Ledger`."""
        try:
            return self.client.round(round_id)
        except NotFound:
            return None

    def register(self, request: RoundRequest) -> tuple[Outcome | Pending, bool]:
        """See `Ledger`; only who looks first knows whether it had been decided before."""
        known = self._is_decided(request.round_id)
        return self.client.register(request, wait_seconds=self.wait_seconds), known

    def register_some(self, requests: Sequence[RoundRequest]) -> list[tuple[Outcome | Pending, bool]]:
        """See `Ledger`."""
        return [self.register(requests[0])]

    def retry(self, round_id: str) -> Outcome | Pending:
        """See `Ledger`."""
        return self.client.retry(round_id, wait_seconds=self.wait_seconds)

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `Ledger`."""
        return self.client.settle(round_id, reports=reports)

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `Ledger`."""
        return self.client.void(round_id, reason=reason)

    def correct(
        self,
        round_id: str,
        changes: Mapping[str, object],
        *,
        reason: str,
        collected: Collected | None = None,
    ) -> Corrected:
        """See `Ledger`."""
        return self.client.correct(round_id, changes, reason=reason, collected=collected)

    def record_incident(
        self,
        cohort: str,
        *,
        round_id: str,
        described: ShuffledRound | None,
        reason: str,
        released: ReleaseTimes,
        collected_on: date | None = None,
        collected_until: date | None = None,
    ) -> Incident:
        """See `Ledger`."""
        return self.client.record_incident(
            cohort,
            round_id=round_id,
            described=described,
            reason=reason,
            released=released,
            collected_on=collected_on,
            collected_until=collected_until,
        )

    def rehearse(self, requests: Sequence[RoundRequest], *, opening: Sequence[Cohort]) -> Iterator[Quote]:
        """See `Ledger`; a server has no such answer."""
        raise click.UsageError("--dry-run works on a database only: a server prices at most 200 rounds")

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Awaits:
        """See `Ledger`; the server computes."""
        return nullcontext(lambda _: None)

    def heads(self) -> dict[str, Any]:
        """See `Ledger`."""
        return self.client.heads()

    def standing(self, *, follows: Checkpoint | None) -> Standing:
        """See `Ledger`."""
        return self.client.standing(follows=follows)

    def verify(
        self, cohort: str | None, *, against: SavedHeads | None, numbers: Numbers
    ) -> VerificationReport:
        """See `Ledger`."""
        return self.client.verify(cohort, against=against, numbers=numbers)

    def statement(
        self, wanted: StatementWanted, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> Statement:
        """See `Ledger`; the server says how far it is where that takes long."""
        made = self.client.statement(wanted, progress=progress)
        return replace(made, checkpoint=checkpoint.to_json() if checkpoint is not None else None)

    def bundle(
        self, cohorts: tuple[str, ...] | None, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> bytes:
        """See `Ledger`."""
        return self.client.bundle(cohorts, checkpoint=checkpoint)

    def health(self) -> Health:
        """See `Ledger`."""
        return self.client.health()

    def _is_decided(self, round_id: str) -> bool:
        try:
            return self.client.round(round_id).outcome is not None
        except NotFound:
            return False

    def quotas(self, cohort: str) -> tuple[QuotaReading, ...]:
        """See `Ledger`."""
        return self.client.quotas(cohort)

    def set_quota(self, cohort: str, *, team: str, epsilon: float, reason: str) -> QuotaReading:
        """See `Ledger`."""
        return self.client.set_quota(cohort, team=team, epsilon=epsilon, reason=reason)

    def propose(self, cohort: str, *, epsilon: float, reason: str) -> Proposal:
        """See `Ledger`."""
        return self.client.propose(cohort, epsilon=epsilon, reason=reason)

    def proposal(self, cohort: str) -> Proposal | None:
        """See `Ledger`."""
        return self.client.proposal(cohort)

    def approve(self, cohort: str, *, epsilon: float) -> Cohort:
        """See `Ledger`."""
        return self.client.approve(cohort, epsilon=epsilon)
