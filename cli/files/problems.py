"""Bad lines of a file, collected so that all of them are named at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shuffle_ledger.accounting import InvalidParameter
from shuffle_ledger.cli.failures import BadLine, BadLines, CommandLineError
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound

NAMED_MAX = 50  # bad lines that one answer names; the others are counted


class Problems:
    """The bad lines of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: list[BadLine] = []
        self._lines: set[int] = set()

    @property
    def found(self) -> bool:
        """Whether there is any."""
        return bool(self._lines)

    def add(self, line: int, cause: Exception) -> None:
        """Remembers that a line cannot be accepted, and why."""
        self._lines.add(line)
        if len(self._found) < NAMED_MAX:
            self._found.append(BadLine(str(self._file), line, cause))

    @contextmanager
    def of(self, line: int) -> Iterator[None]:
        """Collects what goes wrong with a line, so that the next one is looked at too."""
        try:
            yield
        except (Conflict, InvalidParameter, InvalidValue, NotFound, CommandLineError) as problem:
            self.add(line, problem)

    def refuse(self) -> None:
        """Raises BadLine for one bad line, BadLines for several, and nothing for none."""
        found = sorted(self._found, key=lambda problem: problem.line)
        if len(self._lines) > 1:
            raise BadLines(found, total=len(self._lines))
        if found:
            raise found[0] from found[0].cause
