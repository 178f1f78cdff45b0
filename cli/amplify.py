"""`amplify`: what one round costs."""

from __future__ import annotations

import click

from accounting import Accountant, Certificate, ShuffledRound
from cli.failures import BadValue
from cli.options import REAL, output_options, round_options
from cli.present import certificate_document, document_of, facts, lower, present, shown, upper


@click.command()
@round_options
@click.option("--delta", type=REAL, metavar="D", help="Bound epsilon at this delta.")
@click.option("--epsilon", type=REAL, metavar="E", help="Bound delta at this epsilon.")
@output_options
def amplify(described: ShuffledRound, delta: float | None, epsilon: float | None, as_json: bool) -> None:
    """Bound the privacy loss of one shuffled round."""
    certificate, of = certify({described: 1}, delta=delta, epsilon=epsilon)
    document = certificate_document(certificate, of=of) | {"round": document_of(described)}
    title = f"One round of {described.randomizer.describe()}, {described.reports:,} reports"
    present(document, lambda: facts(title, certificate_facts(certificate, of=of)), as_json=as_json)


def certify(
    rounds: dict[ShuffledRound, int], *, delta: float | None, epsilon: float | None
) -> tuple[Certificate, str]:
    """Returns the certificate of `rounds`, and which of "epsilon" and "delta" it bounds."""
    if delta is not None and epsilon is None:
        return Accountant().certify(rounds, delta=delta), "epsilon"
    if epsilon is not None and delta is None:
        return Accountant().certify_delta(rounds, epsilon=epsilon), "delta"
    raise BadValue("delta", delta, "exactly one of --delta and --epsilon")


def certificate_facts(certificate: Certificate, *, of: str) -> dict[str, object]:
    """Returns the rows that people read of a certificate `of` "epsilon" or "delta"."""
    given = "delta" if of == "epsilon" else "epsilon"
    return {
        f"{of}, at most": upper(getattr(certificate, f"{of}_upper")),
        f"{of}, at least": lower(getattr(certificate, f"{of}_lower")),
        f"at {given}": getattr(certificate, f"{given}_upper"),
        "rounds": certificate.rounds,
        "width by cause": _width(certificate),
        "method": certificate.method,
    }


def _width(certificate: Certificate) -> str:
    causes = ("discretization", "truncation", "round_off")
    return ", ".join(
        f"{cause.replace('_', ' ')} {shown(getattr(certificate.error, cause))}" for cause in causes
    )
