"""Randomizers as requests may write them: the schema of their JSON form, and the pattern of their calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shuffle_ledger.accounting import RANDOMIZERS

_CATEGORIES_MAX = 10**12
_HADAMARD_POWERS = range(2, 40)
_EPSILON0: Mapping[str, Any] = {"type": "number", "minimum": 1e-9, "maximum": 30}
_DOMAIN: Mapping[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 3, "maximum": _CATEGORIES_MAX}, {"type": "null"}]
}
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "generic": {},
    "laplace": {},
    "krr": {"k": {"type": "integer", "minimum": 2, "maximum": _CATEGORIES_MAX}},
    "blh": {"domain": _DOMAIN},
    "rappor": {"domain": _DOMAIN},
    "oue": {"domain": _DOMAIN},
    "hadamard": {
        "domain": {
            "anyOf": [
                {"type": "integer", "enum": [2**power for power in _HADAMARD_POWERS]},
                {"type": "null"},
            ]
        }
    },
}
_REQUIRED = ("k",)

# epsilon0 from 0.000000001 to 30, and whole numbers from 3 (k: from 2) to below 10**12, written out.
_E = r"epsilon0=(?:30|(?:[1-9]|[12][0-9])(?:\.[0-9]{1,15})?|0\.0{0,8}[1-9][0-9]{0,15})"
_K = r"k=(?:[2-9]|[1-9][0-9]{1,11})"
_D = r"domain=(?:[3-9]|[1-9][0-9]{1,11})"
_H = "domain=(?:" + "|".join(str(2**power) for power in _HADAMARD_POWERS) + ")"


def _call(name: str, parameter: str | None = None, *, needed: bool = True) -> str:
    if parameter is None:
        return rf"(?:{name})\({_E}\)"
    alone = "" if needed else f"|{_E}"
    return rf"(?:{name})\((?:{_E}, ?{parameter}|{parameter}, ?{_E}{alone})\)"


_SIMPLE = "|".join(
    (
        _call("generic|laplace"),
        _call("krr", _K),
        _call("blh|rappor|oue", _D, needed=False),
        _call("hadamard", _H, needed=False),
    )
)
# Randomizers that a schema cannot describe exactly: composites and tables of probabilities. The schema checks
# their shape; their constructors check the contents.
_LISTED: Mapping[str, str] = {"joint": "parts", "parallel": "parts", "table": "rows"}
_LISTED_MAX = 10_000
_TEXT_LENGTH_MAX = 100_000
EXACT_KINDS = frozenset(_PARAMETERS)
RANDOMIZER_TEXT = f"^(?:{_SIMPLE})$"
COMPOSITE_TEXT = rf"^(?:{'|'.join(sorted(set(RANDOMIZERS) - EXACT_KINDS))})\([ -~]+\)$"


def is_described_in_full(written: object) -> bool:
    """Return whether the schema says everything about a randomizer: what fits it is then one.

    Raises:
        ValueError: it is of the right kind and not of the shape that the schema describes.
    """
    if isinstance(written, str):
        return len(written) > _TEXT_LENGTH_MAX or re.fullmatch(COMPOSITE_TEXT, written) is None
    kind = written.get("kind") if isinstance(written, Mapping) else None
    if not isinstance(written, Mapping) or not isinstance(kind, str) or kind not in RANDOMIZERS:
        return True
    if kind in EXACT_KINDS:
        return True
    name = _LISTED.get(kind)
    items = written.get(name) if name else None
    if name and (set(written) != {"kind", name} or not isinstance(items, list) or not items):
        raise ValueError(f"{{kind, {name}}} with a list that is not empty")
    return False


def _schema_of_kind(kind: str) -> dict[str, Any]:
    if kind in _LISTED:
        items = {"type": "array", "items": {}, "minItems": 1, "maxItems": _LISTED_MAX}
        return {
            "type": "object",
            "title": kind,
            "properties": {"kind": {"const": kind}, _LISTED[kind]: items},
            "required": ["kind", _LISTED[kind]],
            "additionalProperties": False,
        }
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
        {"type": "string", "pattern": COMPOSITE_TEXT, "maxLength": _TEXT_LENGTH_MAX},
        *(_schema_of_kind(kind) for kind in RANDOMIZERS),
    ],
    "examples": ["krr(k=10, epsilon0=1.15)", {"kind": "krr", "k": 10, "epsilon0": 1.15}],
}
