"""Which parameters of a round contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from shuffle_ledger.accounting.amplification.decomposition import LEAST_PROBABILITY
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import Generic, LocalGaussian
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.generic import CLONE
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet
from shuffle_ledger.accounting.validation import MINIMUM_PROBABILITY

if TYPE_CHECKING:
    from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

Contradiction: TypeAlias = tuple[str, object, str]  # the parameter, its value, and what was expected


def contradictions(shuffled: ShuffledRound) -> Iterator[Contradiction]:
    """Returns what the other parameters of a round, each in its own range, do not allow, the first one to
    mend first; nothing if a bound holds for the round."""
    yield from _of_users(shuffled)
    yield from _of_analysis(shuffled)
    yield from _of_honesty(shuffled)
    if shuffled.reports_per_user > 1:
        yield from _of_several_reports(shuffled)


def _of_users(shuffled: ShuffledRound) -> Iterator[Contradiction]:
    population, participation, users = shuffled.sampled_from, shuffled.participation, shuffled.fewest_users
    if population is not None and population < users:
        expected = f"at least the {shuffled.reports} reports sampled from it"
        if shuffled.reports_per_user > 1:
            expected = f"at least {users} users, who sent the {shuffled.reports} reports"
        yield "sampled_from", population, expected
    if participation is not None and participation < MINIMUM_PROBABILITY:
        expected = f"a probability from {exact_text(MINIMUM_PROBABILITY)} to 1"
        yield "participation", participation, expected
    if participation is not None and population is not None:
        yield "participation", participation, "nothing when sampled_from is given"
    if 0 < shuffled.delta0 < MINIMUM_PROBABILITY:
        expected = f"0 or a number from {exact_text(MINIMUM_PROBABILITY)} to below 1"
        yield "delta0", shuffled.delta0, expected


def _of_analysis(shuffled: ShuffledRound) -> Iterator[Contradiction]:
    randomizer, participation = shuffled.randomizer, shuffled.participation
    if participation is not None and not randomizer.takes_participation:
        yield "participation", participation, f"nothing for {randomizer.kind}: {randomizer.silence}"
    if shuffled.coin is not None and isinstance(randomizer, DecomposedRandomizer):
        least = randomizer.least_probability
        if shuffled.coin * least < LEAST_PROBABILITY:
            floor, found = exact_text(LEAST_PROBABILITY), exact_text(least)
            expected = f"no output less likely than {floor}, one of {found} among them"
            yield "participation", participation, expected
    if shuffled.delta0 > 0 and not isinstance(randomizer, Generic):
        yield "delta0", shuffled.delta0, f"0 for {randomizer.kind}: published for generic alone"
    names = shuffled.possible_analyses
    if shuffled.analysis not in names:
        expected = f"one of {', '.join(names)} for {randomizer.kind}"
        if names != randomizer.analyses:
            expected += " with sampled_from" if shuffled.sampled_from else " with participation or delta0"
        if shuffled.analysis == CLONE and isinstance(randomizer, DecomposedRandomizer):
            expected += "; generic(epsilon0=E) stands for any randomizer of a local epsilon0 E"
        yield "analysis", shuffled.analysis, expected


def _of_honesty(shuffled: ShuffledRound) -> Iterator[Contradiction]:
    randomizer, reports = shuffled.randomizer, shuffled.reports
    if isinstance(randomizer, MixedFleet):
        if reports != randomizer.reports:
            expected = f"{randomizer.reports}, the reports of all groups of the mixed fleet"
            yield "reports", reports, expected
        if shuffled.sampled_from is not None:
            expected = "nothing for mixed: how a sample falls on its groups is not accounted"
            yield "sampled_from", shuffled.sampled_from, expected
    least = randomizer.minimum_honest
    if least == 0 and shuffled.honest_fraction < 1:
        yield "honest_fraction", shuffled.honest_fraction, f"1 for {randomizer.kind}: {randomizer.silence}"
    if isinstance(randomizer, LocalGaussian) and shuffled.certain_reports is None:
        expected = (
            "1 for a sample of local_gaussian without a delta0: its bound takes too long for every number of"
            " honest reports; leave sampled_from out, which then earns no credit, and give the honest share"
            " of the reports, or state a delta0"
        )
        yield "honest_fraction", shuffled.honest_fraction, expected
    if reports < least:
        yield "reports", reports, f"at least {least} for {randomizer.kind}"
    if shuffled.honest_reports < least:
        count = "one" if least == 1 else str(least)
        expected = f"a share of the {reports} reports that leaves at least {count} honest"
        yield "honest_fraction", shuffled.honest_fraction, expected


def _of_several_reports(shuffled: ShuffledRound) -> Iterator[Contradiction]:
    """Returns why no bound is proven for several reports of one user."""
    expected = None
    if not isinstance(shuffled.randomizer, DecomposedRandomizer):
        kind = shuffled.randomizer.kind
        expected = f"1 for {kind}: the bound needs reports that are randomized one by one"
    elif shuffled.analysis == CLONE:
        others = " and ".join(name for name in shuffled.possible_analyses if name != CLONE)
        expected = (
            f"1 for {CLONE}: the bound needs one randomizer on all devices, fixed before the round, as"
            f" {others} do"
        )
    elif shuffled.participation is not None:
        expected = (
            "1 with participation: its coin would decide on all reports of a user together; leave it out and"
            " count the reports that were sent"
        )
    elif shuffled.certain_reports is None:
        expected = (
            "1 for a partly honest sample, whose number of honest reports is random; leave sampled_from out,"
            " which earns no credit here, and give the honest share of the reports"
        )
    if expected is not None:
        yield "reports_per_user", shuffled.reports_per_user, expected
