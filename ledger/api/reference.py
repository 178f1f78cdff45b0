"""Prints the reference of the HTTP API: `python -m shuffle_ledger.ledger.api.reference > docs/api.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.problems import PROBLEMS
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store

_NOWHERE = "postgresql+psycopg://nobody@nowhere.invalid/nothing"
_INTRODUCTION = """# The HTTP API

Made by `python -m shuffle_ledger.ledger.api.reference` from the description that servers publish at
`/v1/openapi.json`; a test compares them. How to use it, who may, and TLS: [http.md](http.md).
"""


def description() -> dict[str, Any]:
    """Return the OpenAPI document of the application; no database is opened."""
    store = Store(engine.connect(_NOWHERE))
    return create_app(Settings(broker_url=None), store, Dispatch(decide=_never)).openapi()


def reference(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as a page of Markdown."""
    return (
        "\n".join([_INTRODUCTION, *_operations(document), *_problems(), *_schemas(document)]).rstrip() + "\n"
    )


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Operations\n"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"### `{method.upper()} {path}`\n"
            yield operation.get("description", operation["summary"]) + "\n"
            yield from _parameters(operation)
            body = operation.get("requestBody")
            if body:
                name = _name(body["content"]["application/json"]["schema"])
                example = document["components"]["schemas"][name]["examples"][0]
                yield f"Body: [{name}](#{name.lower()}), for example\n"
                yield f"```json\n{json.dumps(example, ensure_ascii=False)}\n```\n"
            yield from _answers(operation)


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        yield f"- `{parameter['name']}` ({parameter['in']}): {parameter.get('description', '')}"
    if operation.get("parameters"):
        yield ""


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in operation["responses"].items():
        schemas = [content["schema"] for content in answer.get("content", {}).values()]
        is_failure = all(_is_problem(schema) for schema in schemas)
        if status in ("404", "409") or not is_failure:  # others may be the answer to anything
            kinds = "" if is_failure else ", ".join(_linked(schema) for schema in schemas)
            yield f"- `{status}` {answer['description']}" + (f" ({kinds})" if kinds else "")
    yield ""


def _is_problem(schema: Mapping[str, Any]) -> bool:
    return "$ref" in schema and _name(schema) == "Problem"


def _problems() -> Iterator[str]:
    yield "## Problems\n"
    yield "Errors are `application/problem+json`. Those of status 404 and 409 are listed with each operation"
    yield "that has them; any operation may answer with the others.\n"
    yield "| type | status | |"
    yield "|---|---|---|"
    for kind in PROBLEMS:
        yield f"| `{kind.uri}` | {kind.status} | {kind.title}{'; try again' if kind.retry else ''} |"
    yield ""


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Values\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name}\n"
        if schema.get("description"):
            yield schema["description"] + "\n"
        required = schema.get("required", ())
        for field, inner in schema.get("properties", {}).items():
            optional = "" if field in required else ", optional"
            yield f"- `{field}`: {_linked(inner)}{optional}"
        yield ""


def _linked(schema: Mapping[str, Any]) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        name = _name(schema)
        return f"[{name}](#{name.lower()})"
    for combined in ("anyOf", "allOf"):
        if combined in schema:
            return " or ".join(_linked(part) for part in schema[combined])
    if "oneOf" in schema:
        return str(schema.get("description", "one of several forms"))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "anything")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"list of {_linked(schema.get('items', {}))}" if words == "array" else words


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[-1]


def _never(_accountant: Accountant, _round_id: str) -> NoReturn:
    raise AssertionError("the reference decides nothing")


if __name__ == "__main__":
    sys.stdout.write(reference(description()))
