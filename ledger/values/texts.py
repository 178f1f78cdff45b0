"""Texts that people give: names, reasons, labels."""

from __future__ import annotations

import unicodedata

from shuffle_ledger.ledger.errors import InvalidValue

NAME_LENGTH_MAX = 200
POPULATION_MAX = 10**12
# Printable to Python, and to people nothing or a blank: two names that look the same must be the same. From
# Unicode's Default_Ignorable_Code_Point, which Python does not know, and the blank Braille pattern.
_UNSEEN = frozenset(
    (
        0x034F,
        *range(0x115F, 0x1161),
        *range(0x17B4, 0x17B6),
        *range(0x180B, 0x1810),
        0x2800,
        0x3164,
        *range(0xFE00, 0xFE10),
        0xFFA0,
        *range(0xE0100, 0xE01F0),
    )
)


def checked_text(field: str, value: object, *, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return `value` in Unicode's normal form C.

    Raises:
        InvalidValue: not 1 to `length_max` characters that can be seen, or blank at an end.
    """
    expected = f"1 to {length_max} printable characters that show, none of the outer ones blank"
    if not isinstance(value, str):
        raise InvalidValue(field=field, value=value, expected=expected)
    text = unicodedata.normalize("NFC", value)
    if not 1 <= len(text) <= length_max or not text.isprintable() or text != text.strip():
        raise InvalidValue(field=field, value=value, expected=expected)
    if not text.isascii() and any(ord(character) in _UNSEEN for character in text):
        raise InvalidValue(field=field, value=value, expected=expected)
    return text
