"""Reading the chains of all cohorts of a round, where they are in the ledger's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shuffle_ledger.ledger.errors import LedgerError, NotFound, TryAgain, Unavailable
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.replay import Problem
from shuffle_ledger.ledger.verification.siblings import JointRounds, disagreements, undeclared

_UNREADABLE = (LedgerError, AttributeError, LookupError, TypeError, ValueError)


def siblings_in(store: Store, cohort: str, chains: Mapping[str, JointRounds]) -> Iterator[Problem]:
    """Yield where a chain says otherwise of rounds of several cohorts than the other chains do.

    Chains that were replayed one after another may differ because a round was decided in between. So a round
    on which they differ, or of which not all were replayed, is read anew, from all chains at one moment.
    """
    yield from (
        Problem(sequence=FIRST_SEQUENCE, what=what)
        for what in undeclared(cohort, _with_parent(store, cohort, chains))
    )
    for round_id, said in chains[cohort].rounds.items():
        is_known = all(name in chains for name in said.audience)
        if is_known and not any(disagreements(cohort, chains, only=round_id)):
            continue
        try:
            now = _read(store, round_id, said.audience)
            found = list(disagreements(cohort, now, only=round_id)) if round_id in now[cohort].rounds else []
        except (TryAgain, Unavailable):
            raise  # says nothing about the ledger
        except _UNREADABLE as error:
            yield Problem(
                sequence=said.facts[0].sequence, what=f"round {round_id!r}: siblings cannot be read: {error}"
            )
            continue
        for _, sequence, what in found:
            yield Problem(sequence=sequence, what=what)


def _with_parent(store: Store, cohort: str, chains: Mapping[str, JointRounds]) -> Mapping[str, JointRounds]:
    """Return the chains, with that of the cohort whose window this is a period of."""
    period = chains[cohort].period
    if period is None or period.cohort in chains:
        return chains
    try:
        parent = store.cohort(period.cohort)
    except NotFound:
        return chains
    return {**chains, parent.name: JointRounds(windows=parent.windows)}


def _read(store: Store, round_id: str, audience: tuple[str, ...]) -> dict[str, JointRounds]:
    """Return what the chains of a round's cohorts say of it; a lost cohort is left out."""
    lost = store.lost_cohorts()
    names = [name for name in audience if name not in lost]
    chains = {
        cohort.name: JointRounds(
            population=cohort.population if cohort.parent is None else 0,
            frozen=cohort.status == "frozen",
            windows=cohort.windows,
            period=cohort.period,
            quota=cohort.quota,
        )
        for cohort in store.cohorts_named(names)
    }
    for entry in store.entries_about(round_id, names):
        body = entry.content()
        quoted = body.details.get("request")
        request = None if quoted is None else RoundRequest.from_bytes(canonical.encode(quoted))
        chains[entry.cohort].see(body, request)
    return chains
