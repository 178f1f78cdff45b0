"""What can go wrong, as people and scripts see it: one message and one exit code, decided here alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import click

from shuffle_ledger.accounting import InvalidParameter
from shuffle_ledger.ledger.errors import (
    BadSignature,
    BehindCheckpoint,
    BeyondBudget,
    Conflict,
    InvalidValue,
    NotAllowed,
    NotFound,
    RoundStuck,
    TryAgain,
    Unauthorized,
    Unavailable,
    UnsafeSession,
)


class ExitCode(IntEnum):
    """The exit codes that scripts depend on."""

    DONE = 0
    FAILED = 1
    BAD_VALUE = 2
    REFUSED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    NOT_VERIFIED = 6
    UNDECIDED = 7  # or temporarily unavailable: the same command may be asked again
    NOT_ALLOWED = 8


class CommandLineError(Exception):
    """Root of the errors that the command line raises itself."""


class BadValue(CommandLineError):
    """A value on the command line or in a file that is not what its field takes.

    Attributes:
        field: the option's or column's name, as users write it.
        value: what was given.
        expected: what would have been accepted, as a phrase.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}: got {shortened(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class BadLine(CommandLineError):
    """A line of a file that cannot be accepted; `cause` is the error that says why."""

    def __init__(self, file: str, line: int, cause: Exception) -> None:
        super().__init__(f"{file}, line {line}: {cause}")
        self.file = file
        self.line = line
        self.cause = cause


class FileRefused(CommandLineError):
    """A file that cannot be read as what it should be, as a whole."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error, ready to be shown."""

    code: ExitCode
    kind: str  # stable word for scripts
    message: str  # one sentence for people
    field: str | None = None
    value: str | None = None
    expected: str | None = None
    file: str | None = None
    line: int | None = None
    round_id: str | None = None
    state: str | None = None  # of a round that was admitted and must not be collected any more
    cohort_status: str | None = None


# The first row that matches decides. Whatever is not listed is unexpected and exits with 1.
_TABLE: tuple[tuple[type[Exception], ExitCode, str], ...] = (
    (InvalidParameter, ExitCode.BAD_VALUE, "bad_value"),
    (InvalidValue, ExitCode.BAD_VALUE, "bad_value"),
    (BadValue, ExitCode.BAD_VALUE, "bad_value"),
    (FileRefused, ExitCode.BAD_VALUE, "bad_file"),
    (click.UsageError, ExitCode.BAD_VALUE, "bad_usage"),
    (NotFound, ExitCode.NOT_FOUND, "not_found"),
    (Conflict, ExitCode.CONFLICT, "conflict"),
    (BeyondBudget, ExitCode.REFUSED, "refused"),
    (BadSignature, ExitCode.NOT_VERIFIED, "bad_signature"),
    (BehindCheckpoint, ExitCode.NOT_VERIFIED, "behind_checkpoint"),
    (TryAgain, ExitCode.UNDECIDED, "busy"),
    (UnsafeSession, ExitCode.FAILED, "unsafe_session"),  # asking again does not help either
    (Unavailable, ExitCode.UNDECIDED, "unavailable"),
    (Unauthorized, ExitCode.NOT_ALLOWED, "unauthorized"),
    (NotAllowed, ExitCode.NOT_ALLOWED, "forbidden"),
    (RoundStuck, ExitCode.FAILED, "stuck"),  # asking again does not help: somebody must look
)
_SHOWN_CHARACTERS = 80
_INTERRUPTED = "interrupted; what was decided is recorded, and the same command may be run again"


def failure_of(error: BaseException) -> Failure:
    """Returns how `error` is shown and which code the command exits with."""
    if _is_of_interruption(error):
        return Failure(code=ExitCode.FAILED, kind="interrupted", message=_INTERRUPTED)
    reason = error.cause if isinstance(error, BadLine) else error
    code, kind = next(
        ((code, kind) for type_, code, kind in _TABLE if isinstance(reason, type_)),
        (ExitCode.FAILED, "failed"),
    )
    value = getattr(reason, "value", None)
    shown = value if isinstance(value, str) else repr(value)
    return Failure(
        code=code,
        kind=kind,
        message=_message_of(error),
        field=getattr(reason, "field", None),
        value=None if value is None else shown[:_SHOWN_CHARACTERS],
        expected=getattr(reason, "expected", None),
        file=error.file if isinstance(error, BadLine) else None,
        line=error.line if isinstance(error, BadLine) else None,
        round_id=getattr(reason, "round_id", None),
        state=getattr(reason, "state", None),
        cohort_status=getattr(reason, "cohort_status", None),
    )


def _is_of_interruption(error: BaseException) -> bool:
    """Whether somebody interrupted the command: a library that is interrupted may fail by an error of its own
    while it cleans up."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and _is_of_interruption(before)


def _message_of(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def shortened(value: object, limit: int = _SHOWN_CHARACTERS) -> str:
    """Returns `value` as it was given, cut to `limit` characters so that a message stays one line."""
    text = value if isinstance(value, str) else repr(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= limit else text[: limit - 3] + "..."
