"""Canonical bytes and digests: one value, one spelling, for ever.

The encoding is JSON with sorted keys, no whitespace and UTF-8. A float is the shortest decimal number that
reads as the same double, with a point or an exponent as `repr` writes it (`1.0`, `1e-09`), so it is never
confused with a whole number; JSON has no infinity, which is written as `{"$float": "inf"}`. Decoding accepts
nothing but what encoding produces, so equal bytes and equal values coincide.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import marshal
import math
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from shuffle_ledger.ledger.errors import Damaged

_FLOAT = "$float"
_MARK = b'"$'
DIGEST_BYTES = 32
_LENGTH = struct.Struct(">Q")
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}
# From the third version of its format on, marshal writes equal values differently, by how often each occurs.
_WITHOUT_REFERENCES = 2


def encode(value: object) -> bytes:
    """Return the canonical bytes of None, bools, ints, floats, strings, and lists and mappings of these.

    Raises:
        ValueError: NaN, a key that starts with "$", text that is not Unicode.
        TypeError: any other kind of value.
    """
    try:
        text = _ENCODER.encode(value)
    except ValueError:  # a number that JSON has not
        text = _ENCODER.encode(_spelled(value))
    else:
        if '"$' in text or "-0.0" in text:
            text = _ENCODER.encode(_spelled(value))
    return text.encode("utf-8")


def decode(data: bytes) -> Any:
    """Return the value whose canonical bytes are `data`.

    Raises:
        Damaged: `data` is not exactly what `encode` writes.
    """
    value = skim(data)
    try:
        again = encode(value)
    except (ValueError, TypeError, RecursionError) as error:
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
        return (_DECODER_OF_INFINITIES if _MARK in data else _DECODER).decode(data.decode("utf-8"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
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
    lengths = map(_LENGTH.pack, map(len, framed))
    return hashlib.sha256(b"".join(itertools.chain.from_iterable(zip(lengths, framed, strict=True)))).digest()


def _spelled(value: object) -> object:
    """Return a value as JSON spells it: infinities by name, and 0.0 for -0.0, which equals it."""
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("NaN has no canonical bytes: unknown is an error, never a value")
        return {_FLOAT: repr(value)} if math.isinf(value) else value + 0.0
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str) or key[:1] == "$"]:
            raise ValueError(f"{wrong[0]!r} cannot be a key: keys are strings that do not start with '$'")
        return {key: _spelled(each) for key, each in value.items()}
    return [_spelled(each) for each in value] if isinstance(value, list | tuple) else value


def _mapping(value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no canonical bytes")


def _read_infinity(pairs: dict[str, Any]) -> Any:
    return _INFINITIES[pairs[_FLOAT]] if _FLOAT in pairs else pairs


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"the bare number {token}")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), default=_mapping
)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
_DECODER_OF_INFINITIES = json.JSONDecoder(parse_constant=_refuse, object_hook=_read_infinity)
