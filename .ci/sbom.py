"""Writes a bill of materials (CycloneDX 1.6, JSON) of the runtime, from the lock: `make sbom`.

Every component has the version and the hashes that `pip install --require-hashes` accepts, and the bill says
which one needs which. The lock holds no licences, so the bill has none. The same lock gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+))?"
)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
SPACE = uuid.UUID("8f0e2a7c-6a53-5d7e-9d2b-3f1f4a3f6b11")  # of serial numbers: one for each content


@dataclass(kw_only=True)
class Locked:
    """One pinned package of a lock."""

    name: str
    version: str
    marker: str | None
    hashes: list[str] = field(default_factory=list)
    needed_by: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"


def locked(text: str) -> list[Locked]:
    """Return the packages of a lock; raises ValueError for a line that is not understood."""
    found: list[Locked] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if not line.startswith((" ", "#")) and words:
            pin = PIN.match(words)
            if pin is None:
                raise ValueError(f"line {number} of the lock is no pinned package: {words}")
            marker = (pin["marker"] or "").strip() or None
            found.append(Locked(name=pin["name"], version=pin["version"], marker=marker))
        elif words.startswith("--hash="):
            found[-1].hashes += HASH.findall(words)
        elif words.startswith("#") and found:
            needed = words.lstrip("# ").removeprefix("via").strip()
            found[-1].needed_by += [needed.split(" ")[0]] if needed else []
    if unhashed := [each.name for each in found if not each.hashes]:
        raise ValueError(f"the lock has no hash of {', '.join(unhashed)}")
    return found


def bill(project: dict[str, Any], packages: list[Locked]) -> dict[str, Any]:
    """Return the bill of materials of a project with these packages."""
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    by_name = {each.name: each.purl for each in packages} | {project["name"]: own}
    needs: dict[str, set[str]] = {purl: set() for purl in by_name.values()}
    for each in packages:
        for parent in each.needed_by:
            needs[by_name[parent]].add(each.purl)
    found: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [_component(each) for each in packages],
        "dependencies": [{"ref": purl, "dependsOn": sorted(needs[purl])} for purl in sorted(needs)],
    }
    serial = uuid.uuid5(SPACE, json.dumps(found, sort_keys=True))
    return {**found, "serialNumber": f"urn:uuid:{serial}"}


def _component(package: Locked) -> dict[str, Any]:
    # A package has a hash for each of its files: one of them is installed.
    files = [
        {"type": "distribution", "url": package.purl, "hashes": [{"alg": "SHA-256", "content": each}]}
        for each in sorted(package.hashes)
    ]
    marker = [{"name": "python:marker", "value": package.marker}] if package.marker else []
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "externalReferences": files,
        **({"properties": marker} if marker else {}),
    }


def main() -> None:
    """Write the bill to a file, or to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="the file to write; standard output without it")
    output: Path | None = parser.parse_args().output
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = locked((ROOT / "requirements" / "runtime.txt").read_text("utf-8"))
    text = json.dumps(bill(project, packages), indent=2) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
