"""`compose`: what many rounds cost together."""

from __future__ import annotations

from pathlib import Path

import click

from cli.amplify import certificate_facts, certify, drawn
from cli.options import FILE, NO_LEDGER, REAL, output_options, plot_option, precision_option, server_refused
from cli.present import certificate_document, facts, present
from cli.round_files import read_composition


@click.command()
@click.argument("file", type=FILE)
@click.option("--delta", type=REAL, metavar="D", help="Bound epsilon at this delta.")
@click.option("--epsilon", type=REAL, metavar="E", help="Bound delta at this epsilon.")
@precision_option
@plot_option
@server_refused(NO_LEDGER)
@output_options
def compose(
    file: Path,
    delta: float | None,
    epsilon: float | None,
    precision: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Bound the privacy loss of all rounds in FILE together.

    FILE is CSV with a header, or JSON lines: randomizer, reports and, as needed, sampled_from, participation,
    honest_fraction, delta0, analysis, count.
    """
    rounds = read_composition(file)
    certificate, of = certify(rounds, delta=delta, epsilon=epsilon, precision=precision)
    document = certificate_document(certificate, of=of)
    title = f"All rounds of {file}"
    document |= drawn(rounds, certificate, precision=precision, title=title, picture=plot)
    present(
        document,
        lambda: facts(title, certificate_facts(certificate, of=of)),
        as_json=as_json,
    )
