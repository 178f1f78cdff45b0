"""Rehearsals over HTTP: what they refuse, and that a limited token learns nothing from them."""

from __future__ import annotations

from typing import Any

import pytest

from shuffle_ledger.ledger.questions.rounds import REHEARSED_MAX
from tests.api.conftest import ROUND, Server

NEW = {"name": "new", "population": 5000, "epsilon": 1.0, "delta": 1e-6}
OF_PHONES = {"cohort": "phones", **ROUND}


def asked(server: Server, *rounds: dict[str, Any], bearer: str = "admin", **more: Any) -> tuple[int, Any]:
    answer = server.ask("POST", "/v1/rehearsal", bearer=bearer, json={"rounds": [*rounds], **more})
    return answer.status_code, answer.json()


def test_a_rehearsal_is_of_open_and_new_cohorts_together_and_leaves_no_trace(server: Server) -> None:
    heads = server.store.heads()
    both = {"audience": ["phones", "new"], **ROUND}
    status, quotes = asked(server, OF_PHONES, both, opening=[NEW])
    assert (status, [quote["would_be"] for quote in quotes]) == (200, ["admitted", "admitted"])
    assert quotes[1]["audience"] == ["new", "phones"]
    assert server.store.heads() == heads
    # A cohort that is open stays as it is, whatever it would be opened with.
    assert asked(server, OF_PHONES, opening=[{**NEW, "name": "phones", "epsilon": 9.0}]) == asked(
        server, OF_PHONES
    )


def test_a_limited_token_cannot_tell_a_hidden_cohort_from_none(server: Server) -> None:
    server.issue("limited", "reader", cohorts=["phones"])
    hidden, none = ({"cohort": name, **ROUND} for name in ("secret", "nobody"))
    for one, other in (
        (asked(server, each, bearer="limited", **more) for each in (hidden, none))
        for more in ({}, {"opening": [{**NEW, "name": "phones"}]})
    ):
        assert one[0] == other[0] == 404
        assert str(one[1]).replace("secret", "nobody") == str(other[1])
    refused = [
        asked(server, OF_PHONES, bearer="limited", opening=[{**NEW, "name": name}])
        for name in ("secret", "nobody")
    ]
    assert refused[0] == refused[1]
    assert refused[0][0] == 403
    assert asked(server, {"audience": "device=phone", **ROUND}, bearer="limited")[0] == 403
    assert asked(server, OF_PHONES, bearer="limited")[0] == 200


@pytest.mark.parametrize(
    ("rounds", "opening", "said"),
    [
        (REHEARSED_MAX + 1, [], f"at most {REHEARSED_MAX} items"),
        (0, [], "at least 1 item"),
        (1, [{**NEW, "plan": [{**ROUND, "count": 2}]}], "without plan and"),
        (1, [{**NEW, "approximate_share": 0.1}], "without plan and approximate_share"),
        (1, [{**NEW, "name": "new@2026"}], "a name without @"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(
    server: Server, rounds: int, opening: list[dict[str, Any]], said: str
) -> None:
    status, answer = asked(server, *[OF_PHONES] * rounds, opening=opening)
    assert status == (409 if rounds == 1 else 422)
    assert said in str(answer)
