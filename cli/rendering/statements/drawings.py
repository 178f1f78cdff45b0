"""The two drawings of a statement: epsilon over time, and the privacy profile."""

from __future__ import annotations

import io
import math
import re
from datetime import date, timedelta
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from shuffle_ledger.accounting import exact_text
from shuffle_ledger.cli.rendering.statements.numbers import Digits
from shuffle_ledger.ledger.evidence import CohortStatement
from shuffle_ledger.ledger.reports import days_of, last_of_days
from shuffle_ledger.ledger.values import EntryKind

INK, FAINT, SPENT, LIMIT, ALARM = "#1c2733", "#8b949e", "#234f72", "#6b7280", "#9b2c2c"


def drawing(cohort: CohortStatement, what: Literal["spending", "profile"], *, name: str) -> str:
    """Returns one drawing of a cohort, as SVG that can stand within HTML, where no other has this name."""
    # Salt and font are fixed, so that the same statement gives the same bytes.
    settings = {"svg.fonttype": "path", "svg.hashsalt": "shuffle-ledger", "font.family": "DejaVu Sans"}
    with mpl.rc_context({**settings, "font.size": 8}):  # type: ignore[dict-item]  # names of settings
        figure = Figure(figsize=(6.9, 2.3), layout="constrained")
        axes = figure.subplots()
        (_draw_spending if what == "spending" else _draw_profile)(axes, cohort)
        _quiet(axes)
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue().decode("utf-8"), name)


def in_words(cohort: CohortStatement, what: Literal["spending", "profile"]) -> str:
    """Returns a drawing in words, for readers without pictures; bounds are rounded up."""
    promise, digits = cohort.promise, Digits.for_budget(cohort.promise.epsilon_budget)
    if what == "profile":
        points = [
            f"epsilon at most {digits.upper(each.epsilon_upper)} at delta {exact_text(each.delta)}"
            for each in cohort.profile
        ]
        return f"The drawing in words: {'; '.join(points)}."
    ends = last_of_days(cohort.moments)
    first, last = min(ends), max(ends)
    spent = [digits.upper(cohort.moments[ends[day]].spent.epsilon_upper) for day in (first, last)]
    budget = exact_text(promise.epsilon_budget)
    return (
        f"The drawing in words: at most {spent[0]} was spent by the end of {first}, and at most {spent[1]} by"
        f" the end of {last}, of a budget of {budget}. Rounds refused: {len(cohort.refusals):,}."
    )


def _draw_spending(axes: Axes, cohort: CohortStatement) -> None:
    days, ends = days_of(cohort.moments), last_of_days(cohort.moments)
    # Each day lasts until the next one: the last one too, so that a single day is no vertical line.
    places = [_place(day) for day in [*ends, max(ends) + timedelta(days=1)]]
    drawn = [cohort.moments[number] for number in [*ends.values(), max(ends.values())]]
    uppers = [_finite(each.spent.epsilon_upper) for each in drawn]
    lowers = [each.spent.epsilon_lower for each in drawn]
    budgets = [each.epsilon_budget for each in drawn]
    axes.fill_between(places, lowers, uppers, step="post", color=SPENT, alpha=0.25, linewidth=0)
    axes.step(places, uppers, where="post", color=SPENT, linewidth=1.4, label="spent, at most")
    axes.step(places, budgets, where="post", color=LIMIT, linewidth=1, linestyle=(0, (5, 3)), label="budget")
    refused = [i for i, each in enumerate(cohort.moments) if each.kind is EntryKind.REFUSED]
    if refused:
        height = [_finite(cohort.moments[ends[days[i]]].spent.epsilon_upper) for i in refused]
        at = ([_place(days[i]) for i in refused], height)
        axes.scatter(
            *at, s=9, marker="x", linewidths=0.7, color=FAINT, label=f"refused ({len(refused):,})", zorder=3
        )
    above = {each.sequence for each in cohort.overspends}
    if above:
        over = [i for i, each in enumerate(cohort.moments) if each.sequence in above]
        height = [_finite(cohort.moments[i].spent.epsilon_upper) for i in over]
        at = ([_place(days[i]) for i in over], height)
        axes.scatter(*at, s=22, color=ALARM, label=f"above the budget ({len(over):,})", zorder=4)
    finite = [each.spent.epsilon_upper for each in cohort.moments if math.isfinite(each.spent.epsilon_upper)]
    axes.set_ylim(0, 1.15 * max([*budgets, *finite]))
    axes.set_ylabel(f"ε at δ = {exact_text(cohort.promise.delta_budget)}")
    axes.xaxis.set_major_locator(locator := AutoDateLocator(minticks=2))  # type: ignore[no-untyped-call]  # half typed
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # the same
    axes.set_xlabel("day of collection; of other entries, the day on which they were recorded")
    axes.legend(loc="upper left", frameon=False, ncols=4, fontsize=7)


def _draw_profile(axes: Axes, cohort: CohortStatement) -> None:
    points = [each for each in cohort.profile if math.isfinite(each.epsilon_upper)]
    deltas = [each.delta for each in points]
    uppers, lowers = [each.epsilon_upper for each in points], [each.epsilon_lower for each in points]
    axes.fill_betweenx(deltas, lowers, uppers, color=SPENT, alpha=0.25, linewidth=0)
    axes.plot(uppers, deltas, color=SPENT, linewidth=1.4, marker="o", markersize=2.6, label="at most")
    promise = cohort.promise
    axes.plot(
        [promise.epsilon_guaranteed],
        [promise.delta_budget],
        color=LIMIT,
        marker="D",
        markersize=4,
        linestyle="none",
        label="promised",
    )
    axes.set_yscale("log")
    axes.set_xlim(0, 1.1 * max([promise.epsilon_guaranteed, *uppers]))
    axes.set_xlabel("ε")
    axes.set_ylabel("δ")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")))
    axes.legend(loc="upper right", frameon=False, fontsize=7)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    axes.tick_params(colors=INK, width=0.6, labelsize=7)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
    axes.grid(visible=True, axis="y", color="#e5e7eb", linewidth=0.5)
    axes.set_axisbelow(True)


def _place(day: date) -> float:
    return float(date2num(day))  # type: ignore[no-untyped-call]  # the same


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _inline(svg: str, name: str) -> str:
    """Returns the drawing without the head of an SVG file, its identifiers made its own."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', text, count=1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
