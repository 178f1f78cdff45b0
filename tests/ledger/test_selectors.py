"""Selectors over labels: every cohort that has them, whatever is in their texts, and no other is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shuffle_ledger.ledger.decisions import open_cohort, resolve_audience
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage import rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Cohort

AWKWARD = ('"', "\\", "é", "%_", ':"', '":"x', "a", "b", "\N{SNOWMAN}'")


def opened(store: Store, name: str, labels: Mapping[str, str]) -> None:
    open_cohort(
        store,
        name=name,
        population=1000,
        epsilon=1.0,
        delta=1e-6,
        policy="fixed",
        labels=labels,
        actor="tester",
    )


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
