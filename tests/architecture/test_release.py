"""The bill of materials: everything that the lock names, with its hashes and what needs it."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def sbom() -> Iterator[ModuleType]:
    """Yield the program as a module."""
    spec = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sbom"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["sbom"]


def test_the_bill_names_what_the_lock_names_with_every_hash(sbom: ModuleType) -> None:
    made = sbom.bill(PROJECT, sbom.locked(LOCK))
    pinned = re.findall(r"^([a-zA-Z0-9._-]+)(?:\[.*\])?==([^\s;\\]+)", LOCK, flags=re.MULTILINE)
    assert [(each["name"], each["version"]) for each in made["components"]] == pinned
    files = [file for each in made["components"] for file in each["externalReferences"]]
    hashes = [file["hashes"][0]["content"] for file in files]
    assert sorted(hashes) == sorted(re.findall(r"sha256:([0-9a-f]{64})", LOCK))
    references = [each["bom-ref"] for each in made["components"]]
    assert len(set(references)) == len(references)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    assert made == sbom.bill(PROJECT, sbom.locked(LOCK))


def test_everything_in_the_bill_is_needed_by_something_that_is_there(sbom: ModuleType) -> None:
    made = sbom.bill(PROJECT, sbom.locked(LOCK))
    needs = {each["ref"]: set(each["dependsOn"]) for each in made["dependencies"]}
    own = made["metadata"]["component"]["bom-ref"]
    reached, left = {own}, [own]
    while left:
        new = needs[left.pop()] - reached
        reached |= new
        left += new
    assert reached == set(needs) == {own, *(each["bom-ref"] for each in made["components"])}
    direct = {re.split(r"[\[>=<; ]", each)[0] for each in PROJECT["dependencies"]}
    assert direct <= {re.sub(r"^pkg:pypi/|@.*$", "", each) for each in needs[own]}


@pytest.mark.parametrize("text", ["alembic>=1.2\n", "-r other.txt\n", "alembic==1.2\n    # via x\n"])
def test_a_lock_that_does_not_pin_everything_is_refused(sbom: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="lock"):
        sbom.locked(text)
