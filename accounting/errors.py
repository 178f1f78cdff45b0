"""What `accounting` raises: one root, few children."""

from __future__ import annotations


class AccountingError(Exception):
    """Root of every error raised by `accounting`."""


class InvalidParameter(AccountingError, ValueError):
    """A value that no sound answer exists for.

    Attributes:
        field: name of the parameter, as users write it.
        value: what was given.
        expected: what would have been accepted, as a phrase.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}: got {_shown(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidParameter], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.expected)


class DamagedPrivacyLoss(AccountingError):
    """Stored bytes of a privacy loss that are not what `to_bytes` wrote."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
