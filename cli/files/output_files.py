"""Files that commands write, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger import files


def write_whole(path: Path, text: str) -> None:
    """Writes a text file: afterwards it holds all of `text`, or its previous contents.

    Raises:
        OSError: the file cannot be written.
    """
    write_bytes_whole(path, text.encode("utf-8"))


def checked_place(path: Path) -> Path:
    """Returns the path of a file to be written; raises BadValue when its directory does not exist."""
    if not path.parent.is_dir():
        raise BadValue("output", str(path), "a file in a directory that exists")
    return path


def write_bytes_whole(path: Path, content: bytes) -> None:
    """Writes a file as `ledger.files.write_bytes_whole`.

    Raises:
        BadValue: its directory does not exist.
        OSError: the file cannot be written.
    """
    files.write_bytes_whole(checked_place(path), content)
