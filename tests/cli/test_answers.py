"""Every command's answer: its fields, its exit code, one strict JSON value, nothing beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from shuffle_ledger.accounting import Accountant, Certificate, ErrorBudget, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.commands.amplify import certificate_facts
from shuffle_ledger.cli.rendering.present import Bar, document_of, lower, upper
from shuffle_ledger.ledger.answers.calculations import composition
from tests.cli.conftest import ROUND, Run

KRR = "krr(k=10, epsilon0=1.15)"
INTERVAL = {"epsilon_upper", "epsilon_lower", "delta", "rounds", "error", "precise", "method"}


def test_amplify_bounds_epsilon_at_the_delta_that_was_asked(run: Run) -> None:
    answer = run("amplify", "--randomizer", KRR, "--reports", "1000", "--delta", "1e-6", "--json").json
    assert set(answer) == INTERVAL | {
        "attack_epsilon_lower",
        "attack_known",
        "analysis",
        "round",
    }
    assert answer["delta"] == 1e-6
    assert 0.99 * answer["epsilon_lower"] < answer["attack_epsilon_lower"] <= answer["epsilon_upper"]
    assert answer["epsilon_lower"] <= 0.1005
    assert 0.0995 <= answer["epsilon_upper"] < 0.11
    assert answer["round"]["randomizer"] == {"kind": "krr", "k": 10, "epsilon0": 1.15}
    assert answer["round"]["analysis"] == "blanket"


def test_closed_forms_are_shown_where_they_are_asked_for(run: Run) -> None:
    asked = ("amplify", "--randomizer", KRR, "--reports", "100000", "--compare")
    answer = run(*asked, "--delta", "1e-6", "--json").json
    shown = {one["name"]: one for one in answer["comparison"]}
    assert shown["clones"]["epsilon_upper"] > shown["clones, krr"]["epsilon_upper"] > answer["epsilon_upper"]
    assert shown["first"]["epsilon_upper"] is None
    assert "epsilon0 < 0.5" in shown["first"]["condition"]
    text = run(*asked, "--delta", "1e-6").stdout
    assert "Feldman, McMillan, Talwar (2021), Theorem 3.1" in text
    assert run(*asked, "--epsilon", "0.1").code == 2


@pytest.mark.slow
def test_a_joint_is_bounded_by_attribute_where_it_is_asked_for(run: Run) -> None:
    written = "joint(krr(k=4, epsilon0=1), blh(epsilon0=2))"
    asked = ("amplify", "--randomizer", written, "--reports", "10000", "--delta", "1e-6")
    answer = run(*asked, "--attributes", "--json").json
    first, second = answer["attributes"]
    assert first["randomizer"] == {"kind": "krr", "k": 4, "epsilon0": 1.0}
    assert (
        first["epsilon_lower"] <= first["epsilon_upper"] < second["epsilon_upper"] < answer["epsilon_upper"]
    )
    assert "if only attribute 2 differs, epsilon, at most" in run(*asked, "--attributes").stdout
    assert "attributes" not in run(*asked, "--json").json
    alone = ("amplify", "--randomizer", KRR, "--reports", "10000", "--delta", "1e-6", "--attributes")
    assert run(*alone).code == 2


@pytest.mark.slow
def test_protocols_say_what_a_third_of_honest_users_leaves(run: Run) -> None:
    protocol = ("amplify", "--randomizer", "binomial_sum(p=0.25)", "--delta", "1e-3", "--json")
    answer = run(*protocol, "--reports", "100", "--honest-fraction", "0.9").json
    found = answer["one_third_honest"]
    fewer = run(*protocol, "--reports", "33").json
    assert (found["honest_reports"], found["delta_upper"]) == (33, 1e-3)
    assert found["epsilon_upper"] == fewer["epsilon_upper"] > answer["epsilon_upper"]
    assert "one_third_honest" not in run(*protocol, "--reports", "2").json
    people = run(*protocol[:-1], "--reports", "100").stdout
    assert "1/3)-robustly shuffle private" in people
    assert "pan-private for a stream of 33 values" in " ".join(people.split())


@pytest.mark.slow
def test_a_renyi_divergence_is_bounded_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    """Of two rounds twice that of one; of order 1, what the library says."""
    asked = ("--delta", "1e-6", "--renyi")
    one = run("amplify", "--randomizer", KRR, "--reports", "1000", *asked, "1", "--json").json["renyi"]
    shuffled = ShuffledRound(randomizer=parse_randomizer(KRR), reports=1000)
    bound = Accountant().renyi_divergence({shuffled: 1}, order=1.0)
    assert one == {"order": 1.0, "upper": bound.upper, "lower": bound.lower}
    file = tmp_path / "rounds.csv"
    file.write_text(f'randomizer,reports,count\n"{KRR}",1000,2\n')
    two = run("compose", str(file), *asked, "1", "--json").json["renyi"]
    assert two["upper"] == pytest.approx(2 * one["upper"])
    assert two["lower"] == pytest.approx(2 * one["lower"])
    assert "Renyi divergence of order 2.5, at most" in run("compose", str(file), *asked, "2.5").stdout
    assert run("compose", str(file), *asked, "0").code == 2
    sure = ("--randomizer", "table([[1, 0], [0.5, 0.5]])", "--reports", "10")
    certain = run("amplify", *sure, "--delta", "0.4", "--renyi", "2", "--json").json
    assert certain["renyi"]["upper"] is None
    assert certain["attack_epsilon_lower"] is certain["epsilon_lower"] is certain["epsilon_upper"] is None
    assert certain["precise"]
    assert certain["attack_known"]  # it is unbounded
    declared = ("--randomizer", "declared(epsilon=1)", "--reports", "10")
    unknown = run("amplify", *declared, "--delta", "1e-6", "--json").json
    assert unknown["attack_epsilon_lower"] is None
    assert not unknown["attack_known"]


@pytest.mark.parametrize(
    ("randomizer", "options"),
    [
        ("local_gaussian(sigma=4, delta0=2e-10)", ("--analysis", "clone")),
        ("joint(generic(epsilon0=0.5), krr(k=10, epsilon0=1))", ()),
    ],
)
def test_no_attack_on_another_randomizer_is_shown(
    run: Run, randomizer: str, options: tuple[str, ...]
) -> None:
    asked = ("amplify", "--randomizer", randomizer, "--reports", "1000", *options, "--delta", "1e-6")
    answer = run(*asked, "--json").json
    assert answer["attack_epsilon_lower"] is None
    assert answer["attack_known"] is False
    assert "no attack is known" in run(*asked).stdout


@pytest.mark.slow
def test_the_width_is_what_was_asked_or_the_answer_says_so(run: Run) -> None:
    round_ = ("--randomizer", "krr(k=10, epsilon0=1.15)", "--reports", "1000", "--delta", "1e-6")
    wide, narrow = (run("amplify", *round_, "--precision", p, "--json").json for p in ("0.05", "1e-5"))
    assert wide["precise"]
    assert narrow["precise"]
    assert narrow["epsilon_upper"] - narrow["epsilon_lower"] <= 1e-5 * narrow["epsilon_upper"]
    assert run("amplify", *round_, "--precision", "0.2", "--json").code == 2
    certificate = Certificate(
        epsilon_upper=2.0,
        epsilon_lower=1.0,
        delta_upper=1e-6,
        delta_lower=1e-6,
        rounds=1,
        error=ErrorBudget(discretization=1.0, truncation=0.0, round_off=0.0),
        precise=False,
    )
    assert "wider than asked" in str(certificate_facts(certificate, of="epsilon"))
    assert composition([], certificate, of="epsilon").precise is False


def test_an_infinite_bound_is_null(run: Run) -> None:
    failing = (
        "--randomizer",
        "generic(epsilon0=1)",
        "--analysis",
        "clone",
        "--reports",
        "100",
        "--delta0",
        "1e-3",
    )
    answer = run("amplify", *failing, "--delta", "1e-6", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.json["epsilon_upper"] is None
    assert "unbounded" in run("amplify", *failing, "--delta", "1e-6").stdout


def test_json_is_strict_and_floats_survive() -> None:
    values = [math.inf, 0.1 + 0.2, 5e-324, 1e300]
    assert json.loads(json.dumps(document_of(values), allow_nan=False)) == [None, *values[1:]]
    with pytest.raises(TypeError, match="NaN"):
        document_of({"epsilon_upper": math.nan})


def test_people_read_bounds_that_are_bounds() -> None:
    assert float(upper(1.9999999)) >= 1.9999999
    assert float(lower(1.0000001)) <= 1.0000001
    assert Bar(fraction=0.999, width=10).cells(99).count("█") == 9
    assert Bar(fraction=1.0, width=10).cells(99).count("█") == 10


def test_compose_reads_json_lines_as_it_reads_csv(run: Run, empty_directory: Path) -> None:
    comma, lines = empty_directory / "rounds.csv", empty_directory / "rounds.jsonl"
    comma.write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",1000,2\n')
    lines.write_text(
        '\n{"randomizer": {"kind": "krr", "k": 2, "epsilon0": 0.5}, "reports": 1000}\n'
        '{"randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000, "use_case": null}\n'
    )
    first, second = (run("compose", str(file), "--delta", "1e-6", "--json").stdout for file in (comma, lines))
    assert first == second


def test_a_cohort_is_opened_again_until_a_round_is_decided_and_closed_for_ever(phones: Run) -> None:
    order = ("cohort", "open", "phones", "--population", "90000", "--epsilon", "1", "--delta", "1e-6")
    assert phones(*order, "--json").json["population"] == 90_000
    assert phones("cohort", "show", "phones", "--json").json["openings"] == 2
    assert phones("round", "register", "phones", "--id", "first", *ROUND).code == 0
    answer = phones(*order[:4], "80000", *order[5:], "--json")
    assert answer.code == 5
    assert answer.json["error"]["kind"] == "conflict"
    closed = phones("cohort", "close", "phones", "--reason", "withdrawn", "--json")
    assert (closed.code, closed.json["status"]) == (0, "closed")
    refused = phones("round", "register", "phones", "--id", "second", *ROUND, "--json")
    assert (refused.code, refused.json["reason"]) == (3, "cohort_closed")
    again = phones(*order)
    assert (again.code, "withdrawn" in again.stdout) == (0, True)
    said = " ".join(phones("budget", "phones").stdout.split())
    assert "still fits nothing: the cohort is closed" in said
    assert phones("audit", "verify").code == 0


def test_an_id_is_one_id_however_its_accents_are_written(phones: Run) -> None:
    composed, decomposed = "\u00e9t\u00e9", "e\u0301te\u0301"
    round_ = ("--randomizer", "krr(k=4, epsilon0=1)", "--reports", "5000", "--json")
    first = phones("round", "register", "phones", "--id", decomposed, *round_)
    second = phones("round", "register", "phones", "--id", composed, *round_)
    assert (first.code, second.code) == (0, 0)
    assert first.json == second.json
    assert first.json["round_id"] == composed


def test_the_list_of_cohorts_says_which_budget_is_nearly_used_up(phones: Run) -> None:
    assert phones("cohort", "list").stdout.split()[-1] == "open"
    strong = ("--randomizer", "krr(k=2, epsilon0=0.95)", "--reports", "2")
    assert phones("round", "register", "phones", "--id", "strong", *strong).code == 0
    assert phones("cohort", "list").stdout.strip().endswith("adaptive  nearly used up")
    assert phones("cohort", "list", "--json").json[0]["status"] == "open"  # for programs, as the chain says


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_error_is_one_line_unless_debugging(
    phones: Run, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    import shuffle_ledger.cli.commands.cohort

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fuse blew\nand more")

    monkeypatch.setattr(shuffle_ledger.cli.commands.cohort, "open_ledger", broken)
    answer = phones("cohort", "list", *(["--debug"] if debug else []))
    assert answer.code == 1
    assert ("Traceback" in answer.stderr) is debug
    assert answer.stderr.endswith("shuffle-ledger: a fuse blew\n")


@pytest.mark.slow
def test_calibrate_says_which_policy_admits_the_rounds(run: Run) -> None:
    rounds = ("--randomizer", "krr(k=10)", "--reports", "1000", "--rounds", "2", "--precision", "0.01")
    target = ("--epsilon", "0.2", "--delta", "1e-6")
    composed = run("calibrate", *rounds, *target, "--json").json
    adaptive = run("calibrate", *rounds, *target, "--policy", "adaptive", "--json").json
    assert (composed["policy"], adaptive["policy"]) == ("composition", "adaptive")
    assert composed["accounted"]["reports"] <= 1000
    assert 0.1 < composed["epsilon_decided_upper"] <= 0.2
    run("init")
    run("cohort", "open", "phones", "--population", "1000", *target)
    within = run("calibrate", *rounds, "--cohort", "phones", "--json").json
    assert (within["cohort"], within["policy"]) == ("phones", "adaptive")
    assert within["epsilon0"] == pytest.approx(adaptive["epsilon0"], rel=0.02)
    assert "within what cohort phones has left" in run("calibrate", *rounds, "--cohort", "phones").stdout
    for number in range(2):
        asked = ("--randomizer", f"krr(k=10, epsilon0={within['epsilon0']!r})", "--reports", "1000")
        assert run("round", "register", "phones", "--id", f"r{number}", *asked).code == 0
    assert run("calibrate", *rounds, "--cohort", "nobody").code == 4
    for wrong in (("--cohort", "phones", *target), ("--epsilon", "1"), (*target, "--policy", "free")):
        assert run("calibrate", *rounds, *wrong).code == 2
