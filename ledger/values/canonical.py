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
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from shuffle_ledger.ledger.errors import Damaged

_FLOAT = "$float"
DIGEST_BYTES = 32
_LENGTH = struct.Struct(">Q")
_KEYS_REMEMBERED_MAX = 4096  # of mappings: entries have the same sixty
# From the third version of its format on, marshal writes equal values differently, by how often each occurs.
_WITHOUT_REFERENCES = 2


class Written:
    """A mapping that is encoded more than once: its canonical text, which `encode` copies."""

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, object]) -> None:
        """Write the text; raises as `encode`, which alone finds text that is not Unicode."""
        self.text = _mapping_text(value)


def encode(value: object) -> bytes:
    """Return the canonical bytes of None, bools, ints, floats, strings, lists and mappings of these, some of
    which may be `Written`.

    Raises:
        ValueError: NaN, a key that is not a string or starts with "$", text that is not Unicode.
        TypeError: any other kind of value.
    """
    (text,) = _texts([value])
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
    lengths = map(_LENGTH.pack, map(len, framed))
    return hashlib.sha256(b"".join(itertools.chain.from_iterable(zip(lengths, framed, strict=True)))).digest()


def _texts(values: Iterable[object]) -> list[str]:
    return [(_WRITERS.get(type(value)) or _writer(value))(value) for value in values]


def _writer(value: object) -> Callable[[Any], str]:
    for kind in (str, int, float, list, tuple):
        if isinstance(value, kind):
            return _WRITERS[kind]
    if isinstance(value, Mapping):
        return _mapping_text
    raise TypeError(f"{type(value).__name__} has no canonical bytes")


def _float_text(value: float) -> str:
    if math.isnan(value):
        raise ValueError("NaN has no canonical bytes: unknown is an error, never a value")
    # Adding zero turns -0.0 into 0.0: equal values, equal bytes.
    return f'{{"{_FLOAT}":"{(value + 0.0).hex()}"}}'


def _mapping_text(value: Mapping[str, object]) -> str:
    keys = sorted(value)
    texts = _texts(map(value.__getitem__, keys))
    return f"{{{','.join(map(operator.add, map(_key_text, keys), texts))}}}"


def _list_text(value: Iterable[object]) -> str:
    return f"[{','.join(_texts(value))}]"


@functools.lru_cache(maxsize=_KEYS_REMEMBERED_MAX)
def _key_text(key: object) -> str:
    if not isinstance(key, str) or key[:1] == "$":
        raise ValueError(f"{key!r} cannot be a key: keys are strings that do not start with '$'")
    return f"{encode_basestring(key)}:"


def _read_object(pairs: dict[str, Any]) -> Any:
    return float.fromhex(pairs[_FLOAT]) if _FLOAT in pairs else pairs


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"the bare number {token}")


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    int: int.__repr__,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
    float: _float_text,
    dict: _mapping_text,
    list: _list_text,
    tuple: _list_text,
    Written: operator.attrgetter("text"),
}
_DECODER = json.JSONDecoder(object_hook=_read_object, parse_float=_refuse, parse_constant=_refuse)
