"""Files written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_TIMEOUT_SECONDS = 30.0
FREE_BYTES_MIN = 1 << 28  # on a large file system; a smaller one needs a twentieth of itself
_LOCK_POLL_SECONDS = 0.05
_MODE = 0o644  # a temporary file would be its owner's alone


def write_bytes_whole(path: Path, content: bytes) -> None:
    """Write a file: afterwards it holds all of `content`, or what it held before.

    A device or a pipe is written into, not replaced.

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


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process, or thread, is alone in a directory. A lock ends with its process.

    Raises:
        TimeoutError: others were there for too long.
        OSError: there is no such directory, or it cannot be locked.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        ends = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not _is_locked(descriptor):
            if time.monotonic() > ends:
                raise TimeoutError(f"another process has been writing into {directory} for too long")
            time.sleep(_LOCK_POLL_SECONDS)  # flock has no time limit
        yield
    finally:
        os.close(descriptor)


def shortage(directory: Path) -> str | None:
    """Return how little room a directory's file system has left; None while there is enough.

    Enough is 256 MiB, or a twentieth of a file system smaller than 5 GiB. A directory that cannot be asked
    has no shortage.
    """
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    needed = min(FREE_BYTES_MIN, usage.total // 20)
    if usage.free >= needed:
        return None
    return f"{directory} has {usage.free >> 20} MiB free, and less than {needed >> 20} MiB is an alarm"


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
