"""Numbers and pictures on pages: bounds rounded to their side, and charts as inline SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Literal

from shuffle_ledger.accounting import exact_text, lower_text, upper_text
from shuffle_ledger.ledger.reports.profile import ProfilePoint

_EXPONENT = re.compile(r"e\+?(-?)0*([0-9])")  # 1e-07 is read as 1e-7
WIDTH, HEIGHT = 720.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 14.0, 34.0
SPARK_WIDTH, SPARK_HEIGHT, _SPARK_EDGE = 240.0, 36.0, 2.0
_STEPS = tuple(map(Decimal, ("1", "2", "2.5", "5", "10")))
_TICKS = 5
_DELTA_MIN = 1e-30
_DAY = 86_400.0
_DAYS_NAMED_MAX = 300  # of an axis whose ticks name days; a longer one names months


def upper(value: float | None) -> str:
    """Return an upper bound as people read it, rounded up."""
    return _short(upper_text(value))


def lower(value: float) -> str:
    """Returns a lower bound, or the rest of a budget, rounded down."""
    return _short(lower_text(value))


def plain(value: object) -> str:
    """Return any other value: numbers that were given exactly, moments to the minute."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return _short(exact_text(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(text: str) -> str:
    return _EXPONENT.sub(r"e\1\2", text)


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A line of the grid, and its label."""

    place: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point of a chart, and the text that the browser shows for it."""

    x: float
    y: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A line over axes, in the units of the picture."""

    title: str
    line: str  # the points of a polyline
    area: str  # the same, closed at the bottom
    ahead: str = ""  # the points of its continuation
    limit: float | None  # where the horizontal line of a limit is
    limit_text: str
    limit_at: Literal["start", "end"]  # where it stands: away from the line
    vertical: float | None = None  # where a vertical line is
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...] = field(default_factory=tuple)
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


@dataclass(frozen=True, kw_only=True)
class Spark:
    """A small line without axes, from 0 to the budget or above it, in the units of the picture."""

    line: str
    limit: float  # where the budget is
    text: str  # the same in words
    top: str  # epsilon at the upper edge
    first: date
    last: date
    width: float = SPARK_WIDTH
    height: float = SPARK_HEIGHT


def sparkline(curve: Sequence[tuple[date, float]], *, budget: float) -> Spark | None:
    """Return epsilon spent over days of collection; None if there are fewer than two days."""
    if len(curve) < 2:
        return None
    first, last = curve[0][0], curve[-1][0]
    top = max([budget, *(value for _, value in curve if math.isfinite(value))])
    inner = SPARK_HEIGHT - 2 * _SPARK_EDGE

    def y(value: float) -> float:
        return SPARK_HEIGHT - _SPARK_EDGE - inner * min(value, top) / top

    steps: list[tuple[float, float]] = []
    for day, value in curve:
        x = SPARK_WIDTH * (day - first).days / (last - first).days
        steps += [(x, steps[-1][1])] if steps else []
        steps.append((x, y(value)))
    text = (
        f"Epsilon spent over days of collection: at most {upper(curve[0][1])} by {first},"
        f" at most {upper(curve[-1][1])} by {last}"
    )
    return Spark(
        line=_points(steps), limit=y(budget), text=text, top=f"ε {upper(top)}", first=first, last=last
    )


def stepped_chart(
    curve: Sequence[tuple[float, float]],
    *,
    budget: float,
    ahead: Sequence[tuple[float, float]],
    begins: float,
    ends: float,
    domain_ends: float,
    title: str,
    marks: Sequence[tuple[float, float, str]],
    budget_word: str = "budget",
) -> Chart:
    """Return epsilon spent over time against the budget, as steps.

    Args:
        curve: moments in seconds, and epsilon spent from then on.
        budget: epsilon.
        ahead: moments, and epsilon that would be spent by then; drawn as a dashed line.
        begins: the beginning of the first day, UTC.
        ends: up to which the last value is drawn.
        domain_ends: the end of the last day of the axis.
        title: the picture in words.
        marks: moments of refusals, epsilon spent then, and their texts.
        budget_word: what the line at the budget is called.
    """
    finite = [value for _, value in (*curve, *ahead) if math.isfinite(value)]
    top = 1.12 * max([budget, *finite])

    def place(moment: float, value: float) -> tuple[float, float]:
        return time_place(moment, begins, domain_ends), _scaled(min(value, top), 0.0, top)

    steps = [place(curve[0][0], 0.0)]
    for moment, value in curve:
        x, y = place(moment, value)
        steps += [(x, steps[-1][1]), (x, y)]
    steps.append((time_place(max(ends, curve[-1][0]), begins, domain_ends), steps[-1][1]))
    crosses = [
        Mark(x=x, y=y, kind="refused", text=text)
        for (x, y), text in ((place(moment, value), text) for moment, value, text in marks)
    ]
    return Chart(
        title=title,
        line=_points(steps),
        area=_closed(steps),
        ahead=_points([place(*each) for each in ahead]),
        limit=_scaled(budget, 0.0, top),
        limit_text=f"{budget_word} {plain(budget)}",
        limit_at="start",
        x_ticks=_day_ticks(begins, domain_ends),
        y_ticks=tuple(
            Tick(place=_scaled(value, 0.0, top), text=plain(value)) for value in _round_values(top)
        ),
        marks=tuple(crosses),
    )


def time_place(moment: float, begins: float, ends: float) -> float:
    """Return where a moment is on an axis of time, in the units of the picture."""
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (moment - begins) / (ends - begins), 1)


def profile_chart(points: Sequence[ProfilePoint], *, epsilon: float, delta: float) -> Chart | None:
    """Return delta over epsilon on a logarithmic scale, with the budget's two lines; None without points."""
    if not points:
        return None
    values = [max(point.delta_upper, _DELTA_MIN) for point in points]
    low = math.floor(math.log10(max(min([*values, delta]), delta * 1e-6)))
    end = points[-1].epsilon

    def x(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * value / end

    def y(value: float) -> float:
        return _scaled(max(math.log10(value), low), low, 0.0)

    within = sum(value > 10.0**low for value in values)  # and one point more: below, nothing is drawn
    line = [(x(point.epsilon), y(value)) for point, value in zip(points, values, strict=True)][: within + 1]
    step = max(1, math.ceil(-low / 6))
    return Chart(
        title="Privacy profile: delta (at most) as a function of epsilon",
        line=_points(line),
        area=_closed(line),
        limit=y(delta),
        limit_text=f"δ {plain(delta)}",
        limit_at="end",
        vertical=x(epsilon),
        x_ticks=tuple(Tick(place=x(value), text=plain(value)) for value in _round_values(end)),
        y_ticks=tuple(Tick(place=y(10.0**power), text=f"1e{power}") for power in range(0, low - 1, -step)),
    )


def _scaled(value: float, low: float, high: float) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low), 1)


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _closed(places: Sequence[tuple[float, float]]) -> str:
    bottom = HEIGHT - _BOTTOM
    return _points([(places[0][0], bottom), *places, (places[-1][0], bottom)])


def _round_values(end: float) -> list[float]:
    rough = end / _TICKS
    power = Decimal(1).scaleb(math.floor(math.log10(rough)))
    step = next(power * factor for factor in _STEPS if power * factor >= rough)
    return [float(step * number) for number in range(math.floor(Decimal(end) / step) + 1)]


def _day_ticks(first: float, last: float) -> tuple[Tick, ...]:
    """Return ticks where days begin, at most `_TICKS`, from the first day on; both moments are midnights."""
    form = "%b %d" if last - first < _DAYS_NAMED_MAX * _DAY else "%b %Y"
    days = max(1, round((last - first) / _DAY))
    moments = [first + day * _DAY for day in range(0, days, math.ceil(days / _TICKS))]
    texts = [datetime.fromtimestamp(moment, UTC).strftime(form) for moment in moments]
    return tuple(
        Tick(place=time_place(moment, first, last), text=text)
        for number, (moment, text) in enumerate(zip(moments, texts, strict=True))
        if text not in texts[:number]  # no text stands there twice
    )
