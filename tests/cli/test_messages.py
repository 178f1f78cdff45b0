"""What people read when they mistype: each message in its exact words, with the exit code of the contract."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import click
import pytest

from shuffle_ledger.cli.commands import round as commands
from shuffle_ledger.cli.commands.cohort import cohort_table
from shuffle_ledger.cli.rendering import present
from shuffle_ledger.cli.rendering.present import Bar, Listing, coloured, console_on, facts
from shuffle_ledger.ledger.answers import ListedCohort, PromiseReading
from shuffle_ledger.ledger.values.requests import CohortStatus
from tests.cli.conftest import ROUND, Run

ASKED = ("--reports", "1000", "--delta", "1e-6")
DECIDED = "rounds of it were decided or recorded, so it is not opened again"
OPENING = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")


def _said(run: Run, *arguments: str, code: int = 2) -> str:
    answer = run(*arguments)
    assert (answer.code, answer.stdout) == (code, ""), answer
    assert answer.stderr.startswith("shuffle-ledger: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr.removeprefix("shuffle-ledger: ").removesuffix("\n")


MISTYPED: tuple[tuple[str, str], ...] = (
    ("budgt phones", "no such command 'budgt'; did you mean budget?"),
    ("register phones", "no such command 'register'; did you mean round register?"),
    ("zzzz", "no such command 'zzzz'"),
    ("budget phones --jsn", "no such option '--jsn'; did you mean --json?"),
    ("amplify --zzzz", "no such option '--zzzz'"),
    (
        "--database-url sqlite:///x.db budget x",
        "no such option '--database-url' before a command: options stand behind the command",
    ),
    ("amplify --delta 1e-6", "--randomizer is missing"),
    ("compose none.csv --delta 1e-6", "file 'none.csv' does not exist"),
    (
        "token create x --role admn",
        "--role: 'admn' is not one of 'admin', 'registrar', 'reader', 'auditor'",
    ),
    ("health a", "got unexpected extra argument (a), expected options only"),
    (
        "round quote a b --randomizer krr() --reports 9",
        "got unexpected extra argument (b), expected [COHORT]; several cohorts: --audience A,B",
    ),
)


@pytest.mark.parametrize(("words", "said"), MISTYPED)
def test_a_command_line_that_is_none_says_what_was_meant(run: Run, words: str, said: str) -> None:
    assert _said(run, *words.split()) == said
    found = run(*words.split(), "--json")
    assert (found.code, found.json["error"]["kind"], found.json["error"]["message"]) == (2, "bad_usage", said)


@pytest.mark.parametrize("group", [(), ("round",)])
def test_a_command_line_without_a_command_gets_the_usage(run: Run, group: tuple[str, ...]) -> None:
    answer = run(*group)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"Usage: {' '.join(('main', *group))} [OPTIONS] COMMAND [ARGS]...\n")
    assert "\nCommands:\n" in answer.stderr
    assert "shuffle-ledger: " not in answer.stderr
    said = _said(run, *group, "--zzzz")
    assert said == "no such option '--zzzz' before a command: options stand behind the command"


@pytest.mark.parametrize(
    ("randomizer", "said"),
    [
        (
            "krr(k=16, eps0=3)",
            "krr has no parameter eps0; it takes k and epsilon0; did you mean epsilon0?",
        ),
        ("krr(k=16)", "krr needs a value for epsilon0; it takes k and epsilon0"),
        ("krr(k=10, epsilon0=log(3))", "there is no randomizer 'log'; known are generic, krr"),
        ("rapor(epsilon0=1)", "there is no randomizer 'rapor'; did you mean rappor?; known are generic, krr"),
    ],
)
def test_parameters_of_randomizers_are_named(run: Run, randomizer: str, said: str) -> None:
    assert _said(run, "amplify", "--randomizer", randomizer, *ASKED).startswith(said)


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("1.2.2026", "a date as YYYY-MM-DD"),
        ("2026-02-29", "a date as YYYY-MM-DD: February 2026 has 28 days"),
        ("2026-00-01", "a date as YYYY-MM-DD: a month from 01 to 12"),
        ("0000-01-01", "a date from 0001-01-01 to 9999-12-31"),
    ],
)
def test_a_day_that_is_none_says_why(phones: Run, day: str, expected: str) -> None:
    registered = ("round", "register", "phones", "--id", "x", *ROUND, "--collected-on", day)
    assert _said(phones, *registered) == f"collected_on: got {day!r}, expected {expected}"
    for since in (day, f"{day}T12:00:00Z"):
        listed = _said(phones, "round", "list", "--since", since)
        assert listed.startswith(f"since: got {since!r}, expected {expected}")
    stated = _said(phones, "audit", "statement", "phones", "--as-of", day)
    assert day in stated
    assert expected.removeprefix("a date as YYYY-MM-DD") in stated


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "x.docx"), "-o: got 'x.docx', expected a name that ends in .html, .pdf or .json, or"),
        (
            ("-o", "x.HTM", "--format", "pdf"),
            "-o: got 'x.HTM', expected a name that ends in .pdf, or --format",
        ),
        (("-o", "x.html", "--bundle", "y.pdf"), "--bundle: got 'y.pdf', expected a name that ends in .zip"),
    ],
)
def test_a_statement_is_written_only_into_a_file_of_its_form(
    phones: Run, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert _said(phones, "audit", "statement", "phones", *words).startswith(said)
    assert not list(tmp_path.glob("[xy].*"))


TEXT = "expected 1 to 200 printable characters that show, none of the outer ones blank"


def test_what_is_empty_is_called_empty(phones: Run) -> None:
    assert _said(phones, "round", "register", "phones", "--id", "", *ROUND) == f"round_id: is empty, {TEXT}"
    assert _said(phones, "cohort", "open", "", *OPENING) == f"name: is empty, {TEXT}"
    assert _said(phones, "cohort", "open", "x", *OPENING, "--label", "a=").startswith("label: is empty, ")
    empty = ("amplify", "--randomizer", "generic(epsilon0=1)", "--reports", "", "--delta", "1e-6")
    assert _said(phones, *empty) == "reports: is empty, expected a whole number"
    assert _said(phones, "round", "void", "r", "--reason", "").startswith("reason: is empty, expected 1 to")


def test_a_policy_and_a_plan_belong_together(phones: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text('randomizer,reports\n"krr(k=2, epsilon0=0.5)",1000\n')
    assert (
        _said(phones, "cohort", "open", "x", *OPENING, "--policy", "plan") == "policy plan needs --plan FILE"
    )
    assert phones("cohort", "open", "y", *OPENING, "--plan", str(plan)).code == 0  # beside filters
    cohorts, rounds = tmp_path / "cohorts.csv", tmp_path / "rounds.csv"
    cohorts.write_text("cohort,population,epsilon,delta,policy\nx,100000,1,1e-6,plan\n")
    rounds.write_text('round_id,cohort,randomizer,reports\na,x,"krr(k=2, epsilon0=0.5)",1000\n')
    assert _said(phones, "round", "import", str(rounds), "--cohorts", str(cohorts)) == (
        f"{cohorts}, line 2: policy plan needs a plan, which a file of cohorts cannot give: open cohort 'x'"
        " with `cohort open --policy plan --plan FILE`"
    )


def test_other_content_names_what_is_stored_and_what_was_given(phones: Run, tmp_path: Path) -> None:
    register = ("round", "register", "phones", "--id", "a", "--randomizer", "krr(k=2, epsilon0=0.5)")
    assert phones(*register, "--reports", "1000", "--use-case", "emoji").code == 0
    said = (
        "round 'a' was registered with other content: use_case: stored emoji, given nothing; reports: stored"
    )
    assert _said(phones, *register, "--reports", "2000", code=5) == f"{said} 1000, given 2000"
    assert phones(*register, "--reports", "2000", "--json").json["error"]["differences"] == [
        {"field": "use_case", "stored": "emoji", "given": None},
        {"field": "reports", "stored": 1000, "given": 2000},
    ]
    other = ("cohort", "open", "phones", "--population", "99000", "--epsilon", "1.5", "--delta", "1e-6")
    changed = "population: stored 100000, given 99000; epsilon: stored 1, given 1.5"
    said = f"cohort 'phones' exists with other parameters: {changed}"
    assert _said(phones, *other, code=5) == f"{said}; {DECIDED}"
    windows = _said(phones, *other[:-4], "--epsilon", "1", "--delta", "1e-6", "--label", "a=b", code=5)
    assert windows.endswith(f'labels: stored nothing, given {{"a": "b"}}; {DECIDED}')
    cohorts, rounds = tmp_path / "cohorts.csv", tmp_path / "rounds.csv"
    cohorts.write_text("cohort,population,epsilon,delta\nphones,99000,1.5,1e-6\n")
    rounds.write_text('round_id,cohort,randomizer,reports\na,phones,"krr(k=2, epsilon0=0.5)",1001\n')
    imported = ("round", "import", str(rounds))
    assert _said(phones, *imported, "--cohorts", str(cohorts), code=5) == f"{cohorts}, line 2: {said}"
    said = _said(phones, *imported, code=5)
    assert said.startswith(f"{rounds}, line 2: round 'a' was registered with other content: use_case: stored")


def test_another_plan_names_the_kinds_that_differ(directory: Path, run: Run) -> None:
    plan, opening = directory / "plan.csv", ("cohort", "open", "x", *OPENING, "--policy", "plan", "--plan")
    plan.write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",1000,2\n')
    assert run(*opening, str(plan)).code == 0
    register = ("round", "register", "x", "--id", "a", "--randomizer", "krr(k=2, epsilon0=0.5)")
    assert run(*register, "--reports", "1000").code == 0
    plan.write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",1000,1\n')
    assert _said(run, *opening, str(plan), code=5) == (
        "cohort 'x' exists with another plan: krr(epsilon0=0.5, k=2), 1,000 reports: stored 2, given 1;"
        f" {DECIDED}"
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ACTOR", "", "SHUFFLE_LEDGER_ACTOR is empty: give it a value, or unset it"),
        (
            "PRECISION",
            "5",
            "SHUFFLE_LEDGER_PRECISION: got '5', expected a setting that fits (less than or",
        ),
        ("SESSION_KEY", "secret-word", "SHUFFLE_LEDGER_SESSION_KEY: got '(hidden)', expected a setting that"),
        (
            "BROKER_URL",
            "me:secret-word@host",
            "SHUFFLE_LEDGER_BROKER_URL: got 'me:***@host', expected",
        ),
    ],
)
def test_a_setting_that_is_none_is_named_without_its_secrets(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    assert directory.exists()
    monkeypatch.setenv(f"SHUFFLE_LEDGER_{name}", value)
    assert _said(run, "cohort", "list").startswith(said)
    assert "secret-word" not in run("cohort", "list", "--json").stdout


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("value", "styled"), [("", True), ("0", False)])
def test_no_color_means_no_styles_at_all(
    monkeypatch: pytest.MonkeyPatch, value: str | None, *, styled: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    stream = _Terminal()
    console = console_on(stream)
    console.print("[bold]a[/bold] :bug:", facts("[red]title", {"[dim]name": "[i]:bug:"}))
    assert ("\x1b[" in stream.getvalue()) is styled
    as_given = re.sub("\x1b[^m]*m", "", stream.getvalue()).split()
    assert as_given == ["[bold]a[/bold]", ":bug:", "[red]title", "[dim]name", "[i]:bug:"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_listing_is_written_as_rich_lays_it_out_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    table = Listing(show_footer=True)
    for name, justify in {"cohort": "left", "used": "right", "status": "left"}.items():
        table.add_column(name, justify=justify, footer=f"all {name}")  # type: ignore[arg-type]  # words of Rich
    for number, status in enumerate(("open", "overspent", "open and\nclosed", "")):
        table.add_row("\u65e5" * number + "[b]", str(10**number), coloured(status))
    table.caption, table.caption_justify = "a caption", "left"
    written = []
    for most in (table.row_count, table.row_count - 1):
        monkeypatch.setattr(present, "LAID_OUT_MAX", most)
        stream = _Terminal() if terminal else io.StringIO()
        console_on(stream).print(table, crop=False)
        plain = re.sub("\x1b[^m]*m", "", stream.getvalue())
        written.append([line.rstrip() for line in plain.splitlines()])
        assert ("\x1b[31moverspent" in stream.getvalue()) is terminal
    assert written[0] == written[1]
    monkeypatch.setenv("COLUMNS", "20")
    narrow = io.StringIO()
    console_on(narrow).print(table, crop=False)
    assert [line.rstrip() for line in narrow.getvalue().splitlines()] == written[0], "it is not cut either"


@pytest.mark.parametrize(
    ("cohort", "promise", "shown"),
    [
        ("closed", "overspent", "overspent"),
        ("frozen", "overspent", "frozen"),
        ("closed", "open", "closed"),
    ],
)
def test_a_list_of_cohorts_shows_the_worst_status(
    cohort: CohortStatus, promise: CohortStatus, shown: str
) -> None:
    numbers: dict[str, Any] = {"epsilon_budget": 1.0, "delta_budget": 1e-6}
    used: dict[str, Any] = {"epsilon_spent_upper": 0.5, "epsilon_remaining": 0.5, **numbers}
    days: dict[str, Any] = {"first": None, "last": None, "renews": None}
    life = PromiseReading(budget="a", period="life", kind="life", status=promise, **days, **used)
    listed = ListedCohort(
        name="a", population=9, policy="adaptive", status=cohort, promises=(life,), **numbers
    )
    (column,) = (column for column in cohort_table([listed]).columns if column.header == "status")
    assert [str(cell) for cell in column.cells] == [shown]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("columns", ["40"])
def test_columns_bounds_tables_text_and_bars(
    monkeypatch: pytest.MonkeyPatch, columns: str, *, terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal() if terminal else io.StringIO()
    console_on(stream).print(facts("title", {"share": Bar(fraction=0.5, width=90), "words": "word " * 60}))
    widths = {len(line.rstrip()) for line in stream.getvalue().splitlines()}
    assert max(widths) <= int(columns)
    assert max(widths) > int(columns) - 5
    assert sum("█" in line for line in stream.getvalue().splitlines()) == 1  # shorter, not folded


@pytest.mark.slow
def test_a_refused_quote_says_what_would_fit_instead(phones: Run) -> None:
    order = ("phones", "--randomizer", "krr(k=4, epsilon0=8)", "--reports", "100")
    assert "would fit instead" not in phones("round", "quote", "phones", *ROUND).stdout
    quoted = phones("round", "quote", *order)
    assert quoted.code == 0
    found = re.search(r"would fit instead +no such round; one with epsilon0 ([0-9.]+)", quoted.stdout)
    assert found, quoted.stdout
    assert phones("round", "quote", *order, "--json").json["fits"]["rounds"] == 0
    smaller = ("--randomizer", f"krr(k=4, epsilon0={found.group(1)})", "--reports", "100")
    assert phones("round", "register", "phones", "--id", "smaller", *smaller).code == 0


@pytest.mark.parametrize(("reports", "answer", "code"), [("40", "n", 1), ("40", "y", 0), ("900", None, 0)])
def test_far_fewer_reports_are_asked_about_at_a_terminal(
    phones: Run, monkeypatch: pytest.MonkeyPatch, reports: str, answer: str | None, code: int
) -> None:
    order = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "1000")
    assert phones("round", "register", "phones", "--id", "w", *order).code == 0
    asked: list[str] = []

    def confirm(text: str, *, err: bool, abort: bool) -> None:
        asked.append(text)
        if err and abort and answer == "n":
            raise click.Abort

    monkeypatch.setattr(commands, "at_terminal", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    settled = phones("round", "settle", "w", "--reports", reports)
    assert (settled.code, bool(asked)) == (code, answer is not None)
    assert phones("round", "show", "w", "--json").json["state"] == ("admitted" if code else "settled")
    if asked:
        assert "w was registered for 1,000 reports. If only 40 were shuffled" in settled.stderr
        assert phones("round", "settle", "w", "--reports", reports, "--yes").code == 0
        assert len(asked) == 1


def test_a_setting_that_is_no_json_says_which(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_ACKNOWLEDGED", "phones:3")
    said = _said(run, "health")
    assert said.startswith("SHUFFLE_LEDGER_ACKNOWLEDGED: got 'phones:3', expected a JSON object")


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("command", ["worker", "scheduler"])
def test_a_worker_without_a_broker_says_what_to_give(run: Run, command: str) -> None:
    assert _said(run, command) == (
        "a broker is needed, such as amqp://HOST or redis://HOST: give --broker-url, or set"
        " SHUFFLE_LEDGER_BROKER_URL, or broker_url in shuffle-ledger.toml"
    )


@pytest.mark.parametrize("option", ["--from", "--until"])
def test_a_day_of_a_schedule_without_a_schedule_says_what_to_give(phones: Run, option: str) -> None:
    expected = f"{option} is a day of a schedule: give --every beside it (day, week, month)"
    assert _said(phones, "forecast", "phones", option, "2030-01-07") == expected


def test_a_rehearsal_of_an_incident_of_which_nothing_is_known_is_in_words(phones: Run) -> None:
    asked = ("incident", "record", "phones", "--id", "leak", "--unknown", "--reason", "lost", "--dry-run")
    answer = phones(*asked)
    said = " ".join(answer.stdout.split())
    assert said.startswith("Nothing was recorded. Round leak would be recorded as an incident")
    assert "accounted as the unprotected data, because it is unknown what was released" in said
    assert "released no time is attested" in said
    assert "overspent yes" in said
    assert "would be OVERSPENT and would admit nothing any more. Nothing was recorded." in answer.stderr
    assert phones("round", "show", "leak").code == 4


@pytest.mark.parametrize("attested", [(), ("--released-after", "2020-01-01T00:00:00Z")])
def test_an_incident_of_before_the_opening_says_why_it_costs_everything(
    phones: Run, attested: tuple[str, ...]
) -> None:
    described = ("--randomizer", "krr(k=10, epsilon0=1)", "--reports", "1000", "--reason", "a script")
    recorded = phones("incident", "record", "phones", "--id", "leak", *described, *attested)
    shown = phones("round", "show", "leak")
    for said in (" ".join(recorded.stdout.split()), " ".join(shown.stdout.split())):
        assert "as the unprotected data, because no time after the opening of the cohort is attested" in said
