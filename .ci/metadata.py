"""Checks the metadata of both archives in a folder, as an index would, and against pyproject.toml."""

from __future__ import annotations

import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]


def texts(directory: Path) -> dict[str, bytes]:
    """Return the metadata file of the one source archive and the one wheel in a folder."""
    (source,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    with tarfile.open(source) as archive:
        (name,) = (each for each in archive.getnames() if each.count("/") == 1 and each.endswith("/PKG-INFO"))
        member = archive.extractfile(name)
        assert member is not None
        of_source = member.read()
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        return {source.name: of_source, wheel.name: packed.read(name)}


def check(directory: Path) -> None:
    """Raise for metadata that an index refuses, or that says other than pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    readme = (ROOT / project["readme"]).read_text("utf-8")
    for file, text in texts(directory).items():
        found = Metadata.from_email(text, validate=True)
        assert (found.name, str(found.version)) == (project["name"], project["version"]), file
        assert found.license_expression == project["license"], file
        assert found.license_files == project["license-files"], file
        assert str(found.requires_python) == project["requires-python"], file
        assert (found.description or "").strip() == readme.strip(), file
        assert found.description_content_type == "text/markdown", file
        assert set(found.provides_extra or ()) == set(project["optional-dependencies"]), file
        assert (found.project_urls or {}) == project.get("urls", {}), file
        print(f"{file}: metadata {found.metadata_version} is valid")
    if "urls" not in project:
        print("pyproject.toml has no [project.urls]: give it the public addresses before you publish")
    version = project["version"]
    assert f"## [{version}] - " in changes, f"CHANGELOG.md has no section {version}"


if __name__ == "__main__":
    check(Path(sys.argv[1]))
