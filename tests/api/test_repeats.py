"""A repeated registration over HTTP answers with the round's present state, to the client too."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from tests.api.conftest import Server

TYPE = "urn:shuffle-ledger:problem:not_collectable"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "state"),
    [("void", {"reason": "the job failed"}, "voided"), ("settle", {"reports": 1000}, "settled")],
)
def test_a_closed_round_is_never_admitted_again(
    server: Server, path: str, body: dict[str, object], state: str
) -> None:
    assert server.register("week1").status_code == 201
    assert server.register("week1").status_code == 201  # a lost answer, asked for again
    assert server.ask("POST", f"/v1/rounds/week1/{path}", bearer="registrar", json=body).status_code == 200
    for again in (
        server.register("week1"),
        server.ask("POST", "/v1/rounds/week1/retry", bearer="registrar"),
    ):
        said = again.json()
        assert (again.status_code, said["type"], said["state"]) == (409, TYPE, state)
        assert (said["round_id"], said["cohort_status"]) == ("week1", "open")
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=1000)
    with LedgerClient(server.url, server.tokens["registrar"]) as client:
        request = RoundRequest(round_id="week1", cohort="phones", round=shuffled)
        with pytest.raises(NotCollectable) as found:
            client.register(request)
        assert (found.value.round_id, found.value.state, found.value.cohort_status) == (
            "week1",
            state,
            "open",
        )
        with pytest.raises(NotCollectable, match="week1"):
            client.retry("week1")
        other = RoundRequest(round_id="week2", cohort="phones", round=shuffled)
        assert isinstance(client.register(other), Admitted)
