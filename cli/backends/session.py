"""Opens what commands on a database work with: settings, store, accountant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.errors import NoCohort
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Store


@dataclass(frozen=True, kw_only=True)
class Session:
    """One command's view of the ledger."""

    settings: Settings
    store: Store
    accountant: Accountant


@contextmanager
def open_session(settings: Settings) -> Iterator[Session]:
    """Opens the ledger of `settings` and closes it again; raises SchemaError when it is not initialised.

    An error about a cohort that there is not gets the name that was meant.
    """
    with Store.of(settings) as store:
        try:
            yield Session(settings=settings, store=store, accountant=Accountant(precision=settings.precision))
        except NoCohort as error:
            raise error.among(each.name for each in store.cohorts(parts=False)) from error
