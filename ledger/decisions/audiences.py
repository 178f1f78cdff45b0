"""Which cohorts a round is of: names, or a selector over labels, resolved when the round is registered."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage.rows import StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.audiences import (
    checked_audience,
    named_in,
    selected_labels,
)
from shuffle_ledger.ledger.values.requests import Cohort, RoundRequest


def resolve_audience(
    store: Store, audience: str | Sequence[str], *, round_id: str | None = None
) -> tuple[str, ...]:
    """Return the names of the cohorts that an audience means, in order.

    Cohorts that are frozen or overspent are among them: their users would report, so they have to refuse.

    Args:
        store: the ledger.
        audience: a list of names, or a text: names with commas or | between, or a selector such as
            `device=phone,country=de`, which means every cohort that has all these labels.
        round_id: the identifier to be registered. If it is registered already, a selector means the cohorts
            that there were then, so that a repeated request says the same: the round's own, and those that
            were opened earlier by the database's clock. If the clock was set back, a cohort may seem earlier
            than it is; the request then differs from the registered one, which is a Conflict.

    Raises:
        InvalidValue: no names, too many, or no selector that there can be.
        NotFound: no cohort has these labels.
    """
    wanted = selected_labels(audience) if isinstance(audience, str) else None
    if wanted is None:
        return checked_audience(named_in(audience) if isinstance(audience, str) else audience)
    found = store.labelled(wanted)
    with contextlib.suppress(NotFound):
        if round_id is not None:
            found = _there_at_registration(found, store.round(round_id))
    names = [cohort.name for cohort in found]
    if not names:
        raise NotFound(
            f"no cohort has the labels {audience!r}; for several values of a label, name the cohorts"
        )
    return checked_audience(names)


def _there_at_registration(cohorts: Sequence[Cohort], stored: StoredRound) -> list[Cohort]:
    own = RoundRequest.from_bytes(stored.content).members
    return [
        cohort
        for cohort in cohorts
        if cohort.name in own or cohort.opened_at is None or cohort.opened_at <= stored.registered_at
    ]
