"""Statements: what they say is what the ledger says, in every format, and nothing in them is dressed up."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.cli.rendering.statements.numbers import Digits, certainty, one_in, percent, share_upper
from shuffle_ledger.ledger.api.pages.spending import spending_picture
from shuffle_ledger.ledger.reports.budgets import history
from shuffle_ledger.ledger.reports.spent_by_day import spent_by_day
from shuffle_ledger.ledger.storage import Store
from tests.cli.conftest import Run, changed

LEDGER = "shuffle-ledger.db"
NASTY = "<script>alert('x')</script>"


def registered(run: Run, name: str, *, epsilon0: float = 0.5, reports: int = 1000, **rest: str) -> None:
    cohort = rest.pop("cohort", "phones")
    options = [part for flag, value in rest.items() for part in (f"--{flag.replace('_', '-')}", value)]
    randomizer = f"krr(k=2, epsilon0={epsilon0})"
    answer = run(
        *("round", "register", cohort, "--id", name, "--randomizer", randomizer, "--reports", str(reports)),
        *options,
    )
    assert answer.code in (0, 3), answer.stderr


@pytest.fixture
def phones(directory: Path, run: Run) -> Run:
    """Return `run`, with a cohort "phones" whose composition decides."""
    opened(run, "phones", policy="adaptive")
    return run


def opened(run: Run, name: str, *, policy: str) -> None:
    options = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6", "--policy", policy)
    assert run("cohort", "open", name, *options).code == 0


@pytest.fixture(scope="module")
def kept() -> dict[str, bytes]:
    """Return the file of the ledger of `lived`, under its name, once a test made it."""
    return {}


@pytest.fixture
def lived(phones: Run, directory: Path, kept: dict[str, bytes]) -> Run:
    """Return `run`, with a cohort in which everything happened that may happen: seven entries."""
    if not kept:
        _live(phones)
        kept[LEDGER] = (directory / LEDGER).read_bytes()
        assert [file.name for file in directory.iterdir()] == [LEDGER]
    (directory / LEDGER).write_bytes(kept[LEDGER])
    return phones


def _live(phones: Run) -> None:
    registered(phones, "w1", use_case="emoji", collected_on="2026-01-05")
    registered(phones, NASTY, collected_on="2026-01-12")
    registered(phones, "w3", epsilon0=8)
    assert phones("round", "settle", "w1", "--reports", "900").code == 0
    assert phones("round", "void", NASTY, "--reason", '=HYPERLINK("http://x")').code == 0
    registered(phones, "w4", reports=20_000)


@pytest.fixture
def overspent(phones: Run) -> Run:
    """Return `run`, with a cohort that a settled round took beyond its budget."""
    registered(phones, "w1", epsilon0=2)
    assert phones("round", "settle", "w1", "--reports", "3").code == 3
    registered(phones, "w2")
    return phones


def stated(run: Run, *arguments: str) -> Any:
    answer = run("audit", "statement", *arguments, "--format", "json")
    assert answer.code == 0, answer.stderr
    return answer.json


@pytest.mark.slow
def test_the_statement_says_what_the_budget_says(lived: Run) -> None:
    budget = lived("budget", "phones", "--json").json
    statement = stated(lived, "phones")
    (cohort,) = statement["cohorts"]
    assert cohort["verdict"] == "kept"
    assert cohort["spent"]["epsilon_upper"] == budget["epsilon_spent_upper"]
    assert cohort["spent"]["epsilon_lower"] == budget["epsilon_spent_lower"]
    assert cohort["epsilon_remaining"] == budget["epsilon_remaining"]
    assert cohort["head"] == cohort["head_now"] == budget["head"]
    for name in ("local_epsilon_upper", "local_delta_upper", "status", "rounds_pending", "method"):
        assert cohort[name] == budget[name], name
    promise = cohort["promise"]
    for name in ("population", "epsilon_budget", "delta_budget", "policy", "opened_at"):
        assert promise[name] == budget[name], name
    assert len(cohort["rounds"]) == budget["rounds_admitted"] == 3
    assert len(cohort["refusals"]) == budget["rounds_refused"] == 1
    assert [each["sequence"] for each in cohort["moments"]] == list(range(1, budget["head"]["sequence"] + 1))
    assert len(statement["conditions"]) == 9


@pytest.mark.slow
def test_what_rounds_cost_alone_and_together_is_computed_again_elsewhere(lived: Run) -> None:
    cohort = stated(lived, "phones")["cohorts"][0]
    accountant, delta = Accountant(precision=1e-4), cohort["promise"]["delta_budget"]
    for each in cohort["rounds"]:
        again = accountant.certify({ShuffledRound.from_mapping(each["accounted"]): 1}, delta=delta)
        assert agree(again, each["alone"])
    held = [ShuffledRound.from_mapping(cohort["rounds"][0]["closing"]["accounted"])]
    held += [
        ShuffledRound.from_mapping(each["accounted"]) for each in cohort["rounds"] if not each["closing"]
    ]
    counts = {each: held.count(each) for each in held}
    again = accountant.certify(counts, delta=delta)
    assert again.epsilon_lower <= cohort["spent"]["epsilon_upper"] <= 1.05 * again.epsilon_upper
    assert agree(accountant.certify(counts, delta=delta), cohort["composition"])
    assert len(cohort["profile"]) >= 8
    for point in cohort["profile"]:
        assert agree(accountant.certify(counts, delta=point["delta"]), point)


def agree(again: Any, told: Any) -> bool:
    upper = math.inf if told["epsilon_upper"] is None else told["epsilon_upper"]
    return bool(again.epsilon_lower <= upper and told["epsilon_lower"] <= again.epsilon_upper)


@pytest.mark.slow
def test_what_was_told_afterwards_is_among_what_is_charged(directory: Path, run: Run) -> None:
    opened(run, "phones", policy="adaptive")
    for name, epsilon0 in (("w1", 1.0), ("w2", 0.9), ("w3", 0.5)):
        registered(run, name, epsilon0=epsilon0)
    registered(run, "refused", epsilon0=8, reports=20)
    assert run("round", "correct", "w1", "--reports", "150", "--reason", "fewer came").code == 0
    for name in ("w2", "w3"):
        assert run("round", "void", name, "--reason", "never sent").code == 0
    later = ("--released-after", datetime.now(UTC).isoformat(), "--reason", "it was sent")
    for name, epsilon0 in (("w2", 0.9), ("refused", 0.3)):
        sent = ("--id", name, "--randomizer", f"krr(k=2, epsilon0={epsilon0})", "--reports", "500")
        assert run("incident", "record", "phones", *sent, *later).code == 0
    cohort = stated(run, "phones")["cohorts"][0]
    kinds = {
        (each["round"]["randomizer"]["epsilon0"], each["round"]["reports"]) for each in cohort["charged"]
    }
    assert kinds == {(1.0, 150), (0.9, 496), (0.3, 496)}
    accountant = Accountant(precision=1e-4)
    for each in cohort["charged"]:
        described = ShuffledRound.from_mapping(each["round"])
        again = accountant.certify({described: each["rounds"]}, delta=1e-6)
        assert each["alone"]["epsilon_upper"] >= again.epsilon_lower > 0
    page = run("audit", "statement", "phones", "--format", "html").stdout
    assert f"What is charged, by kind ({len(kinds)})" in page
    [corrected] = [each for each in cohort["charged"] if each["round"]["reports"] == 150]
    assert f"corrected {Digits.for_budget(1.0).upper(corrected['alone']['epsilon_upper'])}" in page
    for false in (
        "and then never released.",
        "They were not to be collected, and cost nothing",
        "than the sum",
    ):
        assert false not in page


@pytest.mark.slow
def test_where_filters_decide_the_statement_says_what_they_say(lived: Run) -> None:
    opened(lived, "tablets", policy="adaptive")
    for name in ("t1", "t2"):
        registered(lived, name, cohort="tablets")
    assert lived("round", "settle", "t1", "--reports", "800").code == 0
    registered(lived, "t3", cohort="tablets", epsilon0=8)
    budget = lived("budget", "tablets", "--json").json
    (cohort,) = stated(lived, "tablets")["cohorts"]
    assert cohort["verdict"] == "kept"
    assert cohort["spent"]["epsilon_upper"] == budget["epsilon_spent_upper"]
    assert "filter" in cohort["decided_by"]
    assert "Earlier results may guide" in cohort["promise"]["policy_assumes"]
    assert min(each["epsilon_upper"] for each in cohort["filters"]) == cohort["spent"]["epsilon_upper"]
    assert cohort["composition"]["epsilon_upper"] < cohort["spent"]["epsilon_upper"]
    page = text_of(lived("audit", "statement", "tablets").stdout)
    assert "Rounds may have been chosen by what earlier ones revealed: it is no promise." in page
    assert "filter" in page
    before = stated(lived, "tablets", "--as-of", "2")["cohorts"][0]
    assert min(each["epsilon_upper"] for each in before["filters"]) == before["spent"]["epsilon_upper"]


@pytest.mark.slow
def test_as_of_an_entry_is_what_the_ledger_said_then(lived: Run) -> None:
    moments = stated(lived, "phones")["cohorts"][0]["moments"]
    for moment in (moments[0], moments[4], moments[-1]):
        cohort = stated(lived, "phones", "--as-of", str(moment["sequence"]))["cohorts"][0]
        assert cohort["spent"] == moment["spent"]
        assert cohort["head"] == {"sequence": moment["sequence"], "digest": moment["digest"]}
        assert cohort["head_now"]["sequence"] == len(moments)
        assert cohort["as_of"] == moment["recorded_at"]
        assert len(cohort["moments"]) == moment["sequence"]
    # By the clock: the last entry that is not later.
    middle = moments[3]
    cohort = stated(lived, "phones", "--as-of", middle["recorded_at"])["cohorts"][0]
    later = [each["sequence"] for each in moments if each["recorded_at"] <= middle["recorded_at"]]
    assert cohort["head"]["sequence"] == later[-1]
    assert cohort["rounds_pending"] is None
    closed_later = stated(lived, "phones", "--as-of", "4")["cohorts"][0]["rounds"]
    assert [each["closing"] for each in closed_later] == [None, None]


def test_what_cannot_be_stated_is_named(lived: Run) -> None:
    for arguments, code, word in (
        (("phones", "--as-of", "8"), 2, "from 1 to 7"),
        (("phones", "--as-of", "2001-01-01"), 2, "opened"),
        (("phones", "--as-of", "yesterday"), 2, "YYYY-MM-DD"),
        (("--all", "--as-of", "3"), 2, "entries count by cohort"),
        (("phones", "--all"), 2, "--all"),
        ((), 2, "--all"),
        (("nobody",), 4, "nobody"),
    ):
        answer = lived("audit", "statement", *arguments)
        assert answer.code == code
        assert word in answer.stderr
        assert answer.stdout == ""


@pytest.mark.slow
def test_days_that_stand_for_none_are_drawn_on_the_day_of_their_record(phones: Run, directory: Path) -> None:
    """As tables write "never": the statement of such a chain could not be made, for ever."""
    for day in ("9999-12-31", "0001-01-01"):
        registered(phones, day, collected_on=day)
    assert phones("audit", "statement", "phones", "-o", "statement.html").code == 0
    with Store.connect(f"sqlite:///{directory / LEDGER}") as store:
        points = list(history(store, "phones"))
        chain = [entry.content() for entry in store.entries_of("phones")]
        spent = spent_by_day(store, store.view("phones"), chain)
    today = datetime.now(UTC).date()
    picture = spending_picture(points, spent, budget=1.0, continuation=None, today=today)
    assert picture is not None
    assert [row.admitted for row in picture.rows] == [2]


@pytest.mark.slow
def test_an_overspend_is_in_plain_sight(overspent: Run) -> None:
    cohort = stated(overspent, "phones")["cohorts"][0]
    assert (cohort["verdict"], cohort["status"], cohort["epsilon_remaining"]) == ("broken", "overspent", 0.0)
    (overspend,) = cohort["overspends"]
    assert (overspend["sequence"], overspend["round_id"]) == (3, "w1")
    assert overspend["epsilon_spent_upper"] > overspend["epsilon_budget"]
    page = overspent("audit", "statement", "phones").stdout
    assert 'class="verdict bad"><strong>Not kept</strong>' in page
    assert "Not kept since entry 3" in text_of(page)
    # Before it happened, the promise was kept.
    assert stated(overspent, "phones", "--as-of", "2")["cohorts"][0]["verdict"] == "kept"


@pytest.mark.slow
def test_a_damaged_chain_is_never_called_kept(lived: Run, directory: Path) -> None:
    changed(directory, "previous_digest = zeroblob(32) WHERE sequence = 3")
    answer = lived("audit", "statement", "phones")
    assert answer.code == 6
    assert 'class="verdict bad"><strong>Cannot be said</strong>' in answer.stdout
    assert "entry 3: it does not continue from the digest" in text_of(answer.stdout)
    changed(directory, "body = x'78' WHERE sequence = 4")
    unreadable = lived("audit", "statement", "phones")
    assert unreadable.code == 1
    assert "nothing can be stated" in unreadable.stderr


@pytest.mark.slow
def test_what_was_lost_with_a_database_put_back_is_never_called_kept(lived: Run, directory: Path) -> None:
    backup = (directory / "shuffle-ledger.db").read_bytes()
    registered(lived, "w5")
    lived("audit", "keygen", "key.pem")
    assert lived("audit", "checkpoint", "--signing-key", "key.pem", "-o", "anchor.json").code == 0
    (directory / "shuffle-ledger.db").write_bytes(backup)
    done = lived("audit", "reconcile", "--against", "anchor.json", "--reason", "the disk broke")
    assert done.code == 0, done.stderr
    answer = lived("audit", "statement", "phones", "--bundle", "b.zip")
    assert answer.code == 6
    assert "what they spent is unknown" in answer.stderr
    assert 'class="verdict bad"><strong>Cannot be said</strong>' in answer.stdout
    assert "put back to an earlier state" in text_of(answer.stdout)
    assert "the disk broke" in text_of(answer.stdout)
    report = lived("audit", "verify", "b.zip", "--numbers", "none", "--json").json
    assert report["ok"]
    assert report["cohorts"][0]["promise_kept"] is None
    assert lived("audit", "verify", "b.zip", "--numbers", "none", "--against", "anchor.json").code == 6


def text_of(page: str) -> str:
    class Text(HTMLParser):
        found = ""

        def handle_data(self, data: str) -> None:
            self.found += data

    parser = Text()
    parser.feed(page)
    return re.sub(r"\s+", " ", parser.found)


@pytest.mark.slow
def test_the_page_stands_alone_and_runs_nothing(lived: Run) -> None:
    page = lived("audit", "statement", "phones").stdout
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"""(src|action|formaction|data)\s*=\s*["']""", page)
    assert set(re.findall(r"""href=["'](.)""", page)) <= {"#"}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "@media screen and (prefers-color-scheme: dark)" in page, "dark on screens, never on paper"
    assert "@import" not in page
    identifiers = re.findall(r'\bid="([^"]*)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(identifiers)
    text = text_of(page)
    for word in (
        "w1",
        "w3",
        "w4",
        "emoji",
        "the budget would be exceeded",
        "settled",
        "voided",
        "attests",
        "An honest shuffler",
    ):
        assert word in text, word


epsilons = st.floats(min_value=0, max_value=1e9, allow_nan=False)


@given(epsilons, st.floats(min_value=1e-9, max_value=1e6))
def test_printed_bounds_are_bounds(epsilon: float, budget: float) -> None:
    digits = Digits.for_budget(budget)
    above, below = digits.upper(epsilon), digits.lower(epsilon)
    assert float(above.replace(",", "")) >= epsilon >= float(below.replace(",", ""))
    assert len(above.partition(".")[2]) == len(below.partition(".")[2]) == digits.decimals
    assert float(percent(epsilon, budget)[:-2]) >= 100 * (epsilon / budget) * (1 - 1e-9)
    assert min(epsilon / budget, 1.0) * (1 - 1e-9) <= share_upper(epsilon, budget) <= 1


@given(st.floats(min_value=0, max_value=6.8))
def test_certainty_is_never_understated(epsilon: float) -> None:
    assert float(certainty(epsilon)[:-2]) >= 100 * math.exp(epsilon) / (1 + math.exp(epsilon)) - 1e-9


@given(st.floats(min_value=1e-30, max_value=0.1))
def test_a_probability_in_words_is_never_understated(probability: float) -> None:
    words = one_in(probability)
    if probability <= 1e-15:
        assert words == "less than 1 in a trillion"
        return
    count, _, name = words.removeprefix("about 1 in ").partition(" ")
    units = {"": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
    said = 1 / ((1.0 if count == "a" else float(count)) * units[name])
    assert probability * (1 - 1e-9) <= said <= 1.5 * probability
    assert count.replace(".5", "").strip("0") in {"a", "15", *"123456789"}


def test_probabilities_in_words() -> None:
    assert [one_in(each) for each in (1e-9, 2.5e-7, 6.6e-7, 3e-4, 0.01, 0.3, 0.7, 1e-16)] == [
        *("about 1 in a billion", "about 1 in 4 million", "about 1 in 1.5 million", "about 1 in 3 thousand"),
        *("about 1 in 100", "about 1 in 3", "0.7", "less than 1 in a trillion"),
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Yield a headless Chromium that may not reach anything."""
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip(
            "Debian's chromium and chromium-driver are not installed: the page was not opened in a browser"
        )
    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1500"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.mark.system
def test_a_browser_shows_the_verdict_first_and_has_nothing_to_complain_of(
    lived: Run, browser: webdriver.Chrome, directory: Path
) -> None:
    assert lived("audit", "statement", "phones", "-o", "statement.html").code == 0
    browser.get((directory / "statement.html").as_uri())
    verdict = browser.find_element("css selector", ".verdict strong")
    assert verdict.text == "Kept so far"
    assert verdict.location["y"] < 300
    for drawing in browser.find_elements("css selector", "figure svg"):
        assert drawing.size["width"] > 400
        assert drawing.size["height"] > 100
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    wide = browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert wide, "the page is wider than the window"
    browser.set_window_size(390, 900)
    wide = browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert wide, "the page is wider than a telephone"
    browser.set_window_size(1200, 1500)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    pages = [page.extract_text() for page in PdfReader(io.BytesIO(base64.b64decode(printed))).pages]
    places = [
        next(i for i, page in enumerate(pages) if what in page) for what in ("Findings", "Terms", "Annex")
    ]
    assert places == [0, 1, 2], "an answer, the conditions and the terms, and then annexes"


@pytest.mark.slow
def test_a_statement_extends_an_earlier_one_or_says_that_it_does_not(lived: Run, directory: Path) -> None:
    earlier = directory / "earlier.json"
    assert (
        lived("audit", "statement", "phones", "--as-of", "4", "--format", "json", "-o", str(earlier)).code
        == 0
    )
    cohort = stated(lived, "phones", "--extends", str(earlier))["cohorts"][0]
    since = cohort["since"]
    assert since["proven"]
    assert (since["earlier"]["sequence"], since["entries"], since["rounds_settled"]) == (4, 3, 1)
    assert since["spent_then"] == cohort["moments"][3]["spent"]
    assert since["spent_now"] == cohort["spent"]
    by_eye = stated(lived, "phones", "--since", "4")["cohorts"][0]["since"]
    assert by_eye == since | {"proven": False}
    page = text_of(lived("audit", "statement", "phones", "--extends", str(earlier)).stdout)
    assert "so this statement extends the earlier one" in page
    told = json.loads(earlier.read_text("utf-8"))
    told["cohorts"][0]["head"]["digest"] = "0" * 64
    earlier.write_text(json.dumps(told), "utf-8")
    answer = lived("audit", "statement", "phones", "--extends", str(earlier))
    assert answer.code == 6
    assert "the chain was rewritten" in text_of(answer.stdout)
    assert "the chain was rewritten" in answer.stderr
    earlier.write_text("[]", "utf-8")
    assert lived("audit", "statement", "phones", "--extends", str(earlier)).code == 2
    assert lived("audit", "statement", "phones", "--since", "9").code == 2


@pytest.mark.slow
def test_a_cohort_that_vanished_since_is_named(lived: Run, directory: Path) -> None:
    before = (directory / LEDGER).read_bytes()
    opened(lived, "tablets", policy="adaptive")
    statement = ("audit", "statement")
    assert lived(*statement, "tablets", "--format", "json", "-o", "tablets.json").code == 0
    Path("last.json").write_text(lived("audit", "heads", "--json").stdout)
    assert lived(*statement, "--all", "--extends", "last.json", "-o", "all.html").code == 0
    (directory / LEDGER).write_bytes(before)
    gone = lived(*statement, "--all", "--extends", "last.json", "-o", "gone.html")
    assert (gone.code, "entry 1 of cohort 'tablets'" in gone.stderr) == (6, True)
    assert lived(*statement, "phones", "--extends", "last.json", "-o", "phones.html").code == 0
    other = lived(*statement, "phones", "--extends", "tablets.json", "-o", "gone.html", "--json")
    assert (other.code, other.json["error"]["kind"]) == (6, "not_extended")
    assert not (directory / "gone.html").exists()


@pytest.mark.slow
def test_a_bundle_is_verified_where_no_ledger_is(
    lived: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = lived("audit", "keygen", "key.pem", "--json").json["public_key"]
    made = (
        "audit",
        "statement",
        "phones",
        "--format",
        "json",
        "--signing-key",
        "key.pem",
        "--bundle",
        "b.zip",
    )
    statement = lived(*made).json
    assert statement["checkpoint"]["public_key"] == public
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    shutil.move(directory / "b.zip", elsewhere / "b.zip")
    monkeypatch.chdir(elsewhere)
    report = lived("audit", "verify", "b.zip", "--public-key", public, "--numbers", "all", "--json").json
    assert report["ok"]
    assert report["signature"] == "trusted"
    (found,) = report["cohorts"]
    cohort = statement["cohorts"][0]
    assert (found["head_sequence"], found["head_digest"]) == tuple(cohort["head"].values())
    assert found["epsilon_spent_upper"] == cohort["spent"]["epsilon_upper"]
    numbers = [each for each in found["numbers"] if each["subject"] == "reading"]
    for each, moment in zip(numbers, cohort["moments"], strict=True):
        assert each["stated_upper"] == moment["spent"]["epsilon_upper"]
        assert (
            each["computed_lower"] <= moment["spent"]["epsilon_upper"]
        )  # a reading is above the composition
    assert list(elsewhere.iterdir()) == [elsewhere / "b.zip"], "no ledger was made by looking"
    data = (elsewhere / "b.zip").read_bytes()
    (elsewhere / "b.zip").write_bytes(data.replace(b"tester", b"testes").replace(b"emoji", b"emojo"))
    answer = lived("audit", "verify", "b.zip", "--numbers", "none")
    assert answer.code == 6
    assert "Something is wrong." in answer.stdout
    assert "chains/000001.txt" in answer.stdout


def test_what_verify_is_asked_for_is_never_guessed(lived: Run, directory: Path) -> None:
    (directory / "phones").write_bytes(b"not a bundle")
    assert "is a file here" in lived("audit", "verify", "phones").stderr
    assert lived("audit", "verify", "--cohort", "phones").code == 0
    assert lived("audit", "verify", "./phones").code == 6
    assert "a file that exists" in lived("audit", "verify", "missing.zip").stderr
    for wrong in (
        ("phones", "--cohort", "phones"),
        ("--numbers", "none"),
        ("--precision", "0.001"),
        ("--allow-unpinned",),
    ):
        assert lived("audit", "verify", *wrong).code == 2


def _flat(outline: Any) -> Iterator[Any]:
    for each in outline:
        yield from _flat(each) if isinstance(each, list) else [each]


@pytest.mark.slow
def test_the_name_of_a_file_says_its_form(phones: Run, directory: Path) -> None:
    for name, begins in (
        *(("x.PDF", b"%PDF-"), ("x.json", b'{"made_at":')),
        *(("x.htm", b"<!DOCTYPE html>"), ("x", b"<!DOCTYPE html>")),
    ):
        assert phones("audit", "statement", "phones", "-o", name).code == 0
        assert (directory / name).read_bytes()[: len(begins)].lower() == begins.lower()


@pytest.mark.slow
def test_the_paper_form_says_the_same_page_by_page(lived: Run, directory: Path) -> None:
    for _ in range(12):
        registered(lived, f"больше-больше-{_}")
    assert lived("audit", "statement", "phones", "--format", "pdf", "-o", "statement.pdf").code == 0
    reader = PdfReader(directory / "statement.pdf")
    pages = [re.sub(r"\s+", " ", page.extract_text()) for page in reader.pages]
    assert reader.metadata is not None
    assert reader.metadata.title == "Privacy statement: phones"
    root: Any = reader.trailer["/Root"]
    assert (root["/Lang"], root["/ViewerPreferences"]["/DisplayDocTitle"]) == ("en", True)
    bookmarks = {mark.title: reader.get_destination_page_number(mark) for mark in _flat(reader.outline)}
    assert (bookmarks["What is promised"], bookmarks["Terms"]) == (0, 1), "two pages, and then annexes"
    assert bookmarks["Annex: the account of phones"] == 2
    for title in ("Privacy statement: phones", "Annex: the account of phones", "Annex: evidence", "Terms"):
        assert title in reader.pages[bookmarks[title] or 0].extract_text().replace("\n", " ")
    assert any(title.startswith("Rounds admitted") for title in bookmarks)
    # The first page answers; the second says under which conditions.
    answers = ("Kept so far", "Promise epsilon", "Period", "Used at most", "Left at least", "Still fits")
    for word in (*answers, "Signature", "How to verify", "Findings", "What is promised", "How sure is that?"):
        assert word in pages[0], word
    for word in ("An honest shuffler", "Secret samples", "takes for granted", "Proven interval"):
        assert word in pages[1], word
    assert "Rounds admitted" not in pages[0] + pages[1]
    text = " ".join(pages)
    cohort = stated(lived, "phones")["cohorts"][0]
    for each in (*cohort["rounds"], *cohort["refusals"]):
        assert re.sub(r"\s", "", each["round_id"]) in re.sub(r"\s", "", text)
    assert re.sub(r"\s", "", cohort["head"]["digest"]) in re.sub(r"\s", "", text)
    assert "ε total" in text
    for number, page in enumerate(pages, start=1):
        assert f"{number} / {len(pages)}" in page


def _elements(element: Any) -> Iterator[Any]:
    """Yield the elements of a document's structure, in the order in which they are read out."""
    kids = element.get("/K", [])
    for kid in kids if isinstance(kids, list) else [kids]:
        found = kid.get_object()
        if isinstance(found, dict) and "/S" in found:
            yield found
            yield from _elements(found)


@pytest.mark.slow
def test_a_screen_reader_finds_headings_tables_and_drawings_in_words(phones: Run, directory: Path) -> None:
    opened = phones(
        "cohort", "open", "電話 {é} #*", "--epsilon", "1", "--delta", "1e-9", "--population", "9999"
    )
    assert opened.code == 0, opened.stderr
    registered(phones, "$x$ 😀", cohort="電話 {é} #*")
    assert phones("audit", "statement", "--all", "--format", "pdf", "-o", "statement.pdf").code == 0
    reader = PdfReader(directory / "statement.pdf")
    root: Any = reader.trailer["/Root"]
    assert bool(root["/MarkInfo"]["/Marked"])
    assert "pdfuaid:part>1<" in root["/Metadata"].get_object().get_data().decode("utf-8")
    kinds = [each["/S"] for each in _elements(root["/StructTreeRoot"])]
    assert kinds.index("/H1") < kinds.index("/H2") < kinds.index("/Table")
    assert kinds.count("/TH") > kinds.count("/Table") - 3 > 0  # two are lists of facts, without a head
    words = [each["/Alt"] for each in _elements(root["/StructTreeRoot"]) if each["/S"] == "/Figure"]
    marks = [mark.title for mark in _flat(reader.outline)]
    assert marks.count("Rounds refused (0)") == 2, "a table without rows has its heading"
    assert len(words) == 4  # of two cohorts
    assert all(each.startswith("The ") for each in words)
    spent = r"at most 0\.\d+ by the end of \d{4}-\d\d-\d\d, of a budget of 1\."
    assert len([each for each in words if re.search(spent, each)]) == 2
    # A letter that the font lacks becomes its code point, and no name is read as markup.
    text = "".join(page.extract_text() for page in reader.pages)
    for named in ("<U+96FB><U+8A71> {é} #*", "$x$ <U+1F600>"):
        assert re.sub(r"\s", "", named) in re.sub(r"\s", "", text)


def test_a_statement_that_cannot_be_what_was_asked_for_is_refused(lived: Run, tmp_path: Path) -> None:
    same = str(tmp_path / "both")
    for options in (("--json", "--format", "html"), ("-o", same, "--bundle", same, "--json")):
        answer = lived("audit", "statement", "phones", *options)
        assert answer.code == 2
        assert answer.json["error"]["kind"] == "bad_usage"
    assert list(tmp_path.glob("both*")) == []


@pytest.mark.slow
def test_a_bundle_that_nothing_vouches_for_is_not_verified(lived: Run, directory: Path) -> None:
    """A forger makes a consistent bundle, and signs it with a key of his own."""
    assert lived("audit", "keygen", "key.pem").code == 0
    public = json.loads(lived("audit", "checkpoint", "--signing-key", "key.pem", "--json").stdout)[
        "public_key"
    ]
    Path("heads.json").write_text(lived("audit", "heads", "--json").stdout)
    signed = ("--signing-key", "key.pem", "--bundle", "signed.zip")
    assert lived("audit", "statement", "phones", "-o", "s.html", *signed).code == 0
    assert lived("audit", "statement", "phones", "-o", "u.html", "--bundle", "unsigned.zip").code == 0
    for name in ("unsigned.zip", "signed.zip"):
        verify = ("audit", "verify", name, "--numbers", "none")
        bare = lived(*verify)
        assert bare.code == 6
        assert bare.stdout.startswith("Proof of origin is missing")
        stated = lived(*verify, "--json")
        assert (stated.code, stated.json["ok"], stated.json["vouched"]) == (6, True, False)
        allowed = lived(*verify, "--allow-unpinned", "--json")
        assert (allowed.code, allowed.json["vouched"]) == (0, False)
        kept = lived(*verify, "--against", "heads.json", "--json")
        assert (kept.code, kept.json["vouched"]) == (0, True)
    pinned = lived("audit", "verify", "signed.zip", "--numbers", "none", "--public-key", public, "--json")
    assert (pinned.code, pinned.json["vouched"]) == (0, True)
    other = lived("audit", "verify", "signed.zip", "--public-key", "0" * 64, "--allow-unpinned", "--json")
    assert (other.code, other.json["vouched"]) == (6, False)


@pytest.mark.slow
def test_kept_heads_vouch_for_their_cohorts_alone(lived: Run, directory: Path) -> None:
    Path("heads.json").write_text(lived("audit", "heads", "--json").stdout)
    opened = lived("cohort", "open", "later", "--population", "900", "--epsilon", "1", "--delta", "1e-6")
    assert opened.code == 0
    assert (
        lived("audit", "statement", "--all", "-o", "s.json", "--format", "json", "--bundle", "b.zip").code
        == 0
    )
    answer = lived("audit", "verify", "b.zip", "--numbers", "none", "--against", "heads.json", "--json")
    assert (answer.code, answer.json["ok"], answer.json["vouched"]) == (6, True, False)


def test_what_holds_without_the_shuffler_has_its_delta(phones: Run) -> None:
    kind = ("--randomizer", "generic(epsilon0=1)", "--delta0", "1e-14", "--reports", "100000")
    assert phones("round", "register", "phones", *kind, "--id", "w1").code == 0
    assert ", at delta 1e-14" in phones("budget", "phones").stdout
    text = re.sub("<[^>]+>|\\s+", " ", phones("audit", "statement", "phones", "--format", "html").stdout)
    sentence = text[text.index("Without an honest shuffler") :].split(".\u0020")[0]
    assert "at delta 1e-14" in sentence
    assert "likely afterwards" not in sentence
