"""Measures: `make bench`, or `python -m tests.benchmarks [SUBJECT ...] [--list] [--write]`.

A subject is a module of this package with a function `cases() -> Iterable[Case]`; every such module is found.
Every case runs alone in a fresh process. Figures compare with each other on one machine, and with nothing
else. `--write` puts the tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from tests.benchmarks.case import Case, Measured, measure
from tests.benchmarks.report import heading, line, write

_TIMEOUT_SECONDS = 900
_ONE = "--case"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def subjects() -> list[str]:
    """Names of the modules that list cases, in alphabetical order."""
    # Not by importing all of them: some need what only the tests' environment has.
    modules = sorted(Path(__file__).parent.glob("*.py"))
    listing = [path for path in modules if "\ndef cases(" in path.read_text(encoding="utf-8")]
    return [path.stem for path in listing if not path.stem.startswith("_")]


def cases(subject: str) -> list[Case]:
    """The cases of one subject."""
    listed: Iterable[Case] = _module(subject).cases()
    return list(listed)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.benchmarks.{name}")


def main() -> None:
    """Measures the subjects that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help="a module of this package; default: all"
    )
    parser.add_argument("--list", action="store_true", help="list the cases, measure nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument(_ONE, nargs=1, type=int, metavar="NUMBER", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    known = subjects()
    for unknown in set(chosen.subjects) - set(known):
        parser.error(f"{unknown}: expected one of {', '.join(known)}")
    if chosen.case is not None:
        print(json.dumps(asdict(measure(cases(chosen.subjects[0])[chosen.case[0]]))))
        return
    for subject in chosen.subjects or known:
        if chosen.list:
            print("\n".join(f"{subject}: {case.name}" for case in cases(subject)))
            continue
        _measure_subject(subject, writing=chosen.write)


def _measure_subject(subject: str, *, writing: bool) -> None:
    print(f"\n{heading(subject)}", flush=True)
    measured: list[tuple[Case, Measured]] = []
    for number, case in enumerate(cases(subject)):
        if case.needs is not None and importlib.util.find_spec(case.needs) is None:
            print(f"{case.name}: needs {case.needs}, which `make bench` installs", flush=True)
            continue
        taken = _in_its_own_process(subject, number)
        first = next((found for other, found in measured if case.group and other.group == case.group), None)
        measured.append((case, taken))
        print(line(case, taken, first), flush=True)
        if writing:
            write(subject, _module(subject).__doc__ or subject, measured)


def _in_its_own_process(subject: str, number: int) -> Measured:
    command = [sys.executable, "-m", "tests.benchmarks", subject, _ONE, str(number)]
    done = subprocess.run(
        command,
        check=True,
        timeout=_TIMEOUT_SECONDS,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | _ONE_THREAD,
    )
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
