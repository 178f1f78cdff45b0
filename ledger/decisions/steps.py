"""One step of admission: what can be done now about a round that is not registered yet, as a value.

`first_step` runs inside the database's transaction, so it decides from memory or says what is missing.
`decisions.admission` holds the loop that acts on the answer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import decide
from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest, checked_text, request_digest


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The entry that registers the round and decides it, to be appended."""

    draft: EntryDraft


@dataclass(frozen=True, kw_only=True)
class NeedsComputation:
    """The decision needs numbers that are not in memory; `view` is the cohort for which they are missing."""

    view: CohortView


@dataclass(frozen=True, kw_only=True)
class OthersFirst:
    """Rounds of the cohort that were registered earlier are undecided, and are decided first."""


@dataclass(frozen=True, kw_only=True)
class NeedsRow:
    """The round must be registered before it is decided.

    Its identifier is taken, or the decision failed: the failure is raised again, and counted with the row.
    """


NotYet = NeedsComputation | OthersFirst | NeedsRow
Step = Decided | NotYet


@dataclass(frozen=True, kw_only=True)
class NewRoundRequest:
    """A request as it is registered."""

    request: RoundRequest
    content: bytes
    content_digest: bytes
    actor: str

    @classmethod
    def of(cls, request: RoundRequest, *, actor: str) -> NewRoundRequest:
        """Return a request with its canonical bytes; raises InvalidValue for the actor's name."""
        content = request.to_bytes()
        return cls(
            request=request,
            content=content,
            content_digest=request_digest(content),
            actor=checked_text("actor", actor),
        )

    def stored(self, new: NewRound) -> StoredRound:
        """Return the row it is registered with."""
        return StoredRound(
            registration=new.registration,
            round_id=self.request.round_id,
            cohort=self.request.cohort,
            content=self.content,
            content_digest=self.content_digest,
            registered_by=self.actor,
            registered_at=new.view.at,
        )


def first_step(
    store: Store, accountant: Accountant, asked: NewRoundRequest, new: NewRound, *, others_first: bool = True
) -> Step:
    """Return the entry that registers and decides a round, or what has to happen before it can be made.

    Args:
        new: the cohort and the next registration, as the transaction reads them.
        others_first: False once the rounds that were registered earlier have had their turn.

    Raises:
        InvalidValue: the round is larger than its cohort.
        TryAgain, Unavailable: the database cannot be asked now.
    """
    request = asked.request
    decide.check_request(request, new.view.cohort.name, new.view.cohort.population)
    if new.others_wait and others_first:
        return OthersFirst()
    stored = asked.stored(new)
    try:
        if not decide.is_quick(store, accountant, new.view, request):
            return NeedsComputation(view=new.view)
        draft = decide.draft(store, accountant, new.view, stored, request)
    except (TryAgain, Unavailable):
        raise
    except Exception:  # noqa: BLE001 - raised again, and counted, once the round has a row
        return NeedsRow()
    return Decided(draft=dataclasses.replace(draft, registers=stored))
