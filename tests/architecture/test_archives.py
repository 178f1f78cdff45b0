"""The archives that are published: whatever a user installs from, it is the same package, and all of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _build(*what: str | Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", *what, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _digests(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.mark.system
def test_the_wheel_of_the_source_archive_is_the_wheel_of_the_checkout(tmp_path: Path) -> None:
    _build("--outdir", tmp_path / "of-source")  # the source archive, and a wheel from what is in it
    _build("--wheel", "--outdir", tmp_path / "of-checkout")
    (direct,) = (tmp_path / "of-checkout").glob("*.whl")
    (through,) = (tmp_path / "of-source").glob("*.whl")
    assert _digests(through) == _digests(direct)

    (source,) = (tmp_path / "of-source").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    modules = {
        f"shuffle_ledger/{room}/{file.relative_to(ROOT / room)}"
        for room in ("accounting", "cli", "ledger", "migrations", "workers")
        for file in (ROOT / room).rglob("*.py")
    }
    assert len(modules) > 200
    assert modules <= held
    assert modules <= set(_digests(direct))
    assert {"LICENSE", "README.md", "docs/theory/index.md", "requirements/runtime.txt"} <= held
