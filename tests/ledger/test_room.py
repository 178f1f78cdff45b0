"""The ledger admits every round that it says still fits, under each policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.forecasts import KINDS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
KINDS: tuple[dict[str, Any], ...] = (
    {"epsilon0": 1.0, "reports": 20_000},
    {"epsilon0": 4.0, "reports": 10_000, "sampled_from": 100_000},
)


def opened(store: Store, policy: str, epsilon: float, **more: Any) -> None:
    wanted: dict[str, Any] = {"population": 10**6, "delta": 1e-7, "actor": "tester"}
    open_cohort(store, name="watches", epsilon=epsilon, policy=policy, **wanted, **more)


def registered(store: Store, accountant: Accountant, request: RoundRequest) -> bool:
    register(store, request, actor="tester")
    return isinstance(admit(store, accountant, request.round_id), Admitted)


def admits_all(
    store: Store, accountant: Accountant, kinds: dict[ShuffledRound, ShuffledRound], number: int
) -> int:
    """Register as many rounds of a kind as are said to fit; return how many that were."""
    fitting = budget(store, accountant, "watches").fits[number]
    for count in range(fitting.rounds_at_least):
        described = kinds.get(fitting.round, fitting.round)
        request = RoundRequest(round_id=f"more{number}-{count}", cohort="watches", round=described)
        assert registered(store, accountant, request), (fitting, count)
    return fitting.rounds_at_least


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_all_rounds_that_are_said_to_fit_are_admitted(
    store: Store, accountant: Accountant, make_request: MakeRequest, number: int
) -> None:
    opened(store, "adaptive", 0.1)
    asked = {}
    for count, kind in enumerate(KINDS):
        request = make_request(f"r{count}", cohort="watches", **kind)
        asked[slot_for(request.round)] = request.round
        assert registered(store, accountant, request)
    assert admits_all(store, accountant, asked, number) > 0
    # The number was close to the largest one.
    assert all(one.rounds_at_least <= 3 for one in budget(store, accountant, "watches").fits[number:][:1])


def test_a_plan_says_how_many_of_its_slots_a_kind_may_take(store: Store, accountant: Accountant) -> None:
    small, large = (
        ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=n)
        for n in (10_000, 20_000)
    )
    opened(store, "plan", 2.0, plan={small: 3, large: 4}, accountant=accountant)
    found = {one.round: one.rounds_at_least for one in budget(store, accountant, "watches").fits}
    assert found == {small: 3, large: 7}  # a round of more reports fits a slot of fewer
    assert admits_all(store, accountant, {}, list(found).index(large)) == 7
    assert [one.rounds_at_least for one in budget(store, accountant, "watches").fits] == [0, 0]


@pytest.mark.slow
def test_rounds_fit_where_almost_nothing_remains(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    opened(store, "adaptive", 0.4)
    count, asked = 0, make_request("r", cohort="watches", **KINDS[1]).round
    while budget(store, accountant, "watches").epsilon_remaining > 1e-3:
        assert registered(store, accountant, make_request(f"r{count}", cohort="watches", **KINDS[1]))
        count += 1
    assert admits_all(store, accountant, {slot_for(asked): asked}, 0) > 5


def test_nothing_fits_into_a_cohort_that_is_overspent_or_new(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    opened(store, "adaptive", 0.1)
    assert budget(store, accountant, "watches").fits == ()
    assert registered(store, accountant, make_request("r", cohort="watches", **KINDS[0]))
    settle(store, accountant, "r", reports=20, actor="tester")
    found = budget(store, accountant, "watches")
    assert (found.status, {one.rounds_at_least for one in found.fits}) == ("overspent", {0})
    assert len(found.fits) <= KINDS_MAX
