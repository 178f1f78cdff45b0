"""The documentation as a site: every page has its place, notebooks run, nothing comes from other servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import shuffle_ledger
from docs.site.notebooks import kept, text_of
from tests.docs.test_shell_blocks import normal

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
DOORS = ("privacy engineer", "data scientist", "developer of a pipeline", "SRE", "auditor", "researcher")
LOADED = {"script", "img", "iframe", "source", "link", "object", "embed", "video", "audio"}
# A proxy that does not answer: whatever asked another machine would fail.
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
README_LINES_MAX = 50
# What differs from run to run in what notebooks print, beside what differs on pages.
WRITTEN_AT, LEDGER = re.compile(r"\d{4}-\d\d-\d\d [\d:.+]+"), re.compile(r"\b[0-9a-f]{32}\b")


def _environment(**settings: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")}
    return inherited | OFFLINE | settings


def _execute_notebooks(folder: Path) -> None:
    """Runs each notebook in a new kernel, and writes it into a folder."""
    import nbformat  # here, for no other process of the tests needs them
    from nbclient import NotebookClient

    inline = "module://matplotlib_inline.backend_inline"  # whatever tests before have set
    for notebook in NOTEBOOKS:
        found = nbformat.read(notebook, as_version=4)
        runs = NotebookClient(found, timeout=300, resources={"metadata": {"path": str(folder)}})
        runs.execute(env=_environment(OMP_NUM_THREADS="1", MPLBACKEND=inline))
        nbformat.write(found, folder / notebook.name)


def _build(site: Path) -> None:
    command: list[str | Path] = [Path(sys.executable).with_name("mkdocs"), "build", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", site],
        cwd=ROOT,
        env=_environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Loads(HTMLParser):
    """Collects what a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADED and values.get("rel") not in ("canonical", "next", "prev"):
            self.places += [
                place for name in ("src", "href", "data", "srcset") if (place := values.get(name))
            ]


def _loads(site: Path) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        parser = _Loads()
        text = page.read_text("utf-8")
        assert 'class="mermaid"' not in text, page  # the theme would fetch a script that draws it
        parser.feed(text)
        yield from ((page, place) for place in parser.places)
    for style in site.rglob("*.css"):
        found = re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", style.read_text("utf-8"))
        yield from ((style, one or other) for one, other in found)


@pytest.mark.system
def test_the_site_is_whole_and_loads_nothing_from_other_servers(tmp_path: Path) -> None:
    site = tmp_path / "site"
    _build(site)  # a warning fails it
    loads = list(_loads(site))
    assert len(loads) > 100
    for page, place in loads:
        assert not re.match(r"(?:[a-z]+:)?//", place), (page, place)
    _check_links_to_files_outside_the_folder(site)
    _check_what_is_made_of_code(site)


def _check_links_to_files_outside_the_folder(site: Path) -> None:
    operations, index = ((site / name).read_text("utf-8") for name in ("operations.html", "index.html"))
    assert 'href="project/architecture.html"' in operations
    reference = (site / "operations-reference.html").read_text("utf-8")
    assert "<code>tests/architecture/test_deploy.py</code>" in reference
    assert 'href="decisions/index.html"' in index
    assert 'href="notebooks/plan-a-year.html"' in index
    assert "0001-lock.html" in (site / "decisions" / "index.html").read_text("utf-8")
    # Lists that GitHub shows as such: after a line of text, and within a list.
    assert "<li>partly honest samples" in (site / "accounting.html").read_text("utf-8")


def _check_what_is_made_of_code(site: Path) -> None:
    page = (site / "notebooks" / "audit-a-bundle.html").read_text("utf-8")
    assert "Everything holds." in page
    assert "Proof of origin is missing" in page
    reference = (site / "python.html").read_text("utf-8")
    for name in set(shuffle_ledger.__all__) - {"__version__"}:
        assert f'id="shuffle_ledger.{name}"' in reference, name


@pytest.mark.system
def test_notebooks_run_and_print_what_they_are_kept_with(tmp_path: Path) -> None:
    _execute_notebooks(tmp_path)
    for notebook in NOTEBOOKS:
        (text, numbers), (said, given) = (
            normal("\n".join(_printed(path))) for path in (notebook, tmp_path / notebook.name)
        )
        assert said == text, notebook.name
        assert given == pytest.approx(numbers, rel=1e-3), notebook.name


def _printed(notebook: Path) -> Iterator[str]:
    """Yields what each cell prints, as text, and the kinds of what it shows."""
    for cell in kept(json.loads(notebook.read_text("utf-8")))["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            yield WRITTEN_AT.sub("MOMENT", LEDGER.sub("LEDGER", text))
            yield " ".join(sorted({output["output_type"], *data}))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran_without_what_differs_from_run_to_run(notebook: Path) -> None:
    text = notebook.read_text("utf-8")
    found = json.loads(text)
    assert text == text_of(kept(found)), "make notebooks"
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)


def test_the_first_page_has_a_door_for_everybody_and_names_every_page() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    doors = re.findall(r"^\| an? (.+?) \| \[", index, flags=re.MULTILINE)
    assert [word for word in DOORS if not any(word in door for door in doors)] == []
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    pages = {page.name for page in DOCS.glob("*.md")} | {f"notebooks/{book.name}" for book in NOTEBOOKS}
    assert pages - {"index.md"} <= linked
    order = [index.index(f"**{part}**") for part in ("Tutorials", "Guides", "Reference", "Proofs")]
    assert order == sorted(order)


def test_the_readme_fits_on_a_screen_and_its_links_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= README_LINES_MAX
    for target in re.findall(r"\]\(([^)#]+)", readme):
        assert (ROOT / target).exists(), target
