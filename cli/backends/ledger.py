"""What commands ask of a ledger, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions import Fits, QuotaReading
from shuffle_ledger.ledger.reports import (
    BudgetStatement,
    Forecast,
    ForecastWanted,
    JointForecast,
    ListedRound,
    ShownCohort,
)
from shuffle_ledger.ledger.storage import Standing
from shuffle_ledger.ledger.values import (
    Checkpoint,
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
)

if TYPE_CHECKING:
    from shuffle_ledger.ledger.checkpoints import SavedHeads
    from shuffle_ledger.ledger.evidence import Progress, Statement, StatementWanted
    from shuffle_ledger.ledger.health import Health
    from shuffle_ledger.ledger.permits import IssuedPermit
    from shuffle_ledger.ledger.verification import Entries, Numbers, VerificationReport

Preparing = AbstractContextManager[Callable[[Sequence[RoundRequest]], None]]


class Ledger(Protocol):
    """What commands ask of a ledger. Errors are those of `ledger`, wherever it is."""

    def open_cohort(
        self,
        *,
        plan: Mapping[ShuffledRound, int] | None = None,
        approximate_share: float | None = None,
        accept_warnings: bool = False,
        **opening: Unpack[Opening],
    ) -> Cohort:
        """See `ledger.decisions.open_cohort`; UnacceptedWarnings as of `check_opening`."""

    def open_many(self, cohorts: Sequence[Cohort]) -> None:
        """Open some cohorts that have no plans; their warnings are accepted."""

    def set_budget(self, cohort: str, *, epsilon: float, reason: str) -> Cohort:
        """See `ledger.decisions.change_budget`; InvalidValue if it is the present budget."""

    def cohorts(self) -> list[Cohort]:
        """Return the cohorts in the order of their names."""

    def cohorts_among(self, names: Collection[str]) -> list[Cohort]:
        """Return those of some cohorts that there are, in the order of their names."""

    def cohort(self, name: str) -> ShownCohort:
        """Return a cohort with the slots of its plan; raises NotFound."""

    def budget(self, cohort: str) -> BudgetStatement:
        """See `ledger.reports.budgets.budget`."""

    def audience(self, audience: str, *, round_id: str | None) -> tuple[str, ...]:
        """See `ledger.decisions.resolve_audience`."""

    def quote_for_all(self, request: RoundRequest) -> Quote:
        """See `ledger.decisions.quote`: of a round of several cohorts, under a new identifier."""

    def price_named(self, request: RoundRequest) -> Quote:
        """See `ledger.decisions.quote`: under the request's identifier, which may be registered."""

    def fits_instead(self, request: RoundRequest) -> Fits | None:
        """Return what would fit in place of a round; None if that is not answered here."""

    def forecast(self, cohort: str, wanted: ForecastWanted) -> Forecast:
        """See `ledger.reports.forecasts.forecast`."""

    def forecast_for_all(self, audience: Sequence[str], wanted: ForecastWanted) -> JointForecast:
        """See `ledger.reports.joint_forecasts.joint_forecast`: for the team that asks."""

    def round(self, round_id: str) -> RoundRecord:
        """See `ledger.decisions.round_record`."""

    def rounds(
        self,
        cohort: str | None = None,
        *,
        outcome: RoundState | None = None,
        since: datetime | None = None,
    ) -> Iterator[ListedRound]:
        """Yield rounds in the order of registration; raises NotFound."""

    def registered(self, round_id: str) -> RoundRecord | None:
        """Return the round that an identifier is bound to, None if to nothing."""

    def perhaps_registered(self, round_ids: Sequence[str]) -> set[str]:
        """Return those of some identifiers that may be bound to rounds: the others are bound to none."""

    def register_some(self, requests: Sequence[RoundRequest]) -> list[tuple[Outcome | Pending, bool]]:
        """Register the first of some rounds, or more of them in their order, and have them decided.

        Also returns of each whether it had been decided before.
        """

    def retry(self, round_id: str) -> Outcome | Pending:
        """Have a round decided that was left alone after too many failures."""

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `ledger.decisions.settle`."""

    def permit(self, round_id: str, *, releaser: str | None = None) -> IssuedPermit:
        """See `ledger.permits.issue_permit`."""

    def permit_keys(self) -> dict[str, Any]:
        """Return the public keys of permits: a JWK set."""

    def revoked_permits(self) -> str:
        """See `ledger.permits.revoked_permits`."""

    def settle_by_receipt(self, receipt: str) -> Settled | Incident:
        """See `ledger.receipts.settle_by_receipt`."""

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `ledger.decisions.void`."""

    def correct(self, round_id: str, changes: Mapping[str, object], *, reason: str) -> Corrected:
        """See `ledger.decisions.corrections.correct`."""

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
        """See `ledger.decisions.incidents.record_incident`."""

    def rehearse(self, requests: Sequence[RoundRequest], *, opening: Sequence[Cohort]) -> Iterator[Quote]:
        """Yield the decisions about new rounds, one after the other, in open cohorts and in those of
        `opening`. Writes nothing."""

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Preparing:
        """Compute the privacy losses of rounds ahead, where this program computes any; give a function to
        call before some of them are registered."""

    def heads(self) -> dict[str, Any]:
        """See `ledger.reports.budgets.heads`."""

    def standing(self, *, follows: Checkpoint | None) -> Standing:
        """See `ledger.storage.anchor.standing_after`."""

    def verify(
        self,
        cohort: str | None,
        *,
        against: SavedHeads | None,
        numbers: Numbers,
        entries: Entries,
        progress: Progress,
    ) -> VerificationReport:
        """See `ledger.verification.verifier.verify`."""

    def make_statement(
        self, wanted: StatementWanted, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> Statement:
        """See `ledger.evidence.statement_builder.make_statement`."""

    def make_bundle(
        self, cohorts: tuple[str, ...] | None, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> bytes:
        """See `ledger.evidence.bundle.make_bundle`."""

    def health(self) -> Health:
        """See `ledger.health.health`; with the broker's queues, where there is one."""

    def quotas(self, cohort: str) -> tuple[QuotaReading, ...]:
        """See `ledger.decisions.quotas.quotas_of`."""

    def set_quota(self, cohort: str, *, team: str, epsilon: float, reason: str) -> QuotaReading:
        """See `ledger.decisions.quotas.set_quota`."""
