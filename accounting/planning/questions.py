"""Short questions: rounds as texts or values, their certificate, and epsilon over the number of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.certificate import DEFAULT_PRECISION, Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import LocalRandomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from shuffle_ledger.accounting.validation import MAXIMUM_ROUNDS

# What errors expect in the place of rounds.
_EXPECTED = (
    "a round, a list of rounds, or a mapping from rounds to their numbers; a round is a ShuffledRound, its"
    " JSON form, or a randomizer such as krr(k=10, epsilon0=1) with the other fields by name"
)


def certify(
    rounds: object,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    precision: float = DEFAULT_PRECISION,
    **fields: object,
) -> Certificate:
    """Returns a certified interval of epsilon at `delta`, or of delta at `epsilon`, for rounds together.

    Args:
        rounds: a round, a list of rounds, or a mapping from rounds to how often each happens. A round is a
            `ShuffledRound`, its JSON form, or a randomizer: a text such as `krr(k=10, epsilon0=1)`, or a
            value.
        delta, epsilon: one of them.
        precision: wanted relative width of the interval.
        **fields: fields of a `ShuffledRound`, such as `reports`, of all rounds that do not name them
            themselves; a `ShuffledRound` is complete and keeps its own.

    Guarantee: as of `Accountant.certify` and `Accountant.certify_delta`.

    Raises:
        InvalidParameter: a value is out of range, a round lacks a field, both of delta and epsilon are given
            or neither, or no round takes the fields.
    """
    asked, accountant = rounds_of(rounds, fields), Accountant(precision=precision)
    if delta is not None and epsilon is None:
        return accountant.certify(asked, delta=delta)
    if epsilon is not None and delta is None:
        return accountant.certify_delta(asked, epsilon=epsilon)
    raise InvalidParameter("delta", delta, "a delta or an epsilon, not both")


def rounds_of(rounds: object, fields: Mapping[str, object]) -> dict[ShuffledRound, int]:
    """Returns the kinds of rounds that were asked about, with their numbers; arguments as of `certify`.

    Raises:
        InvalidParameter: as of `certify`.
    """
    found: dict[ShuffledRound, int] = {}
    for one, count in counted(rounds):
        shuffled = one if isinstance(one, ShuffledRound) else ShuffledRound.from_mapping(form_of(one, fields))
        found[shuffled] = found.get(shuffled, 0) + count
    if fields and all(isinstance(one, ShuffledRound) for one, _ in counted(rounds)):
        name = next(iter(fields))
        raise InvalidParameter(name, fields[name], "nothing: a ShuffledRound is complete")
    return found


def counted(rounds: object) -> list[tuple[object, int]]:
    """Returns the rounds of a question one by one, each with its number.

    Raises:
        InvalidParameter: they are of another form, or a number is not a whole one from 0.
    """
    if isinstance(rounds, str | ShuffledRound | LocalRandomizer) or _is_form(rounds):
        return [(rounds, 1)]
    if isinstance(rounds, Mapping):
        return [(one, validation.whole("count", count, 0, MAXIMUM_ROUNDS)) for one, count in rounds.items()]
    if isinstance(rounds, list | tuple):
        return [(one, 1) for one in rounds]
    raise InvalidParameter("rounds", rounds, _EXPECTED)


def form_of(one: object, fields: Mapping[str, object]) -> dict[str, object]:
    """Returns the JSON form of a round, given as that or by its randomizer, with more fields where it has
    none.

    Raises:
        InvalidParameter: it is neither.
    """
    if isinstance(one, Mapping) and _is_form(one):
        return {**fields, **one}
    if isinstance(one, str | LocalRandomizer):
        return {**fields, "randomizer": one}
    raise InvalidParameter("rounds", one, _EXPECTED)


def _is_form(one: object) -> bool:
    return isinstance(one, Mapping) and "randomizer" in one


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Epsilon over the number of rounds, at one delta.

    Attributes:
        counts: how often all the rounds happen, ascending, shape (counts,).
        epsilon_upper, epsilon_lower: certified bounds on epsilon of all of them together, shape (counts,).
        naive_upper: what basic composition says of them: the sum of the rounds' own epsilons, each at an
            equal part of delta, shape (counts,).
        delta: the delta.
    """

    counts: tuple[int, ...]
    epsilon_upper: tuple[float, ...]
    epsilon_lower: tuple[float, ...]
    naive_upper: tuple[float, ...]
    delta: float

    def plot(self, axes: Any = None) -> Any:
        """Draws both upper bounds, and returns the axes of Matplotlib.

        Args:
            axes: where to draw; None makes a new figure.

        Raises:
            ImportError: Matplotlib, the extra `plot`, is not installed.
        """
        if axes is None:
            try:
                from matplotlib import pyplot as plt  # noqa: PLC0415 - needed here only
            except ModuleNotFoundError as missing:
                needed = "plot needs matplotlib, which is not installed: pip install 'shuffle-ledger[plot]'"
                raise ImportError(needed) from missing
            axes = plt.subplots()[1]
        axes.plot(self.counts, self.epsilon_upper, marker="o", label="together")
        axes.plot(self.counts, self.naive_upper, marker="o", linestyle="--", label="added up, round by round")
        axes.set(xlabel="number of rounds", ylabel=f"epsilon at delta {exact_text(self.delta)}, at most")
        axes.legend()
        return axes


def curve(
    rounds: object,
    counts: Iterable[int],
    *,
    delta: float,
    precision: float = DEFAULT_PRECISION,
    **fields: object,
) -> Curve:
    """Returns epsilon over the number of rounds, beside what naive composition says.

    Args:
        rounds: as of `certify`; each count repeats all of them.
        counts: whole numbers from 1.
        delta: in (0, 1).
        precision: wanted relative width of certified intervals.
        **fields: as of `certify`.

    Guarantee: of n rounds, each of which is `(e, delta / n)`-private for its own e, all together are
        `(sum of e, delta)`-private; both upper bounds are rounded up.
    Source: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", Theorem 3.16.

    Raises:
        InvalidParameter: as of `certify`, or there is no round or no count.
    """
    asked, delta = rounds_of(rounds, fields), validation.probability("delta", delta)
    if not isinstance(counts, Iterable):
        raise InvalidParameter("counts", counts, "a list of whole numbers from 1, such as [1, 4, 52]")
    places = sorted({validation.whole("counts", count, 1, MAXIMUM_ROUNDS) for count in counts})
    number = sum(asked.values())
    if not places or not number:
        name, given = ("rounds", rounds) if places else ("counts", [])
        raise InvalidParameter(name, given, "at least one")
    accountant = Accountant(precision=precision)
    found = [
        accountant.certify({one: often * count for one, often in asked.items()}, delta=delta)
        for count in places
    ]
    return Curve(
        counts=tuple(places),
        epsilon_upper=tuple(each.epsilon_upper for each in found),
        epsilon_lower=tuple(each.epsilon_lower for each in found),
        naive_upper=tuple(_added_up(accountant, asked, count, delta / (count * number)) for count in places),
        delta=delta,
    )


def _added_up(accountant: Accountant, asked: Mapping[ShuffledRound, int], count: int, share: float) -> float:
    """Returns an upper bound on the sum of the rounds' own epsilons, each at a share of delta, which was
    rounded once."""
    share = math.nextafter(share, 0.0)
    each = (
        (accountant.certify({one: 1}, delta=share).epsilon_upper, often * count)
        for one, often in asked.items()
        if often
    )
    # Products and their sum are rounded to the nearest: one more step up encloses each.
    added = math.fsum(math.nextafter(epsilon * times, math.inf) for epsilon, times in each)
    return math.nextafter(added, math.inf)
