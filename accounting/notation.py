"""Randomizers as users write them: calls such as `krr(k=10, epsilon0=1.15)`, and their JSON form."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

from accounting.errors import InvalidParameter
from accounting.randomizers import RANDOMIZERS, LocalRandomizer

_MAXIMUM_LENGTH = 4000
_FIELD = "randomizer"


def parse_randomizer(written: object) -> LocalRandomizer:
    """The randomizer that a call or a JSON mapping describes.

    Args:
        written: text such as `blh(epsilon0=1, domain=64)`, a mapping such as `{"kind": "krr", "k": 10,
            "epsilon0": 1.15}`, or a randomizer, which is returned as it is.

    Raises:
        InvalidParameter: the text is not such a call, the kind or a parameter is unknown or missing, or a
            value is bad.
    """
    if isinstance(written, LocalRandomizer):
        return written
    if isinstance(written, Mapping):
        return _build(written)
    if isinstance(written, str):
        return _build(_read(written))
    raise InvalidParameter(_FIELD, written, "a call such as krr(k=10, epsilon0=1.15)")


def _read(text: str) -> dict[str, object]:
    """The JSON form of a call; the grammar is Python's, read and never evaluated."""
    wrong = InvalidParameter(_FIELD, text, "a call such as krr(k=10, epsilon0=1.15)")
    if len(text) > _MAXIMUM_LENGTH:
        raise wrong
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise wrong
    mapping: dict[str, object] = {"kind": node.func.id}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in mapping:
            raise wrong
        mapping[keyword.arg] = _number(keyword.value, f"{keyword.arg}")
    return mapping


def _number(node: ast.expr, field: str) -> int | float:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return sign * node.value
    raise InvalidParameter(field, ast.unparse(node), "a number")


def _build(mapping: Mapping[str, object]) -> LocalRandomizer:
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in RANDOMIZERS:
        raise InvalidParameter(_FIELD, kind, f"one of {', '.join(RANDOMIZERS)}")
    randomizer = RANDOMIZERS[kind]
    parameters = {str(name): value for name, value in mapping.items() if name != "kind"}
    fields = dataclasses.fields(randomizer)
    names = [field.name for field in fields]
    for name in parameters:
        if name not in names:
            raise InvalidParameter(f"{_FIELD} {kind}", name, f"only the parameters {', '.join(names)}")
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in parameters:
            raise InvalidParameter(f"{_FIELD} {kind}", dict(parameters), f"a value for {field.name}")
    return randomizer(**parameters)  # type: ignore[arg-type]  # each constructor checks its own values
