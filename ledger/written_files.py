"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MODE = 0o644  # a temporary file would be its owner's alone


def write_bytes_whole(path: Path, content: bytes) -> None:
    """Write a file: afterwards it holds all of `content`, or what it held before.

    What is no file, such as a device or a pipe, is written into: it must not be replaced.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
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
