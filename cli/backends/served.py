"""The ledger of a command behind a server: the client, and what commands ask beside operations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from shuffle_ledger.ledger import values
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.errors import NotFound

if TYPE_CHECKING:
    from shuffle_ledger.accounting import ShuffledRound
    from shuffle_ledger.cli.backends.database import Preparing
    from shuffle_ledger.ledger.answers import Fits
    from shuffle_ledger.ledger.values import Cohort, Outcome, Pending, Quote, RoundRecord, RoundRequest


class ServedLedger(LedgerClient):
    """A ledger behind a server; the token names the actor. See `backends.database.DatabaseLedger`."""

    def open_many(self, cohorts: Sequence[Cohort]) -> None:
        """Open some cohorts that have no plans; each is one request."""
        for cohort in cohorts:
            self.open_cohort(**values.opening_of(cohort), accept_warnings=True)

    def fits_instead(self, request: RoundRequest) -> Fits | None:
        """Return what would fit in place of a round of one cohort, unless its days of collection matter."""
        if len(request.cohorts) > 1 or request.collected_on is not None:
            return None
        return self.quote(request.cohort, [request.round], fits=True).fits

    def price_named(self, request: RoundRequest) -> Quote:
        """Return the price of a round under its identifier; only registering finds an identifier of a cohort
        that the token does not see."""
        record = self.registered(request.round_id)
        if record is None:
            return self.quote_for_all(request)
        asked = request
        if record.outcome is not None:  # its days may have passed since
            asked = replace(request, collected_on=None, collected_until=None)
        now = self.quote_for_all(asked)
        least = values.least_open([self.cohort(name) for name in request.cohorts])
        return values.quote_repeated(request, record, least.status, now)

    def registered(self, round_id: str) -> RoundRecord | None:
        """Return the round that an identifier is bound to, None if to nothing."""
        try:
            return self.round(round_id)
        except NotFound:
            return None

    def cohorts_among(self, names: Collection[str]) -> list[Cohort]:
        """Return those of some cohorts that the token sees, in the order of their names."""
        return [cohort for cohort in self.cohorts() if cohort.name in names]

    def perhaps_registered(self, round_ids: Sequence[str]) -> set[str]:
        """Return all of them: a server is asked about each."""
        return set(round_ids)

    def register_some(
        self, requests: Sequence[RoundRequest], *, accept_warnings: bool = True
    ) -> list[tuple[Outcome | Pending, bool]]:
        """Register the first round, and look first whether it had been decided before."""
        known = self.registered(requests[0].round_id)
        answer = self.register(requests[0], accept_warnings=accept_warnings)
        return [(answer, known is not None and known.outcome is not None)]

    def losses_ahead(self, rounds: Sequence[ShuffledRound], *, processes: int) -> Preparing:
        """Compute nothing: the server does."""
        return nullcontext(lambda _: None)
