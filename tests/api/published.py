"""Checks answers of a server against the published description: status, type, schema, and no more fields."""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator

from shuffle_ledger.ledger.api.reference import description

ERROR_LENGTH_MAX = 600
SEEN: Counter[tuple[str, int]] = Counter()  # answers that were checked, by operation and status


def check_answer(response: httpx.Response) -> None:
    """Fail for an answer to a published operation that is not as the description says."""
    operation = _operation(response.request.method, response.request.url.path)
    if operation is None:
        return
    response.read()
    name, status = operation["operationId"], str(response.status_code)
    assert status in operation["responses"], f"{name} answered {status}, which is not described"
    described = operation["responses"][status].get("content", {})
    media = response.headers.get("Content-Type", "").partition(";")[0]
    if not response.content:
        return
    assert media in described, f"{name} answered {status} with {media}, described are {sorted(described)}"
    SEEN[name, response.status_code] += 1
    if not media.endswith("json"):
        return
    for error in _validator(name, status, media).iter_errors(response.json()):
        place = "/".join(map(str, error.instance_path))
        raise AssertionError(f"{name} {status}, at {place!r}: {error.message[:ERROR_LENGTH_MAX]}")


@functools.cache
def _description() -> dict[str, Any]:
    """Return the description as it is published, but that an object has no fields which it does not name."""
    document: dict[str, Any] = copy.deepcopy(description())
    schemas: dict[str, Any] = document["components"]["schemas"]
    for schema in schemas.values():  # parts of a whole are open: the whole is closed
        for number, part in enumerate(schema.get("allOf", ())):
            if "$ref" in part:
                schema["allOf"][number] = copy.deepcopy(schemas[part["$ref"].rpartition("/")[2]])
    for schema in schemas.values():
        _close(schema)
    return document


def _close(schema: Any) -> None:
    """Let the objects of a schema have no other fields, unless it says that they may."""
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    if not isinstance(schema, dict):
        return
    for name, each in schema.items():
        if name not in ("examples", "example", "default", "const", "enum"):
            _close(each)
    if "allOf" in schema:
        schema["unevaluatedProperties"] = False
        for each in schema["allOf"]:
            each.pop("additionalProperties", None)
    elif isinstance(schema.get("properties"), dict) and "type" in schema:
        schema.setdefault("additionalProperties", False)


@functools.cache
def _paths() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    # Those without a parameter first.
    named = sorted(_description()["paths"].items(), key=lambda item: item[0].count("{"))
    return [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), found) for path, found in named]


def _operation(method: str, path: str) -> dict[str, Any] | None:
    for pattern, operations in _paths():
        if pattern.fullmatch(path) is not None and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    return None


@functools.cache
def _validator(name: str, status: str, media: str) -> Draft202012Validator:
    document = _description()
    operations = (each for found in document["paths"].values() for each in found.values())
    operation = next(each for each in operations if each["operationId"] == name)
    schema = operation["responses"][status]["content"][media].get("schema", {})
    return Draft202012Validator({**schema, "components": document["components"]})


def fits(name: str, value: object) -> bool:
    """Return whether a value is as the schema of this name says, without any other field."""
    document = _description()
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return bool(Draft202012Validator(schema).is_valid(value))
