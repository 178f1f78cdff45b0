"""The documentation's figures: drawn by one script, shown on a page, and nothing in them but the drawing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.figures import draw

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
_LARGEST = 120_000  # bytes


def _names() -> list[str]:
    script = (FOLDER / "draw.py").read_text("utf-8")
    found = re.search(r"^NAMES = \(([^)]*)\)", script, flags=re.MULTILINE)
    assert found is not None
    return re.findall(r'"([a-z-]+)"', found.group(1))


@pytest.mark.system
def test_the_script_draws_every_figure_and_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "docs.figures.draw", "--quick", str(tmp_path / "all")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    drawn = {path.stem: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    assert sorted(drawn) == sorted(_names())
    again = _names()[0]  # by another process; the others take longer
    monkeypatch.setattr(draw, "FIGURES", {again: draw.FIGURES[again]})
    monkeypatch.setattr(sys, "argv", ["draw", "--quick", str(tmp_path / "again")])
    draw.main()
    assert (tmp_path / "again" / f"{again}.svg").read_bytes() == drawn[again]


def test_committed_figures_are_shown_and_no_others_are_kept() -> None:
    shown = set(re.findall(r"\]\(figures/([a-z-]+)\.svg\)", (ROOT / "docs" / "bounds.md").read_text("utf-8")))
    assert shown == set(_names()) == {path.stem for path in FOLDER.glob("*.svg")}


def test_committed_figures_are_small_and_say_nothing_of_when_and_where() -> None:
    for picture in FOLDER.glob("*.svg"):
        text = picture.read_text("utf-8")
        assert len(text) < _LARGEST
        assert "<dc:date>" not in text
        assert "<dc:creator>" not in text
