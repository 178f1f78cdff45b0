"""Canonical bytes and digests: one value, one spelling, for ever.

The encoding is JSON with sorted keys, no whitespace and UTF-8, in which a float is written as
`{"$float": float.hex()}`: exact, independent of any printing algorithm, and never confused with a
string. Decoding accepts nothing but what encoding produces, so equal bytes and equal values coincide.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import marshal
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from shuffle_ledger.ledger.errors import Damaged

_FLOAT = "$float"
DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_FLOATS_REMEMBERED_MAX = 4096  # budgets, zeros and parameters of rounds occur in every entry
# From the third version of its format on, marshal writes equal values differently, by how often each occurs.
_WITHOUT_REFERENCES = 2


class Spelled(dict[str, Any]):
    """A mapping as canonical bytes spell it: `encode` does not spell it again."""


_SPELLED_AS_THEY_ARE = frozenset((type(None), bool, int, str, Spelled))


def spelled(value: Mapping[str, object]) -> Spelled:
    """Return a mapping to be encoded more than once; raises as `encode`."""
    return Spelled(_spell_mapping(value))


def encode(value: object) -> bytes:
    """Return the canonical bytes of None, bools, ints, floats, strings, lists and mappings of these.

    Raises:
        ValueError: NaN, a key that is not a string or starts with "$", text that is not Unicode.
        TypeError: any other kind of value.
    """
    return _ENCODER.encode(_spell(value)).encode("utf-8")


def decode(data: bytes) -> Any:
    """Return the value whose canonical bytes are `data`.

    Raises:
        Damaged: `data` is not exactly what `encode` writes.
    """
    try:
        spelled = _SPELLED.decode(data.decode("utf-8"))
        again = _ENCODER.encode(spelled).encode("utf-8")
        value = _unspelled(spelled)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged(f"bytes that are not canonical: {error}") from error
    if again != data:
        raise Damaged("bytes that are not canonical: the same value is spelled differently")
    return value


def spelled_moment(moment: datetime) -> str:
    """Return the one spelling of a moment in entries and signed texts: UTC, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def skim(data: bytes) -> Any:
    """Return the value whose canonical bytes are `data`, in a quarter of the time of `decode`.

    Bytes that are not canonical are accepted. For figures about many entries: decisions and verification use
    `decode`.

    Raises:
        Damaged: `data` is not JSON.
    """
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged(f"bytes that are not canonical: {error}") from error


def memo_key(value: Any) -> bytes:
    """Return bytes that differ for different decoded values, in a tenth of the time of `encode`: a key under
    which to keep, in this process, what was read out of a part of an entry.

    Raises:
        ValueError: it is no decoded value.
    """
    return marshal.dumps(value, _WITHOUT_REFERENCES)


def of_memo_key(key: bytes) -> Any:
    """Return the value of which `memo_key` made the key."""
    return marshal.loads(key)  # noqa: S302 - made in this process, by `memo_key`


def framed_digest(domain: str, *parts: bytes) -> bytes:
    """Return SHA-256 over a domain name and parts, each preceded by its length.

    **Guarantee**: two different sequences of parts, or two domains, never feed the hash the same bytes.
    """
    framed = [domain.encode("utf-8"), *parts]
    lengths = [len(part).to_bytes(_LENGTH_BYTES, "big") for part in framed]
    return hashlib.sha256(b"".join(itertools.chain(*zip(lengths, framed, strict=True)))).digest()


def _spell(value: object) -> object:
    # Types are compared first, for almost every value is of one of these, and every entry has a hundred.
    kind = type(value)
    if kind in _SPELLED_AS_THEY_ARE:
        return value
    if kind is dict:
        return _spell_mapping(value)  # type: ignore[arg-type]  # `kind is dict` narrows nothing
    if isinstance(value, float):
        return _spell_float(value)
    if isinstance(value, list | tuple):
        return [item if type(item) in _SPELLED_AS_THEY_ARE else _spell(item) for item in value]
    if isinstance(value, int | str):
        return value
    if isinstance(value, Mapping):
        return _spell_mapping(value)
    raise TypeError(f"{type(value).__name__} has no canonical bytes")


def _spell_float(value: float) -> dict[str, str]:
    if math.isnan(value):
        raise ValueError("NaN has no canonical bytes: unknown is an error, never a value")
    return {_FLOAT: (value + 0.0).hex()}  # adding zero turns -0.0 into 0.0: equal values, equal bytes


def _spell_mapping(value: Mapping[Any, object]) -> dict[Any, object]:
    spelled: dict[Any, object] = {}
    for key, item in value.items():
        if not isinstance(key, str) or key[:1] == "$":
            raise ValueError(f"{key!r} cannot be a key: keys are strings that do not start with '$'")
        spelled[key] = item if type(item) in _SPELLED_AS_THEY_ARE else _spell(item)
    return spelled


def _unspelled(value: Any) -> Any:
    """Return the value that `_spell` makes this of; changes the containers in place. Raises ValueError."""
    kind = type(value)
    if kind is dict:
        if _FLOAT in value:
            if len(value) > 1:
                raise ValueError(f"{_FLOAT} beside other keys")
            return _float_of(value[_FLOAT])
        for key, item in value.items():
            if key[:1] == "$":
                raise ValueError(f"{key!r} cannot be a key: keys are strings that do not start with '$'")
            if type(item) not in _SPELLED_AS_THEY_ARE:
                value[key] = _unspelled(item)
    elif kind is list:
        for place, item in enumerate(value):
            if type(item) not in _SPELLED_AS_THEY_ARE:
                value[place] = _unspelled(item)
    return value


@functools.lru_cache(maxsize=_FLOATS_REMEMBERED_MAX)
def _float_of(text: str) -> float:
    found = float.fromhex(text)
    if _spell_float(found)[_FLOAT] != text:
        raise ValueError("the same value is spelled differently")
    return found


def _read_object(pairs: dict[str, Any]) -> Any:
    return float.fromhex(pairs[_FLOAT]) if _FLOAT in pairs else pairs


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"the bare number {token}")


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
)
_SPELLED = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)
_DECODER = json.JSONDecoder(object_hook=_read_object, parse_float=_refuse, parse_constant=_refuse)
