"""The decision about a round that is not registered yet: from memory, or not at all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import decide
from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest, checked_new_name, checked_text, request_digest


class OthersWait(Exception):
    """Rounds of the cohort that were registered earlier are undecided."""


class NotQuick(Exception):
    """The decision needs more than what is in memory."""

    def __init__(self, view: CohortView) -> None:
        """Say on what it was to be decided."""
        super().__init__("the decision needs more than what is in memory")
        self.view = view


@dataclass(frozen=True, kw_only=True)
class NewRoundRequest:
    """A request as it is registered."""

    request: RoundRequest
    content: bytes
    content_digest: bytes
    actor: str

    @classmethod
    def of(cls, request: RoundRequest, *, actor: str) -> NewRoundRequest:
        """Return a request with its canonical bytes; raises InvalidValue for a name that cannot be one."""
        checked_new_name("round_id", request.round_id)
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


def draft_new(
    store: Store, accountant: Accountant, asked: NewRoundRequest, new: NewRound, *, others_first: bool = True
) -> EntryDraft | None:
    """Return the entry that registers and decides a round; None where the decision fails.

    Raises:
        InvalidValue: the round is larger than its cohort.
        OthersWait: some were registered earlier, and are to be decided first.
        NotQuick: the decision takes a computation.
        TryAgain, Unavailable: the database cannot be asked now.
    """
    request = asked.request
    decide.check_request(request, new.view.cohort.name, new.view.cohort.population)
    if new.others_wait and others_first:
        raise OthersWait
    stored = asked.stored(new)
    try:
        if not decide.is_quick(store, accountant, new.view, request):
            raise NotQuick(new.view)
        draft = decide.draft(store, accountant, new.view, stored, request)
    except (TryAgain, Unavailable, NotQuick):
        raise
    except Exception:  # noqa: BLE001 - it comes again once the round is registered, and is counted with it
        return None
    return dataclasses.replace(draft, registers=stored)
