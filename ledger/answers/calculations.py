"""The answers of calculators, the same on the command line and over HTTP; no ledger is asked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from shuffle_ledger.accounting import (
    Accountant,
    Calibration,
    Certificate,
    ErrorBudget,
    FrequencyError,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    frequency_error,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.field_marks import FINITE, LEFT_OUT

Parameter: TypeAlias = Literal["epsilon0", "p", "bits", "noise", "dummies"]


@dataclass(frozen=True, kw_only=True)
class EpsilonInterval:
    """Certified bounds on epsilon at the delta that was given."""

    epsilon_upper: float
    epsilon_lower: float
    delta: float = field(metadata=FINITE)
    rounds: int
    error: ErrorBudget
    precise: bool  # the interval is as narrow as wanted
    method: str


@dataclass(frozen=True, kw_only=True)
class DeltaInterval:
    """Certified bounds on delta at the epsilon that was given."""

    delta_upper: float
    delta_lower: float
    epsilon: float = field(metadata=FINITE)
    rounds: int
    error: ErrorBudget
    precise: bool  # the interval is as narrow as wanted
    method: str


@dataclass(frozen=True, kw_only=True)
class FewHonest:
    """Bounds of a protocol with common noise if a third of the users is honest."""

    honest_reports: int
    epsilon_upper: float
    delta_upper: float


@dataclass(frozen=True, kw_only=True)
class EpsilonAmplification(EpsilonInterval):
    """The answer of `amplify --delta` with --json: bounds on one round's epsilon."""

    attack_epsilon_lower: float | None  # None: no attack is known
    attack_known: bool
    analysis: str
    round: ShuffledRound
    one_third_honest: FewHonest | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class DeltaAmplification(DeltaInterval):
    """The answer of `amplify --epsilon` with --json: bounds on one round's delta."""

    attack_delta_lower: float | None  # None: no attack is known
    attack_known: bool
    analysis: str
    round: ShuffledRound
    one_third_honest: FewHonest | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class EpsilonComposition(EpsilonInterval):
    """The answer of `compose --delta` with --json: bounds on the epsilon of rounds together."""

    analyses: tuple[str, ...]  # of the rounds, each once


@dataclass(frozen=True, kw_only=True)
class DeltaComposition(DeltaInterval):
    """The answer of `compose --epsilon` with --json: bounds on the delta of rounds together."""

    analyses: tuple[str, ...]  # of the rounds, each once


@dataclass(frozen=True, kw_only=True)
class CalibratedRounds:
    """The answer of `calibrate` with --json: the least noise that certainly meets a target."""

    parameter: Parameter
    value: float = field(metadata=FINITE)  # it certainly meets the target
    value_beyond: float | None  # the nearest with less noise that was tried and is not certain to meet it
    epsilon0: float
    epsilon0_beyond: float | None
    policy: str
    cohort: str | None  # within whose budget; None: within the target
    epsilon_decided_upper: float = field(metadata=FINITE)  # at most the target
    epsilon_upper: float
    epsilon_lower: float
    delta: float = field(metadata=FINITE)
    rounds: int
    error: ErrorBudget
    precise: bool  # the interval is as narrow as wanted
    method: str
    expected_l2_error: float | None
    frequency_error: FrequencyError | None  # None: the randomizer is no frequency oracle
    analysis: str
    round: ShuffledRound
    accounted: ShuffledRound


Amplification: TypeAlias = EpsilonAmplification | DeltaAmplification
Composition: TypeAlias = EpsilonComposition | DeltaComposition


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
    raise InvalidValue(field="delta", value=delta, expected="a delta or an epsilon, not both")


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


def analyses_of(rounds: Iterable[ShuffledRound]) -> tuple[str, ...]:
    """Return the names of the analyses by which rounds are bounded, each once."""
    return tuple(sorted({str(one.analysis) for one in rounds}))


def composition(rounds: Iterable[ShuffledRound], certificate: Certificate, *, of: str) -> Composition:
    """Return the answer of `compose`; `of` is which of "epsilon" and "delta" the certificate bounds."""
    kind = EpsilonComposition if of == "epsilon" else DeltaComposition
    return kind(**_interval(certificate, of=of), analyses=analyses_of(rounds))


def amplification(
    described: ShuffledRound,
    certificate: Certificate,
    attacked: float | None,
    third: Certificate | None,
    *,
    of: str,
) -> Amplification:
    """Return the answer of `amplify`; `attacked` is what `attack_on` returns, `third` what `few_honest`
    does."""
    few = None
    if third is not None:
        few = FewHonest(
            honest_reports=described.reports // 3,
            epsilon_upper=third.epsilon_upper,
            delta_upper=third.delta_upper,
        )
    kind = EpsilonAmplification if of == "epsilon" else DeltaAmplification
    bounds: dict[str, Any] = {**_interval(certificate, of=of), f"attack_{of}_lower": attacked}
    return kind(
        **bounds,
        attack_known=attacked is not None,
        analysis=str(described.analysis),
        round=described,
        one_third_honest=few,
    )


def _interval(certificate: Certificate, *, of: str) -> dict[str, Any]:
    """Return the fields of an interval `of` "epsilon" or "delta"; the other one was given."""
    given = "delta" if of == "epsilon" else "epsilon"
    return {
        f"{of}_upper": getattr(certificate, f"{of}_upper"),
        f"{of}_lower": getattr(certificate, f"{of}_lower"),
        given: getattr(certificate, f"{given}_upper"),
        "rounds": certificate.rounds,
        "error": certificate.error,
        "precise": certificate.precise,
        "method": certificate.method,
    }


def calibrated_error(found: Calibration) -> FrequencyError | None:
    """Return the error of frequencies estimated from the reports that are expected to come in and to be
    honest; None for other randomizers than frequency oracles."""
    share = 1.0 if found.round.participation is None else found.round.participation
    reports = max(math.floor(found.round.honest_reports * share), 1)
    return frequency_error(found.round.randomizer, reports)


def calibrated_rounds(
    found: Calibration, error: FrequencyError | None, *, cohort: str | None = None
) -> CalibratedRounds:
    """Return the answer of `calibrate`; `error` is what `calibrated_error` returns."""
    return CalibratedRounds(
        parameter=cast("Parameter", found.parameter),
        value=found.value,
        value_beyond=found.value_beyond,
        epsilon0=found.epsilon0,
        epsilon0_beyond=found.epsilon0_beyond,
        policy=found.policy,
        cohort=cohort,
        epsilon_decided_upper=found.epsilon_decided_upper,
        **_interval(found.certificate, of="epsilon"),
        expected_l2_error=None if error is None else error.l2,
        frequency_error=error,
        analysis=str(found.round.analysis),
        round=found.round,
        accounted=found.accounted,
    )
