"""A cohort's year as a picture: the spending, round by round, against the budget, and the refusals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from shuffle_ledger.accounting import exact_text
from shuffle_ledger.cli.rendering.present import upper
from shuffle_ledger.ledger.answers import BudgetStatement
from shuffle_ledger.ledger.reports import HistoryPoint, by_use_case, days_of, last_of_days
from shuffle_ledger.ledger.values import EntryKind

INK, SPENT, LIMIT, REFUSED, FAINT = "#2b2b2b", "#1f5f8b", "#8a8a8a", "#c0392b", "#d9d9d9"
DOTS_PER_INCH = 144


def draw_cohort(statement: BudgetStatement, points: Sequence[HistoryPoint], picture: Path) -> None:
    """Writes the PNG `picture`: above, epsilon over time as a step line; below, each use case's rounds.

    Points without a day of collection stand at the day on which they were recorded.
    """
    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1.5))
    _draw_spending(above, statement, points)
    _draw_use_cases(below, points)
    figure.savefig(picture, dpi=DOTS_PER_INCH)


def _draw_spending(axes: Axes, statement: BudgetStatement, points: Sequence[HistoryPoint]) -> None:
    ends = last_of_days(points)
    days = [_place(day) for day in [*list(ends)[:1], *ends]]
    spent = [0.0, *(points[number].epsilon_spent_upper for number in ends.values())]
    budget = statement.epsilon_budget
    axes.step(days, spent, where="post", color=SPENT, linewidth=2, label="spent (upper bound)")
    axes.fill_between(days, spent, step="post", color=SPENT, alpha=0.10, linewidth=0)
    axes.axhline(
        budget, color=LIMIT, linewidth=1.5, linestyle=(0, (5, 3)), label=f"budget {exact_text(budget)}"
    )
    refused = [
        (_place(day), point.epsilon_spent_upper)
        for day, point in zip(days_of(points), points, strict=True)
        if point.kind is EntryKind.REFUSED
    ]
    if refused:
        places, heights = zip(*refused, strict=True)
        label = f"refused ({len(refused)})"
        axes.scatter(places, heights, s=26, marker="x", color=REFUSED, label=label, zorder=3)
    axes.set_ylim(0, 1.12 * max([budget, *spent]))
    axes.set_ylabel(f"epsilon at delta {exact_text(statement.delta_budget)}", color=INK)
    title = (
        f"{statement.cohort}: at most {upper(statement.epsilon_spent_upper)} of {exact_text(budget)} spent"
    )
    axes.set_title(title, loc="left", color=INK, fontweight="bold")
    rounds = f"{statement.rounds_admitted} rounds admitted, {statement.rounds_refused} refused"
    axes.set_title(f"{statement.population:,} users, {rounds}", loc="right", color=LIMIT, fontsize="small")
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", fontsize="small")
    quieten(axes)


def _draw_use_cases(axes: Axes, points: Sequence[HistoryPoint]) -> None:
    strips = by_use_case(points)
    names = sorted(strips, reverse=True)
    for kind, marker, color in ((EntryKind.ADMITTED, "o", SPENT), (EntryKind.REFUSED, "x", REFUSED)):
        chosen = [
            (_place(day), row) for row, name in enumerate(names) for day, each in strips[name] if each is kind
        ]
        places, rows = zip(*chosen, strict=True) if chosen else ((), ())
        axes.scatter(places, rows, s=12, marker=marker, color=color, linewidths=1)
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_ylim(-0.6, len(names) - 0.4)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]  # Matplotlib types its dates half
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # the same
    quieten(axes)


def quieten(axes: Axes) -> None:
    """Leaves two axes, in the background."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK)


def _place(day: date) -> float:
    return float(date2num(day))  # type: ignore[no-untyped-call]  # the same
