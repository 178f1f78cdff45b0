"""Accounts of delta: approximate rounds cost what they are worth, and no analyst beats two fixed shares.

The game is solved exactly on a grid of losses: the analyst lets a Gaussian mechanism take part of the
budget, sees the loss, and only then chooses how to spend the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.stats import norm

from shuffle_ledger.accounting import (
    Accountant,
    DeltaAccounts,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.accounting.filters.charges import charge_of
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.verification.coverage import Coverage
from tests.accounting.alike import alike

mp.mp.dps = 50
EPSILON, DELTA = 3.0, 1e-6
FILTERS = FilterSet.for_budget(epsilon=EPSILON, delta=DELTA, approximate_share=1 / 8)
ACCOUNTANT = Accountant()
CELLS = np.linspace(-9.0, 9.0, 8001)
WEIGHTS = norm.pdf(CELLS) / norm.pdf(CELLS).sum()


def made(randomizer: str, reports: int = 20_000, **fields: object) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(randomizer),
        reports=reports,
        **fields,
    )


def local(delta0: float) -> ShuffledRound:
    return made("generic(epsilon0=1)", delta0=delta0, analysis="clone")


def gaussian(epsilon: FloatArray | float, variance: float) -> FloatArray:
    """Delta of a Gaussian mechanism."""
    mu = math.sqrt(variance)
    return np.asarray(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def variance_of(epsilon: float, delta: float) -> float:
    return float(optimize.brentq(lambda v: float(gaussian(epsilon, v)) - delta, 1e-8, 50.0, xtol=1e-14))


def reached(variance: float, spend: Callable[[FloatArray, float], FloatArray], shares: FloatArray) -> float:
    """The most delta that is reached by taking a share of the variance, and spending the rest by its loss."""
    best = 0.0
    for share in shares:
        first = float(share) * variance
        losses = first / 2 + math.sqrt(first) * CELLS
        best = max(best, float(WEIGHTS @ spend(losses, variance - first)))
    return best


def with_slack(losses: FloatArray, rest: float, epsilon: float, slack: float) -> FloatArray:
    """Delta, in units of the mass under P, if the last mechanism is off by a total variation distance.

    Under Q the distance removes the outcomes that tell most; under P it adds as much to them.
    """
    mu = math.sqrt(rest)
    removed = -rest / 2 + mu * norm.isf(slack)  # losses beyond have this probability under Q
    enough = np.maximum(removed, epsilon - losses)
    below = norm.sf((removed - rest / 2) / mu) - norm.sf((enough - rest / 2) / mu)
    above = np.exp(epsilon - losses) * norm.sf((enough + rest / 2) / mu)
    found: FloatArray = gaussian(epsilon - losses, rest) + slack + below + above
    return found


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (3.0, 1e-6), (8.0, 1e-6), (1.0, 1e-9)])
def test_two_fixed_accounts_are_not(epsilon: float, delta: float) -> None:
    accounts = FilterSet.for_budget(epsilon=epsilon, delta=delta, approximate_share=0.9).accounts
    certain, slack = accounts.certain_loss, accounts.slack / (1 + math.exp(epsilon))
    main = delta - certain - accounts.slack
    variance = variance_of(epsilon, main)

    def spend(losses: FloatArray, rest: float) -> FloatArray:
        pure = with_slack(losses, rest, epsilon, slack)
        return certain + (1 - certain) * pure  # each path may use all of both

    found = reached(variance, spend, np.linspace(0.02, 0.9, 23))
    assert main + certain < found <= delta * (1 + 1e-9)


BUDGETS = st.floats(-9, 4).map(lambda x: 10.0**x)


@given(low=BUDGETS, high=BUDGETS, delta=st.floats(-60, -1).map(lambda x: 10.0**x), share=st.floats(1e-6, 0.9))
def test_limits_of_accounts_are_paid_by_their_shares(
    low: float, high: float, delta: float, share: float
) -> None:
    """By 50 digits: the rounds that a limit allows cost at most the share, and little less."""
    accounts = FilterSet.for_budget(epsilon=1.0, delta=delta, approximate_share=share).accounts
    low, high = sorted((low, high))
    (certain, slack), (certain_above, slack_above) = accounts.limits(low), accounts.limits(high)
    assert certain == certain_above == Fraction(accounts.certain_loss)
    assert slack >= slack_above >= 0
    price = 1 + mp.exp(mp.mpf(low))
    used = mp.mpf(slack.numerator) / slack.denominator * price
    assert used <= accounts.slack
    if low > 700:
        assert slack == 0, "the price is above every float"
    else:
        assert used >= accounts.slack * (1 - mp.mpf(2) ** -47)
    reading = accounts.reading(certain, slack, slack_limit=slack, epsilon=low)
    assert reading.certain_loss_used_upper == accounts.certain_loss
    assert used <= reading.slack_used_upper <= accounts.slack
    assert (reading.slack_share, reading.epsilon) == (accounts.slack, low)


def test_what_uses_accounts_is_read_from_above() -> None:
    accounts = DeltaAccounts(certain_loss=1e-8, slack=1e-7)
    third, limit = Fraction(1, 3 * 10**9), accounts.limits(1.0)[1]
    reading = accounts.reading(third, third, slack_limit=limit, epsilon=1.0)
    assert Fraction(reading.certain_loss_used_upper) >= third
    assert reading.slack_used_upper >= (1 + mp.e) / mp.mpf(3 * 10**9)
    none = Fraction(0)
    nothing = accounts.reading(none, none, slack_limit=none, epsilon=1e4)
    assert (nothing.certain_loss_used_upper, nothing.slack_used_upper) == (0, 0)
    beyond = accounts.reading(none, Fraction(1, 10**300), slack_limit=none, epsilon=1e4)
    assert beyond.slack_used_upper == math.inf
    assert accounts.limits(math.inf) == (Fraction(1e-8), none)
    assert DeltaAccounts.from_mapping(accounts.to_mapping()) == accounts


def test_a_lowered_promise_is_read_at_the_price_that_it_had() -> None:
    accounts = DeltaAccounts(certain_loss=1e-8, slack=1e-7)
    used, limit = Fraction(1, 10**9), accounts.limits(2.0)[1]
    before, after = (
        accounts.reading(Fraction(0), used, slack_limit=limit, epsilon=one) for one in (2.0, 1.0)
    )
    assert before == after
    assert after.epsilon == 2.0
    # A limit that is rounded down to nothing tells no other price.
    without = accounts.reading(Fraction(0), Fraction(0), slack_limit=Fraction(0), epsilon=500.0)
    assert (without.epsilon, without.slack_used_upper) == (500.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, 1, {"certain_loss": 1.0}, {"certain_loss": 1.0, "slack": -1.0}),
        *({"certain_loss": math.nan, "slack": 0.0}, {"certain_loss": 0.0, "slack": 0.0, "epsilon": 1.0}),
    ],
)
def test_what_are_no_accounts_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidParameter):
        DeltaAccounts.from_mapping(wrong)


APPROXIMATE = [
    local(1e-14),
    made("generic(epsilon0=2)", 1_000, sampled_from=100_000, delta0=1e-16, analysis="clone"),
    made("declared(epsilon=0.1, delta=1e-9)", 1),
    made("declared(epsilon=0.001, delta=1e-8)", 1),
    made("distinct_elements(p=0.05)", 500),
    made("binomial_sum(bits=1, p=0.3)", 60),
]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [0.1])
@pytest.mark.parametrize("kind", APPROXIMATE)
def test_auditors_prove_account_parts(kind: ShuffledRound, precision: float) -> None:
    filters, auditor = FILTERS, Coverage(ACCOUNTANT)
    charge = Accountant(precision=precision).charge(kind, filters)
    assert any(charge.account)
    covers = functools.partial(auditor.covers, kind, filters)
    assert covers(charge)
    certain, slack = charge.account
    for account in ((certain, slack * Fraction(999, 1000)), (certain, slack - 1), (certain - 1, slack)):
        if account != charge.account:
            assert not covers(dataclasses.replace(charge, account=account)), account
    # Certain loss that no account pays for is left to the charges, which were made without it.
    if certain > Fraction(1e-12):
        assert not covers(dataclasses.replace(charge, account=(certain / 2, slack)))
    assert covers(dataclasses.replace(charge, account=(certain * 2, slack * 2)))
    with pytest.raises(ValueError, match="zip"):
        covers(dataclasses.replace(charge, account=()))


def test_what_is_certain_comes_off_the_pair_exactly() -> None:
    kind, pure = made("declared(epsilon=0.1, delta=1e-3)", 1), made("declared(epsilon=0.1)", 1)
    pair, bare = (ACCOUNTANT.privacy_loss(one).upper for one in (kind, pure))
    without = pair.unless_revealed(pair.infinity)
    assert without.infinity == 0
    for loss in (0.0, 0.03, 0.09, 0.2):
        whole, rest = (one.hockey_stick_divergence(loss) for one in (pair, without))
        assert pair.infinity + (1 - pair.infinity) * rest >= whole
        assert rest == pytest.approx(bare.hockey_stick_divergence(loss), rel=1e-6, abs=1e-15)
    filters = FILTERS
    charges = [
        charge_of(one, filters, certain_loss=lost, slack=0.0)
        for one, lost in ((pair, pair.infinity), (bare, 0.0))
    ]
    assert float(charges[0].gaussian[0]) == pytest.approx(float(charges[1].gaussian[0]), rel=1e-3)
    assert pair.unless_revealed(0.0) is pair


@given(
    share=st.floats(-300, 0).map(lambda one: 10.0**one), ratio=st.floats(-3, 308).map(lambda one: 10.0**one)
)
def test_the_epsilon_that_covers_slack_does_and_a_larger_one_does_not(share: float, ratio: float) -> None:
    accounts, slack = DeltaAccounts(certain_loss=0.0, slack=share), Fraction(share) / Fraction(ratio)
    epsilon = accounts.epsilon_covering(slack)
    if epsilon is None:
        assert slack > accounts.limits(1e-7)[1]
        return
    assert epsilon > 0
    assert slack <= accounts.limits(epsilon)[1]
    assert slack > accounts.limits(epsilon * (1 + 1e-6) + 1e-7)[1]
