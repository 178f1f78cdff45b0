"""Every limit that is called included is accepted, and the next number beyond it is refused."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    best_local_gaussian,
    calibrate,
    parse_randomizer,
    slot_for,
    to_dp_accounting,
    validation,
)
from shuffle_ledger.accounting.randomizers import RANDOMIZERS

_UP, _DOWN = math.inf, -math.inf


def beyond(limit: float, towards: float) -> float:
    if isinstance(limit, int):
        return limit + (1 if towards == _UP else -1)
    return math.nextafter(limit, towards)


#: A call with one open parameter, its name in errors, and its least and largest value; None: it has no such
#: limit, or one that is not included.
LIMITS: list[tuple[str, str, float | None, float | None]] = [
    ("generic(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("krr(k=4, epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("krr(k={}, epsilon0=1)", "k", 2, 10**12),
    ("blh(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("blh(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("rappor(epsilon0={}, domain=64)", "epsilon0", 1e-9, 30.0),
    ("rappor(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("oue(epsilon0={}, domain=64)", "epsilon0", 1e-9, 30.0),
    ("oue(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("hadamard(epsilon0={}, domain=64)", "epsilon0", 1e-9, 30.0),
    ("olh(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("olh(epsilon0=1, g={})", "g", 2, 2 * 10**13),
    ("olh(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("subset(epsilon0={}, domain=64)", "epsilon0", 1e-9, 30.0),
    ("subset(epsilon0={}, domain=1000000000000)", "epsilon0", 1e-9, 30.0),
    ("subset(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("subset(epsilon0=1, domain=64, size={})", "size", 1, 63),
    ("block_hadamard(epsilon0={}, domain=64)", "epsilon0", 1e-9, 30.0),
    ("block_hadamard(epsilon0={}, domain=1000000000000)", "epsilon0", 1e-9, 30.0),
    ("block_hadamard(epsilon0=30, domain={})", "domain", 3, 10**12),
    ("block_hadamard(epsilon0=1, domain={})", "domain", 3, 10**12),
    ("block_hadamard(epsilon0=1, domain=64, blocks={})", "blocks", 1, 2**40),
    ("bloom_rappor(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("bloom_rappor(epsilon0={}, hashes=8, flip=1e-9)", "epsilon0", 1e-9, 30.0),
    ("bloom_rappor(epsilon0=1, hashes={})", "hashes", 1, 8),
    ("bloom_rappor(epsilon0=1, flip={})", "flip", 1e-9, 1 - 1e-9),
    ("cms(epsilon0={}, domain=1024)", "epsilon0", 1e-9, 30.0),
    ("hcms(epsilon0={}, domain=1024)", "epsilon0", 1e-9, 30.0),
    ("laplace(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("bounded_laplace(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("duchi(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("piecewise(epsilon0={})", "epsilon0", 1e-9, 30.0),
    ("local_gaussian(sigma={})", "sigma", 1.0, 1e6),
    ("local_gaussian(sigma={}, delta0=0.99)", "sigma", 0.1, 1e6),
    ("local_gaussian(sigma={}, sensitivity=0.7, delta0=0.99)", "sigma", 0.07, 7e5),
    ("local_gaussian(sigma=1, sensitivity={}, delta0=0.99)", "sigma|sensitivity", 1e-6, 10.0),
    ("local_gaussian(sigma={}, sensitivity=1e-12, delta0=0.99)", "sigma", 1e-12, 1e-6),
    ("local_gaussian(sigma={}, sensitivity=1e12, delta0=0.99)", "sigma", 1e11, 1e12),
    ("local_gaussian(sigma=4, delta0={})", "delta0", 1e-200, None),
    ("table([[{}, 1], [0.5, 0.5]])", "rows", 1e-50, None),
    ("table([[0.5, {}], [0.5, 0.5]])", "rows", 0.499999999999, 0.500000000001),
    (
        "parallel((0.5, duchi(epsilon0=1)), ({}, duchi(epsilon0=2)))",
        "weights",
        0.499999999999,
        0.500000000001,
    ),
    ("joint(duchi(epsilon0=1), duchi(epsilon0={}))", "epsilon0", 1e-9, 30.0),
    ("declared(epsilon={})", "epsilon", 0.0, 120.0),
    ("declared(epsilon={}, relation='add-remove')", "epsilon", 0.0, 60.0),
    ("declared(rho={})", "rho", 1e-12, 50.0),
    ("declared(rho={}, relation='add-remove')", "rho", 1e-12, 12.5),
    ("declared(mu={})", "mu", 1e-6, 10.0),
    ("declared(mu={}, relation='add-remove')", "mu", 1e-6, 5.0),
    ("declared(mu=1, delta={})", "delta", 0.0, None),
    ("declared(renyi=[[{}, 1]])", "renyi", 1.0001, 1e6),
    ("declared(renyi=[[2, {}]])", "renyi", 1e-12, 1e3),
    ("declared(renyi=[[{}, 1]], relation='add-remove')", "renyi", math.nextafter(2.0002, _UP), 1e6),
    ("privacy_loss(losses=[-1, {}], masses=[0.3, 0.4])", "losses", None, 120.0),
    ("privacy_loss(losses=[{}, 1], masses=[1e-60, 0.4])", "losses", -120.0, None),
    ("privacy_loss(losses=[0], masses=[0.5], infinity={})", "infinity", 0.0, None),
    ("gaussian(sigma={})", "sigma", 0.1, 1e6),
    ("gaussian(sigma={}, relation='add-remove')", "sigma", 0.2, 2e6),
    ("gaussian(sigma={}, sensitivity=0.7)", "sigma", 0.07, 7e5),
    ("gaussian(sigma={}, sensitivity=3)", "sigma", 0.3, 3e6),
    ("gaussian(sigma=1, sensitivity={})", "sigma|sensitivity", 1e-6, 10.0),
    ("gaussian(sigma={}, sensitivity=1e-12)", "sigma", 1e-12, 1e-6),
    ("gaussian(sigma={}, sensitivity=1e12)", "sigma", 1e11, 1e12),
    ("discrete_gaussian(sigma={})", "sigma", 0.1, 2e4),
    ("discrete_gaussian(sigma={}, sensitivity=3, relation='add-remove')", "sigma", 0.6, 2e4),
    ("discrete_gaussian(sigma=20000, sensitivity={})", "sensitivity", 1, 200_000),
    ("discrete_gaussian(sigma=20000, sensitivity={}, relation='add-remove')", "sensitivity", 1, 100_000),
    ("central_laplace(scale={}, sensitivity=120)", "scale", 1.0, 1.2e11),
    ("central_laplace(scale={}, sensitivity=0.6)", "scale", 0.005, 6e8),
    ("central_laplace(scale=1, sensitivity={})", "scale|sensitivity", 1e-9, 120.0),
    ("central_laplace(scale=1, sensitivity={}, relation='add-remove')", "scale|sensitivity", 5e-10, 60.0),
    ("binomial_sum(p={})", "p", 1e-200, None),
    ("binomial_sum(p=0.5, bits={})", "bits", 1, 10**6),
    ("binomial_histogram(p={})", "p", 1e-200, None),
    ("binomial_histogram(bits={})", "bits", 1, 10**6),
    ("uniformity_tester(noise={})", "noise", 1e-12, 1e6),
    ("distinct_elements(p={})", "p", 1e-13, 0.5),
    ("distinct_elements(p=0.1, security={})", "security", 1.0, 1000.0),
]


def cases() -> list[Any]:
    found = []
    for template, field, least, most in LIMITS:
        for limit, towards in ((least, _DOWN), (most, _UP)):
            if limit is not None:
                found.append(pytest.param(template, field, limit, towards, id=template.format(repr(limit))))
    return found


@pytest.mark.parametrize(("template", "field", "limit", "towards"), cases())
def test_limits_of_randomizers_are_included(template: str, field: str, limit: float, towards: float) -> None:
    described = ShuffledRound(randomizer=parse_randomizer(template.format(repr(limit))), reports=1000)
    assert slot_for(described).randomizer == described.randomizer
    with pytest.raises(InvalidParameter) as refused:
        parse_randomizer(template.format(repr(beyond(limit, towards))))
    assert re.match(field, refused.value.field)


def test_every_kind_has_limits() -> None:
    assert {template.partition("(")[0] for template, *_ in LIMITS} == set(RANDOMIZERS)


@given(
    st.sampled_from(
        [
            "gaussian(sigma={}, sensitivity={})",
            "gaussian(sigma={}, sensitivity={}, relation='add-remove')",
            "central_laplace(scale={}, sensitivity={})",
            "central_laplace(scale={}, sensitivity={}, relation='add-remove')",
            "local_gaussian(sigma={}, sensitivity={}, delta0=0.99)",
        ]
    ),
    st.one_of(st.floats(1e-5, 1e4), st.decimals("0.001", "99", places=3).map(float)),
)
def test_what_a_message_names_as_limits_is_accepted(template: str, sensitivity: float) -> None:
    with pytest.raises(InvalidParameter) as refused:
        parse_randomizer(template.format("1e-11", repr(sensitivity)))
    found = re.match(r"a number from (\S+) to (\S+)", refused.value.expected)
    assert found
    low, high = map(float, found.groups())
    for limit, outside in ((low, math.nextafter(low, 0)), (high, math.nextafter(high, math.inf))):
        parse_randomizer(template.format(repr(limit), repr(sensitivity)))
        with pytest.raises(InvalidParameter):
            parse_randomizer(template.format(repr(outside), repr(sensitivity)))


@pytest.mark.parametrize("written", ["gaussian(sigma=0.1)", "central_laplace(scale=1, sensitivity=120)"])
def test_releases_at_a_limit_have_certificates(written: str) -> None:
    described = ShuffledRound(randomizer=parse_randomizer(written), reports=1)
    found = Accountant().certify({described: 1}, delta=1e-6)
    if written.startswith("central"):
        assert found.epsilon_lower <= 120 + 2 * math.log1p(-1e-6) <= found.epsilon_upper
    else:
        assert 50 < found.epsilon_lower <= found.epsilon_upper < 120


KRR = {"randomizer": "krr(k=4, epsilon0=1)", "reports": 1000}
GENERIC = {"randomizer": "generic(epsilon0=1)", "reports": 1000}
ROUND_LIMITS: list[tuple[dict[str, Any], str, float | None, float | None]] = [
    (KRR, "reports", 1, 10**12),
    (KRR, "sampled_from", 1000, 10**12),
    ({**KRR, "reports_per_user": 3}, "sampled_from", 334, 10**12),
    (KRR, "participation", 1e-200, 1.0),
    (KRR, "honest_fraction", 0.001, 1.0),
    ({**KRR, "reports": 10}, "honest_fraction", 0.1, 1.0),
    ({**KRR, "reports": 3}, "honest_fraction", 0.33333333333333337, 1.0),
    ({"randomizer": "distinct_elements(p=0.1)", "reports": 2000}, "honest_fraction", 0.001, 1.0),
    (GENERIC, "delta0", 1e-200, None),
    (KRR, "reports_per_user", 1, 1000),
]


@pytest.mark.parametrize(
    ("described", "field", "limit", "towards"),
    [
        (described, field, limit, towards)
        for described, field, least, most in ROUND_LIMITS
        for limit, towards in ((least, _DOWN), (most, _UP))
        if limit is not None
    ],
)
def test_limits_of_rounds_are_included(
    described: dict[str, Any], field: str, limit: float, towards: float
) -> None:
    slot_for(ShuffledRound.from_mapping({**described, field: limit}))
    with pytest.raises(InvalidParameter) as refused:
        ShuffledRound.from_mapping({**described, field: beyond(limit, towards)})
    assert refused.value.field == field


@given(st.integers(1, 10**6), st.integers(1, 4))
def test_a_share_of_one_report_of_many_is_one_report(reports: int, digits: int) -> None:
    """The least share that is accepted leaves one honest report, and is the decimal number it prints as."""
    count = 10**digits
    described = ShuffledRound.from_mapping({**KRR, "reports": count, "honest_fraction": 1 / count})
    assert described.honest_reports == 1
    whole = ShuffledRound.from_mapping({**KRR, "reports": reports, "honest_fraction": 1.0})
    assert whole.honest_reports == reports


@pytest.mark.slow
def test_limits_of_questions_are_included() -> None:
    described = ShuffledRound.from_mapping(KRR)
    release = ShuffledRound(randomizer=parse_randomizer("gaussian(sigma=1e6)"), reports=1)
    accountant = Accountant()
    accepted: list[Any] = [
        lambda: Accountant(precision=1e-6),
        lambda: Accountant(precision=0.1),
        lambda: accountant.certify({described: 0}, delta=1e-6),
        lambda: accountant.certify({release: 10**7}, delta=1e-6),
        lambda: accountant.certify_delta({described: 1}, epsilon=0),
        lambda: accountant.certify_delta({described: 1}, epsilon=1e9),
        lambda: accountant.certify({described: 1}, delta=math.nextafter(0.0, 1.0)),
        lambda: accountant.certify({described: 1}, delta=math.nextafter(1.0, 0.0)),
        lambda: accountant.renyi_divergence({described: 1}, order=1e-200),
        lambda: accountant.renyi_divergence({described: 1}, order=1e9),
        lambda: FilterSet.for_budget(epsilon=1e-9, delta=1e-60),
        lambda: best_local_gaussian(accountant, sigma=1e6, reports=1000, delta=1e-6),
        lambda: calibrate({**KRR, "randomizer": "krr(k=4)"}, epsilon=1e9, delta=1e-6, precision=0.1),
    ]
    for one in accepted:
        one()


@pytest.mark.parametrize("precision", [math.nextafter(1e-6, 0.0), math.nextafter(0.1, 1.0)])
def test_precisions_beyond_the_limits_are_refused(precision: float) -> None:
    with pytest.raises(InvalidParameter, match="precision"):
        Accountant(precision=precision)


def test_questions_beyond_the_limits_are_refused() -> None:
    described = ShuffledRound.from_mapping(KRR)
    accountant = Accountant()
    refused: list[Any] = [
        lambda: accountant.certify_delta({described: 1}, epsilon=math.nextafter(0.0, -1.0)),
        lambda: accountant.certify_delta({described: 1}, epsilon=math.nextafter(1e9, math.inf)),
        lambda: accountant.certify({described: 1}, delta=0.0),
        lambda: accountant.certify({described: 1}, delta=1.0),
        lambda: accountant.certify({described: -1}, delta=1e-6),
        lambda: accountant.certify({described: 10**7 + 1}, delta=1e-6),
        lambda: accountant.renyi_divergence({described: 1}, order=math.nextafter(1e-200, 0.0)),
        lambda: accountant.renyi_divergence({described: 1}, order=math.nextafter(1e9, math.inf)),
        lambda: FilterSet.for_budget(epsilon=math.nextafter(1e-9, 0.0), delta=1e-6),
        lambda: FilterSet.for_budget(epsilon=1, delta=math.nextafter(1e-60, 0.0)),
        lambda: to_dp_accounting(described, discretization=math.nextafter(1.0, 2.0)),
        lambda: to_dp_accounting(described, discretization=math.nextafter(1e-9, 0.0)),
        lambda: best_local_gaussian(accountant, sigma=math.nextafter(1e6, 1e7), reports=9, delta=1e-6),
        lambda: calibrate({**KRR, "randomizer": "krr(k=4)"}, epsilon=math.nextafter(1e-100, 0), delta=0.1),
    ]
    for one in refused:
        with pytest.raises(InvalidParameter):
            one()


@given(st.floats(1e-9, 1e9), st.sampled_from([1e-9, 1e-6, 0.3]), st.sampled_from([7.0, 10.0, 120.0]))
def test_limits_of_a_divisor_are_those_of_the_decimal_numbers(
    distance: float, least: float, most: float
) -> None:
    low, high = validation.quotients(distance, least, most)

    def is_allowed(divisor: float) -> bool:
        exact, by, smallest, largest = (Fraction(repr(one)) for one in (distance, divisor, least, most))
        return smallest <= exact / by <= largest

    assert is_allowed(low)
    assert is_allowed(high)
    assert not is_allowed(math.nextafter(low, 0.0))
    assert not is_allowed(math.nextafter(high, math.inf))


def test_decimal_numbers_sum_as_they_are_written() -> None:
    assert validation.sums_to_one([0.1] * 10, 1e-12)
    assert validation.sums_to_one([0.7, 0.300000000001], 1e-12)
    assert validation.sums_to_one([0.7, 0.299999999999], 1e-12)
    assert not validation.sums_to_one([0.7, 0.3000000000011], 1e-12)
    assert not validation.sums_to_one([0.7, 0.2999999999989], 1e-12)
