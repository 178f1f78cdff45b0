"""Lists in pages that say what there is: extras, settings and randomizers."""

from __future__ import annotations

import tomllib
from pathlib import Path

from shuffle_ledger.accounting.randomizers import RANDOMIZERS
from shuffle_ledger.ledger.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert not [extra for extra in extras if f"`{extra}`" not in readme and f"[{extra}]" not in readme]


def test_the_limits_name_every_randomizer() -> None:
    """The page says that anything else is refused."""
    limits = (DOCS / "limits.md").read_text("utf-8")
    assert not [kind for kind in RANDOMIZERS if f"`{kind}`" not in limits]


def test_a_page_lists_every_setting() -> None:
    """Those of sign-in and of permits are in pages about these, the others in two other pages."""
    names = ("operations-reference.md", "permits.md", "scripts.md", "sign-in.md")
    pages = [(DOCS / name).read_text("utf-8") for name in names]
    rows = [line.split(" | ")[0] for page in pages for line in page.splitlines() if line.startswith("| `")]
    settings = [f"`SHUFFLE_LEDGER_{name.upper()}`" for name in Settings.model_fields]
    assert not [name for name in settings if not any(name in row for row in rows)]
