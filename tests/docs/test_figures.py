"""The documentation's figures: drawn by one script, shown on a page, and nothing in them but the drawing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
_LARGEST = 120_000  # bytes


def _names() -> list[str]:
    script = (FOLDER / "draw.py").read_text("utf-8")
    found = re.search(r"^NAMES = \(([^)]*)\)", script, flags=re.MULTILINE)
    assert found is not None
    return re.findall(r'"([a-z-]+)"', found.group(1))


@pytest.mark.system
def test_the_script_draws_every_figure_and_the_same_again(tmp_path: Path) -> None:
    drawn: list[dict[str, bytes]] = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        command = [sys.executable, "-m", "docs.figures.draw", "--quick", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=600)
        drawn.append({path.stem: path.read_bytes() for path in folder.iterdir()})
    assert sorted(drawn[0]) == sorted(_names())
    assert drawn[0] == drawn[1]


def test_committed_figures_are_shown_and_no_others_are_kept() -> None:
    shown = set(re.findall(r"\]\(figures/([a-z-]+)\.svg\)", (ROOT / "docs" / "bounds.md").read_text("utf-8")))
    assert shown == set(_names()) == {path.stem for path in FOLDER.glob("*.svg")}


def test_committed_figures_are_small_and_say_nothing_of_when_and_where() -> None:
    for picture in FOLDER.glob("*.svg"):
        text = picture.read_text("utf-8")
        assert len(text) < _LARGEST
        assert "<dc:date>" not in text
        assert "<dc:creator>" not in text
