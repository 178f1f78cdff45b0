"""Strict JSON (RFC 8259, and I-JSON where that leaves a choice): every text has one meaning, or none."""

from __future__ import annotations

import json
import math
from typing import Any


class NotStrictJson(ValueError):
    """A text that is not JSON, or that readers could take for different values."""


def read_json(data: bytes | str) -> Any:
    """Return the value of a JSON text; bytes are UTF-8.

    Which of two equal names counts, and what becomes of a number that no float can hold, differs between
    readers: what one of them checked, the next one would not see. Neither is accepted.

    Raises:
        NotStrictJson: says why in one phrase.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_once, parse_constant=_not_json, parse_float=_finite)
    except UnicodeDecodeError as problem:
        raise NotStrictJson(f"byte {problem.start} is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise NotStrictJson(f"{problem.msg}, at character {problem.pos}") from None
    except NotStrictJson:
        raise
    except ValueError:
        raise NotStrictJson("a whole number has thousands of digits") from None
    except RecursionError:
        raise NotStrictJson("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotStrictJson(f"the name {twice[:80]!r} stands there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotStrictJson(f"the number {text[:80]} is too large")
    return value


def _not_json(constant: str) -> Any:
    raise NotStrictJson(f"{constant} is not JSON")
