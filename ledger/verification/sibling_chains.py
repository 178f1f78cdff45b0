"""Reading the chains of all cohorts of a round, where they are in the ledger's database."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from shuffle_ledger.ledger.errors import LedgerError, NotFound, TryAgain, Unavailable
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.replay import Problem
from shuffle_ledger.ledger.verification.siblings import JointRound, JointRounds, disagreements, undeclared

ROUNDS_AT_ONCE = 100  # whose siblings one statement reads
_UNREADABLE = (LedgerError, AttributeError, LookupError, TypeError, ValueError)


def siblings_in(store: Store, cohort: str, chains: Mapping[str, JointRounds]) -> Iterator[Problem]:
    """Yield where a chain says otherwise of rounds of several cohorts than the other chains do.

    Chains that were replayed one after another may differ because a round was decided in between. So a round
    on which they differ, or of which not all were replayed, is read anew, from all chains at one moment.
    """
    yield from (
        Problem(sequence=sequence, what=what)
        for sequence, what in undeclared(cohort, _with_parent(store, cohort, chains))
    )
    unsure: dict[tuple[str, ...], dict[str, JointRound]] = defaultdict(dict)
    for round_id, said in chains[cohort].rounds.items():
        is_known = all(name in chains for name in said.audience)
        if not is_known or any(disagreements(cohort, chains, only=round_id)):
            unsure[said.audience][round_id] = said
    for audience, rounds in unsure.items():
        waiting = iter(rounds.items())
        while some := dict(itertools.islice(waiting, ROUNDS_AT_ONCE)):
            yield from _differing(store, cohort, some, audience)


def _differing(
    store: Store, cohort: str, rounds: Mapping[str, JointRound], audience: tuple[str, ...]
) -> Iterator[Problem]:
    """Yield where a chain says otherwise of rounds of one audience than the other chains say now."""
    try:
        now = _read(store, rounds, audience)
        found = [
            Problem(sequence=sequence, what=what)
            for round_id in rounds
            if round_id in now[cohort].rounds
            for _, sequence, what in disagreements(cohort, now, only=round_id)
        ]
    except (TryAgain, Unavailable):
        raise  # says nothing about the ledger
    except _UNREADABLE as error:
        found = []
        if len(rounds) == 1:
            ((round_id, said),) = rounds.items()
            what = f"round {round_id!r}: siblings cannot be read: {error}"
            found.append(Problem(sequence=said.facts[0].sequence, what=what))
        else:  # of one of them
            for round_id, said in rounds.items():
                found += _differing(store, cohort, {round_id: said}, audience)
    yield from found


def _with_parent(store: Store, cohort: str, chains: Mapping[str, JointRounds]) -> Mapping[str, JointRounds]:
    """Return the chains, with that of the cohort whose window this is a period of."""
    part = chains[cohort].period or chains[cohort].quota
    if part is None or part.cohort in chains:
        return chains
    try:
        parent = store.cohort(part.cohort)
    except NotFound:
        return chains
    return {**chains, parent.name: JointRounds(windows=parent.windows, opened_at=parent.opened_at)}


def _read(store: Store, round_ids: Collection[str], audience: tuple[str, ...]) -> dict[str, JointRounds]:
    """Return what the chains of some rounds' cohorts say of them; a lost cohort is left out."""
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
    for entry in store.entries_about(round_ids, names):
        body = entry.content()
        quoted = body.details.get("request")
        request = None if quoted is None else RoundRequest.from_mapping(quoted)
        chains[entry.cohort].see(body, request)
    return chains
