"""What can go wrong, as people and scripts see it: one message and one exit code, decided here alone."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from shuffle_ledger.cli.usage import usage_message, usage_text

if TYPE_CHECKING:
    from shuffle_ledger.ledger.errors import UnacceptedWarnings


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

    kind = "bad_value"

    def __init__(self, field: str, value: object, expected: str, message: str | None = None) -> None:
        given = "is empty" if value == "" else f"got {shortened(value)}"  # as `accounting.given_text`
        super().__init__(message or f"{field}: {given}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class TokenNotAccepted(CommandLineError):
    """A token that the server does not know, or does not know any more."""

    kind = "unauthorized"


class BadLine(CommandLineError):
    """A line of a file that cannot be accepted; `cause` is the error that says why, and `done` how many
    rounds of the file are registered all the same."""

    def __init__(self, file: str, line: int, cause: Exception, *, done: int = 0) -> None:
        before = f" (registered before it: {done}; importing again goes on there)" if done else ""
        super().__init__(f"{file}, line {line}: {cause}{before}")
        self.file = file
        self.line = line
        self.cause = cause


class BadLines(CommandLineError):
    """Several lines of a file that cannot be accepted: the first ones, and how many there are."""

    def __init__(self, problems: Sequence[BadLine], *, total: int) -> None:
        super().__init__(f"{problems[0]} ({total} lines cannot be accepted)")
        self.problems = tuple(problems)
        self.total = total


class NeedsYes(CommandLineError):
    """A cohort with unusual parameters, and `--yes` was not said."""

    kind = "unaccepted_warnings"

    def __init__(self, refused: UnacceptedWarnings) -> None:
        super().__init__(f"{refused.reasons}. If that is meant, say --yes")
        self.warnings = refused.warnings


class NeedsSlots(CommandLineError):
    """The first round of a cohort is of a kind for which slots should have been declared, and `--yes` was not
    said."""

    kind = "slots_would_help"

    def __init__(self, refused: UnacceptedWarnings) -> None:
        super().__init__(
            f"{refused.reasons}. Open another cohort with --plan FILE, which declares them; or say --yes"
            f" to go on in {refused.cohort!r} without"
        )


class RefusedByGate(CommandLineError):
    """A batch that must not be released; `code` and `kind` are the gate's."""

    def __init__(self, message: str, *, code: int, kind: str, receipt: str | None) -> None:
        """Keep what scripts need beside the sentence."""
        super().__init__(message)
        self.code, self.kind, self.receipt = code, kind, receipt


class FileRefused(CommandLineError):
    """A file that cannot be read as what it should be, as a whole."""

    kind = "bad_file"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error, ready to be shown."""

    code: int  # an ExitCode, or one of `gate.CODES`
    kind: str  # stable word for scripts
    message: str  # one sentence for people
    details: Mapping[str, object] = field(default_factory=dict)  # more for scripts
    further: tuple[Failure, ...] = ()  # of the same file, behind this one
    usage: str | None = None  # how the command is called; shown to people in place of the message
    lines_bad: int | None = None  # how many lines of the file cannot be accepted, where it is more than one


# Of an error: a value that is not what its field takes; the place in a file; the round, and how it stands,
# where it was admitted and must not be collected any more; the receipt of its earlier release.
_DETAILS = ("field", "value", "expected", "file", "line", "round_id", "state", "cohort_status", "receipt")
_PLACE = ("file", "line")
# A request's differences from what its identifier is bound to; why a cohort was not opened.
_LISTS = ("differences", "warnings")
# The libraries of each extra, by the name that they are imported by. pyproject.toml declares the extras.
EXTRAS: Mapping[str, str] = {
    "amqp": "worker",
    "anyio": "server",
    "celery": "worker",
    "fastapi": "server",
    "typst": "pdf",
    "h11": "server",
    "httpx": "client",
    "jinja2": "html",
    "joserfc": "oidc",
    "kombu": "worker",
    "matplotlib": "plot",
    "opentelemetry": "otel",
    "prometheus_client": "server",
    "psycopg": "postgresql",
    "redis": "worker",
    "standardwebhooks": "worker",
    "starlette": "server",
    "uvicorn": "server",
}
# Kinds of the ledger's errors that commands call otherwise.
_SAID: Mapping[str, str] = {
    "contradiction": "bad_value",
    "not_collectable": "conflict",
    "beyond_budget": "refused",
    "issuer_unavailable": "unavailable",
}
_CODES: Mapping[str, ExitCode] = {
    "bad_value": ExitCode.BAD_VALUE,
    "bad_file": ExitCode.BAD_VALUE,
    "unaccepted_warnings": ExitCode.BAD_VALUE,
    "slots_would_help": ExitCode.BAD_VALUE,
    "refused": ExitCode.REFUSED,
    "not_found": ExitCode.NOT_FOUND,
    "conflict": ExitCode.CONFLICT,
    "not_extended": ExitCode.NOT_VERIFIED,
    "bad_signature": ExitCode.NOT_VERIFIED,
    "behind_checkpoint": ExitCode.NOT_VERIFIED,
    "busy": ExitCode.UNDECIDED,
    "unavailable": ExitCode.UNDECIDED,
    "unauthorized": ExitCode.NOT_ALLOWED,
    "forbidden": ExitCode.NOT_ALLOWED,
    # Asking again does not help: somebody must change settings, set a clock right, restore, or look.
    **dict.fromkeys(("unsafe_session", "clock_off", "ruined", "stuck"), ExitCode.FAILED),
}
_SHOWN_CHARACTERS = 80
_INTERRUPTED = "interrupted; what was decided is recorded, and the same command may be run again"


def failure_of(error: BaseException) -> Failure:
    """Returns how `error` is shown and which code the command exits with."""
    if _is_of_interruption(error):
        return Failure(code=ExitCode.FAILED, kind="interrupted", message=_INTERRUPTED)
    if isinstance(error, BadLines):
        first, *others = (failure_of(problem) for problem in error.problems)
        message = f"{first.message} ({error.total:,} lines of the file cannot be accepted)"
        return replace(first, message=message, further=tuple(others), lines_bad=error.total)
    if (extra := _missing_extra(error)) is not None:
        return Failure(code=ExitCode.FAILED, kind="missing_extra", message=extra)
    reason = error.cause if isinstance(error, BadLine) else error
    code, kind = _row_of(reason)
    usage = usage_text(reason) if isinstance(reason, click.UsageError) else None
    return Failure(
        code=code, kind=kind, message=_message_of(error), details=_details(error, reason), usage=usage
    )


def _details(error: BaseException, reason: BaseException) -> dict[str, object]:
    """Returns what is known of an error beside its sentence; `reason`: what is wrong with a line."""
    place = {"file": error.file, "line": error.line} if isinstance(error, BadLine) else {}
    found = {name: place.get(name) if name in _PLACE else getattr(reason, name, None) for name in _DETAILS}
    value = found["value"]
    if value is not None:
        found["value"] = (value if isinstance(value, str) else repr(value))[:_SHOWN_CHARACTERS]
    known = {name: detail for name, detail in found.items() if detail is not None}
    listed = {name: tuple(map(vars, getattr(reason, name, ()))) for name in _LISTS}
    return known | {name: each for name, each in listed.items() if each}


def _row_of(reason: BaseException) -> tuple[int, str]:
    """Returns the exit code and the kind of an error; whatever has none that is listed exits with 1."""
    if isinstance(reason, click.UsageError):
        return ExitCode.BAD_VALUE, "bad_usage"
    if isinstance(reason, RefusedByGate):
        return reason.code, reason.kind
    from shuffle_ledger.accounting import InvalidParameter  # noqa: PLC0415 - NumPy, for which help need not wait

    own = "bad_value" if isinstance(reason, InvalidParameter) else str(getattr(reason, "kind", "failed"))
    kind = _SAID.get(own, own)
    return (_CODES[kind], kind) if kind in _CODES else (ExitCode.FAILED, "failed")


def require(module: str) -> None:
    """Checks that a library of an extra is installed, before work that would be lost without it.

    Raises:
        ModuleNotFoundError: it is not; `failure_of` names the extra.
    """
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _missing_extra(error: BaseException) -> str | None:
    """Returns the sentence that names the extra whose library is missing; None for every other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    if module not in EXTRAS:
        return None
    return f"this needs {module}, which is not installed: pip install 'shuffle-ledger[{EXTRAS[module]}]'"


def _is_of_interruption(error: BaseException) -> bool:
    """Returns whether the command was interrupted: an interrupted library may raise another error while it
    cleans up."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and _is_of_interruption(before)


def _message_of(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return usage_message(error)
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def shortened(value: object, limit: int = _SHOWN_CHARACTERS) -> str:
    """Returns `value` as it was given, cut to `limit` characters so that a message stays one line."""
    text = value if isinstance(value, str) else repr(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= limit else text[: limit - 3] + "..."
