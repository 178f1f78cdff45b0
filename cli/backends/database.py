"""The ledger that a command works on: in a database that this program opens, or behind a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.session import Session
from shuffle_ledger.ledger.answering import Call, answer_to, silent
from shuffle_ledger.ledger.answers import Fits
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    admit_together,
    check_without_slots,
    fits_instead,
    open_many,
    quote,
    register,
    register_and_admit,
    round_record,
)
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.methods import Ask, Blocking, Operations
from shuffle_ledger.ledger.values import (
    Cohort,
    Outcome,
    Pending,
    Quote,
    RoundRecord,
    RoundRequest,
)

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.served import ServedLedger
    from shuffle_ledger.ledger.health import Health


Preparing: TypeAlias = "AbstractContextManager[Callable[[Sequence[RoundRequest]], None]]"
# What commands ask of: both have all operations, and what is beside them.
Ledger: TypeAlias = "DatabaseLedger | ServedLedger"


@dataclass(frozen=True, kw_only=True)
class DatabaseLedger(Operations, Blocking):
    """A ledger in a database that this program opened."""

    session: Session

    def answer(self, ask: Ask) -> Any:
        """Return the answer of an operation."""
        session, (function, _) = self.session, answer_to(ask.operation)
        call = Call(
            store=session.store,
            settings=session.settings,
            actor=session.settings.actor,
            team=session.settings.team,
            computing=session.accountant,
            progress=ask.progress or silent,
        )
        return function(call, ask.asked)

    def open_many(self, cohorts: Sequence[Cohort]) -> None:
        """Open some cohorts that have no plans, in one commit; their warnings are accepted."""
        open_many(self.session.store, cohorts, actor=self.session.settings.actor)

    def cohorts_among(self, names: Collection[str]) -> list[Cohort]:
        """Return those of some cohorts that there are, in the order of their names."""
        return self.session.store.cohorts_among(names)

    def price_named(self, request: RoundRequest) -> Quote:
        """Return the price of a round under the request's identifier, which may be registered."""
        return quote(self.session.store, self.session.accountant, self._of_team(request))

    def fits_instead(self, request: RoundRequest) -> Fits | None:
        """Return what would fit in place of a round; None if that is not answered here."""
        return fits_instead(self.session.store, self.session.accountant, self._of_team(request))

    def registered(self, round_id: str) -> RoundRecord | None:
        """Return the round that an identifier is bound to, None if to nothing."""
        try:
            return round_record(self.session.store, round_id)
        except NotFound:
            return None

    def perhaps_registered(self, round_ids: Sequence[str]) -> set[str]:
        """Return those of some identifiers that may be bound to rounds: the others are bound to none."""
        return self.session.store.taken(round_ids)

    def register_some(
        self, requests: Sequence[RoundRequest], *, accept_warnings: bool = True
    ) -> list[tuple[Outcome | Pending, bool]]:
        """Register the first of some rounds and have it decided, or more of them in their order where their
        decisions need no computation, with a broker or without.

        Also returns of each whether it had been decided before. Raises UnacceptedWarnings for one round, as
        `check_without_slots`, unless its warnings are accepted.
        """
        session = self.session
        if not accept_warnings:
            check_without_slots(session.store, session.accountant, requests[0])
        together: list[Outcome] = []
        if len(requests) > 1:
            actor = session.settings.actor
            named = [self._of_team(request) for request in requests]
            together = admit_together(session.store, session.accountant, named, actor=actor)
        return [(outcome, False) for outcome in together] or [self._one(requests[0])]

    def retry(self, round_id: str) -> Outcome | Pending:
        """Have a round decided that was left alone after too many failures."""
        from shuffle_ledger.ledger.health import retry  # noqa: PLC0415 - verification, which few commands need

        retry(self.session.store, round_id)
        return decide(self.session, round_id)

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Preparing:
        """Compute the privacy losses of rounds ahead, where this program computes any; give a function to
        call before some of them are registered."""
        if self.session.settings.broker_url is not None:  # workers decide, and compute
            return nullcontext(lambda _: None)
        from shuffle_ledger.cli.backends.parallel_losses import losses_ahead  # noqa: PLC0415 - as above

        return losses_ahead(self.session, rounds, processes=processes)

    def health(self) -> Health:
        """Return the state of the ledger, and of its broker."""
        return health_of(self.session)

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


def decide(session: Session, round_id: str) -> Outcome | Pending:
    """Return a registered round's outcome, decided here or by a worker."""
    if session.settings.broker_url is None:
        return admit(session.store, session.accountant, round_id)
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
