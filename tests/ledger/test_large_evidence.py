"""Statements and bundles of long chains: how much is in memory for each entry."""

from __future__ import annotations

import dataclasses
import gc
import json
import tracemalloc
from collections.abc import Callable

import pytest

from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.values.documents import document_of, json_parts
from shuffle_ledger.ledger.verification.replay import Problem
from tests.benchmarks.statements_speed import NAME, LongStore, long_ledger, statement_of

FEW, MANY = 40, 160
BYTES_OF_ENTRY_MAX = 3500  # of an entry that a statement tells; its body alone, decoded, takes twice as much
TIMES_WRITTEN_MAX = 2.3  # a bundle's chain, and the archive that is made of it


@pytest.fixture(scope="module")
def ledgers() -> dict[int, LongStore]:
    """Return ledgers with a short and a long chain."""
    return {rounds: long_ledger(rounds, real=10, kinds=2) for rounds in (FEW, MANY)}


def growth(work: Callable[[int], object]) -> float:
    """Return by how many bytes the most that is in memory at once grows with every round."""
    peaks = []
    work(FEW)  # what the first time costs
    for rounds in (FEW, MANY):
        gc.collect()
        tracemalloc.start()
        try:
            work(rounds)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return (peaks[1] - peaks[0]) / (MANY - FEW)


@pytest.mark.slow
def test_a_statement_keeps_little_of_each_entry(ledgers: dict[int, LongStore]) -> None:
    """Nor does its JSON, as servers write it."""

    def written(rounds: int) -> bytes:
        return b"".join(json_parts(statement_of(ledgers[rounds]), depth=4))

    assert growth(written) < BYTES_OF_ENTRY_MAX


@pytest.mark.slow
def test_a_bundle_has_its_chain_in_memory_twice(ledgers: dict[int, LongStore]) -> None:
    """Once as the chain, once in the archive."""
    long = ledgers[MANY].long
    size = sum(len(entry.body) for entry in long) / len(long)
    assert growth(lambda rounds: make_bundle(ledgers[rounds], [NAME]).data) < TIMES_WRITTEN_MAX * size
    assert make_bundle(ledgers[MANY], [NAME]).entries == len(long)


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A value without fields."""


@pytest.mark.parametrize("depth", range(6))
@pytest.mark.parametrize(
    "value",
    [
        (),
        Nothing(),
        (Nothing(), (), ((1.5, float("inf")), 'é"\n', None)),
        Problem(sequence=3, what="it's “changed”"),
        {"listed": (Problem(sequence=None, what=""), [1, 2])},
    ],
)
def test_parts_are_the_text_of_the_document(value: object, depth: int) -> None:
    """However deep a value is cut into parts."""
    text = json.dumps(document_of(value), allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert b"".join(json_parts(value, depth=depth)) == text


@pytest.mark.slow
def test_a_statement_in_parts_is_its_document(ledgers: dict[int, LongStore]) -> None:
    """Every field of it."""
    statement = statement_of(ledgers[FEW])
    parts = list(json_parts(statement, depth=4))
    assert json.loads(b"".join(parts)) == document_of(statement)
    assert len(parts) > FEW  # each round and each moment is one
