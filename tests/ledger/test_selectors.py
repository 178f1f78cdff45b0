"""Selectors over labels: every cohort that has them, whatever is in their texts, and no other is read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import register_and_admit, resolve_audience
from shuffle_ledger.ledger.errors import NotFound, OtherContent
from shuffle_ledger.ledger.storage import engine, rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Cohort, Outcome, request_of
from tests.ledger.clerk import open_as_usual, trust_any_clock

AWKWARD = ('"', "\\", "é", "%_", ':"', '":"x', "a", "b", "\N{SNOWMAN}'")


def opened(store: Store, name: str, labels: Mapping[str, str]) -> None:
    open_as_usual(store, name, population=1000, delta=1e-6, labels=labels)


def test_labels_are_found_whatever_their_text(store: Store) -> None:
    listed = {f"c{number}": {"a": value, "b": "x"} for number, value in enumerate(AWKWARD)}
    listed["without"] = {}
    for name, labels in listed.items():
        opened(store, name, labels)
    for wanted in [{"a": value} for value in AWKWARD] + [{"b": "x"}, {"b": "x", "a": "a"}, {"x": "a"}]:
        expected = sorted(name for name, labels in listed.items() if wanted.items() <= labels.items())
        assert [cohort.name for cohort in store.labelled(wanted)] == expected


def test_only_cohorts_with_the_labels_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        opened(store, f"c{number}", {"country": "de" if number == 3 else "fr"})
    read: list[str] = []
    whole = rows.cohort_from

    def noted(row: Any) -> Cohort:
        read.append(row.name)
        return whole(row)

    monkeypatch.setattr(rows, "cohort_from", noted)
    assert resolve_audience(store, "country=de") == ("c3",)
    assert read == ["c3"]
    with pytest.raises(NotFound):
        resolve_audience(store, "country=d")


def test_a_repeated_selector_means_the_rounds_own_cohorts_though_the_clock_was_set_back(
    store: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def register(round_id: str) -> Outcome:
        names = resolve_audience(store, "country=de", round_id=round_id)
        described = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=0.1)"), reports=500)
        request = request_of(names, described, round_id=round_id)
        return register_and_admit(store, accountant, request, actor="tester")[0]

    def shift(hours: int) -> None:
        monkeypatch.setattr(engine, "database_time", lambda it: true_time(it) + timedelta(hours=hours))

    trust_any_clock(store)
    true_time = engine.database_time
    opened(store, "c1", {"country": "de"})
    shift(1)
    opened(store, "c2", {"country": "de"})
    first = register("r")
    assert isinstance(first, Admitted)
    assert [member.cohort for member in first.audience] == ["c1", "c2"]
    opened(store, "c3", {"country": "de"})
    assert register("r") == first
    shift(-1)
    opened(store, "c0", {"country": "de"})
    with pytest.raises(OtherContent):
        register("r")
