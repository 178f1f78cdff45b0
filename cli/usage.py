"""Errors of command lines in sentences for people: the command or option that was meant, or the usage."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click

from shuffle_ledger.ledger.gone_names import replacement

# How Click begins what it says of arguments that a command does not take.
_TOO_MANY = "got unexpected extra argument"
_ALIKE = 0.6  # how alike two names are, from 0 to 1, if one may be a misspelling of the other


class NoSuchCommand(click.UsageError):
    """A word where a command is expected, which none has as its name."""

    def __init__(
        self, name: str, known: Iterable[str], *, in_groups: Sequence[str] = (), ctx: click.Context
    ) -> None:
        """Compose the message; `in_groups`: commands of other groups that end in this word."""
        instead = replacement(f"{_path(ctx)} {name}".strip())
        hint = f"; did you mean {' or '.join(in_groups)}?" if in_groups else meant(name, known)
        super().__init__(f"no such command {name!r}{f': {instead}' if instead else hint}", ctx)


def meant(name: str, known: Iterable[str]) -> str:
    """Returns the question whether another name was meant, behind a semicolon; empty if none is close."""
    bare, names = name.lstrip("-"), {each.lstrip("-"): each for each in known}
    begun = [each for each in names if len(bare) > 1 and each.startswith(bare)]
    close = begun or difflib.get_close_matches(bare, names, n=1, cutoff=_ALIKE)
    return f"; did you mean {names[close[0]]}?" if close else ""


def usage_text(error: click.UsageError) -> str | None:
    """Returns how the command is called, to be shown beside the message; None where the message is enough."""
    return error.ctx.get_help() if isinstance(error, click.exceptions.NoArgsIsHelpError) else None


def usage_message(error: click.ClickException) -> str:
    """Returns what is wrong, as one sentence without a full stop."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"name a command: one of {', '.join(_commands(error.ctx))}"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        return _no_such_option(error.option_name, error.ctx)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        is_argument = isinstance(error.param, click.Argument)
        return f"{error.param.human_readable_name if is_argument else error.param.opts[0]} is missing"
    if isinstance(error, click.BadParameter) and error.param is not None:
        is_argument = isinstance(error.param, click.Argument)
        said = _gone_value(error) or _begun_small(error.message)
        return f"{'' if is_argument else error.param.opts[0] + ': '}{said}"
    said = _begun_small(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None and said.startswith(_TOO_MANY):
        return f"{said}, expected {_expected(error.ctx)}"
    return said


def _expected(ctx: click.Context) -> str:
    """Returns what stands behind a command beside its options, and how several cohorts are named there."""
    parameters = ctx.command.get_params(ctx)
    arguments = [each.make_metavar(ctx) for each in parameters if isinstance(each, click.Argument)]
    several = "; several cohorts: --audience A,B" if "--audience" in _options(ctx) else ""
    return f"{' '.join(arguments) or 'options only'}{several}"


def _no_such_option(name: str, ctx: click.Context) -> str:
    instead = replacement(name, after=_path(ctx))
    if instead is not None:
        return f"option {name!r} is gone: {instead}"
    if isinstance(ctx.command, click.Group) and not meant(name, _options(ctx)):
        return f"no such option {name!r} before a command: options stand behind the command"
    return f"no such option {name!r}{meant(name, _options(ctx))}"


def _gone_value(error: click.BadParameter) -> str | None:
    """Returns what replaces a value that an option had; None if it never had it."""
    if error.ctx is None or error.param is None or not isinstance(error.param.type, click.Choice):
        return None
    value = error.message.split("'")[1]  # as Click begins: 'csv' is not one of
    instead = replacement(f"{error.param.opts[0]} {value}", after=_path(error.ctx))
    return None if instead is None else f"{value} is gone: {instead}"


def _path(ctx: click.Context) -> str:
    """Returns the command's name with its groups', without the program's."""
    return ctx.command_path.partition(" ")[2]


def _options(ctx: click.Context) -> list[str]:
    known = (each for each in ctx.command.get_params(ctx) if isinstance(each, click.Option))
    return [name for each in known if not each.hidden for name in each.opts if name.startswith("--")]


def _commands(ctx: click.Context) -> list[str]:
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


def _begun_small(message: str) -> str:
    """Returns a sentence of Click's as our messages are written: a small letter, and no full stop."""
    first = message.split(" ", 1)[0]
    begun = message if first.isupper() or first.startswith("-") else message[:1].lower() + message[1:]
    return begun.rstrip().removesuffix(".")
