"""The errors of `accounting`: one root class and its subclasses."""

from __future__ import annotations


class AccountingError(Exception):
    """Root of all errors that `accounting` raises."""


class InvalidParameter(AccountingError, ValueError):
    """A parameter for which there is no sound answer.

    Attributes:
        field: name of the parameter, as users write it.
        value: the given value.
        expected: the accepted values, as a phrase.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}: got {_shown(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidParameter], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.expected)


class DamagedPrivacyLoss(AccountingError):
    """Stored bytes of a privacy loss that `to_bytes` did not write."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
