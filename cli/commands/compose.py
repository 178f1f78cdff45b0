"""`compose`: what many rounds cost together."""

from __future__ import annotations

from pathlib import Path

import click

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.commands.amplify import certificate_facts, certify, drawn, of_renyi
from shuffle_ledger.cli.files.round_files import read_composition
from shuffle_ledger.cli.options import FILE, NO_LEDGER, output_options, question_options, server_refused
from shuffle_ledger.cli.rendering.present import facts, present
from shuffle_ledger.ledger.answers import composition
from shuffle_ledger.ledger.values import fields_document


@click.command()
@click.argument("file", type=FILE)
@question_options
@server_refused(NO_LEDGER)
@output_options
def compose(
    file: Path,
    delta: float | None,
    epsilon: float | None,
    precision: float,
    renyi: float | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Bound the privacy loss of all rounds in FILE together.

    FILE is CSV with a header, or JSON lines: randomizer, reports and, as needed, sampled_from, participation,
    honest_fraction, delta0, analysis, reports_per_user, count.
    """
    rounds = read_composition(file)
    accountant = Accountant(precision=precision)
    certificate, of = certify(accountant, rounds, delta=delta, epsilon=epsilon)
    document = fields_document(composition(rounds, certificate, of=of))
    rows = certificate_facts(certificate, of=of) | {
        "analysis": ", ".join(sorted({one.stated_analysis for one in rounds}))
    }
    title = f"All rounds of {file}"
    divergence = of_renyi(accountant, rounds, renyi)
    document |= divergence.document
    rows |= divergence.rows
    document |= drawn(accountant, rounds, certificate, title=title, picture=plot)
    present(document, lambda: facts(title, rows), as_json=as_json)
