"""The worked example of `docs/theory/index.md`: its code runs, and the library computes the same numbers."""

from __future__ import annotations

import contextlib
import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import lower_text, slot_for, upper_text
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.blanket.tilting import Tilt

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "index.md"


@pytest.fixture(scope="module")
def example() -> str:
    """The section of the page that has the example."""
    found = re.search(r"^### One example.*?(?=^## )", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group()


@pytest.fixture(scope="module")
def names(example: str) -> dict[str, Any]:
    """The variables of the example's code after it ran."""
    (code,) = re.findall(r"^```python\n(.*?)^```", example, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, found)  # noqa: S102 - the page of this repository
    return found


def _numbers(text: str, pattern: str) -> list[float]:
    """The numbers in the only match of a pattern, in which `#` is a number and a space any white space."""
    number = r"([0-9][0-9,]*\.?[0-9]*(?:e-[0-9]+)?)"
    matches = re.findall(pattern.replace("#", number).replace(" ", r"\s+"), text)
    assert len(matches) == 1, (pattern, matches)
    groups = matches[0] if isinstance(matches[0], tuple) else matches
    return [float(group.replace(",", "")) for group in groups]


def _bounds(lower: float, upper: float, digits: int) -> tuple[float, float]:
    """An interval as the page prints it: rounded outwards."""
    return float(lower_text(lower, digits=digits)), float(upper_text(upper, digits=digits))


def test_the_decomposition_is_that_of_the_randomizer(example: str, names: dict[str, Any]) -> None:
    masses = names["week"].randomizer.analysis("blanket").decomposition
    for name in "abc":
        printed = _numbers(example, rf"{name} = \(#, #, #\)")
        assert printed == pytest.approx(getattr(masses, name).tolist(), abs=6e-6)
    assert _numbers(example, r"leftover component has probability #") == pytest.approx(
        [masses.leftover], abs=6e-6
    )
    order = math.exp(0.01)
    gains = ((masses.a - order * masses.b) / masses.c).tolist()
    assert _numbers(example, r"is # or -# with probability # each, -# with probability #") == pytest.approx(
        [gains[0], -gains[1], masses.c[0], -gains[2], masses.c[2]], abs=6e-6
    )


def test_bounds_on_delta_are_those_of_the_accountant(example: str, names: dict[str, Any]) -> None:
    for epsilon in (0.005, 0.01):
        certificate = names["accountant"].certify_delta({names["week"]: 1}, epsilon=epsilon)
        _, lower, upper = _numbers(example, rf"\| {epsilon} \| # \| # \| # \|")
        assert lower <= certificate.delta_lower <= certificate.delta_upper <= upper <= lower * 1.003
        ends = _bounds(certificate.delta_lower, certificate.delta_upper, 5)
        assert f"`[{ends[0]:.4e}, {ends[1]:.4e}]`".replace("e-0", "e-") in example.replace("\n", " ")


def test_the_tilted_sum_is_the_one_of_the_page(example: str, names: dict[str, Any]) -> None:
    masses, reports = names["week"].randomizer.analysis("blanket").decomposition, names["week"].reports
    orders = np.expm1(np.array([0.005, 0.01]))
    ((_, laws, _),) = ListedPairs([masses]).laws(np.zeros(2, dtype=np.int64), orders)
    tilt = Tilt.of(laws, reports, laws.saddle(reports))
    printed = [_numbers(example, rf"\| {epsilon} \| # \|")[0] for epsilon in (0.005, 0.01)]
    assert printed == pytest.approx(tilt.theta.tolist(), rel=1e-4)
    theta, deviation, log_mass = _numbers(
        example, r"`theta = #`[^`]*deviation #, and `log M\(theta\)\^n = -#`"
    )
    assert theta == printed[1]
    assert (deviation, -log_mass) == pytest.approx((tilt.deviation[1], tilt.log_mass[1]), rel=1e-3)


def test_the_pair_above_is_the_one_of_the_page(example: str, names: dict[str, Any]) -> None:
    loss = names["accountant"].privacy_loss(names["week"])
    losses, spacing, largest, zero, infinite, below = _numbers(
        example,
        r"has # positive losses, multiples of # up to #, their negatives, the loss 0 with mass #,"
        r" and a mass of # at infinity. The pair below has #",
    )
    assert (losses, below) == (loss.upper.index.size, loss.lower.index.size)
    assert spacing == pytest.approx(loss.upper.spacing, rel=1e-5)
    assert largest == pytest.approx(loss.upper.largest_loss, rel=2e-4)
    assert zero == pytest.approx(loss.upper.zero, rel=2e-2)
    assert infinite == pytest.approx(loss.upper.infinity, rel=2e-2)


def test_one_round_and_52_rounds_have_these_epsilons(example: str, names: dict[str, Any]) -> None:
    week, accountant = names["week"], names["accountant"]
    one = accountant.certify({week: 1}, delta=1e-9)
    year = accountant.certify({week: 52}, delta=1e-9)
    *single, attack = _numbers(example, r"\[#, #\]`. An attacker reaches #")
    assert tuple(single) == _bounds(one.epsilon_lower, one.epsilon_upper, 6)
    assert attack <= names["attack_epsilon"](week, delta=1e-9) <= attack + 1e-7
    *together, ratio = _numbers(example, r"\[#, #\]`, # times the epsilon of one")
    assert tuple(together) == _bounds(year.epsilon_lower, year.epsilon_upper, 6)
    assert ratio == round(year.epsilon_upper / one.epsilon_upper, 1)
    (added,) = _numbers(example, r"52 epsilons would give #")
    assert added == round(52 * one.epsilon_upper, 3)
    width, rest = _numbers(example, r"of the width, #,[^;]*; truncation and round-off contribute less than #")
    assert (
        year.epsilon_upper - year.epsilon_lower <= width <= 1.02 * (year.epsilon_upper - year.epsilon_lower)
    )
    assert year.error.truncation + year.error.round_off <= rest


def test_the_filter_charges_and_reads_what_the_page_says(example: str, names: dict[str, Any]) -> None:
    filters, charge = names["filters"], names["charge"]
    variance = float(charge.gaussian[0])
    printed, deviation = _numbers(example, r"the variance `#`[^`]*`N\(#, 1\)`")
    assert printed == pytest.approx(variance, rel=1e-4)
    assert deviation == pytest.approx(math.sqrt(variance), rel=1e-4)
    reading = filters.readings((charge * 52).gaussian[0], (charge * 52).renyi)[0]
    total, leaked, share, epsilon = _numbers(
        example,
        r"the total is `#`, the leaked mass is below #, and the filter, with its share # of delta,"
        r" reads epsilon #",
    )
    assert total == pytest.approx(52 * variance, rel=1e-4)
    assert filters.gaussian.leak_rate * 52 * variance <= leaked
    assert share == pytest.approx(filters.gaussian.delta, rel=1e-3)
    assert epsilon == float(upper_text(reading.epsilon_upper))
    rounds, slot = _numbers(
        example, r"The budget holds # such rounds. A ledger charges[^.]*slot of # reports"
    )
    assert rounds == filters.limits(1.0).gaussian // charge.gaussian[0]
    assert slot == slot_for(names["week"]).reports
