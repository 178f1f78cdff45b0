"""The numbers in the text of `docs/bounds.md`, by the functions that draw its figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.figures.draw import Composed, attack, closed_form, epsilon

PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"
_DELTA = 1e-6
_ANY, _KRR = "generic(epsilon0=2)", "krr(k=16, epsilon0=2)"


def _says(text: str) -> bool:
    return text in " ".join(PAGE.read_text("utf-8").split())


def _any(written: str, reports: int, analysis: str) -> float:
    return epsilon(written, reports, analysis=analysis)


def _local(written: str) -> float:
    """A named randomizer's epsilon over the tight pair's, a million users."""
    return epsilon(f"{written}, epsilon0=5)", 10**6) / _any("generic(epsilon0=5)", 10**6, "tight")


def _sampled(rate: float) -> float:
    written = "krr(k=16, epsilon0=1)"
    return epsilon(written, 10_000, sampled_from=round(10_000 / rate)) / epsilon(written, 10_000)


def _honest(share: float) -> float:
    return epsilon(_KRR, 100_000, honest_fraction=share) / epsilon(_KRR, 100_000)


@pytest.mark.parametrize(
    ("text", "number", "low", "high"),
    [
        (
            "two and a half times the epsilon of the numerical evaluation of the same pair",
            lambda: closed_form(2, 2000, _DELTA) / _any(_ANY, 2000, "clone"),
            2.4,
            2.6,
        ),
        (
            "six times for a hundred million",
            lambda: closed_form(2, 1e8, _DELTA) / _any(_ANY, 10**8, "clone"),
            5.8,
            6.5,
        ),
        ("nothing below some 1,700", lambda: math.exp(2) * 16 * math.log(2 / _DELTA), 1690, 1725),
        (
            "another quarter off",
            lambda: 1 - _any(_ANY, 10**5, "tight") / _any(_ANY, 10**5, "clone"),
            0.24,
            0.28,
        ),
        ("three fifths of what any", lambda: epsilon(_KRR, 10**5) / _any(_ANY, 10**5, "tight"), 0.57, 0.61),
        (
            "a thousandth where users are hundreds",
            lambda: 1 - attack(_KRR, 500) / epsilon(_KRR, 500),
            0,
            1e-3,
        ),
        (
            "a twenty thousandth from 10,000 on",
            lambda: 1 - attack(_KRR, 10**4) / epsilon(_KRR, 10**4),
            0,
            6e-5,
        ),
        ("stay some 30 % below", lambda: 1 - _local("blh(domain=64"), 0.28, 0.33),
        ("stay some 30 % below", lambda: 1 - _local("oue(domain=64"), 0.28, 0.33),
        ("stay some 30 % below", lambda: 1 - _local("hadamard(domain=64"), 0.28, 0.33),
        ("at a tenth to 0.08 of it", lambda: _sampled(0.1), 0.0785, 0.0805),
        ("at a hundredth to 0.0054", lambda: _sampled(0.01), 0.00535, 0.00545),
        ("grows by 45 %", lambda: _honest(0.5) - 1, 0.445, 0.46),
        ("with a fiftieth eightfold", lambda: _honest(0.02), 7.8, 8.4),
    ],
)
def test_the_page_says_what_is_computed(
    text: str, number: Callable[[], float], low: float, high: float
) -> None:
    assert _says(text)
    assert low <= number() <= high


def test_many_rounds_lose_what_the_page_says() -> None:
    composed = Composed(60)
    for text, rule, count, low, high in (
        ("loses a factor of six within a hundred rounds", composed.advanced, 100, 5.8, 6.6),
        ("11 % for one round", composed.by_renyi, 1, 1.105, 1.115),
        ("8 % for a thousand", composed.by_renyi, 1000, 1.075, 1.085),
    ):
        assert _says(text)
        assert low <= rule(count) / composed.exact(count) <= high, text
