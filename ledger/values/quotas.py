"""Quotas: how much of a cohort's budget the rounds of one team may use.

A team's quota in a cohort is a budget with a chain, which has the name `COHORT@team=TEAM`. A round of the
team is charged to its cohorts, and to the quotas of the team in these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.texts import NAME_LENGTH_MAX

TEAM_PATTERN: Final = r"[a-zA-Z0-9]([a-zA-Z0-9 _.:/-]*[a-zA-Z0-9])?"
TEAM_LENGTH_MAX = 60  # characters, so that most names of cohorts leave room for those of their quotas
_MARK: Final = "@team="


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Whose rounds, and in which cohort, a budget is for."""

    cohort: str
    team: str

    def __post_init__(self) -> None:
        """Raise InvalidValue for a team that there cannot be, or a cohort whose name leaves it no room."""
        checked_team(self.team)
        if not has_room(self.cohort, self.team):
            longest = max(NAME_LENGTH_MAX - len(self.name) + len(self.team), 0)
            expected = f"at most {longest} characters, for the cohort's name leaves no more"
            raise InvalidValue(field="team", value=self.team, expected=expected)

    @property
    def name(self) -> str:
        """The name of the quota's chain."""
        return f"{self.cohort}{_MARK}{self.team}"

    @staticmethod
    def names_of(cohort: str) -> tuple[str, str]:
        """Return two names between which, in order of code points, those of a cohort's quotas are."""
        begins = f"{cohort}{_MARK}"
        return begins, begins[:-1] + chr(ord(begins[-1]) + 1)

    def to_mapping(self) -> dict[str, str]:
        """Return the quota as entries and answers spell it."""
        return {"of": self.cohort, "team": self.team}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, str]) -> Quota:
        """Return the quota that a mapping spells; raises KeyError, TypeError, InvalidValue."""
        return cls(cohort=mapping["of"], team=mapping["team"])


def has_room(cohort: str, team: str) -> bool:
    """Return whether a cohort's name leaves room for a team's, so that there can be a quota."""
    return len(cohort) + len(_MARK) + len(team) <= NAME_LENGTH_MAX


def checked_team(value: object) -> str:
    """Return a team's name; raises InvalidValue."""
    if (
        isinstance(value, str)
        and len(value) <= TEAM_LENGTH_MAX
        and re.fullmatch(TEAM_PATTERN, value, re.ASCII)
    ):
        return value
    expected = f"1 to {TEAM_LENGTH_MAX} letters, digits, blanks or _.:/- with letters or digits at both ends"
    raise InvalidValue(field="team", value=value, expected=expected)
