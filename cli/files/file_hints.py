"""Hints for files that cannot be read: which kind of file it seems to be, and how to convert it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_OLD_EXCEL = "is an old Excel workbook (.xls); save it as .xlsx, or as CSV UTF-8"
_ENCRYPTED = "is an encrypted workbook; save it without a password, or as CSV UTF-8"
_UTF_16 = "looks like UTF-16 text; save it as CSV UTF-8"
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xd0\xcf\x11\xe0", _OLD_EXCEL),
    (b"PARE", "is an encrypted Parquet file; write it without encryption"),
    (b"\x1f\x8b", "is compressed by gzip; unpack it"),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
)
_ENCRYPTED_STREAM = "EncryptedPackage".encode(
    "utf-16-le"
)  # its name in the container that .xls files use, too
_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


def hint_of_bytes(data: bytes) -> str | None:
    """Returns what a file's bytes look like if they are no UTF-8 text with records; None if they may be."""
    for signature, hint in _SIGNATURES:
        if data.startswith(signature):
            return _ENCRYPTED if hint == _OLD_EXCEL and _ENCRYPTED_STREAM in data else hint
    return _UTF_16 if b"\0" in data[:1000] else None


def delimiter_hint(row: Sequence[str], columns: Collection[str]) -> str | None:
    """Returns by what the cells of a header seem to be separated, if that is not a comma."""
    text = ",".join(row)
    for delimiter, named in _DELIMITERS.items():
        names = {name.strip() for name in text.split(delimiter)}
        if len(names & set(columns)) > 1:
            return f"separated by {named}; expected ','"
    return None
