"""Calibration: what it promises, at its ends; and the error of frequency oracles, by listing every report."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    calibrate,
    frequency_error,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.accounting.numeric.bracketing import least_true


@pytest.mark.slow
@pytest.mark.parametrize(
    ("described", "epsilon", "delta", "rounds"),
    [
        ({"randomizer": "generic()", "reports": 10**4}, 0.5, 1e-6, 1),
        ({"randomizer": "krr(k=10)", "reports": 1000}, 1.0, 1e-20, 20),
        ({"randomizer": {"kind": "oue"}, "reports": 5000, "participation": 0.3}, 0.3, 1e-8, 365),
        ({"randomizer": "hadamard(domain=16)", "reports": 300, "honest_fraction": 0.5}, 2.0, 1e-6, 3),
        ({"randomizer": "joint(krr(k=2), generic(epsilon0=0.1))", "reports": 2000}, 0.7, 1e-6, 1),
    ],
)
def test_the_answer_fits_and_hardly_more_does(
    described: dict[str, Any], epsilon: float, delta: float, rounds: int
) -> None:
    found = calibrate(described, epsilon=epsilon, delta=delta, rounds=rounds)
    assert found.epsilon0_beyond is not None
    assert found.epsilon0 < found.epsilon0_beyond <= found.epsilon0 * 1.0011
    assert Accountant().certify({slot_for(found.round): rounds}, delta=delta) == found.certificate
    assert found.certificate.rounds == rounds
    assert found.certificate.epsilon_upper <= epsilon
    assert found.certificate.epsilon_upper >= epsilon * 0.99


@pytest.mark.slow
def test_without_amplification_the_target_is_shared_out() -> None:
    alone = calibrate({"randomizer": "krr(k=2)", "reports": 1}, epsilon=1.0, delta=1e-30, rounds=4)
    assert 0.25 * (1 - 1e-11) <= alone.epsilon0 <= 0.2503
    generous = calibrate({"randomizer": "generic()", "reports": 10**6}, epsilon=40.0, delta=1e-6)
    assert generous.epsilon0 == 30.0
    assert generous.epsilon0_beyond is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("randomizer", "reports", "name", "rounds"),
    [
        ("binomial_sum(bits=2)", 300, "p", 1),
        ("binomial_sum(p=0.25)", 20, "bits", 2),
        ("distinct_elements(security=100)", 50, "p", 2),
    ],
)
def test_the_least_noise_fits_and_the_next_smaller_one_does_not(
    randomizer: Any, reports: int, name: str, rounds: int
) -> None:
    described, epsilon, delta = {"randomizer": randomizer, "reports": reports}, 1.0, 1e-4
    found = calibrate(described, epsilon=epsilon, delta=delta, rounds=rounds, precision=0.01)
    assert (found.parameter, found.epsilon0_beyond) == (name, None)
    assert found.epsilon_decided_upper <= epsilon
    assert found.certificate.epsilon_upper <= epsilon
    assert getattr(found.round.randomizer, name) == found.value
    assert found.value_beyond is not None
    if name == "bits":
        assert found.value_beyond == found.value - 1
    else:
        assert found.value / 1.0101 <= found.value_beyond < found.value
    mapping = {**found.round.randomizer.to_mapping(), name: _as(name, found.value_beyond)}
    less = ShuffledRound(randomizer=parse_randomizer(mapping), reports=reports)
    cost = Accountant(precision=0.01).certify({slot_for(less): rounds}, delta=delta)
    assert cost.epsilon_upper > epsilon


@pytest.mark.parametrize(("bits", "honest"), [(3, 40), (12, 9)])
def test_the_bits_found_are_enough_by_listing_every_count(bits: int, honest: int) -> None:
    """The number of bits is the smallest one whose exact divergence, summed by mpmath, is at most delta."""

    def exact(bits: int) -> mpmath.mpf:
        trials, order = honest * bits, mpmath.exp(1)
        masses = [mpmath.binomial(trials, k) * mpmath.mpf(2) ** -trials for k in range(trials + 1)]
        plain, shifted = [*masses, 0], [0, *masses]
        pairs = (zip(plain, shifted, strict=True), zip(shifted, plain, strict=True))
        return max(mpmath.fsum(max(p - order * q, 0) for p, q in pair) for pair in pairs)

    with mpmath.workdps(40):
        delta = float(exact(bits)) * (1 + 1e-3)
        assert exact(bits - 1) > delta
        described = {"randomizer": "binomial_sum(p=0.5)", "reports": honest}
        found = calibrate(described, epsilon=1.0, delta=delta)
        assert found.value >= bits
        assert exact(int(found.value)) <= delta


def test_the_smallest_noise_may_be_enough_and_the_largest_may_not() -> None:
    generous = calibrate({"randomizer": "binomial_sum(p=0.5)", "reports": 10**4}, epsilon=1, delta=1e-6)
    assert (generous.value, generous.value_beyond) == (1, None)
    with pytest.raises(InvalidParameter) as caught:
        calibrate({"randomizer": "binomial_sum(bits=1)", "reports": 10}, epsilon=0.1, delta=1e-6)
    assert str(caught.value) == "epsilon: got 0.1, expected a target that p = 0.5 meets"


@pytest.mark.parametrize(
    ("randomizer", "expected"),
    [
        ("binomial_sum()", "a binomial_sum that leaves out p or bits, and no other parameter of its noise"),
        (
            "uniformity_tester(noise=1)",
            "a uniformity_tester that leaves out noise, and no other parameter of its noise",
        ),
        ("binomial_sum(bits=0)", "a whole number from 1 to 1000000"),
        ("binomial_sum(bits=1, wrong=2)", "only p, bits"),
    ],
)
def test_one_parameter_of_noise_is_left_out(randomizer: str, expected: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        calibrate({"randomizer": randomizer, "reports": 100}, epsilon=1.0, delta=1e-6)
    assert caught.value.expected == expected


@given(edge=st.floats(1e-6, 1e6), start=st.floats(1e-9, 1e9), step=st.floats(1e-3, 3.0), whole=st.booleans())
def test_a_bracket_is_around_the_edge_wherever_the_search_begins(
    edge: float, start: float, step: float, whole: bool
) -> None:
    tried: dict[float, bool] = {}

    def holds(number: float) -> bool:
        tried[number] = number >= edge
        return tried[number]

    found = least_true(holds, start=start, least=1e-5, most=1e5, width=1e-3, step=step, whole=whole)
    if found is None:
        assert tried[1e5] is False
        return
    high, low = found
    assert tried[high] is True
    if low is None:
        assert high == 1e-5
        return
    assert tried[low] is False
    assert high - low == 1 if whole and low >= 1 else high - low <= max(1e-3 * low, float(whole))
    assert len(tried) < 100


@pytest.mark.parametrize(
    ("randomizer", "rest", "field"),
    [
        ("krr(k=10, epsilon0=1)", {}, "randomizer"),
        ("table([[0.6, 0.4], [0.4, 0.6]])", {}, "randomizer"),
        ("krr", {}, "randomizer"),
        (None, {}, "randomizer"),
        ("krr(k=10)", {"epsilon": 0}, "epsilon"),
        ("krr(k=10)", {"epsilon": 1e-170, "rounds": 30}, "epsilon"),  # its square is 0
        ("binomial_sum(p=0.5)", {"epsilon": 1e-170}, "epsilon"),
        ("krr(k=10)", {"epsilon": math.nan}, "epsilon"),
        ("krr(k=10)", {"delta": 1.0}, "delta"),
        ("krr(k=10)", {"rounds": 0}, "rounds"),
        ("krr(k=10)", {"precision": 0.5}, "precision"),
        ("krr(k=10)", {"policy": "free"}, "policy"),
        ("krr(k=10)", {"policy": "adaptive"}, "policy"),  # its rules are the ledger's
        ("generic()", {"delta0": 1e-5}, "epsilon"),  # the slack alone exceeds the target's delta
        ("krr(k=10)", {"reports": 0}, "reports"),
    ],
)
def test_what_cannot_be_met_or_read_is_refused(randomizer: Any, rest: dict[str, Any], field: str) -> None:
    target = {"epsilon": 0.1, "delta": 1e-6, **{k: v for k, v in rest.items() if k not in _ROUND}}
    described = {"randomizer": randomizer, "reports": 100, **{k: rest[k] for k in _ROUND if k in rest}}
    with pytest.raises(InvalidParameter) as caught:
        calibrate(described, **target)
    assert caught.value.field == field


_ROUND = ("reports", "delta0")


def _response(k: int, e: float) -> tuple[list[list[float]], list[list[int]]]:
    table = [[(e if x == y else 1) / (e + k - 1) for y in range(k)] for x in range(k)]
    return table, [[int(x == y) for y in range(k)] for x in range(k)]


def _unary(d: int, kept: float, flipped: float) -> tuple[list[list[float]], list[list[int]]]:
    outputs = list(itertools.product((0, 1), repeat=d))
    table = []
    for x in range(d):
        ones = [kept if i == x else flipped for i in range(d)]
        table.append(
            [math.prod(p if bit else 1 - p for p, bit in zip(ones, y, strict=True)) for y in outputs]
        )
    return table, [[y[x] for y in outputs] for x in range(d)]


def _signed(rows: list[list[int]], e: float) -> tuple[list[list[float]], list[list[int]]]:
    """Outputs that support a value are e times as likely."""
    return [[(e if hit else 1) / sum(e if h else 1 for h in row) for hit in row] for row in rows], rows


def _tables(kind: str, epsilon0: float) -> tuple[str, list[list[float]], list[list[int]]]:
    """How it is written, probabilities of outputs under every input, and which inputs outputs support."""
    e, x = math.exp(epsilon0), math.exp(epsilon0 / 2)
    hashes = list(itertools.product((0, 1), repeat=3))
    hits = [[int(h[v] == bit) for h in hashes for bit in (0, 1)] for v in range(3)]
    matrix = [[1 - (v & y).bit_count() % 2 for y in range(4)] for v in range(1, 4)]
    return {
        "krr": (f"krr(k=4, epsilon0={epsilon0})", *_response(4, e)),
        "rappor": (f"rappor(domain=3, epsilon0={epsilon0})", *_unary(3, x / (x + 1), 1 / (x + 1))),
        "oue": (f"oue(domain=3, epsilon0={epsilon0})", *_unary(3, 0.5, 1 / (e + 1))),
        "blh": (f"blh(domain=3, epsilon0={epsilon0})", *_signed(hits, e)),
        "hadamard": (f"hadamard(domain=4, epsilon0={epsilon0})", *_signed(matrix, e)),
    }[kind]


@pytest.mark.parametrize("kind", ["krr", "rappor", "oue", "blh", "hadamard"])
@pytest.mark.parametrize("epsilon0", [0.2, 4.0])
def test_the_error_of_estimated_frequencies_is_exact(kind: str, epsilon0: float) -> None:
    """Of users with given values: the estimates' bias and variances from the law of every single report."""
    written, table, support = _tables(kind, epsilon0)
    probabilities, supports = np.array(table), np.array(support)
    chances = probabilities @ supports.T  # [x, v]: a report of value x supports v
    kept, stray = chances[0, 0], chances[0, 1]
    values = [0, 0, 1, 0, 2]
    frequencies = np.bincount(values, minlength=len(table)) / len(values)
    mean = chances[values].mean(axis=0)
    assert np.allclose((mean - stray) / (kept - stray), frequencies)  # unbiased
    variances = (chances[values] * (1 - chances[values])).sum(axis=0) / len(values) ** 2 / (kept - stray) ** 2
    error = frequency_error(parse_randomizer(written), len(values))
    assert error is not None
    assert error.categories == len(table)
    assert error.squared_l2 == pytest.approx(variances.sum(), rel=1e-12)
    assert error.l2 == pytest.approx(math.sqrt(variances.sum()), rel=1e-12)
    if kind == "krr":
        assert error.per_category == pytest.approx(variances[3], rel=1e-12)


def test_only_frequency_oracles_estimate_frequencies() -> None:
    assert frequency_error(parse_randomizer("generic(epsilon0=1)"), 10) is None
    limit = frequency_error(parse_randomizer("blh(epsilon0=1)"), 10)
    assert limit is not None
    assert limit.squared_l2 is None
    assert limit.per_category > 0
    with pytest.raises(InvalidParameter, match="reports"):
        frequency_error(parse_randomizer("blh(epsilon0=1)"), 0)


def _as(name: str, value: float) -> float:
    return int(value) if name == "bits" else value
