"""Short questions of the library: rounds as texts or values, and epsilon over their number."""

from __future__ import annotations

import math
import sys
from typing import Any

import matplotlib as mpl
import pytest

import shuffle_ledger as sl

WEEK = sl.ShuffledRound(randomizer=sl.parse_randomizer("krr(k=4, epsilon0=1)"), reports=1_000)
TEXT = "krr(k=4, epsilon0=1)"


@pytest.mark.parametrize(
    ("rounds", "fields"),
    [
        ([WEEK, WEEK], {}),
        ((WEEK, WEEK), {}),
        ({WEEK: 2}, {}),
        ({TEXT: 2}, {"reports": 1_000}),
        ([TEXT, "krr(epsilon0=1, k=4)"], {"reports": 1_000}),
        ([TEXT, WEEK], {"reports": 1_000}),
        ({sl.parse_randomizer(TEXT): 1, TEXT: 1}, {"reports": 1_000}),
        ([{"randomizer": TEXT, "reports": 1_000}, WEEK.to_mapping()], {}),
        ([{"randomizer": TEXT}, WEEK], {"reports": 1_000}),
    ],
)
def test_texts_and_values_ask_the_same(rounds: Any, fields: dict[str, Any]) -> None:
    accountant = sl.Accountant()
    assert sl.certify(rounds, delta=1e-6, **fields) == accountant.certify({WEEK: 2}, delta=1e-6)
    assert sl.certify(rounds, epsilon=0.3, **fields) == accountant.certify_delta({WEEK: 2}, epsilon=0.3)


def test_one_round_is_asked_about_by_itself_and_keeps_what_it_names() -> None:
    once = sl.Accountant().certify({WEEK: 1}, delta=1e-6)
    assert sl.certify(WEEK, delta=1e-6) == once
    assert sl.certify(TEXT, reports=1_000, delta=1e-6) == once
    assert sl.certify({"randomizer": TEXT, "reports": 1_000}, reports=5, delta=1e-6) == once
    any_order = sl.certify("generic(epsilon0=1)", reports=1_000, delta=1e-6)
    assert sl.certify("generic(epsilon0=1)", reports=1_000, analysis="tight", delta=1e-6) != any_order


@pytest.mark.parametrize(
    ("rounds", "fields", "field", "said"),
    [
        (WEEK, {"reports": 5}, "reports", "a ShuffledRound is complete"),
        ({WEEK: 2}, {"report": 5}, "report", "a ShuffledRound is complete"),
        (TEXT, {}, "reports", "reports: is missing, expected the number of reports"),
        (TEXT, {"report": 5, "reports": 5}, "round", "only the fields"),
        ({TEXT: 1.0}, {"reports": 5}, "count", "a whole number"),
        ({TEXT: -1}, {"reports": 5}, "count", "a whole number"),
        ({TEXT: True}, {"reports": 5}, "count", "a whole number"),
        (7, {}, "rounds", "a list of rounds"),
        ([7], {}, "rounds", "a list of rounds"),
        ([["krr(k=4)"]], {}, "rounds", "a list of rounds"),
    ],
)
def test_what_is_no_round_is_refused(rounds: Any, fields: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(sl.InvalidParameter, match=said) as refused:
        sl.certify(rounds, delta=1e-6, **fields)
    assert refused.value.field == field


@pytest.mark.parametrize("given", [{}, {"delta": 1e-6, "epsilon": 1.0}])
def test_one_of_delta_and_epsilon_is_asked_for(given: dict[str, float]) -> None:
    with pytest.raises(sl.InvalidParameter, match="a delta or an epsilon, not both"):
        sl.certify(WEEK, **given)


def test_rounds_are_calibrated_as_texts_or_values() -> None:
    target: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "precision": 0.05}
    form = {"randomizer": "krr(k=4)", "reports": 1_000}
    found = sl.calibrate(form, rounds=6, **target)
    assert sl.calibrate("krr(k=4)", reports=1_000, rounds=6, **target) == found
    assert sl.calibrate({"krr(k=4)": 3}, reports=1_000, rounds=2, **target) == found
    assert sl.calibrate([form] * 6, **target) == found
    assert found.certificate.rounds == 6
    for rounds, said in (
        (["krr(k=4)", "krr(k=5)"], "largest_common_epsilon0"),
        ([], "all alike"),
        ({"krr(k=4)": 0}, "rounds"),
        (WEEK, "without epsilon0"),
    ):
        with pytest.raises(sl.InvalidParameter, match=said):
            sl.calibrate(rounds, reports=1_000, **target)


def test_a_curve_is_what_certificates_say_and_naive_composition_is_a_bound() -> None:
    both = {WEEK: 1, "oue(epsilon0=0.5)": 2}
    found = sl.curve(both, [20, 1, 5, 5], reports=2_000, delta=1e-6)
    assert found.counts == (1, 5, 20)
    other = sl.ShuffledRound(randomizer=sl.parse_randomizer("oue(epsilon0=0.5)"), reports=2_000)
    accountant = sl.Accountant()
    for place, count in enumerate(found.counts):
        together = accountant.certify({WEEK: count, other: 2 * count}, delta=1e-6)
        assert (found.epsilon_upper[place], found.epsilon_lower[place]) == (
            together.epsilon_upper,
            together.epsilon_lower,
        )
        share = 1e-6 / (3 * count)
        alone = [accountant.certify({one: 1}, delta=share).epsilon_upper for one in (WEEK, other)]
        added = count * (alone[0] + 2 * alone[1])
        assert added * (1 - 1e-14) <= found.naive_upper[place] <= added * (1 + 1e-9)
        assert found.naive_upper[place] >= together.epsilon_lower
    assert found.naive_upper[-1] > 3 * found.epsilon_upper[-1]


def test_naive_composition_of_one_round_is_never_below_it() -> None:
    found = sl.curve(WEEK, [1], delta=1e-6)
    assert found.epsilon_upper[0] <= found.naive_upper[0] <= found.epsilon_upper[0] * (1 + 1e-9)
    revealed = sl.curve("declared(epsilon=1, delta=0.1)", [1, 2], reports=10, delta=1e-6)
    assert revealed.naive_upper == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("rounds", "counts"), [(WEEK, []), ({WEEK: 0}, [1]), ([], [1]), (WEEK, [0]), (WEEK, 52)]
)
def test_a_curve_of_nothing_is_refused(rounds: Any, counts: list[int]) -> None:
    with pytest.raises(sl.InvalidParameter):
        sl.curve(rounds, counts, delta=1e-6)


def test_a_curve_is_drawn() -> None:
    mpl.use("agg")
    found = sl.curve(WEEK, [1, 4, 9], delta=1e-6)
    axes = found.plot()
    drawn = [(line.get_label(), tuple(line.get_ydata())) for line in axes.get_lines()]
    assert drawn == [
        ("together", found.epsilon_upper),
        ("added up, round by round", found.naive_upper),
    ]
    assert axes.get_ylabel() == "epsilon at delta 1e-06, at most"
    assert found.plot(axes) is axes
    assert len(axes.get_lines()) == 4


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sl.curve(WEEK, [1], delta=1e-6)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'shuffle-ledger\[plot\]'"):
        found.plot()


def test_the_conversion_to_dp_accounting_is_a_name_of_the_package() -> None:
    assert "to_dp_accounting" in sl.__all__
    assert callable(sl.to_dp_accounting)
