"""The first admitted round chooses the filters, for ever, and repeating it costs a count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, Certificate, Choice, ShuffledRound
from shuffle_ledger.ledger.decisions import admit, change_budget, open_cohort, quote, register, settle, void
from shuffle_ledger.ledger.decisions.quoting import quote_batch
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, policy_of
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
EPSILON, DELTA = 3.0, 1e-9
# A few of these are the budget: the filters for rounds of any kind admit half as many.
HEAVY: dict[str, Any] = {"epsilon0": 4.0, "reports": 300, "sampled_from": 3_000}
MOST = 22
LIGHT: dict[str, Any] = {"epsilon0": 1.0, "reports": 50_000}
CHANGE: dict[str, Any] = {"reason": "as agreed", "actor": "owner"}


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with the adaptive cohort "watches", which has not chosen its filters."""
    opened = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)  # type: ignore[arg-type]  # as it says
    return store


@pytest.fixture
def ask(watches: Store, accountant: Accountant, make_request: MakeRequest) -> Callable[..., Outcome]:
    """Return a function that registers a round and decides it."""

    def ask(name: str, **changes: Any) -> Outcome:
        request = make_request(name, cohort="watches", **(HEAVY | changes))
        register(watches, request, actor="tester")
        return admit(watches, accountant, name)

    return ask


Ask = Callable[..., Outcome]


def light(ask: Ask, name: str) -> Outcome:
    return ask(name, sampled_from=None, **LIGHT)


def choice(store: Store) -> Choice | None:
    view = store.view("watches")
    policy = policy_of(store, view)
    assert isinstance(policy, AdaptivePolicy)
    return policy.choice(view)


def units(store: Store) -> int:
    (counted,) = store.view("watches").details["standing"]["charged"]["repetition"]
    return int(counted)


def holds(store: Store, accountant: Accountant) -> None:
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_the_first_kind_is_admitted_as_often_as_its_composition_allows(
    watches: Store, accountant: Accountant, make_request: MakeRequest, ask: Ask
) -> None:
    quoted = quote(watches, accountant, make_request("first", cohort="watches", **HEAVY))
    first = ask("first")
    assert isinstance(first, Admitted)
    assert quoted.epsilon_requested_upper == first.epsilon_spent_upper
    spent = [first.epsilon_spent_upper]
    for number in range(1, MOST):
        outcome = ask(f"r{number}")
        assert isinstance(outcome, Admitted)
        spent.append(outcome.epsilon_spent_upper)
    assert spent == sorted(spent)
    assert spent[-1] <= EPSILON
    refused = ask("late")
    assert isinstance(refused, Refused)
    assert refused.reason == "budget_exceeded"
    statement = budget(watches, accountant, "watches")
    assert statement.filters[-1].name == "repetition"
    assert statement.filters[-1].epsilon_upper == statement.epsilon_spent_upper == spent[-1]
    assert accountant.certify({first.accounted: MOST}, delta=DELTA).epsilon_lower <= spent[-1]
    fixed = MOST
    while accountant.certify({first.accounted: fixed + 1}, delta=DELTA).epsilon_upper <= EPSILON:
        fixed += 1
    assert 0.9 * fixed <= MOST
    holds(watches, accountant)


class Deciding(Accountant):
    """The accountant of decisions after the first, which compose nothing."""

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Certificate:
        raise AssertionError("a decision composed")


def test_later_decisions_count_and_compose_nothing(watches: Store, make_request: MakeRequest) -> None:
    register(watches, make_request("first", cohort="watches", **HEAVY), actor="tester")
    assert isinstance(admit(watches, Accountant(precision=0.05), "first"), Admitted)
    deciding = Deciding(precision=0.05)
    for name in ("second", "third"):
        request = watches.round("first").content.replace(b"first", name.encode())
        register(watches, RoundRequest.from_bytes(request), actor="tester")
        assert isinstance(admit(watches, deciding, name), Admitted)
    settle(watches, deciding, "second", reports=300, actor="tester")
    void(watches, deciding, "third", reason="a bug", actor="tester")
    assert units(watches) == 2


def test_a_regular_round_leaves_all_of_delta_to_the_other_filters(watches: Store, ask: Ask) -> None:
    assert isinstance(light(ask, "first"), Admitted)
    assert choice(watches) == Choice(alternative=0, repetition=None)
    body = watches.entry("watches", 2).content()
    assert "repetition" not in body.details["charge"]
    assert set(body.details["standing"]) == {"rules", "charged", "choice"}


def test_a_voided_first_round_has_chosen_all_the_same(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    ask("first")
    chosen = choice(watches)
    assert chosen is not None
    assert chosen.repetition is not None
    void(watches, accountant, "first", reason="never released", actor="tester")
    assert (units(watches), watches.view("watches").spent.epsilon_upper) == (0, 0.0)
    assert isinstance(light(ask, "other"), Admitted)
    assert choice(watches) == chosen
    holds(watches, accountant)


def test_refusals_before_the_first_round_choose_nothing(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    hopeless: list[dict[str, Any]] = [{"epsilon0": 12.0}, {"sampled_from": None, "reports": 5}]
    for number, changes in enumerate(hopeless):
        assert isinstance(ask(f"hopeless-{number}", **changes), Refused)
        assert choice(watches) is None
    ask("first")
    chosen = choice(watches)
    assert chosen is not None
    assert chosen.repetition is not None
    assert chosen.repetition.kind.reports == 300 - 2, "the slot of the admitted round"
    holds(watches, accountant)


@pytest.mark.slow
def test_what_the_first_kind_does_not_dominate_closes_the_count_until_it_is_voided(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    ask("first")
    assert isinstance(ask("larger", reports=600, sampled_from=6_000), Admitted)
    assert units(watches) == 2
    assert isinstance(ask("other", reports=250, sampled_from=2_500), Admitted), "another filter holds"
    closed = budget(watches, accountant, "watches").filters[-1]
    assert (closed.name, closed.epsilon_upper) == ("repetition", float("inf"))
    holds(watches, accountant)
    void(watches, accountant, "other", reason="never released", actor="tester")
    assert units(watches) == 2
    assert budget(watches, accountant, "watches").filters[-1].epsilon_upper < EPSILON
    holds(watches, accountant)


@pytest.mark.slow
def test_settling_keeps_the_unit_while_the_kind_dominates_what_came(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    for number in range(MOST - 2):
        ask(f"r{number}")
    assert not settle(watches, accountant, "r0", reports=300, actor="tester").overspent
    assert units(watches) == MOST - 2
    holds(watches, accountant)
    # Fewer are not dominated, and no other filter holds any more: the ledger says so.
    assert settle(watches, accountant, "r1", reports=200, actor="tester").overspent
    assert isinstance(ask("late"), Refused)
    holds(watches, accountant)


@pytest.mark.slow
def test_other_budgets_allow_other_numbers(watches: Store, accountant: Accountant, ask: Ask) -> None:
    for number in range(10):
        ask(f"r{number}")
    before = watches.view("watches").spent
    lowered = change_budget(watches, accountant, "watches", epsilon=2.6, **CHANGE)
    assert lowered.status == "open"
    assert watches.view("watches").spent.epsilon_upper <= before.epsilon_upper <= 2.6
    more = 0
    while isinstance(ask(f"lowered-{more}"), Admitted):
        more += 1
    assert 10 + more < MOST
    raised = change_budget(watches, accountant, "watches", epsilon=4.0, **CHANGE)
    assert raised.status == "open"
    while isinstance(ask(f"raised-{more}"), Admitted):
        more += 1
    assert 10 + more > MOST
    statement = budget(watches, accountant, "watches")
    composed = accountant.certify(watches.view("watches").held, delta=DELTA)
    assert composed.epsilon_lower <= statement.epsilon_spent_upper <= 4.0
    assert change_budget(watches, accountant, "watches", epsilon=1.0, **CHANGE).status == "overspent"
    holds(watches, accountant)


@pytest.mark.slow
def test_first_rounds_at_once_make_one_choice(
    watches: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    kinds: list[dict[str, Any]] = [
        HEAVY,
        HEAVY | {"reports": 400, "sampled_from": 4_000},
        {**LIGHT, "sampled_from": None},
    ] * 2
    for number, changes in enumerate(kinds):
        request = make_request(f"r{number}", cohort="watches", **changes)
        register(watches, request, actor="tester")
    barrier = threading.Barrier(len(kinds))

    def contend(number: int) -> Outcome:
        with Store.connect(database_url) as store:
            barrier.wait(timeout=60)
            return admit(store, Accountant(precision=0.01), f"r{number}")

    with ThreadPoolExecutor(len(kinds)) as threads:
        outcomes = list(threads.map(contend, range(len(kinds))))
    assert all(isinstance(outcome, Admitted) for outcome in outcomes)
    entries = [entry.content() for entry in watches.entries_of("watches")]
    assert [body.sequence for body in entries if "choice" in body.details] == [2]
    chosen = choice(watches)
    assert chosen == Choice.from_mapping(entries[1].details["choice"])
    if chosen.repetition is not None:
        assert chosen.repetition.kind == ShuffledRound.from_mapping(entries[1].details["accounted"])
    holds(watches, accountant)


@pytest.mark.slow
def test_a_batch_is_quoted_as_it_would_be_decided(
    watches: Store, accountant: Accountant, make_request: MakeRequest, ask: Ask
) -> None:
    requests = [make_request(f"r{number}", cohort="watches", **HEAVY) for number in range(MOST + 2)]
    answer = quote_batch(watches, accountant, requests, fits=True)
    assert answer.rounds_admitted == MOST
    assert answer.fits is not None
    assert answer.fits.rounds == MOST
    for number, quoted in enumerate(answer.quotes[:3]):
        outcome = ask(f"r{number}")
        assert isinstance(outcome, Admitted)
        assert outcome.epsilon_spent_upper == quoted.epsilon_requested_upper
