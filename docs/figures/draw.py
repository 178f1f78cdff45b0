"""Draws the figures of docs/bounds.md: `make figures`, or `python -m docs.figures.draw [--quick] [FOLDER]`.

Every number is certified; what is drawn of a bound is its upper end, and of an attack its lower one. The same
versions draw the same bytes. `--quick` takes few points: it shows that the script runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shuffle_ledger.accounting import Accountant, ShuffledRound, attack_epsilon, parse_randomizer
from shuffle_ledger.cli.rendering.charts import FAINT, INK, LIMIT, REFUSED, SPENT, quieten
from shuffle_ledger.cli.rendering.profile_charts import write_whole

NAMES = ("users", "local-epsilon", "rounds", "sampling", "dishonest")
_DELTA = 1e-6
_COLORS = (SPENT, "#2a8c6e", "#b8860b", "#7d4e9e", "#c0602b")
_OTHER = (5, 3)  # dashes of what is not ours, or not a bound from above
_PRECISION = 3e-3


def closed_form(epsilon0: float, reports: float, delta: float) -> float:
    """The published closed form (Feldman, McMillan, Talwar, Theorem 3.1), epsilon0 where it says nothing."""
    e = math.exp(epsilon0)
    if e > reports / (16 * math.log(2 / delta)):
        return epsilon0
    root = 8 * math.sqrt(e * math.log(4 / delta) / reports)
    return min(math.log1p((e - 1) / (e + 1) * (root + 8 * e / reports)), epsilon0)


def epsilon(written: str, reports: int, *, delta: float = _DELTA, count: int = 1, **rest: object) -> float:
    """Certified upper bound on epsilon of rounds."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=reports, **rest)  # type: ignore[arg-type]
    return Accountant(precision=_PRECISION).certify({shuffled: count}, delta=delta).epsilon_upper


def attack(written: str, reports: int) -> float:
    """What an attacker certainly learns of one round; nan where no attack is known."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=reports)
    found = attack_epsilon(shuffled, delta=_DELTA)
    return math.nan if found is None else found


def users(axes: Axes, points: int) -> None:
    """Epsilon of one round against the number of users, epsilon0 = 2."""
    numbers = [round(float(n)) for n in np.geomspace(300, 1e7, points)]
    lines: list[tuple[str, Callable[[int], float]]] = [
        ("any randomizer, closed form", lambda n: closed_form(2.0, n, _DELTA)),
        ("any randomizer, clone", lambda n: epsilon("generic(epsilon0=2)", n, analysis="clone")),
        ("any randomizer, tight", lambda n: epsilon("generic(epsilon0=2)", n, analysis="tight")),
        ("RAPPOR", lambda n: epsilon("rappor(epsilon0=2)", n)),
        ("16-ary randomized response", lambda n: epsilon("krr(k=16, epsilon0=2)", n)),
    ]
    _bounds(axes, numbers, lines)
    lower = [attack("krr(k=16, epsilon0=2)", n) for n in numbers]
    axes.plot(
        numbers, lower, color=INK, linewidth=1.4, linestyle=(0, (1, 3)), label="... and an attack on it"
    )
    _finish(axes, "users", "epsilon at delta 1e-6", log=True)


def local_epsilon(axes: Axes, points: int) -> None:
    """Epsilon of one round of a million users against epsilon0."""
    locals_ = [float(e) for e in np.linspace(0.25, 8, points)]
    lines: list[tuple[str, Callable[[float], float]]] = [
        ("any randomizer, closed form", lambda e: closed_form(e, 1e6, _DELTA)),
        ("any randomizer, clone", lambda e: epsilon(f"generic(epsilon0={e!r})", 10**6, analysis="clone")),
        ("any randomizer, tight", lambda e: epsilon(f"generic(epsilon0={e!r})", 10**6, analysis="tight")),
        ("RAPPOR", lambda e: epsilon(f"rappor(epsilon0={e!r})", 10**6)),
        ("16-ary randomized response", lambda e: epsilon(f"krr(k=16, epsilon0={e!r})", 10**6)),
    ]
    _bounds(axes, locals_, lines)
    lower = [attack(f"krr(k=16, epsilon0={e!r})", 10**6) for e in locals_]
    axes.plot(
        locals_, lower, color=INK, linewidth=1.4, linestyle=(0, (1, 3)), label="... and an attack on it"
    )
    _finish(axes, "epsilon0", "epsilon at delta 1e-6", log=False)
    axes.set_yscale("log")


class Composed:
    """Epsilon of many rounds of 16-ary randomized response, 10,000 users, by three rules.

    Args:
        orders: number of orders of Renyi divergences.
    """

    def __init__(self, orders: int) -> None:
        self._round = ShuffledRound(randomizer=parse_randomizer("krr(k=16, epsilon0=1)"), reports=10_000)
        self._accountant = Accountant(precision=_PRECISION)
        each = [float(order) for order in np.geomspace(1.2, 2000, orders)]
        self._single = [
            (order, self._accountant.renyi_divergence({self._round: 1}, order=order).upper) for order in each
        ]

    def by_renyi(self, count: int) -> float:
        """Canonne, Kamath, Steinke (2020), Proposition 12, at the best order."""
        return min(
            count * one + math.log1p(-1 / order) - math.log(_DELTA * order) / (order - 1)
            for order, one in self._single
        )

    def advanced(self, count: int) -> float:
        """Kairouz, Oh, Viswanath (2015): half of delta for the rounds, half for composing them."""
        one = self._accountant.certify({self._round: 1}, delta=_DELTA / 2 / count).epsilon_upper
        return min(
            count * one, count * one * math.tanh(one / 2) + one * math.sqrt(2 * count * math.log(2 / _DELTA))
        )

    def exact(self, count: int) -> float:
        """The composition of the privacy loss distributions."""
        return self._accountant.certify({self._round: count}, delta=_DELTA).epsilon_upper


def rounds(axes: Axes, points: int) -> None:
    """Epsilon of many rounds, by three rules."""
    numbers = [round(float(n)) for n in np.geomspace(1, 10_000, points)]
    composed = Composed(12 if points < 6 else 60)
    for label, rule, style in (
        ("advanced composition", composed.advanced, {"color": REFUSED, "linestyle": (0, _OTHER)}),
        ("Renyi divergences", composed.by_renyi, {"color": _COLORS[2], "linestyle": (0, _OTHER)}),
        ("privacy loss distributions", composed.exact, {"color": SPENT, "linewidth": 2}),
    ):
        axes.plot(numbers, [rule(n) for n in numbers], label=label, **style)
    _finish(axes, "rounds", "epsilon at delta 1e-6", log=True)


def sampling(axes: Axes, points: int) -> None:
    """Epsilon of rounds of 10,000 reports, sampled from more and more users."""
    rates = [float(rate) for rate in np.geomspace(0.003, 1, points)]
    for color, count in zip(_COLORS, (1, 10, 100, 1000), strict=False):
        values = [
            epsilon("krr(k=16, epsilon0=1)", 10_000, sampled_from=round(10_000 / rate), count=count)
            for rate in rates
        ]
        label = "1 round" if count == 1 else f"{count:,} rounds"
        axes.plot(rates, values, color=color, label=label)
    _finish(axes, "share of the users that is sampled for a round", "epsilon at delta 1e-6", log=True)


def dishonest(axes: Axes, points: int) -> None:
    """Epsilon of one round of 100,000 reports against the share of honest ones."""
    shares = [float(f"{share:.4f}") for share in np.linspace(0.02, 1, points)]
    for color, (label, written, analysis) in zip(
        _COLORS,
        (
            ("any randomizer, epsilon0 = 2", "generic(epsilon0=2)", "tight"),
            ("RAPPOR, epsilon0 = 2", "rappor(epsilon0=2)", None),
            ("16-ary randomized response, epsilon0 = 2", "krr(k=16, epsilon0=2)", None),
        ),
        strict=False,
    ):
        values = [epsilon(written, 100_000, honest_fraction=share, analysis=analysis) for share in shares]
        axes.plot(shares, values, color=color, label=label)
    _finish(axes, "share of reports made as told", "epsilon at delta 1e-6", log=False)


def _bounds(axes: Axes, at: Sequence[float], lines: Iterable[tuple[str, Callable[..., float]]]) -> None:
    colors = (LIMIT, *_COLORS[:3], _COLORS[4])
    for place, (color, (label, bound)) in enumerate(zip(colors, lines, strict=True)):
        style = {"linestyle": (0, _OTHER)} if place == 0 else {}
        axes.plot(at, [bound(x) for x in at], color=color, label=label, **style)


def _finish(axes: Axes, x: str, y: str, *, log: bool) -> None:
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.legend(frameon=False, fontsize="small")
    quieten(axes)


FIGURES = dict(zip(NAMES, (users, local_epsilon, rounds, sampling, dishonest), strict=True))


def main() -> None:
    """Draws every figure into the folder that is named, or beside this file."""
    given = [argument for argument in sys.argv[1:] if argument != "--quick"]
    folder = Path(given[0]) if given else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    points = 3 if "--quick" in sys.argv else 19
    mpl.rcParams["svg.hashsalt"] = "shuffle-ledger"
    for name, draw in FIGURES.items():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(), points)
        write_whole(figure, folder / f"{name}.svg")


if __name__ == "__main__":
    main()
