"""`python -m tests.golden --write [NAME...]` writes what scenarios answer now; without it: a list."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from shuffle_ledger.ledger.storage.schema import initialise
from tests.golden import scenarios


def run() -> None:
    """Write the answers of the named scenarios, or of all; print the processor seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the answers")
    parser.add_argument("name", nargs="*", help="a scenario (default: all)")
    given = parser.parse_args()
    chosen = given.name or scenarios.names()
    if not given.write:
        sys.stdout.write("\n".join(chosen) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.db")
        initialise(f"sqlite:///{template}")
        for name in chosen:
            where, began = Path(folder, name), time.process_time()
            where.mkdir()
            shutil.copy(template, where / scenarios.LEDGER)
            before = scenarios.kept(name)
            after = scenarios.same_but_for_round_off(before, scenarios.played(before, where))
            (scenarios.ANSWERS / f"{name}.txt").write_text(after, "utf-8")
            sys.stdout.write(f"{name}: {time.process_time() - began:.2f} s\n")


if __name__ == "__main__":
    run()
