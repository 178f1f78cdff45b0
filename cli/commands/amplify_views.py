"""`amplify`: answers beyond the certificate of the round: single attributes, and few honest users."""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting import (
    Accountant,
    BinomialHistogram,
    BinomialSum,
    Certificate,
    InvalidParameter,
    Joint,
    ShuffledRound,
    attribute_rounds,
    exact_text,
)
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.rendering.present import upper
from shuffle_ledger.ledger.answers import certified_alike
from shuffle_ledger.ledger.values import Json, document_of, number


class More(NamedTuple):
    """What an answer says more: fields of the JSON answer, and rows that people read."""

    document: dict[str, Json]
    rows: dict[str, object]


def of_attributes(accountant: Accountant, described: ShuffledRound, asked: Certificate, *, of: str) -> More:
    """Returns a certificate for datasets that differ in one attribute, for each part of a `joint`.

    Args:
        accountant: computes the certificates.
        described: the round.
        asked: its certificate.
        of: which of "epsilon" and "delta" was asked for.
    """
    try:
        rounds = attribute_rounds(described)
    except InvalidParameter as problem:
        raise BadValue("attributes", problem.value, problem.expected) from None
    assert isinstance(described.randomizer, Joint)  # noqa: S101 - all others are refused above
    found: list[Json] = []
    rows: dict[str, object] = {}
    for place, (part, one) in enumerate(zip(described.randomizer.parts, rounds, strict=True), start=1):
        bound = certified_alike(accountant, one, asked, of=of)
        most, least = (getattr(bound, f"{of}_{side}") for side in ("upper", "lower"))
        found.append(
            {
                "randomizer": document_of(part.to_mapping()),
                f"{of}_upper": number(most),
                f"{of}_lower": number(least),
                "precise": bound.precise,
            }
        )
        rows[f"if only attribute {place} differs, {of}, at most"] = f"{upper(most)}  {part.describe()}"
    return More({"attributes": found}, rows)


def counter_facts(described: ShuffledRound, certificate: Certificate) -> dict[str, object]:
    """Returns the row that people read of binomial noise in an online counter.

    The state of the counter is a first draw of noise and the count so far; its output adds a second draw.
    An observer sees the state once, and the output. A value before that moment shows through the first draw
    only, and a later value through the second only. Either is the pair of the certificate.

    Source: Balcer, Cheu, Joseph, Mao, Theorem 5.1 and Algorithm 7, with the epsilon of the pair in place of
        the closed form.
    """
    noise = described.randomizer
    plain = ShuffledRound(randomizer=noise, reports=described.reports)
    if not isinstance(noise, BinomialSum) or described != plain:
        return {}
    each = "each count" if isinstance(noise, BinomialHistogram) else "the count"
    bounds = f"({upper(certificate.epsilon_upper)}, {upper(certificate.delta_upper)})"
    trials = described.reports * noise.bits
    return {
        "as a counter": f"{bounds}-pan-private if a draw of Bin({trials:,}, {exact_text(noise.p)})"
        f" is added to {each} before the stream, and another one behind it"
    }


def few_honest_facts(described: ShuffledRound, third: Certificate | None) -> dict[str, object]:
    """Returns the rows that people read of a protocol of which a third of the users is honest.

    Source: Balcer, Cheu, Joseph, Mao, "Connecting Robust Shuffle Privacy and Pan-Privacy", Definition 2.9,
        Lemma 3.7, and Lemma 4.9 with the same argument for privacy.
    """
    if third is None:
        return {}
    count = described.reports // 3
    guarantee = f"({upper(third.epsilon_upper)}, {upper(third.delta_upper)}"
    return {
        "if a third is honest": f"{guarantee}, 1/3)-robustly shuffle private",
        "as a stream": f"{guarantee})-pan-private for a stream of {count:,} values, with reports of"
        f" {count:,} dummy users before it and behind it",
    }
