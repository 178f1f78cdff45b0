"""Attacks from the worst datasets: next to the bound for many users, and in the limit as the theory says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    attack_epsilon,
    parse_randomizer,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.randomizers import DecomposedRandomizer, Laplace

THEORY = Path(__file__).parents[2] / "docs" / "theory" / "lower-bounds.md"


def _round(written: str, users: int) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(written), reports=users)


@pytest.mark.slow
@pytest.mark.parametrize("reports", [1000, 100_000])
@pytest.mark.parametrize(
    ("written", "least_reports"),
    [
        ("hadamard(epsilon0=1, domain=64)", 1000),
        ("hadamard(epsilon0=4)", 100_000),
        ("block_hadamard(epsilon0=1, domain=64, blocks=1)", 1000),
        ("piecewise(epsilon0=4)", 1000),
    ],
)
@pytest.mark.parametrize("delta", [1e-8])
def test_attacks_of_the_worst_dataset_are_next_to_the_bound(
    written: str, least_reports: int, reports: int, delta: float
) -> None:
    described = _round(written, reports)
    above = Accountant(precision=1e-3).certify({described: 1}, delta=delta).epsilon_upper
    found = attack_epsilon(described, delta=delta)
    assert found is not None
    assert found <= above
    if reports >= least_reports:
        assert above <= 1.02 * found


def test_the_middle_is_attacked_as_exactly_as_the_ends_are_bounded() -> None:
    found = attack_epsilon(_round("piecewise(epsilon0=2)", 100_000), delta=1e-8)
    assert found == pytest.approx(0.03961, abs=1e-5)


def _distance(masses: Decomposition) -> float:
    """The square root of `sum (a - b)^2 / c`."""
    seen = masses.c > 0
    return math.sqrt(math.fsum(masses.difference[seen] ** 2 / masses.c[seen]))


def _share(written: str) -> float:
    """The bound over the attack in the limit of many reports."""
    randomizer = parse_randomizer(written)
    assert isinstance(randomizer, DecomposedRandomizer)
    above = max(_distance(one.above) for one in randomizer.analysis("blanket").brackets)
    if isinstance(randomizer, Laplace):  # bits beside blanks, by the law of all others
        above = math.sqrt(randomizer.bit_share) * 2 * math.sinh(randomizer.epsilon0 / 2)
    below = max(_distance(way) for one in randomizer.witnesses() for way in (one, one.swapped()))
    return above / below


def _published() -> list[tuple[str, list[float]]]:
    """The rows of the theory's table of limits, by how a randomizer is written."""
    page = (
        THEORY.read_text("utf-8")
        .split("### L4. How far apart bound and attack stay")[1]
        .split("*Attacked by*")[0]
    )
    found = re.findall(r"^\| `([a-z_]+\(.*\))` \|((?: [0-9.]+ \|){3})$", page, re.MULTILINE)
    return [(name, [float(one) for one in cells.split("|")[:-1]]) for name, cells in found]


def test_the_limits_of_the_theory_are_those_of_the_decompositions() -> None:
    table = _published()
    kinds = {parse_randomizer(name.replace("=x", "=1")).kind for name, _ in table}
    assert {
        "laplace",
        "bounded_laplace",
        "rappor",
        "oue",
        "subset",
        "blh",
        "olh",
        "hadamard",
        "piecewise",
    } <= kinds
    for name, limits in table:
        for epsilon0, limit in zip((1, 2, 3), limits, strict=True):
            assert _share(name.replace("=x", f"={epsilon0}")) == pytest.approx(limit, abs=1.5e-3), (
                name,
                epsilon0,
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "near"),
    [("laplace(epsilon0=2)", 0.02)],
)
def test_many_reports_come_next_to_the_limit(written: str, near: float) -> None:
    described = _round(written, 100_000)
    above = Accountant(precision=1e-3).certify({described: 1}, delta=1e-8).epsilon_upper
    found = attack_epsilon(described, delta=1e-8)
    assert found is not None
    assert above / found == pytest.approx(_share(written), rel=near)
