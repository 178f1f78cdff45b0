"""Published deployments: the page states what the command certifies, rounded up."""

from __future__ import annotations

import json
import re
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import pytest

from tests.cli.conftest import Run

DEPLOYMENTS = Path(__file__).parents[2] / "examples" / "deployments"
ROW = re.compile(r"^\| `([^`]+\.csv)` \|.*\| ([0-9.]+) \| \(\d\) \|$", re.MULTILINE)


@pytest.mark.slow
def test_the_page_states_what_compose_certifies(run: Run) -> None:
    stated = dict(ROW.findall((DEPLOYMENTS / "README.md").read_text()))
    certified = {}
    for file in sorted(DEPLOYMENTS.glob("*.csv")):
        output = run("compose", str(file), "--delta", "1e-10", "--json").stdout
        epsilon = Decimal(repr(json.loads(output)["epsilon_upper"]))
        certified[file.name] = str(epsilon.quantize(Decimal("0.00001"), ROUND_CEILING))
    assert stated == certified
