"""One module formats floats for people: `accounting/printed_numbers.py`. Other places are listed with
reasons."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("accounting", "ledger", "cli", "workers")
FORMATTER = Path("accounting/printed_numbers.py")
_FLOAT_SPEC = re.compile(r"[eEfFgGn%]$")
_PERCENT = re.compile(r"%[-+ #0]*[0-9.*]*[eEfFgG]")
_TEMPLATE = re.compile(r"\|\s*(?:round|format)\b[^}|]*|\.format\(|'%[^']*'|\"%[^\"]*\"")
_SECONDS, _PLACES, _WHOLE = "seconds", "coordinates of a drawing", "a whole number to compute with"
# File, what stands there, how often, and why it is no number that somebody might take for a bound.
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("accounting/pld/composition.py", "round(…)"): (1, _WHOLE),
    ("accounting/planning/calibration.py", "round(…)"): (2, _WHOLE),
    ("accounting/planning/dummies.py", "round(…)"): (1, _WHOLE),
    ("accounting/numeric/bracketing.py", "round(…)"): (1, _WHOLE),
    ("accounting/pld/tilting.py", "round(…)"): (1, _WHOLE),
    ("accounting/randomizers/support_oracles.py", "round(…)"): (2, _WHOLE),
    ("accounting/filters/gaussian_and_renyi.py", ".4g"): (1, "the name of a filter, by its order"),
    ("accounting/planning/plans.py", ".3g"): (1, "a number to compute with, certified afterwards"),
    ("ledger/policies/largest_epsilon0.py", ".{}g"): (1, "a number to compute with, rounded down before"),
    ("ledger/client/client.py", "round(…)"): (1, _SECONDS),
    ("ledger/operations.py", "'%2E'"): (1, "a dot in an address"),
    ("ledger/storage/engine.py", "'%Y-%m-%d %H:%M:%f'"): (1, "a moment, in SQL"),
    ("ledger/api/pages/charts.py", "round(…)"): (3, _PLACES),
    ("ledger/api/pages/charts.py", ".1f"): (2, _PLACES),
    ("ledger/api/auth/middleware.py", "g"): (1, _SECONDS),
    ("ledger/api/served.py", "g"): (1, _SECONDS),
    ("ledger/checkpoints/schedule.py", ".0f"): (1, _SECONDS),
    ("ledger/health.py", ".0f"): (1, _SECONDS),
    ("ledger/api/pages/templates/cohorts.html.jinja", "| round"): (1, _SECONDS),
    ("ledger/api/pages/templates/parts.html.jinja", "| format([share * 100, 99]"): (1, _PLACES),
    ("ledger/api/pages/templates/parts.html.jinja", "'%.2f'"): (1, _PLACES),
    ("cli/commands/health.py", ".0f"): (1, _SECONDS),
    ("cli/rendering/statements/drawings.py", ".0e"): (1, "ticks of an axis, at powers of ten"),
    ("cli/rendering/statements/statement.html.jinja", "|round(2)"): (3, _PLACES),
    ("cli/rendering/statements/statement.html.jinja", ".format("): (1, "a number of rows"),
}


def _spec(spec: ast.expr) -> str:
    parts = spec.values if isinstance(spec, ast.JoinedStr) else [spec]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def _found_in(source: str) -> list[str]:
    """What in a program formats or rounds a float: f-strings, `format`, `%`, `round`, `Decimal.quantize`."""
    found = []
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = _spec(node.format_spec)
            if _FLOAT_SPEC.search(spec) and "%Y" not in spec:
                found.append(spec)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            of_name = isinstance(node.func, ast.Name)
            of_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
            if name == "round" and of_name:
                found.append("round(…)")
            elif (name == "format" and (of_name or of_text)) or name == "quantize":
                found.append(f"{name}(…)")
        elif isinstance(node, ast.Constant) and id(node) not in prose and _PERCENT.search(str(node.value)):
            found.append(repr(node.value))
    return found


def _of_rooms() -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            name = path.relative_to(ROOT)
            if path.suffix == ".py" and name != FORMATTER:
                found.update((str(name), each) for each in _found_in(path.read_text("utf-8")))
            elif path.suffix == ".jinja":
                found.update((str(name), each.strip()) for each in _TEMPLATE.findall(path.read_text("utf-8")))
    return found


@pytest.mark.slow
def test_nothing_but_the_formatter_formats_a_float() -> None:
    allowed = Counter({place: count for place, (count, _) in ALLOWED.items()})
    assert _of_rooms() - allowed == Counter()


@pytest.mark.parametrize(
    "line",
    [
        'f"at most {x:.6g}"',
        'f"{x:,.3f}"',
        'f"{x:.{n}e}"',
        'f"{x:.0%}"',
        'format(x, ".6g")',
        '"{:.6g}".format(x)',
        '"at most %.6g" % x',
        'log.info("at most %g", x)',
        "round(x, 6)",
        "Decimal(x).quantize(step)",
    ],
)
def test_a_float_that_is_formatted_is_noticed(line: str) -> None:
    assert len(_found_in(line)) >= 1
