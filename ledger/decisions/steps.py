"""One step of admission: what can be done now about a round that is not registered yet, as a value.

`first_step` runs inside the database's transaction, so it decides from memory or says what is missing.
`decisions.admission` acts on the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import decide
from shuffle_ledger.ledger.decisions.windows import is_over
from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest, checked_new_name, request_digest
from shuffle_ledger.ledger.values.texts import checked_text


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """The entries that register the round and decide it, one for each of its cohorts, to be appended."""

    drafts: tuple[EntryDraft, ...]


@dataclass(frozen=True, kw_only=True)
class NeedsComputation:
    """The decision needs numbers that are not in memory; `views` are the cohorts that miss some."""

    views: tuple[CohortView, ...]


@dataclass(frozen=True, kw_only=True)
class NeedsRow:
    """The round must be registered before it is decided.

    Its identifier is taken, or the decision failed: the failure is raised again, and counted with the row.
    """


NotYet = NeedsComputation | NeedsRow
Step = Drafted | NotYet


@dataclass(frozen=True, kw_only=True)
class NewRoundRequest:
    """A request as it is registered."""

    request: RoundRequest
    actor: str

    @classmethod
    def of(cls, request: RoundRequest, *, actor: str) -> NewRoundRequest:
        """Return a request to admit a round; raises InvalidValue for a name that cannot be one."""
        checked_new_name("round_id", request.round_id)
        return cls(request=request, actor=checked_text("actor", actor))

    @functools.cached_property
    def content(self) -> bytes:
        """The request's canonical bytes."""
        return self.request.to_bytes()

    def stored(self, new: NewRound) -> StoredRound:
        """Return the row it is registered with in one of its cohorts."""
        return StoredRound(
            registration=new.registration,
            round_id=self.request.round_id,
            cohort=new.view.cohort.name,
            content=self.content,
            content_digest=request_digest(self.content),
            registered_by=self.actor,
            registered_at=new.view.at,
            shared=new.view.cohort.name != self.request.cohort,
        )


def first_step(store: Store, accountant: Accountant, asked: NewRoundRequest, new: Sequence[NewRound]) -> Step:
    """Return the entries that register and decide a round, or what has to happen before they can be made.

    Args:
        new: the round's cohorts in order and the next registrations, as the transaction reads them.

    Raises:
        InvalidValue: the round is larger than its cohorts together, or not one for all of them.
        TryAgain, Unavailable: the database cannot be asked now.
    """
    request = asked.request
    views = tuple(each.view for each in new)
    decide.check_request(request, [view.cohort for view in views])
    if any(is_over(request, view.now.date()) for view in views):
        return NeedsRow()  # midnight passed since its periods were chosen: it is registered for other days
    stored = [asked.stored(each) for each in new]
    try:
        missing = tuple(view for view in views if not decide.is_quick(store, accountant, view, request))
        if missing:
            return NeedsComputation(views=missing)
        drafts = decide.drafts(store, accountant, views, stored, request, registers=True)
    except (TryAgain, Unavailable):
        raise
    except Exception:  # noqa: BLE001 - raised again, and counted, once the round has a row
        return NeedsRow()
    return Drafted(drafts=tuple(drafts))


def prepared_for(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Compute what `first_step` misses, outside any transaction, if that does not take long; return whether
    it does not.

    Raises:
        TryAgain, Unavailable: the database cannot be asked now.
    """
    try:
        return decide.prepare(store, accountant, view, request)
    except (TryAgain, Unavailable):
        raise
    except Exception:  # noqa: BLE001 - raised again, and counted, once the round has a row
        return False
