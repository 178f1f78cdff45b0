"""Commands of the program, run in this process: a process for each would import our libraries each time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from shuffle_ledger.cli.main import main


def command(*words: str, folder: Path, settings: Mapping[str, str]) -> Result:
    """Run one command in a folder, whatever it ends with; `settings` are added to the environment."""
    with contextlib.chdir(folder):
        return CliRunner().invoke(main, [*words, "--json"], env=settings)
