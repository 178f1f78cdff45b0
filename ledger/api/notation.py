"""Randomizers as requests may write them: the schema of their JSON form, and the pattern of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accounting.randomizers import RANDOMIZERS

_CATEGORIES_MAX = 10**12
_HADAMARD_POWERS = range(2, 40)
_EPSILON0: Mapping[str, Any] = {"type": "number", "minimum": 1e-9, "maximum": 30}
_DOMAIN: Mapping[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 3, "maximum": _CATEGORIES_MAX}, {"type": "null"}]
}
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "generic": {},
    "krr": {"k": {"type": "integer", "minimum": 2, "maximum": _CATEGORIES_MAX}},
    "blh": {"domain": _DOMAIN},
    "rappor": {"domain": _DOMAIN},
    "oue": {"domain": _DOMAIN},
    "hadamard": {"domain": {"enum": [2**power for power in _HADAMARD_POWERS] + [None]}},
}
_REQUIRED = ("k",)

# epsilon0 from 0.000000001 to 30, and whole numbers from 3 (k: from 2) to below 10**12, written out.
_E = r"epsilon0=(?:30|(?:[1-9]|[12][0-9])(?:\.[0-9]{1,15})?|0\.0{0,8}[1-9][0-9]{0,15})"
_K = r"k=(?:[2-9]|[1-9][0-9]{1,11})"
_D = r"domain=(?:[3-9]|[1-9][0-9]{1,11})"
_H = "domain=(?:" + "|".join(str(2**power) for power in _HADAMARD_POWERS) + ")"


def _call(name: str, parameter: str | None = None, *, needed: bool = True) -> str:
    if parameter is None:
        return rf"{name}\({_E}\)"
    alone = "" if needed else f"|{_E}"
    return rf"(?:{name})\((?:{_E}, ?{parameter}|{parameter}, ?{_E}{alone})\)"


_SIMPLE = "|".join(
    (
        _call("generic"),
        _call("krr", _K),
        _call("blh|rappor|oue", _D, needed=False),
        _call("hadamard", _H, needed=False),
    )
)
RANDOMIZER_TEXT = f"^(?:{_SIMPLE})$"


def _schema_of_kind(kind: str) -> dict[str, Any]:
    if kind not in _PARAMETERS:  # described by its name alone; its constructor checks the rest
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
    parameters = _PARAMETERS[kind]
    return {
        "type": "object",
        "title": kind,
        "properties": {"kind": {"const": kind}, "epsilon0": _EPSILON0, **parameters},
        "required": ["kind", "epsilon0", *(name for name in parameters if name in _REQUIRED)],
        "additionalProperties": False,
    }


RANDOMIZER_SCHEMA: dict[str, Any] = {
    "title": "Randomizer",
    "description": "What every device runs: a call such as krr(k=10, epsilon0=1.15), or its JSON form.",
    "oneOf": [
        {"type": "string", "pattern": RANDOMIZER_TEXT, "maxLength": 100},
        *(_schema_of_kind(kind) for kind in RANDOMIZERS),
    ],
    "examples": ["krr(k=10, epsilon0=1.15)", {"kind": "krr", "k": 10, "epsilon0": 1.15}],
}
