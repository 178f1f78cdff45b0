"""Cohorts as they are listed and shown: with their promises, openings and plans."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_ledger.ledger.answers.budgets import Closure, PromiseReading, SlotReading
from shuffle_ledger.ledger.values.requests import Cohort


@dataclass(frozen=True, kw_only=True)
class ListedCohort(Cohort):
    """A cohort, and what is used and left of its promises."""

    promises: tuple[PromiseReading, ...] = ()  # that a round collected today is charged to


@dataclass(frozen=True, kw_only=True)
class ShownCohort(Cohort):
    """A cohort with how often it was opened, and what is free of its plan if it has one."""

    openings: int = 1  # one more for each time that it was opened again; the last one is in force
    slots: tuple[SlotReading, ...] = ()  # of policy plan: what was declared, and what of it is taken
    closure: Closure | None = None  # None: it is not closed
