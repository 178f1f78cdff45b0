"""What commands have in common: options of a round, of the ledger and of the output."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from shuffle_ledger.accounting import DEFAULT_PRECISION, exact_text
from shuffle_ledger.cli.failures import BadValue, require
from shuffle_ledger.cli.files import fields
from shuffle_ledger.cli.files.fields import (
    REGISTRATION_FIELDS,
    ROUND_FIELDS,
    Kind,
    round_from_fields,
)
from shuffle_ledger.ledger.values import COLLECTION_FIELDS

Command = TypeVar("Command", bound=Callable[..., Any])


class FieldType(click.ParamType[object]):
    """Reads an option as a field of the given kind, with the same message as a cell of a file."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.expected
        self._kind = kind

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        return self._kind.read(param.name if param and param.name else self.name, value, text=True)


TEXT = FieldType(fields.TEXT)
WHOLE = FieldType(fields.WHOLE)
REAL = FieldType(fields.REAL)
DATE = FieldType(fields.DATE)
MOMENT = FieldType(fields.MOMENT)
SINCE = FieldType(fields.SINCE)
DURATION = FieldType(fields.DURATION)
NO_LEDGER = "this command asks no ledger"  # see `server_refused`
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)

_HELP = {  # of every field of a round and of a registration
    "randomizer": ("R", "The randomizer, written as a call: krr(k=10, epsilon0=1.15), joint(..., ...)."),
    "reports": ("N", "Shuffled reports; with --participation, the population."),
    "sampled_from": ("N_POP", "The reports come from a secret sample of a population of this size."),
    "participation": ("S", "Each user takes part with this probability, by a secret coin."),
    "honest_fraction": ("H", "Fraction of users that follow the protocol (default: 1)."),
    "delta0": ("D0", "The randomizer's own delta, for (epsilon0, delta0)-LDP (default: 0)."),
    "analysis": (
        "NAME",
        (
            "clone, the default of generic: in any secret order, each device may run another randomizer after"
            " earlier messages. All others want one randomizer on all devices: clone-identical and tight of"
            " generic; blanket, exact, binary-response and strong-adversary of named ones, which have a"
            " default."
        ),
    ),
    "reports_per_user": (
        "M",
        (
            "No user sends more reports to the round; those beyond are dropped before --reports are counted"
            " (default: 1)."
        ),
    ),
    "collected_on": (
        "DATE",
        (
            "The day of collection, UTC, or the first one. With windows a new round's is today if it is left"
            " out; an incident needs it."
        ),
    ),
    "collected_until": ("DATE", "The last day, if there are several."),
    "use_case": ("TEXT", "What the round is for."),
}


def round_options(command: Command) -> Command:
    """Adds the options that describe a round; the command gets them as one `described: ShuffledRound`."""
    return _round_options(command, round_from_fields)


def open_round_options(command: Command) -> Command:
    """Adds the options that describe a round but for its epsilon0; the command gets them as `described`, the
    round's JSON form."""
    return _round_options(command, dict)


def changed_round_options(command: Command) -> Command:
    """Adds the options that describe a round, none of them needed; the command gets those that are given as
    `given`, fields of the round's JSON form."""
    return _round_options(command, dict, name="given", needed=())


def optional_round_options(command: Command) -> Command:
    """Adds the options that describe a round, or none of them; the command gets one `described:
    ShuffledRound | None`."""

    def read(given: dict[str, Any]) -> object:
        if not given:
            return None
        missing = [name for name in ("randomizer", "reports") if name not in given]
        if missing:
            raise click.UsageError(f"--{missing[0]} is needed where a round is described")
        return round_from_fields(given)

    return _round_options(command, read, needed=())


def _round_options(
    command: Command,
    read: Callable[[dict[str, Any]], object],
    *,
    name: str = "described",
    needed: tuple[str, ...] = ("randomizer", "reports"),
) -> Command:
    return _options_of(ROUND_FIELDS, command, read, name=name, needed=needed)


def registration_options(command: Command) -> Command:
    """Adds the options of a registration beside its round; the command gets those that are given as
    `declared`, fields of `RoundRequest`."""
    return _options_of(REGISTRATION_FIELDS, command, dict, name="declared")


def days_options(command: Command) -> Command:
    """Adds the options that say when reports are collected; the command gets `days`, those that are given."""
    days = {field: REGISTRATION_FIELDS[field] for field in COLLECTION_FIELDS}
    return _options_of(days, command, dict, name="days")


def _options_of(
    kinds: Mapping[str, Kind],
    command: Command,
    read: Callable[[dict[str, Any]], object],
    *,
    name: str,
    needed: tuple[str, ...] = (),
) -> Command:
    """Adds an option of each field; the command gets what `read` makes of those that are given as `name`."""

    @functools.wraps(command)
    def with_fields(**options: Any) -> Any:
        given = {field: value for field in kinds if (value := options.pop(field)) is not None}
        return command(**{name: read(given)}, **options)

    wrapped: Any = with_fields
    for field, kind in reversed(list(kinds.items())):
        metavar, text = _HELP[field]
        is_needed = field in needed
        option = click.option(
            flag(field), field, type=FieldType(kind), metavar=metavar, help=text, required=is_needed
        )
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]  # click.option is untyped about what it wraps


def flag(field: str) -> str:
    """Returns the option that gives a field."""
    return "--" + field.replace("_", "-")


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that adds options in the order in which help lists them."""
    return lambda command: functools.reduce(lambda done, option: option(done), reversed(options), command)


audience_option = click.option(
    "--audience",
    type=TEXT,
    metavar="LIST|SELECTOR",
    help="In place of COHORT: names with commas or | between, or labels: device=phone,country=de.",
)


def names_given(cohort: str | None, audience: str | None) -> str:
    """Returns the cohort or the audience, of which a command needs one; raises UsageError."""
    if (cohort is None) == (audience is None):
        raise click.UsageError("name one COHORT, or several with --audience in its place")
    return audience if cohort is None and audience is not None else str(cohort)


class PictureType(click.ParamType[object]):
    """Reads an option as the place of a picture, in a format that its suffix names."""

    name = "picture"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        require("matplotlib")  # before anything is computed
        picture = Path(str(value))
        if picture.suffix.lower() not in PICTURE_SUFFIXES:
            raise BadValue("plot", str(value), f"a file name that ends in {', '.join(PICTURE_SUFFIXES)}")
        if not picture.parent.is_dir() or picture.is_dir():
            raise BadValue("plot", str(value), "a file in a directory that exists")
        if not os.access(picture.parent, os.W_OK):
            raise BadValue("plot", str(value), "a file in a directory that may be written to")
        return picture


precision_option = click.option(
    "--precision",
    type=REAL,
    metavar="P",
    default=DEFAULT_PRECISION,
    help="Wanted relative width of an interval of epsilon, from 1e-6 to 0.1; an interval of delta is as"
    f" narrow as that makes it (default: {exact_text(DEFAULT_PRECISION)}).",
)
# A command that asks about rounds gets a number or None for each of these, and for `plot` a path or None.
question_options = together(
    click.option("--delta", type=REAL, metavar="D", help="Bound epsilon at this delta."),
    click.option("--epsilon", type=REAL, metavar="E", help="Bound delta at this epsilon."),
    precision_option,
    click.option(
        "--renyi",
        type=REAL,
        metavar="ORDER",
        help="Bound the Renyi divergence of this order, too, from 1e-200 to 1e9.",
    ),
    click.option(
        "--plot",
        type=PictureType(),
        metavar="FILE",
        help="Draw delta as a function of epsilon, from above and below: .png, .svg or .pdf.",
    ),
)
output_options = together(  # --debug is what the program as a whole looks at
    click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
    click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON value, and nothing else."),
)
watch_option = click.option(
    "--watch",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Show it again every so many seconds, until Ctrl-C.",
)


def check_watch(watch: float | None, *, as_json: bool) -> None:
    """Raises UsageError for --watch with --json, which prints one value."""
    if watch is not None and as_json:
        raise click.UsageError("--watch is for people: --json prints exactly one value")


yes_option = click.option(
    "--yes", is_flag=True, help="Open cohorts although their values are unusual: that is meant."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be recorded, and record nothing."
)
team_option = click.option(
    "--team",
    type=TEXT,
    metavar="TEAM",
    help="Whose round it is: it is charged to this team's quotas, too. A server knows it by the token."
    "  [env: SHUFFLE_LEDGER_TEAM]",
)
releaser_option = click.option(
    "--releaser", type=TEXT, metavar="NAME", help="The only gate that may use the permit (default: any)."
)
broker_option = click.option(
    "--broker-url", metavar="URL", help="Queue decisions for workers there.  [env: SHUFFLE_LEDGER_BROKER_URL]"
)
_SERVER = click.option(
    "--server",
    metavar="URL",
    help="Ask this server, with SHUFFLE_LEDGER_TOKEN, and no database.  [env: SHUFFLE_LEDGER_SERVER]",
)
ledger_options = together(  # which win over the environment
    click.option(
        "--database-url", metavar="URL", help="Where the ledger is.  [env: SHUFFLE_LEDGER_DATABASE_URL]"
    ),
    click.option(
        "--actor", metavar="NAME", help="Who does this, for the record.  [env: SHUFFLE_LEDGER_ACTOR]"
    ),
)
asking_options = together(ledger_options, _SERVER)  # which ledger a command asks, as `open_ledger` has them
deciding_options = together(ledger_options, broker_option, _SERVER)  # and who decides its rounds
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
signing_key_option = click.option(
    "--signing-key",
    type=FILE,
    help="The key that signs, made by `audit keygen`.  [env: SHUFFLE_LEDGER_SIGNING_KEY]",
)


def server_refused(why: str) -> Callable[[Command], Command]:
    """Answers `--server` with why the command asks no server."""

    def refuse(_context: click.Context, _option: click.Parameter, given: str | None) -> None:
        if given is not None:
            raise click.UsageError(f"--server: {why}")

    return click.option("--server", hidden=True, expose_value=False, callback=refuse)


def database_options(why: str) -> Callable[[Command], Command]:
    """Adds the options of a command that works on a database only; it gets `settings`, with the options in
    their places. The reason completes "for"."""
    said = f"this command works on a database only, for {why}"

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_settings(
            *, database_url: str | None, actor: str | None, broker_url: str | None = None, **options: Any
        ) -> Any:
            from shuffle_ledger.cli.backends.settings import settings_from  # noqa: PLC0415 - calculators need no database's library

            settings = settings_from(database_url=database_url, broker_url=broker_url, actor=actor)
            if settings.server is not None and "database_url" not in settings.model_fields_set:
                raise click.UsageError(f"SHUFFLE_LEDGER_SERVER is set, and {said}: name it by --database-url")
            return command(settings=settings, **options)

        wrapped: Any = with_settings
        return server_refused(said)(ledger_options(wrapped))  # type: ignore[no-any-return]  # as above

    return decorate
