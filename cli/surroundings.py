"""Makes the program independent of its environment: streams take any text, drawing needs no screen."""

from __future__ import annotations

import atexit
import codecs
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_ERRORS = "shuffle-ledger"  # how a stream writes what its encoding does not have
_PLAIN = {"█": "#", "░": "-", "ε": "epsilon", "δ": "delta", "–": "-", "’": "'", "“": '"', "”": '"'}
# Objects made between two searches for garbage in cycles. Modules make many that stay: Python's default, 700,
# takes a sixth of a short command's time; with this number a short command needs no search. A larger number
# keeps more garbage: up to this many objects in cycles, some tens of megabytes.
_GARBAGE_AFTER = 200_000
# A notebook may set a back end that is not installed here; a settings file changes every picture.
_MATPLOTLIB = {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}
# Pydantic would look for plugins in the metadata of every installed library; the program needs none.
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")


def prepare() -> None:
    """Makes standard output and error accept every text; chooses how Matplotlib draws, before it is loaded;
    has Pydantic load no plugins, unless the environment says which; lets the search for garbage wait until
    many objects were made, and leaves it out at the end.

    A stream that was closed before the program began is replaced by one that drops all output.
    """
    gc.set_threshold(_GARBAGE_AFTER)
    # Python's last search goes through all objects of all modules, a sixth of a short command's time. The
    # process gives its memory back anyway; files and connections are closed by name, before.
    atexit.register(gc.freeze)
    os.environ.update(_MATPLOTLIB)
    os.environ.setdefault(*_NO_PLUGINS)
    codecs.register_error(_ERRORS, _spelled)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it stays open
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ERRORS)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Has Python take some modules for not installed meanwhile, except those that are loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None hides, as Python documents
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def abandon(name: str) -> None:
    """Drops what a standard stream could not write, so that closing it at the end fails no more."""
    stream = getattr(sys, name)
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
    except (OSError, ValueError):  # a stream without a file, or closed
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it stays open


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Returns characters that the encoding lacks by plain ones, or by their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = (_PLAIN.get(each) or each.encode("ascii", "backslashreplace").decode("ascii") for each in lacking)
    return "".join(plain), error.end
