"""The ledger that a command works on: in a database that this program opens, or behind a server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Unpack

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.ledger import Ledger, Preparing
from shuffle_ledger.cli.backends.parallel_losses import losses_ahead
from shuffle_ledger.cli.backends.rehearsal import rehearsed
from shuffle_ledger.cli.backends.session import Session, open_session, settings_from
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger.decisions import (
    Fits,
    QuotaReading,
    admit_at_once,
    admit_in_order,
    admit_together,
    change_budget,
    check_opening,
    correct,
    open_cohort,
    open_many,
    price,
    quotas_of,
    quote,
    record_incident,
    register,
    register_and_admit,
    resolve_audience,
    round_record,
    set_quota,
    settle,
    void,
    what_fits,
)
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.reports import (
    BudgetStatement,
    Forecast,
    ForecastWanted,
    JointForecast,
    ListedRound,
    RoundFilter,
    ShownCohort,
    joint_forecast,
    list_rounds,
    shown_cohort,
)
from shuffle_ledger.ledger.reports import budget as budget_of
from shuffle_ledger.ledger.reports import forecast as forecast_of
from shuffle_ledger.ledger.reports import heads as heads_of
from shuffle_ledger.ledger.storage import Standing, standing_after
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
    cohort_from_opening,
)

if TYPE_CHECKING:
    from shuffle_ledger.ledger.checkpoints import SavedHeads
    from shuffle_ledger.ledger.evidence import Progress, Statement, StatementWanted
    from shuffle_ledger.ledger.health import Health
    from shuffle_ledger.ledger.permits import IssuedPermit, PermitKeys
    from shuffle_ledger.ledger.verification import Entries, Numbers, VerificationReport


@dataclass(frozen=True, kw_only=True)
class DatabaseLedger:
    """A ledger in a database that this program opened."""

    session: Session

    def open_cohort(
        self,
        *,
        plan: Mapping[ShuffledRound, int] | None = None,
        approximate_share: float | None = None,
        accept_warnings: bool = False,
        **opening: Unpack[Opening],
    ) -> Cohort:
        """See `Ledger`."""
        session = self.session
        if not accept_warnings:
            check_opening(session.store, cohort_from_opening(**opening))
        actor = session.settings.actor
        return open_cohort(
            session.store,
            actor=actor,
            plan=plan,
            approximate_share=approximate_share,
            accountant=session.accountant,
            **opening,
        )

    def open_many(self, cohorts: Sequence[Cohort]) -> None:
        """See `Ledger`: in one commit."""
        open_many(self.session.store, cohorts, actor=self.session.settings.actor)

    def set_budget(self, cohort: str, *, epsilon: float, reason: str) -> Cohort:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        return change_budget(session.store, cohort, epsilon=epsilon, reason=reason, actor=actor)

    def cohorts(self) -> list[Cohort]:
        """See `Ledger`."""
        return self.session.store.cohorts(parts=False)

    def cohorts_among(self, names: Collection[str]) -> list[Cohort]:
        """See `Ledger`."""
        return self.session.store.cohorts_among(names)

    def cohort(self, name: str) -> ShownCohort:
        """See `Ledger`."""
        return shown_cohort(self.session.store, name)

    def budget(self, cohort: str) -> BudgetStatement:
        """See `Ledger`."""
        return budget_of(self.session.store, self.session.accountant, cohort)

    def audience(self, audience: str, *, round_id: str | None) -> tuple[str, ...]:
        """See `Ledger`."""
        return resolve_audience(self.session.store, audience, round_id=round_id)

    def quote_for_all(self, request: RoundRequest) -> Quote:
        """See `Ledger`."""
        return price(self.session.store, self.session.accountant, self._of_team(request))

    def price_named(self, request: RoundRequest) -> Quote:
        """See `Ledger`."""
        return quote(self.session.store, self.session.accountant, self._of_team(request))

    def fits_instead(self, request: RoundRequest) -> Fits | None:
        """See `Ledger`."""
        return what_fits(self.session.store, self.session.accountant, self._of_team(request))

    def forecast(self, cohort: str, wanted: ForecastWanted) -> Forecast:
        """See `Ledger`."""
        session, today = self.session, datetime.now(UTC).date()
        return forecast_of(session.store, session.accountant, cohort, wanted, today=today)

    def forecast_for_all(self, audience: Sequence[str], wanted: ForecastWanted) -> JointForecast:
        """See `Ledger`."""
        session, today = self.session, datetime.now(UTC).date()
        store, team = session.store, session.settings.team
        return joint_forecast(store, session.accountant, audience, wanted, today=today, team=team)

    def round(self, round_id: str) -> RoundRecord:
        """See `Ledger`."""
        return round_record(self.session.store, round_id)

    def rounds(
        self,
        cohort: str | None = None,
        *,
        outcome: RoundState | None = None,
        since: datetime | None = None,
    ) -> Iterator[ListedRound]:
        """See `Ledger`."""
        store, after = self.session.store, None
        wanted = RoundFilter(cohorts=None if cohort is None else (cohort,), outcome=outcome, since=since)
        if cohort is not None:
            store.cohort(cohort)
        while True:
            page = list_rounds(store, wanted, after=after)
            yield from page.rounds
            if page.after is None:
                return
            after = page.after

    def registered(self, round_id: str) -> RoundRecord | None:
        """See `Ledger`."""
        try:
            return round_record(self.session.store, round_id)
        except NotFound:
            return None

    def perhaps_registered(self, round_ids: Sequence[str]) -> set[str]:
        """See `Ledger`: those that are."""
        return self.session.store.taken(round_ids)

    def register_some(self, requests: Sequence[RoundRequest]) -> list[tuple[Outcome | Pending, bool]]:
        """See `Ledger`: more than one where their decisions need no computation, with a broker or without."""
        session = self.session
        together: list[Outcome] = []
        if len(requests) > 1:
            actor = session.settings.actor
            named = [self._of_team(request) for request in requests]
            together = admit_together(session.store, session.accountant, named, actor=actor)
        return [(outcome, False) for outcome in together] or [self._one(requests[0])]

    def retry(self, round_id: str) -> Outcome | Pending:
        """See `Ledger`."""
        from shuffle_ledger.ledger.health import retry  # noqa: PLC0415 - verification, which few commands need

        retry(self.session.store, round_id)
        return decide(self.session, round_id)

    def settle(self, round_id: str, *, reports: int) -> Settled:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        return settle(session.store, session.accountant, round_id, reports=reports, actor=actor)

    def permit(self, round_id: str, *, releaser: str | None = None) -> IssuedPermit:
        """See `Ledger`."""
        from shuffle_ledger.ledger.permits import issue_permit  # noqa: PLC0415 - PyJWT, which few commands need

        session = self.session
        told = {"actor": session.settings.actor, "releaser": releaser}
        return issue_permit(session.store, permit_keys_of(session), round_id, **told)

    def permit_keys(self) -> dict[str, Any]:
        """See `Ledger`."""
        return permit_keys_of(self.session).published

    def revoked_permits(self) -> str:
        """See `Ledger`."""
        from shuffle_ledger.ledger.permits import revoked_permits  # noqa: PLC0415 - as above

        return revoked_permits(self.session.store, permit_keys_of(self.session))

    def settle_by_receipt(self, receipt: str) -> Settled | Incident:
        """See `Ledger`."""
        from shuffle_ledger.ledger.receipts import settle_by_receipt  # noqa: PLC0415 - as above

        session, keys = self.session, permit_keys_of(self.session)
        actor = session.settings.actor
        return settle_by_receipt(session.store, session.accountant, keys, receipt, actor=actor)

    def void(self, round_id: str, *, reason: str) -> Voided:
        """See `Ledger`."""
        session = self.session
        actor = session.settings.actor
        return void(session.store, session.accountant, round_id, reason=reason, actor=actor)

    def correct(
        self,
        round_id: str,
        changes: Mapping[str, object],
        *,
        reason: str,
    ) -> Corrected:
        """See `Ledger`."""
        session = self.session
        told: dict[str, Any] = {"reason": reason, "actor": session.settings.actor}
        return correct(session.store, session.accountant, round_id, changes, **told)

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
        return record_incident(
            self.session.store,
            self.session.accountant,
            cohort,
            round_id=round_id,
            described=described,
            reason=reason,
            actor=self.session.settings.actor,
            released=released,
            collected_on=collected_on,
            collected_until=collected_until,
        )

    def rehearse(self, requests: Sequence[RoundRequest], *, opening: Sequence[Cohort]) -> Iterator[Quote]:
        """See `Ledger`."""
        named = [self._of_team(request) for request in requests]
        return rehearsed(self.session.store, self.session.accountant, named, opening)

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Preparing:
        """See `Ledger`."""
        if self.session.settings.broker_url is not None:  # workers decide, and compute
            return nullcontext(lambda _: None)
        return losses_ahead(self.session, rounds, processes=processes)

    def heads(self) -> dict[str, Any]:
        """See `Ledger`."""
        return heads_of(self.session.store)

    def standing(self, *, follows: Checkpoint | None) -> Standing:
        """See `Ledger`."""
        return standing_after(self.session.store, follows)

    def verify(
        self,
        cohort: str | None,
        *,
        against: SavedHeads | None,
        numbers: Numbers,
        entries: Entries,
        progress: Progress,
    ) -> VerificationReport:
        """See `Ledger`."""
        from shuffle_ledger.ledger.checkpoints import trusted_key  # noqa: PLC0415 - few commands need it
        from shuffle_ledger.ledger.verification import verify  # noqa: PLC0415 - as above

        session = self.session
        if against is None:  # which would find the same, cohort by cohort
            session.store.check_anchor()
        return verify(
            session.store,
            session.accountant,
            cohort,
            against=against,
            numbers=numbers,
            positions_of=trusted_key(session.settings) if entries == "new" else None,
            progress=progress,
        )

    def make_statement(
        self, wanted: StatementWanted, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> Statement:
        """See `Ledger`."""
        session, now = self.session, datetime.now(UTC)
        return wanted.made(
            session.store, session.accountant, made_at=now, checkpoint=checkpoint, progress=progress
        )

    def make_bundle(
        self, cohorts: tuple[str, ...] | None, *, checkpoint: Checkpoint | None, progress: Progress
    ) -> bytes:
        """See `Ledger`."""
        from shuffle_ledger.ledger.evidence import cohort_names, make_bundle  # noqa: PLC0415 - few commands need it

        store = self.session.store
        return make_bundle(store, cohort_names(store, cohorts), checkpoint=checkpoint, progress=progress).data

    def health(self) -> Health:
        """See `Ledger`."""
        return health_of(self.session)

    def quotas(self, cohort: str) -> tuple[QuotaReading, ...]:
        """See `Ledger`."""
        return quotas_of(self.session.store, cohort)

    def set_quota(self, cohort: str, *, team: str, epsilon: float, reason: str) -> QuotaReading:
        """See `Ledger`."""
        session = self.session
        said = {"reason": reason, "actor": session.settings.actor}
        return set_quota(session.store, cohort, team=team, epsilon=epsilon, **said)

    def _one(self, request: RoundRequest) -> tuple[Outcome | Pending, bool]:
        session, request = self.session, self._of_team(request)
        actor = session.settings.actor
        if session.settings.broker_url is None:
            return register_and_admit(session.store, session.accountant, request, actor=actor)
        outcome = admit_at_once(session.store, session.accountant, request, actor=actor)
        if outcome is not None:
            return outcome, False
        answer = register(session.store, request, actor=actor)
        if not isinstance(answer, Pending):
            return answer, True
        return decide(session, request.round_id), False

    def _of_team(self, request: RoundRequest) -> RoundRequest:
        team = self.session.settings.team
        return request if team is None else replace(request, team=team)


def permit_keys_of(session: Session) -> PermitKeys:
    """Return the keys of permits and of releasers that the settings name."""
    from shuffle_ledger.ledger.permits import PermitKeys  # noqa: PLC0415 - PyJWT, which few commands need

    return PermitKeys.of(session.settings, session.store.ledger_id())


def decide(session: Session, round_id: str) -> Outcome | Pending:
    """Return a registered round's outcome, decided here or by a worker."""
    if session.settings.broker_url is None:
        return admit_in_order(session.store, session.accountant, round_id)
    from shuffle_ledger.workers.dispatch import decide as dispatched  # noqa: PLC0415 - Celery, which only a broker needs

    return dispatched(session.store, session.accountant, session.settings, round_id)


def health_of(session: Session) -> Health:
    """Return the state of a ledger, and of the broker that the settings name."""
    from shuffle_ledger.ledger.checkpoints import ScheduledCheckpoints  # noqa: PLC0415 - few commands need it
    from shuffle_ledger.ledger.health import health  # noqa: PLC0415 - as above

    checkpoints, acknowledged = ScheduledCheckpoints.of(session.settings), session.settings.acknowledged
    found = health(session.store, checkpoints, acknowledged=acknowledged)
    if session.settings.broker_url is None:
        return found
    from shuffle_ledger.workers.dispatch import broker_state, queue_alarms, worker_alarms  # noqa: PLC0415 - as in `decide`

    state = broker_state(session.settings)
    queues = state.lengths if state is not None else None
    waiting = worker_alarms(
        state, pending=found.rounds_pending, longest_wait_seconds=found.longest_wait_seconds
    )
    alarms = (*found.alarms, *queue_alarms(session.settings, queues), *waiting)
    return replace(found, alarms=alarms, queues=queues, workers=state.workers if state is not None else None)


@contextmanager
def open_ledger(
    *,
    server: str | None = None,
    database_url: str | None = None,
    broker_url: str | None = None,
    actor: str | None = None,
    team: str | None = None,
    anchored: bool = True,
) -> Iterator[Ledger]:
    """Open the ledger that options and settings name, and close it again. Options win over the environment.

    Unless `anchored`, a database is not compared with the checkpoint that the settings name.

    Raises:
        BadValue: options for a database together with a server, or no token for it.
    """
    options = {"database_url": database_url, "broker_url": broker_url, "actor": actor, "team": team}
    settings = settings_from(server=server, **options)
    if server is None and (database_url is not None or settings.server is None):
        if not anchored:
            settings = settings.model_copy(update={"checkpoint": None})
        with open_session(settings) as session:
            yield DatabaseLedger(session=session)
        return
    for field, value in options.items():
        if value is not None:
            raise BadValue(field, value, "it left out with a server, which has its own")
    from shuffle_ledger.cli.backends.served import ServedLedger  # noqa: PLC0415 - an HTTP client, which only servers need

    token = settings.token.get_secret_value() if settings.token else ""
    if not token:
        raise BadValue("SHUFFLE_LEDGER_TOKEN", token, "a token for the server, such as sl_ID_SECRET")
    wait_seconds = settings.decision_timeout_seconds
    with ServedLedger(settings.server or "", token, wait_seconds=wait_seconds) as served:
        yield served
