"""The errors of `accounting`: one root class and its subclasses."""

from __future__ import annotations

_SHOWN_MAX = 80  # characters of a refused value in a message; a longer one is cut


class AccountingError(Exception):
    """Root of all errors that `accounting` raises."""


class InvalidParameter(AccountingError, ValueError):
    """A parameter for which there is no sound answer.

    Attributes:
        field: name of the parameter, as users write it.
        value: the given value.
        expected: the accepted values, as a phrase.

    The message is "field: got value, expected ..." unless `message` says it in other words.
    """

    def __init__(self, field: str, value: object, expected: str, message: str | None = None) -> None:
        super().__init__(message or f"{field}: {given_text(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidParameter], tuple[str, object, str, str]]:
        return type(self), (self.field, self.value, self.expected, str(self))


class DamagedPrivacyLoss(AccountingError):
    """Stored bytes of a privacy loss that `to_bytes` did not write."""


def given_text(value: object) -> str:
    """Returns how a message names a refused value: "got 0", "is empty" or "is missing" (None)."""
    if value is None:
        return "is missing"
    if isinstance(value, str) and not value:
        return "is empty"
    text = str(value) if hasattr(value, "isoformat") else repr(value)  # a day or a moment as people write it
    return f"got {text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + '...'}"
