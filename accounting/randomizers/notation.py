"""Randomizers as users write them: calls such as `krr(k=10, epsilon0=1.15)`, and their JSON form."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import RANDOMIZERS, Joint, LocalRandomizer, Parallel
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet

_MAXIMUM_LENGTH = 1_000_000  # characters of a call
# Every kind that can be written: of single randomizers, and mixed fleets, which no ledger takes.
_KINDS: Mapping[str, type[LocalRandomizer]] = {**RANDOMIZERS, MixedFleet.kind: MixedFleet}
_MAXIMUM_DEPTH = 8  # randomizers inside one another
_FIELD = "randomizer"  # as errors name it
_DUMMIES = "dummies"  # the parameter of a mixed fleet
_CALL = "a call such as krr(k=10, epsilon0=1.15)"  # what errors expect
# Other names that people give epsilon0; a message asks whether it was meant.
_EPSILON0_OTHERWISE = frozenset({"eps", "eps0", "epsilon", "epsilon_0", "e0"})
_GROUPS = "pairs such as (20000, krr(k=10, epsilon0=1)), or objects with reports and a randomizer"
_PAIRS = "pairs such as (0.5, krr(k=10, epsilon0=1)), or objects with a weight and a randomizer"


def parse_randomizer(written: object) -> LocalRandomizer:
    """Reads the randomizer that a call or a JSON mapping describes.

    Args:
        written: text such as `blh(epsilon0=1, domain=64)`, `joint(krr(k=4, epsilon0=1),
            laplace(epsilon0=1))`, `parallel((0.5, krr(k=10, epsilon0=1)), (0.5, blh(epsilon0=1)))` or
            `table([[0.7, 0.3], [0.3, 0.7]])`; a mapping such as `{"kind": "krr", "k": 10, "epsilon0": 1.15}`,
            with lists `parts` of randomizers (joint), `parts` of `{"weight": ..., "randomizer": ...}`
            (parallel) and `rows` (table); or a randomizer, which is returned as it is.

    Raises:
        InvalidParameter: the text is not a call, the kind or a parameter is unknown or missing, or a value is
            out of range.
    """
    return _parsed(written, _MAXIMUM_DEPTH)


def complete_randomizer(written: object, *, epsilon0: float) -> LocalRandomizer:
    """Reads the randomizer that a call or a mapping describes, with `epsilon0` in every place where one is
    missing.

    Raises:
        InvalidParameter: none is missing, or as of `parse_randomizer`.
    """
    mapping = _read(written) if isinstance(written, str) else written
    completed = _completed(mapping, epsilon0, _MAXIMUM_DEPTH)
    if not _lacks_epsilon0(mapping):
        _parsed(mapping, _MAXIMUM_DEPTH)  # other errors have precedence
        expected = "a randomizer that has an epsilon0, which is left out, such as krr(k=10)"
        raise InvalidParameter(_FIELD, written, expected)
    return _parsed(completed, _MAXIMUM_DEPTH)


def open_noise(written: object) -> str | None:
    """Returns the parameter of common noise that a call or a mapping leaves out, such as "bits" of
    `binomial_sum(p=0.5)`; "dummies" of a mixed fleet that leaves out these and no epsilon0; None if an
    epsilon0 must be what is left out.

    Raises:
        InvalidParameter: none or several are left out, or the text is not a call.
    """
    mapping = _read(written) if isinstance(written, str) else written
    kind = _KINDS.get(str(mapping.get("kind"))) if isinstance(mapping, Mapping) else None
    if kind is None or not isinstance(mapping, Mapping):
        return None
    if kind is MixedFleet:
        return None if _DUMMIES in mapping or _lacks_epsilon0(mapping) else _DUMMIES
    if not kind.noise_ranges:
        return None
    missing = [name for name in kind.noise_ranges if name not in mapping]
    if len(missing) == 1:
        return missing[0]
    names = " or ".join(kind.noise_ranges)
    expected = f"a {kind.kind} that leaves out {names}, and no other parameter of its noise"
    raise InvalidParameter(_FIELD, written, expected)


def randomizer_with(written: object, name: str, value: float) -> LocalRandomizer:
    """Reads the randomizer that a call or a mapping describes, with one more parameter.

    Raises:
        InvalidParameter: as of `parse_randomizer`.
    """
    mapping = _read(written) if isinstance(written, str) else written
    if not isinstance(mapping, Mapping):
        raise InvalidParameter(_FIELD, written, _CALL)
    return _parsed({**mapping, name: value}, _MAXIMUM_DEPTH)


def _lacks_epsilon0(written: object) -> bool:
    """Returns whether an epsilon0 is missing in a mapping."""
    one, other = (_completed(written, epsilon0, _MAXIMUM_DEPTH) for epsilon0 in (1.0, 2.0))
    return one != other


def _completed(written: object, epsilon0: float, depth: int) -> object:
    """Returns a mapping, or a list of them, with `epsilon0` in every randomizer that takes one and has
    none."""
    if depth < 0 or isinstance(written, LocalRandomizer):
        return written
    if isinstance(written, list | tuple):
        return [_completed(one, epsilon0, depth) for one in written]
    if not isinstance(written, Mapping):
        return written
    kind = _KINDS.get(str(written.get("kind")))
    if kind is None:
        return {name: _completed(value, epsilon0, depth) for name, value in written.items()}
    completed = dict(written)
    for name in {"parts", "groups"} & set(written):
        completed[name] = _completed(written[name], epsilon0, depth - 1)
    takes = any(field.name == "epsilon0" and field.init for field in dataclasses.fields(kind))
    if takes and "epsilon0" not in written:
        completed["epsilon0"] = epsilon0
    return completed


def _parsed(written: object, depth: int) -> LocalRandomizer:
    if isinstance(written, LocalRandomizer):
        return written
    if depth == 0:
        raise InvalidParameter(_FIELD, written, f"at most {_MAXIMUM_DEPTH} randomizers inside one another")
    if isinstance(written, Mapping):
        return _build(written, depth)
    if isinstance(written, str):
        return _build(_read(written), depth)
    raise InvalidParameter(_FIELD, written, _CALL)


def _read(text: str) -> Mapping[str, object]:
    """Returns the JSON form of a call. The grammar is Python's; the text is parsed and never evaluated."""
    wrong = InvalidParameter(_FIELD, text, _CALL)
    if len(text) > _MAXIMUM_LENGTH:
        raise wrong
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call):
            return _mapping(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidParameter):
            raise
        raise wrong from None
    raise wrong


def _mapping(node: ast.Call) -> Mapping[str, object]:
    """Returns the JSON form of a parsed call."""
    wrong = InvalidParameter(_FIELD, ast.unparse(node), _CALL)
    if not isinstance(node.func, ast.Name):
        raise wrong
    if node.func.id not in _KINDS:
        raise _unknown_kind(ast.unparse(node), node.func.id)
    mapping: dict[str, object] = {"kind": node.func.id}
    listed = {"joint": "parts", "parallel": "parts", "table": "rows", "mixed": "groups"}.get(node.func.id)
    if node.args:
        if listed is None:
            raise wrong
        values = [_value(argument, listed) for argument in node.args]
        # table([[...], [...]]) and table([...], [...]) are the same.
        nested = listed == "rows" and len(values) == 1
        mapping[listed] = values[0] if nested else values
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in mapping:
            raise wrong
        mapping[keyword.arg] = _value(keyword.value, keyword.arg)
    return mapping


def _value(node: ast.expr, field: str) -> object:
    """Returns the value of an argument: a number, a word in quotes, a call, or a list of these."""
    if isinstance(node, ast.Call):
        return _mapping(node)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element, field) for element in node.elts]
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return sign * node.value
        if isinstance(node.value, str) and sign == 1:
            return node.value
    raise InvalidParameter(field, ast.unparse(node), "a number, or a word in quotes")


def _build(mapping: Mapping[str, object], depth: int) -> LocalRandomizer:
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _unknown_kind(kind, kind)
    randomizer = _KINDS[kind]
    parameters = {str(name): value for name, value in mapping.items() if name != "kind"}
    fields = [field for field in dataclasses.fields(randomizer) if field.init]
    names = ["parts"] if randomizer is Parallel else [field.name for field in fields]
    takes = _takes(fields, names)
    for name in parameters:
        if name not in names:
            expected = f"only {', '.join(names)}"
            message = f"{kind} has no parameter {name}; {takes}{_meant(name, names)}"
            raise InvalidParameter(_FIELD, f"{name} for {kind}", expected, message)
    for field in fields:
        if field.name in names and field.default is dataclasses.MISSING and field.name not in parameters:
            message = f"{kind} needs a value for {field.name}; {takes}"
            raise InvalidParameter(
                _FIELD, f"no {field.name} for {kind}", "a value for each parameter", message
            )
    if randomizer is Joint:
        return Joint(parts=_parts(parameters["parts"], depth))  # type: ignore[arg-type]  # checked there
    if randomizer is Parallel:
        return _parallel(parameters["parts"], depth)
    if randomizer is MixedFleet:
        parameters["groups"] = _groups(parameters["groups"], depth)
    return randomizer(**parameters)  # type: ignore[arg-type]  # each constructor checks its own values


def _unknown_kind(written: object, kind: object) -> InvalidParameter:
    """Returns the error of a randomizer that no kind has the name of."""
    known = ", ".join(_KINDS)
    message = None
    if isinstance(kind, str) and kind:
        message = f"there is no randomizer {kind!r}{_meant(kind, _KINDS)}; known are {known}"
    return InvalidParameter(_FIELD, written, f"one of {known}", message)


def _takes(fields: Sequence[dataclasses.Field[object]], names: Sequence[str]) -> str:
    """Returns what a randomizer takes, in the order in which calls are written: "it takes k and epsilon0"."""
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    order = sorted(names, key=lambda name: (name not in needed, name == "epsilon0"))
    listed = " and ".join(part for part in (", ".join(order[:-1]), order[-1]) if part)
    return f"it takes {listed}"


def _meant(name: str, known: Iterable[str]) -> str:
    """Returns the question whether another name was meant, behind a semicolon; empty if none is close."""
    if "epsilon0" in known and name.lower() in _EPSILON0_OTHERWISE:
        return "; did you mean epsilon0?"
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parts(written: object, depth: int) -> tuple[LocalRandomizer, ...]:
    if not isinstance(written, list | tuple):
        raise InvalidParameter("parts", written, "a list of randomizers")
    return tuple(_parsed(one, depth - 1) for one in written)


def _parallel(written: object, depth: int) -> Parallel:
    if not isinstance(written, list | tuple):
        raise InvalidParameter("parts", written, _PAIRS)
    weights, parts = [], []
    for place, one in enumerate(written):
        weight, part = _weighted(one, f"parts[{place}]")
        weights.append(weight)
        parts.append(part)
    return Parallel(weights=tuple(weights), parts=_parts(parts, depth))  # type: ignore[arg-type]  # checked there


def _weighted(one: object, field: str) -> tuple[object, object]:
    if isinstance(one, Mapping) and set(one) == {"weight", "randomizer"}:
        return one["weight"], one["randomizer"]
    if isinstance(one, list | tuple) and len(one) == 2:
        return one[0], one[1]
    raise InvalidParameter(field, one, _PAIRS)


def _groups(written: object, depth: int) -> tuple[tuple[object, object], ...]:
    """Returns the groups of a mixed fleet, each a number of reports and a randomizer."""
    if not isinstance(written, list | tuple):
        raise InvalidParameter("groups", written, _GROUPS)
    found = []
    for place, one in enumerate(written):
        if isinstance(one, Mapping) and set(one) == {"reports", "randomizer"}:
            one = one["reports"], one["randomizer"]  # noqa: PLW2901 - the JSON form of the same
        if not isinstance(one, list | tuple) or len(one) != 2:
            raise InvalidParameter(f"groups[{place}]", one, _GROUPS)
        found.append((one[0], _parsed(one[1], depth - 1)))
    return tuple(found)
