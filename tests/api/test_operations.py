"""The table of operations: every row is answered in one place, and questions arrive as they were sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shuffle_ledger.ledger.answering.calls import answer_to
from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.api.reference import description
from shuffle_ledger.ledger.api.routes import read
from shuffle_ledger.ledger.api.served import SERVED
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.operations import CHANGE_BUDGET, CORRECT, OPERATIONS, SHOW_COHORT, Operation
from shuffle_ledger.ledger.questions.cohorts import ChangeBudget, OfCohort
from shuffle_ledger.ledger.questions.rounds import CorrectRound

NAMES = {"cohort": "a/b", "round_id": "r 1", "team": "ads"}


def _elsewhere(operation: Operation[..., Any]) -> dict[str, Any]:
    return {name: NAMES[name] for name, place in operation.places.items() if place == "path"}


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.has_body], ids=lambda each: str(each.name)
)
def test_a_question_arrives_as_it_was_sent(operation: Operation[..., Any]) -> None:
    schema = description()["components"]["schemas"][operation.question.__name__]
    elsewhere = _elsewhere(operation)
    asked = read(operation.question, schema["examples"][0], elsewhere, elsewhere)
    sent = json.loads(json.dumps(operation.request(asked)["body"]))
    assert read(operation.question, sent, elsewhere, elsewhere) == asked
    assert not sent.keys() & elsewhere.keys()
    assert None not in sent.values()  # what a program leaves out is not sent


def test_every_operation_is_answered_in_one_place() -> None:
    for operation in OPERATIONS:
        try:
            function, _ = answer_to(operation)
        except (KeyError, ModuleNotFoundError):
            assert operation.name in SERVED, operation.name
        else:
            assert function.__name__.strip("_") == operation.function
    assert SERVED.keys() <= {each.name for each in OPERATIONS}
    assert (
        len({each.name for each in OPERATIONS})
        == len({each.address for each in OPERATIONS})
        == len(OPERATIONS)
    )


def test_a_correction_tells_what_is_null_from_what_is_left_out() -> None:
    elsewhere = {"round_id": "r"}
    written = {"sampled_from": None, "delta0": None, "reports": 7, "reason": "miscounted"}
    asked = read(CorrectRound, written, elsewhere, elsewhere)
    assert asked.changes() == {"sampled_from": None, "reports": 7}
    sent = CORRECT.request(CorrectRound.of("r", asked.changes(), reason="miscounted"))
    assert sent["body"] == {"sampled_from": None, "reports": 7, "reason": "miscounted"}


def test_a_question_that_cannot_be_asked_is_not_sent() -> None:
    for asked in (ChangeBudget("a", epsilon=-1.0, reason="why"), ChangeBudget("a", epsilon=1.0, reason=" ")):
        with pytest.raises(InvalidValue):
            CHANGE_BUDGET.request(asked)
    with pytest.raises(InvalidValue):
        SHOW_COHORT.request(OfCohort(""))
    assert SHOW_COHORT.request(OfCohort("..%/ü"))["path"] == "cohorts/..%25%2F%C3%BC"
    assert SHOW_COHORT.request(OfCohort(".."))["path"] == "cohorts/%2E%2E"


def test_strangers_may_ask_what_needs_no_permission_and_nothing_else() -> None:
    paths = {path for row in OPERATIONS if row.permission is None for path in row.paths}
    assert paths == {
        *("/healthz", "/readyz", "/v1/healthz", "/v1/readyz"),
        *("/.well-known/jwks.json", "/v1/permits/keys", "/v1/permits/revoked"),
    }
    assert paths < OPEN_PATHS
