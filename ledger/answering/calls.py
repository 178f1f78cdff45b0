"""Calls: who asks and what answers; what a caller may see; and which function answers which operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.decisions.audiences import resolve_audience
from shuffle_ledger.ledger.decisions.outcomes import cohorts_of
from shuffle_ledger.ledger.errors import InvalidValue, NoCohort, NotAllowed, NotFound
from shuffle_ledger.ledger.operations import Operation
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.rows import StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.texts import checked_text

Answer = TypeVar("Answer")
ThreadName: TypeAlias = Literal["deciding", "pricing", "calculating", "auditing"]  # see `Service`
Place: TypeAlias = "ThreadName | Callable[[Any], ThreadName] | None"
Function: TypeAlias = "Callable[[Call, Any], Answer]"


def silent(_step: str, _done: int, _of: int) -> None:
    """Do nothing: the caller asked for no progress."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One question to the ledger: who asks it, and what answers it."""

    store: Store
    settings: Settings
    actor: str
    team: str | None
    token: AccessToken | None = None  # None: the caller opened the database, and sees everything
    computing: Accountant | None = None  # None: the function was given no thread
    progress: Callable[[str, int, int], None] = silent

    @property
    def accountant(self) -> Accountant:
        """What computes the answer."""
        if self.computing is None:
            raise AssertionError("this function computes: it needs a thread with an accountant")
        return self.computing

    @property
    def cohorts(self) -> tuple[str, ...] | None:
        """The cohorts that the caller is limited to; None: there is no limit."""
        return None if self.token is None else self.token.cohorts

    def sees(self, cohort: str) -> bool:
        """Return whether the caller may know of a cohort."""
        return self.token is None or self.token.sees(cohort)

    def cohort(self, name: str) -> str:
        """Return a cohort's name if the caller sees it; raises NotFound."""
        return name if self.token is None else seen_name(self.token, name)

    def named(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return cohorts that the caller sees, each once; None: all. Raises NotFound, NotAllowed."""
        if names is None:
            self.about_all()
        return None if names is None else tuple(dict.fromkeys(map(self.cohort, names)))

    def about_all(self) -> None:
        """Raise NotAllowed for a caller that does not see every cohort."""
        if self.token is not None:
            refuse_limited(self.token)

    def round(self, round_id: str) -> str:
        """Return a round's identifier if the caller sees all of its cohorts; else NotFound, as if it did not
        exist."""
        if self.token is None:
            return round_id
        try:
            round_id = checked_text("round_id", round_id)
        except InvalidValue:
            raise NotFound(f"no round {round_id!r}") from None
        if not sees_round(self.token, self.store.round(round_id)):
            raise NotFound(f"no round {round_id!r}")
        return round_id

    def audience(self, audience: str | Sequence[str], *, round_id: str | None = None) -> tuple[str, ...]:
        """Return the cohorts that an audience means, if the caller sees all of them; else NotFound.

        Raises:
            NotAllowed: a selector, which is about every cohort, and the token is limited to some.
            InvalidValue: as `resolve_audience`.
        """
        if isinstance(audience, str) and "=" in audience:
            self.about_all()
        names = resolve_audience(self.store, audience, round_id=round_id)
        if self.token is None:
            return names
        return tuple(
            cohort.name for cohort in self.store.cohorts_named([self.cohort(each) for each in names])
        )


def refuse_limited(token: AccessToken) -> None:
    """Raise NotAllowed for a token that does not see every cohort, for what is about all of them."""
    if token.cohorts is not None:
        raise NotAllowed("this is about every cohort, and the token is limited to some")


def seen_name(token: AccessToken, name: str) -> str:
    """Return a cohort's name if the token sees it; else NotFound, exactly as if it did not exist."""
    try:
        name = checked_text("cohort", name)
    except InvalidValue:
        raise NoCohort(name) from None
    if not token.sees(name):
        raise NoCohort(name)
    return name


def sees_round(token: AccessToken, stored: StoredRound) -> bool:
    """Return whether a token sees every cohort of a round."""
    return all(map(token.sees, cohorts_of(stored)))


_FUNCTIONS: dict[str, tuple[Function[Any], Place]] = {}


def answers(
    operation: Operation[..., Answer], *, at: Place = None
) -> Callable[[Function[Answer]], Function[Answer]]:
    """Return a decorator of the function that answers an operation.

    `at`: the thread of a server on which it gets an accountant, or which one for a question; None: it
    computes nothing.
    """

    def kept(function: Function[Answer]) -> Function[Answer]:
        _FUNCTIONS[operation.name] = function, at
        return function

    return kept


def answer_to(operation: Operation[..., Answer]) -> tuple[Function[Answer], Place]:
    """Return the function that answers an operation, and its thread; imports the module of its tag."""
    import_module(f"shuffle_ledger.ledger.answering.{operation.tag}")
    return _FUNCTIONS[operation.name]
