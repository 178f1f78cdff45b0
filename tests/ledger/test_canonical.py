"""Equal values have equal bytes, equal bytes equal values, and neither changes between versions."""

from __future__ import annotations

import contextlib
import copy
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import GENESIS_DIGEST, EntryBody, EntryKind, LedgerEntry, Spending

FLIPS = st.integers(1, 255)
KEYS = st.text(max_size=8).filter(lambda key: not key.startswith("$"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(VALUES)
def test_decoding_undoes_encoding_exactly(value: Any) -> None:
    again = canonical.decode(canonical.encode(value))
    assert repr(again).replace("-0.0", "0.0") == repr(_sorted(value)).replace("-0.0", "0.0")


@settings(max_examples=60)
@given(VALUES, st.data())
def test_no_other_bytes_decode_to_the_same_value(value: Any, data: st.DataObject) -> None:
    encoded = canonical.encode(value)
    place = data.draw(st.integers(0, len(encoded) - 1))
    added = data.draw(st.sampled_from([b"", b" ", b"0"]))  # most flipped bytes are no JSON at all
    changed = added + encoded[place : place + 1] if added else bytes([encoded[place] ^ data.draw(FLIPS)])
    damaged = encoded[:place] + changed + encoded[place + 1 :]
    with contextlib.suppress(Damaged):
        assert canonical.encode(canonical.decode(damaged)) == damaged != encoded


@pytest.mark.parametrize(
    "data",
    [
        b' {"a":1}',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a": 1}',
        b"1.50",
        b"1e-9",
        b"0.1000000000000000055",
        b"-0.0",
        b"1e999",
        b"NaN",
        b"Infinity",
        b'{"$float":"1.0"}',
        b'{"$float":"nan"}',
        b'{"$float":"inf","a":1}',
        b'"\\u0041"',
        b"\xff",
        b"",
        b"[" * 100_000,
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        canonical.decode(data)


@pytest.mark.parametrize(
    "value", [math.nan, [math.nan], {"a": {"b": math.nan}}, {1: -0.0}, {"$float": 1}, {"$a": "inf"}, "\ud800"]
)
def test_values_without_canonical_bytes_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical.encode(value)


@pytest.mark.parametrize("data", [b'{"$float":5}', b'{"$float":null}', b'{"$float":"1.0"}', b"{"])
def test_bytes_that_no_value_has_are_damaged_however_they_are_read(data: bytes) -> None:
    for read in (canonical.decode, canonical.skim):
        with pytest.raises(Damaged):
            read(data)


def test_digests_frame_their_parts() -> None:
    digests = {
        canonical.framed_digest("d", b"ab", b"c"),
        canonical.framed_digest("d", b"a", b"bc"),
        canonical.framed_digest("d", b"abc"),
        canonical.framed_digest("d", b"abc", b""),
        canonical.framed_digest("da", b"bc"),
    }
    assert len(digests) == 5


def test_the_bytes_of_an_entry_are_frozen() -> None:
    body = EntryBody(
        cohort="telefone-öst",
        sequence=1,
        kind=EntryKind.OPENED,
        round_id=None,
        actor="tester",
        recorded_at=datetime(2025, 1, 6, 12, 30, tzinfo=UTC),
        numerical_policy="policy-1",
        epsilon_budget=3.0,
        delta_budget=1e-9,
        spent=Spending.nothing(1e-9),
        details={"population": 1000, "policy": "adaptive"},
    )
    entry = LedgerEntry.following(GENESIS_DIGEST, body)
    assert (
        entry.body
        == (
            '{"actor":"tester","cohort":"telefone-öst","delta_budget":1e-09,'
            '"details":{"policy":"adaptive","population":1000},"epsilon_budget":3.0,'
            '"kind":"opened","numerical_policy":"policy-1","recorded_at":"2025-01-06T12:30:00.000000+00:00",'
            '"round_id":null,"sequence":1,"spent":{"delta":1e-09,'
            '"discretization":0.0,"epsilon_lower":0.0,'
            '"epsilon_upper":0.0,"method":"nothing admitted",'
            '"round_off":0.0,"rounds":0,"truncation":0.0},"version":1}'
        ).encode()
    )
    assert entry.content() == body
    assert entry.digest.hex() == "66b4db8554aee89d227f5187661bc98b37e1c9eaf61b84e8563286167fa0c839"


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


@pytest.mark.parametrize(
    ("one", "other"), [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 1.0}), ({"n": 0.0}, {"n": -0.0}), ("1", 1)]
)
def test_values_that_differ_in_type_or_sign_have_different_keys(one: object, other: object) -> None:
    assert canonical.memo_key(one) != canonical.memo_key(other)
    assert repr(canonical.of_memo_key(canonical.memo_key(one))) == repr(one)


def test_a_key_does_not_depend_on_which_parts_are_shared() -> None:
    part = ["a text", 2**300, {"x": 0.5}]
    assert canonical.memo_key([part, part]) == canonical.memo_key([part, copy.deepcopy(part)])
