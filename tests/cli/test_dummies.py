"""`amplify --dummies`: reports that the shuffler adds, for one randomizer."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

ASKED = ("amplify", "--reports", "30", "--delta", "1e-3", "--json")


def test_dummies_are_those_of_the_fleet_that_is_written(run: Run) -> None:
    given = run(*ASKED, "--randomizer", "krr(k=3, epsilon0=1)", "--dummies", "20")
    fleet = run(*ASKED, "--randomizer", "mixed((30, krr(k=3, epsilon0=1)), dummies=20)")
    plain = run(*ASKED, "--randomizer", "krr(k=3, epsilon0=1)")
    assert given.code == fleet.code == plain.code == 0
    assert given.json == fleet.json
    assert given.json["epsilon_upper"] < plain.json["epsilon_lower"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--randomizer", "laplace(epsilon0=1)"), "dummies"),
        (("--randomizer", "mixed((30, krr(k=3, epsilon0=1)))"), "--dummies"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--sampled-from", "90"), "sampled_from"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--analysis", "strong-adversary"), "analysis"),
    ],
)
def test_dummies_without_a_proof_are_refused(run: Run, more: tuple[str, ...], named: str) -> None:
    answer = run(*ASKED, "--dummies", "20", *more)
    assert answer.code == 2
    assert named in answer.json["error"]["message"]
