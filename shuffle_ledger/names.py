"""Public names of packages, imported when they are first used: short commands wait for no other module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def imported_when_used(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package, which imports a public name, or a module, and keeps it.

    Args:
        package: the package's own name.
        places: its public names, separated by blanks, by the module within it that has them.
    """
    modules = {name: module for module, names in places.items() for name in names.split()}

    def find(name: str) -> object:
        if name in places:
            return import_module(f"{package}.{name}")  # which keeps it
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(import_module(package), name, value)
        return value

    return find
