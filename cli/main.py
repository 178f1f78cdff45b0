"""The program: every command, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

import click

from shuffle_ledger.cli import surroundings
from shuffle_ledger.cli.failures import ExitCode, failure_of
from shuffle_ledger.cli.rendering.present import present_failure

# Where each command is. Only the one that runs is imported: nobody should wait for Matplotlib in vain.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "amplify": ("shuffle_ledger.cli.commands.amplify", "amplify"),
    "compose": ("shuffle_ledger.cli.commands.compose", "compose"),
    "calibrate": ("shuffle_ledger.cli.commands.calibrate", "calibrate_"),
    "init": ("shuffle_ledger.cli.commands.init", "init"),
    "cohort": ("shuffle_ledger.cli.commands.cohort", "cohort"),
    "round": ("shuffle_ledger.cli.commands.round", "round_"),
    "incident": ("shuffle_ledger.cli.commands.incident", "incident"),
    "budget": ("shuffle_ledger.cli.commands.budget", "budget"),
    "audit": ("shuffle_ledger.cli.commands.audit", "audit"),
    "token": ("shuffle_ledger.cli.commands.token", "token"),
    "serve": ("shuffle_ledger.cli.commands.serve", "serve"),
    "worker": ("shuffle_ledger.cli.commands.worker", "worker"),
    "scheduler": ("shuffle_ledger.cli.commands.worker", "scheduler"),
    "health": ("shuffle_ledger.cli.commands.health", "health"),
    "demo": ("shuffle_ledger.cli.commands.demo", "demo"),
}


class Program(click.Group):
    """A Click group whose commands load when asked for, and whose errors leave through `failure_of`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, imported now; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def main(self, args: Sequence[str] | None = None, *positional: Any, **settings: Any) -> NoReturn:
        """Runs one command and exits with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        settings["standalone_mode"] = False
        surroundings.prepare()
        try:
            result = super().main(arguments, *positional, **settings)
        except Exception as error:  # noqa: BLE001 - the outermost place: every error gets its message and its code
            if "--debug" in arguments:
                traceback.print_exc(file=sys.stderr)
            failure = failure_of(error)
            present_failure(failure, as_json="--json" in arguments)
            sys.exit(failure.code)
        sys.exit(result if isinstance(result, int) else ExitCode.DONE)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("shuffle-ledger"), prog_name="shuffle-ledger")
def main() -> None:
    """Privacy budgets of shuffled telemetry: certify what rounds cost, admit or refuse them, replay it all.

    Exit codes: 0 done, 2 bad usage or value, 3 refused by the budget, 4 not found, 5 conflict,
    6 verification failed, 7 undecided or temporarily unavailable (ask again), 8 not allowed, 1 anything else.
    """
