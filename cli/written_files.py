"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cli.failures import BadValue

_MODE = 0o644  # a temporary file would be its owner's alone


def write_whole(path: Path, text: str) -> None:
    """Writes a text file: afterwards it holds all of `text`, or what it held before.

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
    """Writes a file: afterwards it holds all of `content`, or what it held before.

    What is no file, such as a device or a pipe, is written into: it must not be replaced.

    Raises:
        BadValue: its directory does not exist.
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    checked_place(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        Path(temporary).chmod(_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
