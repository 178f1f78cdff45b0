"""NumPy and SciPy, each imported when something of it is first used.

Rounds, randomizers and filters are read, checked and written without arrays; a program that does no more
does not wait for these libraries. The modules of `accounting` take them from here, and use neither while they
are imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import scipy

__all__ = ["np", "scipy"]


class _Library:
    """A library: an attribute that is asked for is kept, so that it is found at once from then on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        """Imports the library, and returns something of it."""
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if not TYPE_CHECKING:
    np, scipy = _Library("numpy"), _Library("scipy")
