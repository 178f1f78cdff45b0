"""A budget can be split exactly: where a precision leaves a decision open, a finer one makes it."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.decisions.quoting import fits_instead
from shuffle_ledger.ledger.errors import BeyondBudget
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

pytestmark = pytest.mark.policies

KINDS = {
    "declared": "declared(epsilon={})",
    "krr": "krr(k=4, epsilon0={})",  # of a single report: nothing is amplified
    "laplace": "laplace(epsilon0={})",
}
SHARES = (2, 3, 7, 10)
BUDGETS = ((1.0, 1e-9), (0.3, 1e-6), (2.1, 1e-12), (0.07, 1e-9))
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
@pytest.mark.parametrize(("written", "shares"), [("0.1", 10), ("0.25", 4), ("0.1, delta=1e-15", 10)])
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


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_budget_is_split_into_equal_shares(kind: str, epsilon: float, delta: float) -> None:
    accountant = Accountant()
    for shares in SHARES:
        slot = slot_for(made(KINDS[kind].format(repr(epsilon / shares))))
        whole = accountant.certify({slot: shares}, delta=delta, budget=epsilon)
        assert whole.epsilon_upper <= epsilon
        assert whole.epsilon_lower <= sum([Fraction(epsilon / shares)] * shares)


@pytest.mark.slow
def test_the_ledger_splits_budgets_of_plans(ledger: Store) -> None:
    accountant = Accountant()
    for kind, shares, (epsilon, delta) in zip(KINDS, (3, 7, 10), BUDGETS[1:], strict=True):
        described = made(KINDS[kind].format(repr(epsilon / shares)))
        cohort = opened(ledger, epsilon, delta, {described: shares}, accountant)
        request = RoundRequest(round_id=f"{cohort}-asked", cohort=cohort, round=described)
        assert fits_instead(ledger, accountant, request).rounds == shares
        answers = [ask(ledger, accountant, cohort, described) for _ in range(shares)]
        assert all(isinstance(one, Admitted) for one in answers)
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


def test_what_is_far_beyond_is_refused_without_finer_losses(ledger: Store) -> None:
    accountant = Accountant()
    with pytest.raises(BeyondBudget):
        opened(ledger, 0.1, 1e-9, {AMPLIFIED: 1}, accountant)
    assert not accountant._finer


@pytest.mark.slow
def test_a_refusal_never_names_the_budget_itself(ledger: Store) -> None:
    """A budget that is a float below what two rounds certainly cost."""
    half = made("declared(epsilon=0.5, delta=1e-9)")
    with pytest.raises(BeyondBudget) as beyond:
        opened(ledger, 1.0 - 2**-53, 2e-9, {half: 2}, Accountant())
    assert stated_in(beyond.value) > Decimal(1 - 2**-53)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["declared(epsilon=0.1)", "krr(k=4, epsilon0=0.5)", "generic(epsilon0=1)"]),
    st.integers(1, 100),
    st.integers(2, 12),
    st.floats(0.998, 1.002),
)
def test_nothing_admitted_is_certainly_beyond_the_budget(
    written: str, reports: int, count: int, about: float
) -> None:
    """The budgets are close to the cost of the rounds. A more precise accountant contradicts no admission."""
    delta = 1e-7
    slot = slot_for(ShuffledRound(randomizer=parse_randomizer(written), reports=reports))
    accountant, finest = Accountant(), Accountant(precision=1e-5)
    true = finest.certify({slot: count}, delta=delta)
    epsilon = about * true.epsilon_upper
    decided = accountant.certify({slot: count}, delta=delta, budget=epsilon)
    if decided.epsilon_upper <= epsilon:
        assert true.epsilon_lower <= epsilon
        assert finest.certify_delta({slot: count}, epsilon=epsilon).delta_lower <= delta
    else:
        assert true.epsilon_upper > epsilon * (1 - 1e-4)
