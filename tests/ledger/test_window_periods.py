"""The periods of windows, compared with a calendar that is walked through day by day."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.windows import BUCKETS, UNITS, Period, Window, checked_windows, periods_of

DAY = timedelta(days=1)
days = st.dates(date(1971, 1, 1), date(2200, 12, 31))


def window(unit: str, sliding: int | None = None) -> Window:
    return Window(unit=unit, sliding=sliding, epsilon=1.0, delta=1e-6)


def unit_of(unit: str, day: date) -> object:
    """Return something that two days have in common if and only if they are in the same unit."""
    match unit:
        case "week":
            return (day - date(1970, 1, 5)).days // 7
        case "month":
            return day.year, day.month
        case "quarter":
            return day.year, (day.month - 1) // 3
        case "year":
            return day.year
    return day


@given(day=days, unit=st.sampled_from(UNITS))
def test_a_calendar_period_is_every_day_of_its_unit_and_no_other(day: date, unit: str) -> None:
    (period,) = window(unit).periods("phones", day, day)
    inside = [period.first + n * DAY for n in range((period.last - period.first).days + 1)]
    assert day in inside
    assert {unit_of(unit, each) for each in inside} == {unit_of(unit, day)}
    assert unit_of(unit, period.first - DAY) != unit_of(unit, day) != unit_of(unit, period.last + DAY)


@given(first=days, length=st.integers(0, 40), unit=st.sampled_from(BUCKETS), sliding=st.integers(2, 31))
def test_a_round_is_in_every_run_of_buckets_that_it_meets(
    first: date, length: int, unit: str, sliding: int
) -> None:
    last = first + length * DAY
    buckets = {unit_of(unit, first + n * DAY) for n in range(length + 1)}
    if len(buckets) > sliding:
        with pytest.raises(InvalidValue, match="in at most"):
            list(window(unit, sliding).periods("phones", first, last))
        return
    found = list(window(unit, sliding).periods("phones", first, last))
    assert len(found) == len(buckets) + sliding - 1 == len({each.name for each in found})
    for each in found:
        inside = {unit_of(unit, each.first + n * DAY) for n in range((each.last - each.first).days + 1)}
        assert len(inside) == sliding
        assert each.first <= last
        assert each.last >= first
    assert [each.first for each in found] == sorted(each.first for each in found)
    # No run of as many buckets that meets the round is left out: each begins one bucket after the last.
    for one, two in itertools.pairwise(found):
        assert unit_of(unit, two.first - DAY) == unit_of(unit, one.first)


@given(first=days, length=st.integers(0, 800), unit=st.sampled_from(UNITS))
def test_a_round_is_in_two_calendar_periods_at_most(first: date, length: int, unit: str) -> None:
    last = first + length * DAY
    met = {unit_of(unit, first + n * DAY) for n in range(length + 1)}
    if len(met) > 2:
        with pytest.raises(InvalidValue, match="in at most"):
            list(window(unit).periods("phones", first, last))
        return
    assert len(list(window(unit).periods("phones", first, last))) == len(met)


@pytest.mark.parametrize(
    ("unit", "day", "label", "first", "last"),
    [
        ("day", date(2024, 2, 29), "2024-02-29", date(2024, 2, 29), date(2024, 2, 29)),
        ("week", date(2026, 1, 1), "2026-W01", date(2025, 12, 29), date(2026, 1, 4)),
        ("week", date(2027, 1, 3), "2026-W53", date(2026, 12, 28), date(2027, 1, 3)),
        ("month", date(2024, 2, 29), "2024-02", date(2024, 2, 1), date(2024, 2, 29)),
        ("quarter", date(2026, 12, 31), "2026-Q4", date(2026, 10, 1), date(2026, 12, 31)),
        ("year", date(2024, 2, 29), "2024", date(2024, 1, 1), date(2024, 12, 31)),
    ],
)
def test_labels_of_days_at_the_ends_of_years(
    unit: str, day: date, label: str, first: date, last: date
) -> None:
    (period,) = window(unit).periods("phones", day, day)
    assert period == Period(cohort="phones", kind=unit, label=label, first=first, last=last)
    assert period.name == f"phones@{label}"
    assert Period.from_mapping(period.to_mapping()) == period


@given(
    unit=st.sampled_from(UNITS),
    sliding=st.one_of(st.none(), st.integers(2, 31)),
    epsilon=st.floats(1e-3, 100),
    delta=st.floats(1e-12, 0.5),
)
def test_a_window_is_read_back_from_what_entries_and_people_write(
    unit: str, sliding: int | None, epsilon: float, delta: float
) -> None:
    if sliding is not None and unit not in BUCKETS:
        with pytest.raises(InvalidValue):
            Window(unit=unit, sliding=sliding, epsilon=epsilon, delta=delta)
        return
    one = Window(unit=unit, sliding=sliding, epsilon=epsilon, delta=delta)
    assert Window.from_mapping(one.to_mapping()) == one
    assert Window.from_text(",".join(f"{name}={value}" for name, value in one.to_mapping().items())) == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "week",
        "calendar=fortnight,epsilon=1,delta=1e-6",
        "calendar=week,epsilon=1",
        "calendar=week,epsilon=nan,delta=1e-6",
        "calendar=week,epsilon=inf,delta=1e-6",
        "calendar=week,epsilon=1,delta=1",
        "calendar=week,epsilon=1,epsilon=2,delta=1e-6",
        "calendar=week,rolling=7,bucket=day,epsilon=1,delta=1e-6",
        "rolling=1,bucket=day,epsilon=1,delta=1e-6",
        "rolling=32,bucket=day,epsilon=1,delta=1e-6",
        "rolling=7,bucket=year,epsilon=1,delta=1e-6",
        "rolling=7.5,bucket=day,epsilon=1,delta=1e-6",
    ],
)
def test_no_other_text_is_a_window(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"window: (got|is empty)"):
        Window.from_text(text)


def test_a_cohort_has_each_kind_of_window_once_and_room_for_their_names() -> None:
    with pytest.raises(InvalidValue, match="each of another kind"):
        checked_windows([window("week"), Window(unit="week", epsilon=2.0, delta=1e-7)], cohort="phones")
    with pytest.raises(InvalidValue, match="at most 180 characters"):
        checked_windows([window("week")], cohort="x" * 181)
    assert len(checked_windows([window("week"), window("week", 4)], cohort="x" * 180)) == 2


def test_no_two_periods_of_a_cohort_share_a_name() -> None:
    every = [window(unit) for unit in UNITS] + [window(unit, k) for unit in BUCKETS for k in (2, 7, 31)]
    found = []
    for offset in range(0, 800, 5):
        day = date(2025, 11, 1) + offset * DAY
        found += [(each.kind, each.name, each.first) for each in periods_of(every, "phones", day, day)]
    assert len({name for _, name, _ in found}) == len(set(found))


@pytest.mark.parametrize("day", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)])
def test_days_too_far_away_have_no_periods(day: date) -> None:
    with pytest.raises(InvalidValue, match="days from 1970 on"):
        list(window("month", 31).periods("phones", day, day))
