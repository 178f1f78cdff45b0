"""Databases to test on, an accountant to count with, and requests to make."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Certificate,
    PrivacyLossDistribution,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.accounting.verification import composed_epsilon, round_delta
from shuffle_ledger.ledger.evidence import second_opinions
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.ledger.clerk import Clerk, open_as_usual

Pairs = list[tuple[PrivacyLossDistribution, int]]
# Answers of the second method in this process, by question.
deltas: dict[tuple[ShuffledRound, float], float | None] = {}
epsilons: dict[object, tuple[Pairs, float | None]] = {}


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a fresh initialised database, of each kind in turn."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    new_ledger: Callable[[], str] = request.getfixturevalue("new_postgresql_ledger")
    return new_ledger()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Yield an empty ledger."""
    with Store.connect(database_url) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def remembered_second_opinions() -> Iterator[None]:
    """Ask the second method each question once: forged bundles repeat the same questions."""

    def round_once(kind: ShuffledRound, epsilon: float) -> float | None:
        if (kind, epsilon) not in deltas:
            deltas[kind, epsilon] = round_delta(kind, epsilon)
        return deltas[kind, epsilon]

    def composed_once(pairs: Pairs, *, delta: float, slack: float) -> float | None:
        key = tuple((id(pair), count) for pair, count in pairs), delta, slack
        if key not in epsilons:  # the pairs are kept, so that no other pair gets the same id
            epsilons[key] = pairs, composed_epsilon(pairs, delta=delta, slack=slack)
        return epsilons[key][1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(second_opinions, "round_delta", round_once)
        patched.setattr(second_opinions, "composed_epsilon", composed_once)
        yield


class RememberingAccountant(Accountant):
    """The real accountant, which also remembers certificates: tests ask for the same ones again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._certificates: dict[object, Certificate] = {}

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Certificate:
        """Return what the real one says, computed once."""
        key = (frozenset(rounds.items()), delta, budget)
        if key not in self._certificates:
            self._certificates[key] = super().certify(rounds, delta=delta, budget=budget)
        return self._certificates[key]


@pytest.fixture(scope="session")
def accountant() -> Accountant:
    """Return an accountant for the whole session."""
    return RememberingAccountant()


@pytest.fixture(scope="session")
def make_request() -> Callable[..., RoundRequest]:
    """Return a function that makes requests of 10-ary randomized response, a name per call."""

    def make(round_id: str | None = None, *, cohort: str = "phones", **changes: Any) -> RoundRequest:
        epsilon0 = changes.pop("epsilon0", 2.0)
        use_case = changes.pop("use_case", None)
        collected_on = changes.pop("collected_on", None)
        randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
        parameters: dict[str, Any] = {"randomizer": randomizer, "reports": 1_000} | changes
        return RoundRequest(
            round_id=round_id or f"round-{uuid.uuid4()}",
            cohort=cohort,
            round=ShuffledRound(**parameters),
            use_case=use_case,
            collected_on=collected_on,
        )

    return make


@pytest.fixture
def phones(store: Store) -> Store:
    """Return a ledger with the cohort "phones": a million users, epsilon 1 at delta 1e-9."""
    open_as_usual(store, "phones")
    return store


@pytest.fixture
def clerk(store: Store, accountant: Accountant) -> Clerk:
    """Return who works with an empty ledger."""
    return Clerk(store, accountant)
