"""Keeps the notebooks with what their cells print, without what differs from run to run: `make notebooks`.

Usage, after they ran in place: python -m docs.site.notebooks
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"


def kept(notebook: dict[str, Any]) -> dict[str, Any]:
    """Returns an executed notebook without times of execution and without the versions of its programs. The
    text that a cell prints is one output, also if it came in pieces."""
    about = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    cells = [{**cell, "metadata": {}} for cell in notebook["cells"]]
    for cell in cells:
        if "outputs" in cell:
            cell["outputs"] = _joined(cell["outputs"])
    return {**notebook, "metadata": about, "cells": cells}


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for output in outputs:
        if found and output["output_type"] == "stream" and output.get("name") == found[-1].get("name"):
            text = "".join((*found[-1]["text"], *output["text"]))
            found[-1] = {**output, "text": text.splitlines(keepends=True)}
        else:
            found.append(output)
    return found


def text_of(notebook: dict[str, Any]) -> str:
    """Returns a kept notebook as it stands in its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(text_of(kept(json.loads(path.read_text("utf-8")))), "utf-8")
