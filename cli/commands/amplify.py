"""`amplify`: what one round costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from shuffle_ledger.accounting import (
    Accountant,
    Certificate,
    InvalidParameter,
    ShuffledRound,
    charged_as,
    exact_text,
    parse_randomizer,
    published_bounds,
)
from shuffle_ledger.cli.commands.amplify_views import More, counter_facts, few_honest_facts, of_attributes
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.options import (
    NO_LEDGER,
    WHOLE,
    output_options,
    question_options,
    round_options,
    server_refused,
)
from shuffle_ledger.cli.rendering.present import (
    facts,
    lower,
    present,
    upper,
)
from shuffle_ledger.ledger.answers import amplification, attack_on, certified, few_honest
from shuffle_ledger.ledger.values import Json, fields_document, number


@click.command()
@round_options
@click.option(
    "--dummies",
    type=WHOLE,
    metavar="D",
    help="Reports that the shuffler draws from the uniform law over all reports, beside --reports.",
)
@click.option("--compare", is_flag=True, help="Show what published closed forms say, too; with --delta.")
@click.option(
    "--attributes", is_flag=True, help="Of a joint: show also the bound if only one attribute differs."
)
@question_options
@server_refused(NO_LEDGER)
@output_options
def amplify(
    described: ShuffledRound,
    dummies: int | None,
    delta: float | None,
    epsilon: float | None,
    precision: float,
    renyi: float | None,
    plot: Path | None,
    compare: bool,
    attributes: bool,
    as_json: bool,
) -> None:
    """Bound the privacy loss of one shuffled round."""
    if compare and delta is None:
        raise click.UsageError("--compare needs --delta: closed forms bound epsilon at a delta")
    if dummies is not None:
        described = with_dummies(described, dummies)
    accountant = Accountant(precision=precision)
    certificate, of = certify(accountant, {described: 1}, delta=delta, epsilon=epsilon)
    attacked = attack_on(described, certificate, of=of)
    third = few_honest(accountant, described, certificate, of=of)
    document = fields_document(amplification(described, certificate, attacked, third, of=of))
    title = f"One round of {described.in_words}"
    rows = certificate_facts(certificate, of=of)
    divergence = of_renyi(accountant, {described: 1}, renyi)
    document |= divergence.document
    rows |= divergence.rows
    document |= drawn(accountant, {described: 1}, certificate, title=title, picture=plot)
    if compare:
        compared = of_comparison(described, certificate.delta_upper)
        document |= compared.document
        rows |= compared.rows
    rows |= few_honest_facts(described, third) | counter_facts(described, certificate)
    if attributes:
        more = of_attributes(accountant, described, certificate, of=of)
        document |= more.document
        rows |= more.rows
    rows["analysis"] = described.stated_analysis
    rows |= per_user_facts(described)
    rows["known attack gets"] = "no attack is known" if attacked is None else lower(attacked)
    present(document, lambda: facts(title, rows), as_json=as_json)


def with_dummies(described: ShuffledRound, dummies: int) -> ShuffledRound:
    """Returns the round with reports that the shuffler adds."""
    randomizer = described.written
    if randomizer.kind == "mixed":
        raise click.UsageError("--dummies: of a mixed fleet they are written in it: mixed(..., dummies=D)")
    fleet = f"mixed(({described.reports}, {randomizer.describe()}), dummies={dummies})"
    given = described.asked_mapping() | {"randomizer": parse_randomizer(fleet)}
    return ShuffledRound.from_mapping(given)


def certify(
    accountant: Accountant, rounds: dict[ShuffledRound, int], *, delta: float | None, epsilon: float | None
) -> tuple[Certificate, str]:
    """Returns the certificate of `rounds`, and which of "epsilon" and "delta" it bounds."""
    if (delta is None) == (epsilon is None):
        given = "neither" if delta is None else "both"
        raise click.UsageError(f"give one of --delta and --epsilon; {given} was given")
    return certified(accountant, rounds, delta=delta, epsilon=epsilon)


def drawn(
    accountant: Accountant,
    rounds: Mapping[ShuffledRound, int],
    certificate: Certificate,
    *,
    title: str,
    picture: Path | None,
) -> dict[str, Json]:
    """Returns what the answer says of the picture that was asked for, once it is drawn."""
    if picture is None:
        return {}
    from shuffle_ledger.cli.rendering.profile_charts import plot_profile  # noqa: PLC0415 - Matplotlib takes a second to import

    plot_profile(accountant, rounds, answer=certificate, title=title, picture=picture)
    return {"plot": str(picture)}


def certificate_facts(certificate: Certificate, *, of: str) -> dict[str, object]:
    """Returns the rows that people read of a certificate `of` "epsilon" or "delta"."""
    given = "delta" if of == "epsilon" else "epsilon"
    wide = "as narrow as asked" if certificate.precise else "wider than asked; the bounds hold all the same"
    return {
        f"{of}, at most": upper(getattr(certificate, f"{of}_upper")),
        f"{of}, at least": lower(getattr(certificate, f"{of}_lower")),
        f"at {given}": getattr(certificate, f"{given}_upper"),
        "rounds": certificate.rounds,
        "interval": wide,
        "width by cause": _width(certificate),
        "method": certificate.method,
    }


def per_user_facts(described: ShuffledRound) -> dict[str, object]:
    """Returns the rows that people read of several reports of a user; none for one report."""
    if described.reports_per_user == 1:
        return {}
    single, count = charged_as(described)
    return {
        "reports of a user": f"at most {described.reports_per_user}; those beyond are not counted",
        "charged as": f"{count} rounds of {single.reports:,} reports",
    }


def of_renyi(accountant: Accountant, rounds: Mapping[ShuffledRound, int], order: float | None) -> More:
    """Returns bounds on the Renyi divergence of `rounds`; nothing where no order was asked for."""
    if order is None:
        return More({}, {})
    try:
        bound = accountant.renyi_divergence(rounds, order=order)
    except InvalidParameter as problem:
        raise BadValue("renyi", problem.value, problem.expected) from None
    name = f"Renyi divergence of order {exact_text(bound.order)}"
    return More(
        {"renyi": {"order": bound.order, "upper": number(bound.upper), "lower": number(bound.lower)}},
        {f"{name}, at most": upper(bound.upper), f"{name}, at least": lower(bound.lower)},
    )


def of_comparison(described: ShuffledRound, delta: float) -> More:
    """Returns what published closed forms say."""
    found: list[Json] = []
    rows: dict[str, object] = {}
    for one in published_bounds(described, delta=delta):
        bound = one.epsilon_upper
        stated = None if bound is None else number(bound)
        found.append(
            {"name": one.name, "source": one.source, "epsilon_upper": stated, "condition": one.condition}
        )
        rows[one.source] = f"needs {one.condition}" if bound is None else upper(bound)
    return More({"comparison": found}, rows)


def _width(certificate: Certificate) -> str:
    causes = ("discretization", "truncation", "round_off")
    return ", ".join(
        f"{cause.replace('_', ' ')} {upper(getattr(certificate.error, cause))}" for cause in causes
    )
