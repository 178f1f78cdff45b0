"""Roles of tokens, and what each of them may do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """What somebody is to the ledger."""

    ADMIN = "admin"
    REGISTRAR = "registrar"
    READER = "reader"
    AUDITOR = "auditor"


class Permission(StrEnum):
    """What somebody may do."""

    READ = "read"  # cohorts, budgets, rounds; quotes, which leave no trace
    REGISTER = "register"  # rounds: register, settle, void
    MANAGE = "manage"  # open cohorts and change their budgets
    ENTRIES = "entries"  # the chain itself, its heads, its verification
    METRICS = "metrics"


# Words of messages for each permission.
_ALLOWS: Mapping[Permission, str] = {
    Permission.READ: "read cohorts and rounds",
    Permission.REGISTER: "register rounds",
    Permission.MANAGE: "open cohorts or change budgets",
    Permission.ENTRIES: "read entries",
    Permission.METRICS: "read metrics",
}

PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.ADMIN: frozenset(Permission),
    Role.REGISTRAR: frozenset({Permission.READ, Permission.REGISTER}),
    Role.READER: frozenset({Permission.READ, Permission.METRICS}),
    Role.AUDITOR: frozenset({Permission.READ, Permission.ENTRIES, Permission.METRICS}),
}


def refusal(role: Role, permission: Permission) -> str:
    """Return the sentence that a role does not have a permission, and which roles do."""
    *able, last = [other for other in reversed(Role) if permission in PERMISSIONS[other]]
    others = ", ".join(able) + " or " if able else ""
    return f"a token with role {role} may not {_ALLOWS[permission]}; role {others}{last} may"
