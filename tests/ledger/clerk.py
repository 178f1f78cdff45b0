"""A ledger, and short words for what many tests do to it and ask of it."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, Calibration, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.answers.budgets import BudgetStatement
from shuffle_ledger.ledger.answers.forecasts import Forecast
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    close_cohort,
    correct,
    freezing,
    open_cohort,
    quote,
    record_incident,
    register,
    register_and_admit,
    set_quota,
    settle,
    void,
)
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import State, Total
from shuffle_ledger.ledger.policies.registry import BudgetPolicy, policy_of
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.rows import CohortView, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Corrected,
    Incident,
    Outcome,
    Quote,
    Refused,
    ReleaseTimes,
    RoundRequest,
    Settled,
    Voided,
    request_of,
)
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.releases import after_opening

DAY = timedelta(days=1)


def krr(reports: int = 10_000, epsilon0: float = 2.0, *, k: int = 10, **more: Any) -> ShuffledRound:
    """Return a round of k-ary randomized response."""
    randomizer = parse_randomizer({"kind": "krr", "k": k, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, **more)


def parsed(randomizer: str, reports: int = 10_000, **more: Any) -> ShuffledRound:
    """Return a round of a randomizer as people write it."""
    return ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports, **more)


def today() -> date:
    """Return the day of the machine's clock, in UTC."""
    return datetime.now(UTC).date()


def a_monday() -> date:
    """Return the next Monday, so that nothing depends on the day of the week."""
    return today() + (7 - today().weekday()) * DAY


def trust_any_clock(store: Store) -> None:
    """Let tests move the database's clock: no difference is implausible."""
    store.clocks = dataclasses.replace(
        store.clocks, difference_max_seconds=1e10, reading_age_max_seconds=1e10
    )


def open_as_usual(store: Store, name: str, /, **changes: Any) -> Any:
    """Open a cohort of a million users with epsilon 1 at delta 1e-9, but for the changes."""
    usual: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
    return open_cohort(store, name=name, **(usual | {"actor": "tester"} | changes))


def decided(store: Store, accountant: Accountant, request: RoundRequest) -> Outcome:
    """Register a round, and decide about it in a second step."""
    register(store, request, actor="tester")
    return admit(store, accountant, request.round_id)


class Clerk:
    """Opens cohorts, asks for rounds, restates and reports them; `usual` is what it opens cohorts with.

    `prefix` begins the names of its rounds: of two clerks of one ledger, one needs another. Rounds
    are of the cohort "phones" and of 10-ary randomized response, unless a test says otherwise.
    """

    def __init__(self, store: Store, accountant: Accountant, *, prefix: str = "round", **usual: Any) -> None:
        self.store, self.accountant, self.prefix = store, accountant, prefix
        values = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6, "policy": "adaptive"}
        self.usual: dict[str, Any] = values | usual
        self._names = itertools.count()

    # Openings and rounds.

    def open(self, *names: str, **changes: Any) -> None:
        """Open cohorts, "phones" if none is named."""
        for name in names or ("phones",):
            values = self.usual | changes
            open_cohort(self.store, accountant=self.accountant, name=name, actor="ada", **values)

    def request(
        self, described: ShuffledRound | None = None, *cohorts: str, name: str | None = None, **more: Any
    ) -> RoundRequest:
        """Return a request; `on` and `until` are its days."""
        days = {"collected_on": more.pop("on", None), "collected_until": more.pop("until", None)}
        name = f"{self.prefix}-{next(self._names)}" if name is None else name
        return request_of(cohorts or ("phones",), described or krr(), round_id=name, **days, **more)

    def decide(self, request: RoundRequest) -> Outcome:
        """Register a round and decide about it."""
        return register_and_admit(self.store, self.accountant, request, actor="ada")[0]

    def ask(self, described: ShuffledRound | None = None, *cohorts: str, **more: Any) -> Outcome:
        """Ask for a round of some cohorts."""
        return self.decide(self.request(described, *cohorts, **more))

    def admits(self, described: ShuffledRound | None = None, *cohorts: str, **more: Any) -> bool:
        """Return whether a round that is asked for is admitted."""
        return isinstance(self.ask(described, *cohorts, **more), Admitted)

    def refusal(self, described: ShuffledRound | None = None, *cohorts: str, **more: Any) -> Refused:
        """Return the refusal of a round that is asked for."""
        outcome = self.ask(described, *cohorts, **more)
        assert isinstance(outcome, Refused), outcome
        return outcome

    def fill(self, described: ShuffledRound | None = None, *cohorts: str, most: int = 60, **more: Any) -> int:
        """Ask for equal rounds until one is refused, at most this many; return how many were admitted."""
        counted = (count for count in range(most) if not self.admits(described, *cohorts, **more))
        return next(counted, most)

    # What turned out otherwise.

    def settle(self, name: str, reports: int) -> Settled:
        """Settle a round."""
        return settle(self.store, self.accountant, name, reports=reports, actor="ada")

    def void(self, name: str) -> Voided:
        """Void a round."""
        return void(self.store, self.accountant, name, reason="cancelled", actor="ada")

    def correct(self, name: str, *, reason: str = "a log", **changes: object) -> Corrected:
        """Correct a round."""
        return correct(self.store, self.accountant, name, changes, reason=reason, actor="eve")

    def incident(
        self,
        name: str,
        described: ShuffledRound | None,
        cohort: str = "phones",
        *,
        reason: str = "a script",
        on: date | None = None,
        **times: Any,
    ) -> Incident:
        """Record a release, with the times that are stated of it."""
        said: dict[str, Any] = {"round_id": name, "described": described, "collected_on": on}
        said |= {"reason": reason, "actor": "eve", "released": ReleaseTimes(**times)}
        return record_incident(self.store, self.accountant, cohort, **said)

    def later(self, cohort: str = "phones") -> datetime:
        """Return the first moment that is later than a cohort's opening."""
        after = after_opening(self.store.cohort(cohort)).after
        assert after is not None
        return after

    def change(self, *budgets: float, cohort: str = "phones") -> None:
        """Give a cohort one epsilon after the other."""
        for epsilon in budgets:
            change_budget(self.store, cohort, epsilon=epsilon, reason="why", actor="bob")

    def quota(self, team: str, epsilon: float, cohort: str = "phones") -> None:
        """Set a team's quota."""
        set_quota(self.store, cohort, team=team, epsilon=epsilon, reason="agreed", actor="ada")

    def freeze(self, cohort: str = "phones", *, saved: bool = True) -> None:
        """Accept the loss of later entries, of which a checkpoint has seen some if `saved`."""
        head = CheckpointHead(cohort=cohort, sequence=99, digest_hex="0" * 64) if saved else None
        said = {"reason": "the disk broke", "checkpoint": "0" * 64, "nothing_later": None}
        view = self.store.view(cohort)
        self.store.append(view, freezing.freezing(self.store, view, head, said, actor="owner"))

    def close(self, cohort: str = "phones") -> None:
        """Close a cohort."""
        close_cohort(self.store, cohort, reason="withdrawn", actor="bob")

    def shift(self, patch: pytest.MonkeyPatch, by: timedelta) -> None:
        """Move the database's clock, as views tell it."""
        trust_any_clock(self.store)
        views, view_of_round = self.store.views, self.store.view_of_round

        def shifted(names: Any) -> list[CohortView]:
            return [dataclasses.replace(view, at=view.at + by) for view in views(names)]

        def shifted_of_round(round_id: str) -> list[CohortView] | StoredRound:
            found = view_of_round(round_id)
            if isinstance(found, StoredRound):
                return found
            return [dataclasses.replace(view, at=view.at + by) for view in found]

        patch.setattr(self.store, "views", shifted)
        patch.setattr(self.store, "view_of_round", shifted_of_round)

    # Questions.

    def names(self) -> list[str]:
        """Return the names of all budgets."""
        return [cohort.name for cohort in self.store.cohorts()]

    def spent(self, cohort: str = "phones") -> float:
        """Return the upper bound on the epsilon that is spent."""
        return self.store.view(cohort).spent.epsilon_upper

    def status(self, cohort: str = "phones") -> str:
        """Return a budget's status."""
        return self.store.cohort(cohort).status

    def policy(self, cohort: str = "phones") -> BudgetPolicy:
        """Return a budget's rules."""
        return policy_of(self.store, self.store.view(cohort))

    def state(self, cohort: str = "phones") -> State:
        """Return the machine's state of a budget, as its last entry states it."""
        return self.policy(cohort).state(self.store.view(cohort))

    def total(self, cohort: str = "phones") -> Total:
        """Return what a budget's last entry says was charged altogether."""
        return self.state(cohort).total

    def kinds(self, cohort: str = "phones") -> list[str]:
        """Return the kinds of a chain's entries."""
        return [entry.kind for entry in self.store.entries_of(cohort)]

    def quote(self, request: RoundRequest) -> Quote:
        """Return what the answer to a registration would be."""
        return quote(self.store, self.accountant, request)

    def budget(self, cohort: str = "phones", on: date | None = None) -> BudgetStatement:
        """Return what is used and left."""
        return budget(self.store, self.accountant, cohort, on=on)

    def forecast(self, cohort: str = "phones", *, now: date | None = None, **wanted: Any) -> Forecast:
        """Return how many more rounds fit; of `krr()` if the test wants no other."""
        asked = ForecastWanted(**{"round": krr(), **wanted})
        return forecast(self.store, self.accountant, cohort, asked, today=now or today())

    def calibrate(self, described: ShuffledRound, cohort: str = "phones", **more: Any) -> Calibration:
        """Return the largest epsilon0 of `krr` with which such rounds fit."""
        wanted = {**described.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
        return calibrate_for(self.store, self.accountant, cohort, wanted, **more)

    def statement(self, *cohorts: str, at: datetime | None = None, **more: Any) -> Statement:
        """Return the statement about cohorts."""
        made_at = at or datetime.now(UTC)
        return make_statement(self.store, self.accountant, cohorts or ("phones",), made_at=made_at, **more)

    # Verification.

    def check(self) -> None:
        """Replay the whole ledger."""
        report = verify(self.store, self.accountant)
        assert report.ok, report

    def audit(self) -> None:
        """Replay everything, and have another accountant verify a bundle of it with every number."""
        report = verify(self.store, self.accountant, numbers="all")
        assert report.ok, report
        made = make_bundle(self.store, self.store.cohort_names())
        bundle = verify_bundle(made.data, Accountant(), numbers="all")
        assert bundle.ok, bundle.findings

    def blames(self, what: str, cohort: str | None = None) -> None:
        """Assert that the ledger's verification names a fault."""
        report = verify(self.store, self.accountant, cohort)
        assert not report.ok
        assert what in str(report), report

    def blames_everywhere(self, what: str, cohort: str = "phones") -> None:
        """Assert that the ledger's verification names a fault, and that of a bundle, which has no ledger."""
        self.blames(what, cohort)
        report = verify_bundle(make_bundle(self.store, self.names()).data, self.accountant)
        assert any(what in each.what and each.cohort == cohort for each in report.findings), report
