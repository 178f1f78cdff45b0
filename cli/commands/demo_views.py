"""The demo's tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shuffle_ledger.cli.commands.budget import budget_text
from shuffle_ledger.cli.commands.demo_run import DemoCohort, DemoResult
from shuffle_ledger.cli.rendering.present import Bar, Listing, lower, shown, upper
from shuffle_ledger.ledger.answers import fits_in_words


def demo_tables(result: DemoResult) -> RenderableType:
    """Returns a table per cohort, and where the pictures are."""
    imported = result.imported
    counts = f"{shown(imported.rounds_admitted)} admitted, {shown(imported.rounds_refused)} refused"
    closing = Text(f"{shown(imported.rounds)} rounds: {counts}.\nPictures and {result.summary}:")
    pictures = [Text(f"  {cohort.picture}") for cohort in result.cohorts]
    tables = [_cohort_table(cohort) for cohort in result.cohorts]
    return Group(*tables, closing, *pictures, _next_steps(result))


def _next_steps(result: DemoResult) -> Text:
    """Returns the commands that show the ledger of the demo, and its pages in a browser."""
    return Text(
        "\nWhat to look at next:\n"
        "  . .venv/bin/activate  # in a checkout\n"
        f"  export SHUFFLE_LEDGER_DATABASE_URL={result.database_url}\n"
        "  shuffle-ledger budget nz-phone\n"
        "  shuffle-ledger round list nz-phone --outcome refused\n"
        "  shuffle-ledger audit verify\n"
        "  shuffle-ledger token create me --role admin  # then paste the token into the page:\n"
        "  shuffle-ledger serve                         # and open http://127.0.0.1:8000/"
    )


def _cohort_table(cohort: DemoCohort) -> RenderableType:
    statement = cohort.budget
    share = statement.epsilon_spent_upper / statement.epsilon_budget
    users = f"  {shown(statement.population)} users, {budget_text(statement)}"
    title = Text.assemble((statement.cohort, "bold"), users)
    spent, left = upper(statement.epsilon_spent_upper), lower(statement.epsilon_remaining)
    table = Listing(show_footer=True)
    table.add_column("use case", footer="all", min_width=16)
    table.add_column("admitted", footer=shown(statement.rounds_admitted), justify="right")
    table.add_column("refused", footer=shown(statement.rounds_refused), justify="right")
    for name, counts in cohort.use_cases.items():
        table.add_row(name, shown(counts["admitted"]), shown(counts["refused"]))
    fits = ", ".join(fits_in_words(statement.fits))
    fitting = Text(f"still fits: {fits or 'no kind of rounds was admitted yet'}")
    read = f"spent at most {spent}, remaining at least {left}"
    reading = Bar(fraction=share, width=40, text=read)
    return Group(title, fitting, reading, table, Text())
