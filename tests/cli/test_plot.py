"""`--plot`: the picture that was asked for, in the format its name says, whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import ROUND, Run

BEGINNINGS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", sorted(BEGINNINGS))
def test_the_suffix_is_the_format(run: Run, empty_directory: Path, suffix: str) -> None:
    answer = run("amplify", *ROUND, "--delta", "1e-6", "--plot", f"profile.{suffix}", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.json["plot"] == f"profile.{suffix}"
    assert (empty_directory / f"profile.{suffix}").read_bytes().startswith(BEGINNINGS[suffix])
    assert [path.name for path in empty_directory.iterdir()] == [f"profile.{suffix}"]


@pytest.mark.slow
def test_compositions_are_drawn_too_and_the_answer_is_the_same(run: Run, empty_directory: Path) -> None:
    rounds = empty_directory / "rounds.csv"
    rounds.write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",1000,3\n')
    plain = run("compose", str(rounds), "--delta", "1e-6", "--json").json
    drawn = run("compose", str(rounds), "--delta", "1e-6", "--plot", "all.SVG", "--json").json
    assert drawn.pop("plot") == "all.SVG"
    assert drawn == plain
    assert b"delta" in (empty_directory / "all.SVG").read_bytes()


@pytest.mark.parametrize("name", ["profile.jpg", "profile", "missing/profile.png", "."])
def test_other_names_are_refused_before_anything_is_computed(
    run: Run, empty_directory: Path, name: str
) -> None:
    answer = run("amplify", *ROUND, "--delta", "1e-6", "--plot", name, "--json")
    assert answer.code == 2
    assert "plot" in answer.stdout
    assert list(empty_directory.iterdir()) == []
