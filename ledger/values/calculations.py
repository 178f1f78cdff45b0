"""The JSON answers of calculators, the same on the command line and over HTTP; no ledger is asked"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from shuffle_ledger.accounting import (
    Accountant,
    Calibration,
    Certificate,
    FrequencyError,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    frequency_error,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.documents import Json, document_of, number


def certified(
    accountant: Accountant,
    rounds: Mapping[ShuffledRound, int],
    *,
    delta: float | None,
    epsilon: float | None,
) -> tuple[Certificate, str]:
    """Return the certificate of rounds, and which of "epsilon" and "delta" it bounds: the one not given.

    Raises:
        InvalidValue: both are given, or neither.
        InvalidParameter: the one given is out of range.
    """
    if delta is not None and epsilon is None:
        return accountant.certify(rounds, delta=delta), "epsilon"
    if epsilon is not None and delta is None:
        return accountant.certify_delta(rounds, epsilon=epsilon), "delta"
    raise InvalidValue(field="delta", value=delta, expected="a delta, or an epsilon in its place")


def certificate_document(certificate: Certificate, *, of: str) -> dict[str, Json]:
    """Return the JSON form of an interval `of` "epsilon" or "delta"; the other one was given."""
    given = "delta" if of == "epsilon" else "epsilon"
    return {
        f"{of}_upper": number(getattr(certificate, f"{of}_upper")),
        f"{of}_lower": number(getattr(certificate, f"{of}_lower")),
        given: number(getattr(certificate, f"{given}_upper")),
        "rounds": certificate.rounds,
        "error": document_of(certificate.error),
        "precise": certificate.precise,
        "method": certificate.method,
    }


def attack_on(described: ShuffledRound, certificate: Certificate, *, of: str) -> float | None:
    """Return a lower bound on the round's true epsilon or delta (`of`); None if no attack is known."""
    if of == "epsilon":
        return attack_epsilon(described, delta=certificate.delta_upper)
    return attack_delta(described, epsilon=certificate.epsilon_upper)


def few_honest(
    accountant: Accountant, described: ShuffledRound, asked: Certificate, *, of: str
) -> Certificate | None:
    """Return the certificate of a protocol with common noise if a third of its users is honest, at the delta
    or the epsilon of `asked`; None for other rounds, for samples, and for too few users.

    Source: Balcer, Cheu, Joseph, Mao, "Connecting Robust Shuffle Privacy and Pan-Privacy", Definition 2.9;
        docs/theory/randomizers.md, R19.
    """
    third = described.reports // 3
    is_protocol = bool(described.randomizer.noise_ranges)
    if not is_protocol or described.sampled_from or third < described.randomizer.minimum_honest:
        return None
    fewer = dataclasses.replace(described, reports=third, honest_fraction=1.0)
    return certified_alike(accountant, fewer, asked, of=of)


def certified_alike(
    accountant: Accountant, described: ShuffledRound, asked: Certificate, *, of: str
) -> Certificate:
    """Return the certificate of a round at the delta, or the epsilon, that another certificate was asked
    for; `of` is which of "epsilon" and "delta" it bounds."""
    delta, epsilon = (asked.delta_upper, None) if of == "epsilon" else (None, asked.epsilon_upper)
    return certified(accountant, {described: 1}, delta=delta, epsilon=epsilon)[0]


def analyses_of(rounds: Iterable[ShuffledRound]) -> list[str]:
    """Return the names of the analyses by which rounds are bounded, each once."""
    return sorted({str(one.analysis) for one in rounds})


def composition_document(
    rounds: Iterable[ShuffledRound], certificate: Certificate, *, of: str
) -> dict[str, Json]:
    """Return the answer of `compose`; `of` is which of "epsilon" and "delta" the certificate bounds."""
    return {**certificate_document(certificate, of=of), "analyses": list(analyses_of(rounds))}


def amplification_document(
    described: ShuffledRound,
    certificate: Certificate,
    attacked: float | None,
    third: Certificate | None,
    *,
    of: str,
) -> dict[str, Json]:
    """Return the answer of `amplify`; `attacked` is what `attack_on` returns, `third` what `few_honest`
    does."""
    more: dict[str, Json] = {}
    if third is not None:
        more["one_third_honest"] = {
            "honest_reports": described.reports // 3,
            "epsilon_upper": number(third.epsilon_upper),
            "delta_upper": number(third.delta_upper),
        }
    return {
        **certificate_document(certificate, of=of),
        f"attack_{of}_lower": None if attacked is None else number(attacked),
        "attack_known": attacked is not None,
        "analysis": described.analysis,
        "round": document_of(described),
        **more,
    }


def calibrated_error(found: Calibration) -> FrequencyError | None:
    """Return the error of frequencies estimated from the reports that are expected to come in and to be
    honest; None for other randomizers than frequency oracles."""
    share = 1.0 if found.round.participation is None else found.round.participation
    reports = max(math.floor(found.round.honest_reports * share), 1)
    return frequency_error(found.round.randomizer, reports)


def calibration_document(
    found: Calibration, error: FrequencyError | None, *, cohort: str | None = None
) -> dict[str, Json]:
    """Return the answer of `calibrate`; `error` is what `calibrated_error` returns."""
    return {
        "parameter": found.parameter,
        "value": found.value,
        "value_beyond": found.value_beyond,
        "epsilon0": number(found.epsilon0),
        "epsilon0_beyond": found.epsilon0_beyond,
        "policy": found.policy,
        "cohort": cohort,
        "epsilon_decided_upper": found.epsilon_decided_upper,
        **certificate_document(found.certificate, of="epsilon"),
        "expected_l2_error": None if error is None else error.l2,
        "frequency_error": document_of(error),
        "analysis": found.round.analysis,
        "round": document_of(found.round),
        "accounted": document_of(found.accounted),
    }
