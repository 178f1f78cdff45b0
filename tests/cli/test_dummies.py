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


def test_dummies_without_a_proof_are_refused(run: Run) -> None:
    for more, named in (
        (("--randomizer", "laplace(epsilon0=1)"), "dummies"),
        (("--randomizer", "mixed((30, krr(k=3, epsilon0=1)))"), "--dummies"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--sampled-from", "90"), "sampled_from"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--analysis", "strong-adversary"), "analysis"),
    ):
        answer = run(*ASKED, "--dummies", "20", *more)
        assert answer.code == 2
        assert named in answer.json["error"]["message"]


TARGET = ("--reports", "30", "--epsilon", "1", "--delta", "1e-2", "--json")


@pytest.mark.slow
def test_calibrate_finds_the_dummies_of_one_randomizer_as_those_of_its_fleet(run: Run) -> None:
    given = run("calibrate", "--randomizer", "krr(k=3, epsilon0=2)", "--dummies", *TARGET)
    fleet = run("calibrate", "--randomizer", "mixed((30, krr(k=3, epsilon0=2)))", *TARGET)
    assert given.code == fleet.code == 0
    assert given.json == fleet.json
    assert given.json["parameter"] == "dummies"
    needed = given.json["value"]
    assert given.json["value_beyond"] == needed - 1
    for dummies, is_enough in ((needed, True), (needed - 1, False)):
        asked = ("--randomizer", "krr(k=3, epsilon0=2)", "--dummies", str(dummies))
        alone = run("amplify", "--reports", "30", "--delta", "1e-2", "--json", *asked)
        assert (alone.json["epsilon_upper"] <= 1.0) is is_enough
    said = run("calibrate", "--randomizer", "krr(k=3, epsilon0=2)", "--dummies", *TARGET[:-1]).stdout
    assert f"dummies, at least                         {needed}\n" in said
    assert "by no ledger: it takes one randomizer" in said


def test_calibrate_refuses_dummies_without_a_proof(run: Run) -> None:
    for more, named in (
        (("--randomizer", "krr(k=3)"), "epsilon0"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--policy", "adaptive"), "one randomizer"),
        (("--randomizer", "krr(k=3, epsilon0=1)", "--sampled-from", "90"), "sampled_from"),
    ):
        answer = run("calibrate", "--dummies", *TARGET, *more)
        assert answer.code == 2
        assert named in answer.json["error"]["message"]
