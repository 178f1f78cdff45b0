"""The shape of an entry: which fields its body has, at every level, and what may stand in each.

`docs/bundle-format.md` lists every field; a test compares that list with the entries a ledger writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, Final

from shuffle_ledger.accounting import InvalidParameter
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.machine import Cost
from shuffle_ledger.ledger.policies.numbers import is_spelled
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import (
    NOTHING_LATER,
    VOID_ATTESTATION,
    RefusalReason,
    ReleaseTimes,
    RoundRequest,
)
from shuffle_ledger.ledger.values.round_parameters import is_round_spelled

_OF_ROUNDS: Final = (
    EntryKind.ADMITTED,
    EntryKind.REFUSED,
    EntryKind.SETTLED,
    EntryKind.VOIDED,
    EntryKind.CORRECTED,
    EntryKind.INCIDENT,
)
_DECISION: Final = frozenset(
    {"request", "accounted", "requested", "privacy_loss", "registration", "registered_at"}
)
# Fields of `details`, beside `standing`, which every entry has. Openings are compared whole.
_FIELDS: Final[Mapping[EntryKind, frozenset[str]]] = {
    EntryKind.ADMITTED: _DECISION | {"cost", "charge"},
    EntryKind.REFUSED: _DECISION | {"reason", "message"},
    EntryKind.SETTLED: frozenset({"reports", "accounted_before", "accounted", "privacy_loss", "overspent"})
    | {"cost", "charge"},
    EntryKind.VOIDED: frozenset({"reason", "attestation", "accounted", "charge"}),
    EntryKind.BUDGET_CHANGED: frozenset({"reason", "epsilon_before"}),
    EntryKind.CLOSED: frozenset({"reason"}),
    EntryKind.CORRECTED: frozenset(
        {"round", "reason", "accounted_before", "accounted", "privacy_loss", "overspent"}
    ),
    EntryKind.INCIDENT: frozenset(
        {"request", "registration", "registered_at", "registered_by", "round", "released", "reason"}
        | {"accounted", "privacy_loss", "chosen_after", "overspent"}
    ),
    EntryKind.FROZEN: frozenset({"reason", "checkpoint", "nothing_later", "last_known"}),
}
# Fields that entries may have.
_OPTIONAL: Final[Mapping[EntryKind, frozenset[str]]] = {
    EntryKind.REFUSED: frozenset({"refused_by", "cost", "charge"}),
    # A frozen cohort records releases without charging them; no cost bounds an early incident.
    EntryKind.CORRECTED: frozenset({"cost", "charge"}),
    EntryKind.INCIDENT: frozenset({"cost", "charge"}),
}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CAUSES = ("discretization", "truncation", "round_off")
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    InvalidParameter,
    LedgerError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def misshapen(body: EntryBody) -> Iterator[str]:
    """Yield what no ledger writes into an entry: names, types, spellings."""
    yield from _head(body)
    yield from _spending("spent", body.spent.to_mapping(), body.delta_budget)
    details = body.details
    if not isinstance(details, Mapping):
        yield "its details are none"
        return
    if body.kind is not EntryKind.OPENED:
        expected, optional = _FIELDS[body.kind] | {"standing"}, _OPTIONAL.get(body.kind, frozenset())
        yield from _names("details", details, expected, optional)
    for name in sorted(details.keys() & _CHECKS.keys()):
        if not _holds(_CHECKS[name], details[name]):
            yield f"details.{name} is not written as ledgers write it"
    if isinstance(details.get("requested"), Mapping):
        yield from _spending("details.requested", details["requested"], body.delta_budget)
    if body.kind is EntryKind.CORRECTED and details.get("round", ...) is None:
        yield "it corrects a round and does not say to what"


def _head(body: EntryBody) -> Iterator[str]:
    values: dict[str, Any] = dict(vars(body))
    if type(values["sequence"]) is not int:
        yield "its sequence is no whole number"
    if not isinstance(values["round_id"], str if body.kind in _OF_ROUNDS else NoneType):
        yield "it names a round where it is about the cohort, or none where it is about a round"
    if not _is_text(values["actor"]):
        yield "it does not name who acted"
    if (values["epsilon_budget"], values["delta_budget"]) == (math.inf, 1.0):
        return  # of a cohort without a budget of its life
    for name, ceiling in (("epsilon_budget", math.inf), ("delta_budget", 1.0)):
        value = values[name]
        if type(value) is not float or not 0 < value < ceiling:
            yield f"its {name} is none"


def written_moment(value: object) -> datetime | None:
    """Return the moment that a text is the one spelling of, in UTC with microseconds; None if of none."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    is_spelled = moment.tzinfo is not None and value == canonical.spelled_moment(moment)
    return moment if is_spelled else None


def _spending(place: str, fields: Mapping[str, Any], delta: object) -> Iterator[str]:
    names = {"epsilon_upper", "epsilon_lower", "delta", "rounds", "method", *_CAUSES}
    if set(fields) != names:
        yield from _names(place, fields, frozenset(names), frozenset())
        return
    if not all(_is_bound(fields[name]) for name in ("epsilon_upper", "epsilon_lower", *_CAUSES)):
        yield f"{place}: its numbers are none that could be bounds"
    elif not fields["epsilon_lower"] <= fields["epsilon_upper"]:
        yield f"{place}: its lower bound is above its upper one"
    if type(fields["delta"]) is not float or fields["delta"] != delta:
        yield f"{place}: it is at another delta than the budget's"
    if not _is_count(fields["rounds"]) or not isinstance(fields["method"], str):
        yield f"{place}: its number of rounds or its method is none"


def _names(
    place: str, fields: Mapping[str, Any], required: frozenset[str], optional: frozenset[str]
) -> Iterator[str]:
    missing, unknown = sorted(required - fields.keys()), sorted(fields.keys() - required - optional)
    if missing:
        yield f"{place} lacks {', '.join(missing)}"
    if unknown:
        yield f"{place} has fields that no version writes: {', '.join(unknown)[:200]}"


def _holds(check: Callable[[Any], bool], value: object) -> bool:
    try:
        return check(value)
    except _UNREADABLE:
        return False


def is_as_written(value: object, again: object) -> bool:
    """Whether a value is spelled as `again`."""
    if isinstance(value, Mapping) and isinstance(again, Mapping):
        return value.keys() == again.keys() and all(
            is_as_written(each, again[name]) for name, each in value.items()
        )
    if isinstance(value, list | tuple) and isinstance(again, list | tuple):
        return len(value) == len(again) and all(map(is_as_written, value, again))
    return type(value) is type(again) and value == again


def differing(place: str, value: object, again: object) -> Iterator[str]:
    """Yield which part of an entry is not spelled as it is when the machine says it again: the first one.

    Args:
        place: of the part.
        value: as the entry spells it.
        again: as it follows from the entries before it.
    """
    if canonical.memo_key(value) == canonical.memo_key(again) or is_as_written(value, again):
        return
    while isinstance(value, Mapping) and isinstance(again, Mapping):
        names = sorted({*value, *again})
        wrong = (name for name in names if not is_as_written(value.get(name), again.get(name)))
        name = next(wrong, None)
        if name is None:
            break  # one of them lacks what is null in the other
        place, value, again = f"{place}.{name}", value.get(name), again.get(name)
    yield f"{place} does not follow from the entries before it"


def _is_round(value: Any) -> bool:
    return is_round_spelled(value)


def _is_request(value: Any) -> bool:
    if not _is_round(value["round"]):
        return False
    beside = {name: each for name, each in value.items() if name != "round"}
    # All of these are texts, lists of texts or null, but for the version, whose type `from_mapping` checks.
    return bool(beside == RoundRequest.from_mapping(value).beside_round())


def _are_refusals(value: Any) -> bool:
    names = {"reason", "epsilon_spent_upper", "epsilon_requested_upper", "epsilon_budget", "delta_budget"}
    return bool(value) and all(
        isinstance(cohort, str)
        and set(numbers) == names
        and RefusalReason(numbers["reason"]) is not RefusalReason.REFUSED_ELSEWHERE
        and all(each is None or type(each) is float for name, each in numbers.items() if name != "reason")
        for cohort, numbers in value.items()
    )


def _is_cost(value: Any) -> bool:
    return is_spelled(Cost, value)


def _is_bound(value: Any) -> bool:
    return type(value) is float and value >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_last_known(value: Any) -> bool:
    if value is None:
        return True
    return (
        set(value) == {"sequence", "digest"} and _is_number(value["sequence"]) and _is_digest(value["digest"])
    )


def _are_times(value: Any) -> bool:
    spelled = all(text is None or written_moment(text) is not None for text in value.values())
    return spelled and ReleaseTimes.from_mapping(value).to_mapping() == value


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "request": _is_request,
    "accounted": _is_round,
    "accounted_before": _is_round,
    "requested": lambda value: value is None or isinstance(value, Mapping),
    "privacy_loss": lambda value: value is None or _is_digest(value),
    "registration": _is_number,
    "registered_at": lambda value: written_moment(value) is not None,
    "reason": _is_text,
    "message": _is_text,
    "reports": _is_number,
    "overspent": lambda value: type(value) is bool,
    "attestation": lambda value: value == VOID_ATTESTATION,
    "epsilon_before": lambda value: type(value) is float,
    "checkpoint": _is_digest,
    "nothing_later": lambda value: value in (None, NOTHING_LATER),
    "last_known": _is_last_known,
    "cost": _is_cost,
    "refused_by": _are_refusals,
    "round": lambda value: value is None or _is_round(value),
    "released": _are_times,
    "registered_by": _is_text,
    "chosen_after": lambda value: type(value) is bool,
}
