"""Rounds of several cohorts on the command line: labels, selectors, and samples of each cohort."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

KRR = ("--randomizer", "krr(k=10, epsilon0=2)")
BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")


@pytest.fixture
def three(phones: Run) -> Run:
    """Return `run`, with phones, and two cohorts that have labels."""
    for name, device in (("de-phone", "phone"), ("de-watch", "watch")):
        labels = ("--label", "country=de", "--label", f"device={device}")
        opened = phones("cohort", "open", name, *BUDGET, *labels, "--json")
        assert (opened.code, opened.json["labels"]) == (0, {"country": "de", "device": device})
    return phones


@pytest.mark.slow
def test_a_selector_means_the_cohorts_of_its_first_registration(three: Run) -> None:
    order = ("round", "register", "--audience", "country=de", "--id", "a", *KRR, "--reports", "150000")
    first = three(*order, "--json")
    assert (first.code, first.json["outcome"]) == (0, "admitted")
    assert [member["cohort"] for member in first.json["audience"]] == ["de-phone", "de-watch"]
    labels = ("--label", "country=de", "--label", "device=tv")
    assert three("cohort", "open", "de-tv", *BUDGET, *labels).code == 0
    again = three(*order, "--json")
    assert (again.code, again.json) == (0, first.json)
    listed = three(*order[:2], "--audience", "de-watch,de-phone", *order[4:], "--json")
    assert listed.json == first.json
    later = three(*order[:4], "--id", "b", *order[6:], "--json")
    assert len(later.json["audience"]) == 3
    shown = three("round", "show", "a", "--json").json
    assert (shown["audience"], shown["cohort"]) == (["de-phone", "de-watch"], "de-phone")
    assert three("audit", "verify").code == 0


def test_what_no_audience_can_be_is_refused_with_a_reason(three: Run) -> None:
    for options, says in (
        (("--id", "x"), "name one COHORT"),
        (("phones", "--audience", "phones", "--id", "x"), "name one COHORT"),
        (("--audience", "device=tablet", "--id", "x"), "no cohort has the labels"),
        (("--audience", "device=phone,phones", "--id", "x"), "device=phone,country=de"),
        (("--audience", "device=", "--id", "x"), "label"),
        (("--audience", "phones,,de-phone", "--id", "x"), "audience"),
        (("--audience", "phones,nobody", "--id", "x"), "nobody"),
    ):
        answer = three("round", "register", *options, *KRR, "--reports", "1000")
        assert answer.code in (2, 4)
        assert says in answer.stderr
    assert three("budget", "phones", "--json").json["rounds_admitted"] == 0


@pytest.mark.slow
def test_more_reports_of_sampled_cohorts_want_the_largest_rate_told_anew(three: Run) -> None:
    order = ("round", "register", "--audience", "de-phone,de-watch", "--id", "a", *KRR, "--reports", "300")
    answer = three(*order, "--sampled-from", "3000", "--json")  # 300 / (100 / 1000)
    assert answer.code == 0, answer.stderr
    assert three("audit", "verify").code == 0
    # More of one cohort may be a higher rate than any that was declared.
    more = three("round", "settle", "a", "--reports", "301")
    assert (more.code, "correct the round first" in more.stderr) == (2, True)
    fewer = three("round", "correct", "a", "--reports", "310", "--reason", "log")
    assert fewer.code == 2
    told = ("round", "correct", "a", "--reports", "310", "--sampled-from", "2818", "--reason", "log")
    assert three(*told).code == 0
    assert three("round", "settle", "a", "--reports", "310").code == 0
    assert three("audit", "verify").code == 0


@pytest.mark.slow
def test_what_fits_one_cohort_is_never_said_of_rounds_that_others_decide_too(
    phones: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cohort or a quota refuses what fits this cohort, and every sentence says that it may."""
    for name, epsilon in (("large", "1"), ("small", "0.02")):
        order = ("cohort", "open", name, "--population", "300000", "--epsilon", epsilon, "--delta", "1e-9")
        assert phones(*order, "--yes").code == 0
    quota = ("cohort", "quota", "large", "--team", "ads", "--epsilon", "0.02", "--reason", "agreed")
    assert phones(*quota).code == 0
    for beside in (("--audience", "large,small"), ("large", "--team", "ads")):
        order = ("round", "register", *beside, *KRR, "--reports", "300000")
        assert phones(*order, "--id", f"{beside[1]} 1").code == 0
        assert phones(*order, "--id", f"{beside[1]} 2").code == 3
    (kind,) = phones("forecast", "large", "--json").json["kinds"]
    assert kind["rounds_at_least"] > 100
    for beside, ends in (
        (("--audience", "large,small"), "small"),
        (("large", "--team", "ads"), "large@team=ads"),
    ):
        order = ("forecast", *beside, *KRR, "--reports", "300000")
        document = phones(*order, "--json").json
        assert (document["rounds_at_least"], document["limited_by"]) == (0, ends)
        said = " ".join(phones(*order).stdout.split())
        assert f"{ends}: " in said
        assert "All of these budgets will admit this many rounds or more" in said
    nothing = phones("forecast", "--audience", "large,small")
    assert (nothing.code, "are about one kind of round" in nothing.stderr) == (2, True)
    monkeypatch.setenv("SHUFFLE_LEDGER_TEAM", "ads")
    document = phones("forecast", "large", *KRR, "--reports", "300000", "--json").json
    assert (document["team"], document["limited_by"]) == ("ads", "large@team=ads")
    assert phones("forecast", "large", "--json").json["cohort"] == "large"
    monkeypatch.delenv("SHUFFLE_LEDGER_TEAM")
    for told in (
        ("forecast", "large"),
        ("budget", "large"),
        ("calibrate", "--cohort", "large", "--randomizer", "krr(k=8)", "--reports", "1000", "--rounds", "1"),
        ("audit", "statement", "large", "--format", "html"),
    ):
        said = " ".join(phones(*told).stdout.split())
        assert "no other cohort or quota" in said, told
