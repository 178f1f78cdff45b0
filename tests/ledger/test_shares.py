"""A budget can be split exactly: where a precision leaves a decision open, a finer one makes it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.errors import BeyondBudget
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

pytestmark = pytest.mark.policies

AMPLIFIED = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return an empty ledger in a file."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shares') / 'ledger.db'}"
    initialise(url)
    return Store.connect(url)


def opened(
    store: Store, epsilon: float, delta: float, plan: dict[ShuffledRound, int], accountant: Accountant
) -> str:
    """Open another cohort with a plan, and return its name."""
    name = f"cohort-{len(store.cohort_names())}"
    terms: dict[str, Any] = {"population": 10**6, "epsilon": epsilon, "delta": delta, "policy": "plan"}
    open_cohort(store, name=name, plan=plan, accountant=accountant, actor="tester", **terms)
    return name


def made(written: str) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(written), reports=1)


def ask(store: Store, accountant: Accountant, cohort: str, described: ShuffledRound) -> Admitted | Refused:
    number = len(store.holdings(cohort)) + sum(store.count_entries(cohort).values())
    request = RoundRequest(round_id=f"{cohort}-{number}", cohort=cohort, round=described)
    register(store, request, actor="tester")
    return admit(store, accountant, request.round_id)


@pytest.mark.slow
def test_ten_tenths_are_a_whole(ledger: Store) -> None:
    """The float 0.1 is more than a tenth, but epsilon at delta 1e-9 of ten such rounds is 0.99999937."""
    accountant = Accountant()
    tenth = made("declared(epsilon=0.1)")
    cohort = opened(ledger, 1.0, 1e-9, {tenth: 10}, accountant)
    answers = [ask(ledger, accountant, cohort, tenth) for _ in range(10)]
    assert all(isinstance(one, Admitted) for one in answers)
    assert 0.9999993 < budget(ledger, accountant, cohort).epsilon_spent_upper < 0.9999994
    eleventh = ask(ledger, accountant, cohort, tenth)
    assert isinstance(eleventh, Refused)
    assert verify(ledger, accountant, cohort, numbers="all").ok


@pytest.mark.slow
@pytest.mark.parametrize(("written", "shares"), [("0.1", 10), ("0.1, delta=1e-15", 10)])
def test_declared_shares_fill_an_adaptive_budget(ledger: Store, written: str, shares: int) -> None:
    """The largest losses of declared rounds add up as the decimals that people write."""
    accountant = Accountant()
    cohort = f"cohort-{len(ledger.cohort_names())}"
    terms: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
    open_cohort(ledger, name=cohort, actor="tester", **terms)
    share = made(f"declared(epsilon={written})")
    answers = [ask(ledger, accountant, cohort, share) for _ in range(shares)]
    assert all(isinstance(one, Admitted) for one in answers)
    assert budget(ledger, accountant, cohort).epsilon_spent_upper <= 1.0
    assert isinstance(ask(ledger, accountant, cohort, share), Refused)
    assert verify(ledger, accountant, cohort, numbers="all").ok


def straddled(accountant: Accountant, *, inside: bool) -> tuple[float, float]:
    """A budget inside the certified interval of five rounds, above or below the true epsilon, and delta."""
    rounds, delta = {slot_for(AMPLIFIED): 5}, 1e-9
    wide, fine = (one.certify(rounds, delta=delta) for one in (accountant, Accountant(precision=1e-5)))
    assert wide.epsilon_lower < fine.epsilon_lower < fine.epsilon_upper < wide.epsilon_upper
    if inside:
        return (fine.epsilon_upper + wide.epsilon_upper) / 2, delta
    return (fine.epsilon_lower + wide.epsilon_lower) / 2, delta


@pytest.mark.slow
def test_a_finer_precision_decides_what_the_usual_one_leaves_open(ledger: Store) -> None:
    accountant = Accountant()
    epsilon, delta = straddled(accountant, inside=True)
    slot = slot_for(AMPLIFIED)
    cohort = opened(ledger, epsilon, delta, {slot: 5}, accountant)
    answers = [ask(ledger, accountant, cohort, slot) for _ in range(5)]
    fifth = answers[-1]
    assert all(isinstance(one, Admitted) for one in answers)
    assert fifth.epsilon_spent_upper <= epsilon
    assert verify(ledger, Accountant(), cohort, numbers="all").ok
    # A round that turned out as its slot was declared does not make it overspent.
    settled = settle(ledger, accountant, fifth.round_id, reports=slot.reports, actor="tester")
    assert not settled.overspent


@pytest.mark.slow
def test_a_finer_precision_refuses_what_is_beyond(ledger: Store) -> None:
    accountant = Accountant()
    epsilon, delta = straddled(accountant, inside=False)
    with pytest.raises(BeyondBudget) as beyond:
        opened(ledger, epsilon, delta, {slot_for(AMPLIFIED): 5}, accountant)
    assert stated_in(beyond.value) > Decimal(epsilon)


def stated_in(beyond: BeyondBudget) -> Decimal:
    """The epsilon that a refusal says a plan costs."""
    return Decimal(re.findall(r"epsilon (\S+) at delta", str(beyond))[0])


@pytest.mark.slow
def test_a_refusal_never_names_the_budget_itself(ledger: Store) -> None:
    """A budget that is a float below what two rounds certainly cost."""
    half = made("declared(epsilon=0.5, delta=1e-9)")
    with pytest.raises(BeyondBudget) as beyond:
        opened(ledger, 1.0 - 2**-53, 2e-9, {half: 2}, Accountant())
    assert stated_in(beyond.value) > Decimal(1 - 2**-53)
