"""What fields of answers say of their documents: the metadata of the fields of dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

LEFT_OUT: Mapping[str, bool] = {"left_out": True}  # a document leaves it out where it has its default
FINITE: Mapping[str, bool] = {"finite": True}  # a number that is never infinite, hence never null


def is_left_out(field: Field[Any]) -> bool:
    """Return whether documents leave a field out where it has its default."""
    return "left_out" in field.metadata


def is_finite(field: Field[Any]) -> bool:
    """Return whether a field's number is never infinite."""
    return "finite" in field.metadata
