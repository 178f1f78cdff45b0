"""The axis of a chart over days of collection: its ticks are days, of a chart of one day too."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from shuffle_ledger.ledger.api.pages.charts import stepped_chart, time_place

FIRST = date(2026, 11, 27)


def midnight(day: int) -> float:
    return (datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC) + timedelta(days=day)).timestamp()


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (1, {0: "Nov 27"}),
        (2, {0: "Nov 27", 1: "Nov 28"}),
        (5, {0: "Nov 27", 1: "Nov 28", 2: "Nov 29", 3: "Nov 30", 4: "Dec 01"}),
        (6, {0: "Nov 27", 2: "Nov 29", 4: "Dec 01"}),
        (100, {0: "Nov 27", 20: "Dec 17", 40: "Jan 06", 60: "Jan 26", 80: "Feb 15"}),
        (400, {0: "Nov 2026", 80: "Feb 2027", 160: "May 2027", 240: "Jul 2027", 320: "Oct 2027"}),
    ],
)
def test_the_ticks_of_a_chart_over_days_are_days(days: int, expected: dict[int, str]) -> None:
    ends = midnight(days)
    chart = stepped_chart(
        [(midnight(0), 0.5)],
        budget=1.0,
        ahead=(),
        begins=midnight(0),
        ends=ends,
        domain_ends=ends,
        title="",
        marks=(),
    )
    found = {tick.place: tick.text for tick in chart.x_ticks}
    assert found == {time_place(midnight(day), midnight(0), ends): text for day, text in expected.items()}
