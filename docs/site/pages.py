"""Pages of the site beside `docs/*.md`: notebooks, decisions, and texts that stand outside `docs/`.

MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# By the path in the repository: the page of the site.
OUTSIDE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "SECURITY.md": "project/security.md",
    "examples/deployments/README.md": "project/deployments.md",
}
DECISIONS = "decisions/index.md"
NOTEBOOKS = "notebooks"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_NESTED = re.compile(r"^( +)- ")
_FENCE = re.compile(r"^( *)(```|~~~)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in `docs/` as Markdown."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, DECISIONS, content=_decisions()))
    for path in sorted((ROOT / "docs" / NOTEBOOKS).glob("*.ipynb")):
        page = f"{NOTEBOOKS}/{path.stem}.md"
        files.append(File.generated(config, page, content=notebook_text(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Points links at pages of the site; another file of the repository is named without a link."""
    sources = {there: here for here, there in OUTSIDE.items()}
    here = page.file.src_uri
    folder = posixpath.dirname(sources.get(here, f"docs/{here}"))
    lines, fenced, before = [], False, ""
    for line in markdown.split("\n"):
        fenced ^= _FENCE.match(line) is not None
        if fenced:
            lines.append(line)
            continue
        # Of the paragraph so far, the first line: a list needs an empty line before it in Python-Markdown.
        before = "" if not line.strip() else before or line
        if line.startswith("- ") and not before.startswith("- "):
            lines.append("")
            before = line
        # ... and twice the indentation that GitHub needs for a list within a list.
        nested = _NESTED.match(line)
        text = f"{nested[1]}{line}" if nested and before.lstrip().startswith("- ") else line
        lines.append(_LINK.sub(lambda link: _linked(link, folder, here), text))
    return "\n".join(lines)


def _linked(link: re.Match[str], folder: str, here: str) -> str:
    picture, words, target, anchor = link.groups()
    if not target or ":" in target:
        return link.group()
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in OUTSIDE:
        page = OUTSIDE[path]
    elif path == "docs/decisions":
        page = DECISIONS
    elif not (ROOT / path).exists():
        return link.group()  # MkDocs names it
    elif path.startswith("docs/"):
        page = path.removeprefix("docs/")
        page = f"{page}.md".replace(".ipynb.md", ".md") if page.endswith(".ipynb") else page
    else:
        return words if words.startswith("`") or words == path else f"{words} (`{path}`)"
    return f"{picture}[{words}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor or ''})"


def _decisions() -> str:
    lines = ["# Decisions", "", "Records of decisions that were hard, with the reasons.", ""]
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))[1:]:  # the first one is the template
        title = path.read_text("utf-8").split("\n", 1)[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def notebook_text(path: Path) -> str:
    """Returns a notebook as Markdown: its texts, its code, and what the code printed."""
    found = json.loads(path.read_text("utf-8"))
    parts = []
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
            parts.extend(map(_output_text, cell["outputs"]))
    parts.append(f"*This page is the notebook `docs/{NOTEBOOKS}/{path.name}`.*")
    return "\n\n".join(parts) + "\n"


def _output_text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        content = "".join(data["image/png"]).strip()
        return f'<img alt="The chart that the code draws" src="data:image/png;base64,{content}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'<div class="output"><pre>{html.escape(text)}</pre></div>'
