"""Sentences on standard error, and an error's JSON form: written with the standard library alone."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

from shuffle_ledger.cli.failures import Failure
from shuffle_ledger.cli.surroundings import abandon


def at_terminal() -> bool:
    """Returns whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def say(sentence: str) -> None:
    """Writes a sentence to standard error; an output that fails is left alone."""
    _write(f"shuffle-ledger: {sentence}")


def _write(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        abandon("stderr")


def present_failure(failure: Failure, *, as_json: bool) -> None:
    """Writes the sentence to standard error, and under `--json` also the object to standard output.

    An output that fails is left alone: the exit code says what kind of failure this is.
    """
    if failure.usage is not None:
        _write(failure.usage)
    else:
        for each in (failure, *failure.further):
            say(each.message)
    if (failure.lines_bad or 0) > 1 + len(failure.further):
        say("more lines than these cannot be accepted")
    if as_json:
        with suppress(OSError, ValueError):
            _present_error(failure)
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):
            abandon(name)


def _present_error(failure: Failure) -> None:
    error = _detailed(failure)
    if failure.lines_bad is not None:
        error["lines_bad"] = failure.lines_bad
        error["lines"] = [_detailed(each) for each in (failure, *failure.further)]
    sys.stdout.write(json.dumps({"error": error}, allow_nan=False) + "\n")
    sys.stdout.flush()


def _detailed(failure: Failure) -> dict[str, object]:
    return {"kind": failure.kind, "message": failure.message, **failure.details}
