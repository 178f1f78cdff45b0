"""The program: every command, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from shuffle_ledger.cli import surroundings
from shuffle_ledger.cli.catalogue import CatalogueGroup
from shuffle_ledger.cli.failures import ExitCode, failure_of
from shuffle_ledger.cli.rendering.messages import present_failure


class Program(CatalogueGroup):
    """The catalogue's commands, whose errors leave through `failure_of`."""

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
@click.version_option(package_name="shuffle-ledger", prog_name="shuffle-ledger")
def main() -> None:
    """Privacy budgets of shuffled telemetry: certify what rounds cost, admit or refuse them, replay it all.

    Exit codes: 0 done, 2 bad usage or value, 3 refused by the budget, 4 not found, 5 conflict,
    6 verification failed, 7 undecided or temporarily unavailable (ask again), 8 not allowed, 1 anything else.
    """
