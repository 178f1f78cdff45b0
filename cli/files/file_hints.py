"""Hints for files that cannot be read: which kind of file it seems to be, and how to convert it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_UTF_16 = "looks like UTF-16 text; save it as CSV UTF-8"
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xd0\xcf\x11\xe0", "is a workbook (.xls); save it as CSV UTF-8"),
    (b"PK\x03\x04", "is a workbook (.xlsx), or another ZIP archive; save it as CSV UTF-8"),
    (b"PAR1", "is a Parquet file; write it as CSV or as JSON lines (pandas: to_csv)"),
    (b"\x1f\x8b", "is compressed by gzip; unpack it"),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
)
_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


def hint_of_bytes(data: bytes) -> str | None:
    """Returns what a file's bytes look like if they are no UTF-8 text with records; None if they may be."""
    for signature, hint in _SIGNATURES:
        if data.startswith(signature):
            return hint
    return _UTF_16 if b"\0" in data[:1000] else None


def delimiter_hint(row: Sequence[str], columns: Collection[str]) -> str | None:
    """Returns by what the cells of a header seem to be separated, if that is not a comma."""
    text = ",".join(row)
    for delimiter, named in _DELIMITERS.items():
        names = {name.strip() for name in text.split(delimiter)}
        if len(names & set(columns)) > 1:
            return f"separated by {named}; expected ','"
    return None
