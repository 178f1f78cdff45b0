"""A new field of a round's registration costs four modules, and every list, file and form has it."""

from __future__ import annotations

import re
from dataclasses import fields

from shuffle_ledger.cli.commands.round import quote_, register_
from shuffle_ledger.cli.files.fields import REGISTRATION_FIELDS
from shuffle_ledger.cli.files.round_tables import IMPORT_COLUMNS
from shuffle_ledger.ledger.answers import ListedRound
from shuffle_ledger.ledger.questions.rounds import QuoteForAll, RegisterRound
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.architecture.tree import ROOMS, ROOT

# The ledger finds these three itself; the others are the round, its name and its cohorts.
_FOUND = {"windows", "team", "quotas"}
_NAMED = {"round_id", "cohort", "round", "audience"}
HOMES = {
    "ledger/values/requests.py",
    "ledger/questions/rounds.py",
    "cli/files/fields.py",
    "cli/options.py",
}
# What groups or shows rounds by their use case, which a field need not do.
READERS = {
    "cli/commands/demo_run.py",
    "cli/commands/demo_views.py",
    "cli/rendering/charts.py",
    "cli/rendering/statements/annexes.py",
    "ledger/api/pages/routes.py",
    "ledger/api/pages/spending.py",
    "ledger/evidence/chain_reader.py",
    "ledger/evidence/statement.py",
    "ledger/reports/__init__.py",
    "ledger/reports/budgets.py",
    "ledger/reports/chain_outlines.py",
    "ledger/reports/collection_days.py",
    "ledger/reports/listing.py",
}
IN_HELP = {"cli/commands/round_import.py"}  # which lists the columns of an import


def names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


def test_every_way_in_and_out_has_each_field_of_a_registration() -> None:
    declared = names(RoundRequest) - _FOUND - _NAMED
    assert declared == set(REGISTRATION_FIELDS)
    assert declared <= names(RegisterRound) & names(QuoteForAll) & set(IMPORT_COLUMNS)
    assert names(RoundRequest) <= names(ListedRound)
    for command in (register_, quote_):
        assert declared <= {each.name for each in command.params}, command.name


def test_a_field_of_a_registration_has_four_homes() -> None:
    naming = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\buse_case\b|_use_cases?\b|\buse_cases\b", path.read_text("utf-8"))
    }
    assert naming == HOMES | READERS | IN_HELP
