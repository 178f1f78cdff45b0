"""The commits of the repository: tests of an upgrade take the previous version from them."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from shuffle_ledger.ledger.storage.tables import SCHEMA_REVISION

REPOSITORY = Path(__file__).parents[1]
MISSING = "the commits before the last migration: an archive or a shallow clone has none"


def git(*words: str) -> str:
    """Return what git prints, nothing if it fails."""
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def before_the_last_migration() -> str | None:
    """Return the commit before the last migration was added; None if it is not known here."""
    for commit in git("rev-list", "--first-parent", "HEAD", "--", "migrations/versions").split():
        listed = git("ls-tree", "--name-only", f"{commit}^1", "migrations/versions/")
        if listed and f"/{SCHEMA_REVISION}_" not in listed:
            return f"{commit}^1"
    return None
