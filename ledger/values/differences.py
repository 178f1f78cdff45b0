"""How a request differs from what its identifier is bound to, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shuffle_ledger import accounting
from shuffle_ledger.accounting import AccountingError, exact_text
from shuffle_ledger.ledger.errors import Difference, OtherContent
from shuffle_ledger.ledger.values.documents import document_of
from shuffle_ledger.ledger.values.requests import DECLARED, Cohort, RoundRequest

_SHOWN_MAX = 120  # characters of a value in a message; a longer one is cut
# Named by the message itself, or following from the other fields.
_STATED = ("name", "population", "epsilon_budget", "delta_budget", "policy")  # beside what is declared
_FIXED = ("version", "round_id", "windows", "quotas")


def other_round(stored: RoundRequest, given: RoundRequest) -> OtherContent:
    """Return the error of a round whose identifier is bound to other content: it names what differs.

    The caller decides who may see it: it shows what is stored.
    """
    what = f"round {stored.round_id!r} was registered with other content"
    return other_content(what, _of_round(stored), _of_round(_as_bound(given, stored)))


def other_cohort(stored: Cohort, given: Cohort, *, declared: bool = True) -> OtherContent:
    """Return the error of a cohort that was opened with other parameters; labels and windows are compared if
    `declared`."""
    what = f"cohort {stored.name!r} exists with other parameters"
    return other_content(what, _of_cohort(stored, declared), _of_cohort(given, declared))


def is_same(stored: Cohort, given: Cohort) -> bool:
    """Return whether a cohort was opened with the same values, or its budget changed to the same since."""
    return all(getattr(stored, name) == getattr(given, name) for name in (*_STATED, *DECLARED))


def check_same(stored: Cohort, given: Cohort) -> None:
    """Raise OtherContent for a cohort that was opened with other values."""
    if not is_same(stored, given):
        raise other_cohort(stored, given)


def other_content(what: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> OtherContent:
    """Return the error whose message is `what` and each field that differs; fields hold JSON values."""
    found = tuple(
        Difference(field=name, stored=stored.get(name), given=given.get(name))
        for name in dict.fromkeys((*stored, *given))
        if stored.get(name) != given.get(name)
    )
    each = "; ".join(f"{one.field}: stored {_shown(one.stored)}, given {_shown(one.given)}" for one in found)
    return OtherContent(f"{what}: {each}" if each else what, differences=found)


def _of_round(request: RoundRequest) -> dict[str, Any]:
    fields = {name: value for name, value in request.to_mapping().items() if name not in _FIXED}
    described: Mapping[str, Any] = fields.pop("round")
    cohorts = {"audience": list(request.audience)} if request.audience else {"cohort": request.cohort}
    return {**fields, "cohort": None, **cohorts, **described}


def _as_bound(given: RoundRequest, stored: RoundRequest) -> RoundRequest:
    """Return a request with what it leaves to the registration: days, and the words of older records."""
    return given.placed_as(stored)


def _of_cohort(cohort: Cohort, declared: bool) -> dict[str, Any]:  # noqa: FBT001 - private, of two callers
    stated = {
        "population": cohort.population,
        "epsilon": cohort.epsilon_budget if cohort.has_life else None,
        "delta": cohort.delta_budget if cohort.has_life else None,
        "policy": cohort.policy,
    }
    more = {
        "labels": dict(cohort.labels),
        "windows": [window.to_mapping() for window in cohort.windows],
        "ceiling": cohort.ceiling,
        "local_budget": cohort.local_budget,
        "rounds_per_user": cohort.rounds_per_user,
    }
    return {**stated, **(more if declared else {})}


def _shown(value: object) -> str:
    """Return a stored or given value as people write it."""
    if value is None or value in ([], {}):
        return "nothing"
    if isinstance(value, Mapping) and "kind" in value:
        try:
            return accounting.parse_randomizer(value).describe()
        except AccountingError:
            pass
    if isinstance(value, float):
        return exact_text(value)
    text = value if isinstance(value, str) else json.dumps(document_of(value), ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
