"""The filters of a cohort of policy `adaptive`: a menu of a few sets; the first admitted round chooses one.

All sets are fixed when the cohort is opened. They differ in the share of delta for approximate rounds (small,
unless the first round is one), and in the share for repetitions of the first round: none if the other filters
admit almost as many such rounds, large otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.filter_set import LEAST_DELTA, SHARE_ROUND_OFF, Charge, FilterSet
from shuffle_ledger.accounting.filters.repetition import (
    REPETITIONS_MAX,
    Composer,
    RepetitionFilter,
    most_repeated,
    rebudgeted,
    repetition_of,
)
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, charged_as

# Shares, for certain loss and for slack, of the delta that repetitions leave. Cohorts that begin with a pure
# round use the first pair, which costs the filters about 1 % of their rounds. Certain loss has less, because
# a unit of slack costs (1 + exp(epsilon)) times as much.
_ACCOUNTS = ((3 / 64, 1 / 16), (3 / 16, 1 / 4), (13 / 32, 1 / 2))
# Smaller accounts are chosen if they admit at least this share of the rounds of the first kind that the best
# ones admit.
_ACCOUNTS_GOAL = 0.8
# If the first round is approximate, the share of delta for repetitions is at most this part of the last
# set's. The number of such rounds falls with the accounts, so repetitions would otherwise take all, and other
# rounds would find empty accounts.
_REPETITION_LIMIT_IF_APPROXIMATE = 0.8
# Shares of delta for the repetition filter. The rest, for the other filters, is a power of two.
_REPETITION_SHARES = (0.0, 1 / 2, 3 / 4, 15 / 16, 255 / 256)
# Goals, tried in turn: among the sets whose repetition share is at most the first number times the last
# set's, one is good enough that admits the second number times as many rounds of the first kind as the last
# set. Sets that leave less than a quarter of delta to the other filters are for budgets of few irregular
# rounds, which would otherwise lose a fifth of their rounds.
_GOALS = ((0.8, 0.9), (1.0, 0.8))
# The goal for regular rounds: all users report, and the expected number of clones is at least this. The first
# set almost always reaches it.
_GOALS_OF_REGULAR = ((1.0, 0.97),)
_REGULAR_CLONES = 3000.0


class Teller(Composer, Protocol):
    """Computes charges: an `Accountant`, or an object that asks one."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet, /) -> Charge:
        """Returns the charge of a round in each of a budget's filters."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One set of filters, and the delta that it leaves for repetitions."""

    filters: FilterSet
    repetition_delta: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice that the first admitted round made.

    Attributes:
        alternative: position of the chosen set on the menu.
        repetition: its repetition filter; None if it has none.
        sliding_limit: limit of the sliding reserve after the budget was raised; None for the set's own.
        accounts_epsilon: the largest epsilon that the budget has had, for the price of slack; None for the
            set's own.
    """

    alternative: int
    repetition: RepetitionFilter | None
    sliding_limit: float | None = None
    accounts_epsilon: float | None = None

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        repetition = self.repetition and self.repetition.to_mapping()
        raised = {"sliding_limit": self.sliding_limit, "accounts_epsilon": self.accounts_epsilon}
        kept = {name: value for name, value in raised.items() if value is not None}
        return {"alternative": self.alternative, "repetition": repetition, **kept}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Choice:
        """Reads the JSON form.

        Raises:
            InvalidParameter: it does not describe a choice.
        """
        match mapping:
            case {"alternative": int(alternative), "repetition": None | Mapping() as counted}:
                repetition = None if counted is None else RepetitionFilter.from_mapping(counted)
                limit, judged = mapping.get("sliding_limit"), mapping.get("accounts_epsilon")
                if _is_raised(limit) and _is_raised(judged):
                    return cls(
                        alternative=alternative,
                        repetition=repetition,
                        sliding_limit=limit,
                        accounts_epsilon=judged,
                    )
        raise InvalidParameter("choice", mapping, "an alternative, and its repetition filter if it has one")


@dataclass(frozen=True, kw_only=True)
class FilterMenu:
    """The sets of filters among which a cohort's first admitted round chooses. Older cohorts have only one
    set.

    Guarantee: if the alternative, and the kind of its repetition filter, are chosen before the first output,
    all released outputs together are `(epsilon, delta)`-DP if on every path one filter of the chosen set
    holds at epsilon at the end.
    Source: docs/adaptivity.md, Lemmas 6 and 8.
    """

    alternatives: tuple[Alternative, ...]

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        ceiling: float | None = None,
        rounds_per_user: int | None = None,
    ) -> FilterMenu:
        """Makes the menu of a budget.

        Args:
            epsilon, delta: the budget.
            ceiling: the largest epsilon that it may be raised to, also for reasons that depend on data. Slack
                is priced at it from the beginning. None: for no such reason.
            rounds_per_user: in how many admitted rounds one user takes part at most; None: in any number.

        Raises:
            InvalidParameter: as `FilterSet.for_budget`.
        """
        alternatives = []
        for accounts, share in itertools.product(_ACCOUNTS, _REPETITION_SHARES):
            rest = delta * (1 - share)
            if share and rest < LEAST_DELTA:
                continue
            filters = FilterSet.for_budget(epsilon=epsilon, delta=rest, accounts=accounts)
            if filters.accounts is not None and ceiling is not None:
                filters = dataclasses.replace(filters, accounts=filters.accounts.at(ceiling))
            if rounds_per_user is not None:
                filters = dataclasses.replace(
                    filters, sliding_limit=None, rounds_per_user=rounds_per_user, incidents_beside=True
                )
            repetition = (delta - rest) * (1 - SHARE_ROUND_OFF)
            alternatives.append(Alternative(filters=filters, repetition_delta=repetition))
        return cls(alternatives=tuple(alternatives))

    @property
    def needs_choice(self) -> bool:
        """Returns whether there is more than one set to choose from."""
        return len(self.alternatives) > 1

    def filters(self, choice: Choice | None) -> FilterSet:
        """Returns the filters in force; without a choice, which means that nothing was spent, those of the
        first set.

        Raises:
            InvalidParameter: the choice does not belong to this menu.
        """
        if choice is None:
            return self.alternatives[0].filters
        if not 0 <= choice.alternative < len(self.alternatives):
            raise InvalidParameter("alternative", choice.alternative, "one of the menu's")
        chosen, repetition = self.alternatives[choice.alternative], choice.repetition
        if (repetition.delta if repetition else 0.0) != chosen.repetition_delta:
            raise InvalidParameter("repetition", choice.alternative, "the share of delta that the menu says")
        limit = chosen.filters.sliding_limit if choice.sliding_limit is None else choice.sliding_limit
        return _in_force(chosen.filters, repetition, limit, choice.accounts_epsilon)

    def rebudgeted(self, composer: Composer, choice: Choice, epsilon: float) -> Choice:
        """Returns the choice for another budget: the repetition filter for its epsilon, and, for a larger
        budget, the raised limit and the raised price of slack."""
        counted = choice.repetition and rebudgeted(composer, choice.repetition, epsilon)
        return self._raised(dataclasses.replace(choice, repetition=counted), epsilon)

    def accounts_epsilon(self, choice: Choice, epsilon: float) -> float | None:
        """Returns the epsilon in the price of slack for a budget of `epsilon`; None for that of the chosen
        set."""
        accounts = self.filters(choice).accounts
        is_raised = accounts is not None and epsilon > accounts.epsilon
        return epsilon if is_raised else choice.accounts_epsilon

    def _raised(self, choice: Choice, epsilon: float) -> Choice:
        filters = self.filters(choice)
        limit = filters.limit_for(epsilon)
        kept = choice.sliding_limit if limit == filters.sliding_limit else limit
        judged = self.accounts_epsilon(choice, epsilon)
        return dataclasses.replace(choice, sliding_limit=kept, accounts_epsilon=judged)

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form; for a single set, that of the set."""
        if not self.needs_choice:
            return self.alternatives[0].filters.to_mapping()
        listed = [
            {"filters": one.filters.to_mapping(), "repetition_delta": one.repetition_delta}
            for one in self.alternatives
        ]
        return {"alternatives": listed}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> FilterMenu:
        """Reads the JSON form.

        Raises:
            InvalidParameter: it does not describe a menu.
        """
        listed = mapping.get("alternatives", [{"filters": mapping, "repetition_delta": 0.0}])
        alternatives = []
        for one in listed if isinstance(listed, list | tuple) else [listed]:
            match one:
                case {"filters": Mapping() as filters, "repetition_delta": float(share)} if 0 <= share < 1:
                    chosen = FilterSet.from_mapping(filters)
                    alternatives.append(Alternative(filters=chosen, repetition_delta=share))
                case _:
                    raise InvalidParameter("alternatives", one, "filters, and a delta for repetitions")
        if not alternatives or alternatives[0].repetition_delta:
            raise InvalidParameter("alternatives", listed, "a set without repetitions, and others after it")
        return cls(alternatives=tuple(alternatives))

    def choose(self, teller: Teller, kind: ShuffledRound, *, epsilon: float) -> Choice:
        """Returns the choice for a cohort whose first admitted round is accounted as `kind`, with its present
        budget.

        Only the round's parameters and the budget decide, so the choice does not depend on the data. If the
        round is charged as several rounds, these choose.
        """
        return self._raised(self._chosen(teller, charged_as(kind)[0], epsilon), epsilon)

    def _chosen(self, teller: Teller, kind: ShuffledRound, epsilon: float) -> Choice:
        """Returns, among the sets with the accounts that such rounds need, the first one that admits enough
        of them in comparison with the last set."""
        counts = self._counts(teller, kind, epsilon)
        first, *others = self._groups[_first_enough(counts) if counts else 0]
        if counts:
            most = _REPETITION_LIMIT_IF_APPROXIMATE * others[-1].repetition_delta if others else 0.0
            others = [one for one in others if one.repetition_delta <= most]
        goals = _GOALS_OF_REGULAR if _is_regular(kind) else _GOALS
        alike = first.filters.most_alike(teller.charge(kind, first.filters), epsilon=epsilon)
        beaten = math.floor(alike / goals[0][1]) + 1  # the least number for which `alike` misses the goal

        def repeated(one: Alternative) -> int:
            share = one.repetition_delta
            return most_repeated(teller, kind, epsilon=epsilon, delta=share, about=beaten) if share else alike

        nothing = Choice(alternative=self.alternatives.index(first), repetition=None)
        if not others or beaten > REPETITIONS_MAX:
            return nothing
        # One composition decides most cases: if it exceeds the budget, the first set is good enough.
        last = others[-1]
        if teller.certify({kind: beaten}, delta=last.repetition_delta).epsilon_upper > epsilon:
            return nothing
        chosen = next(
            one
            for kept, part in goals
            for one in (first, *others)
            if one.repetition_delta <= kept * last.repetition_delta and repeated(one) >= part * repeated(last)
        )
        if not chosen.repetition_delta:
            return nothing
        repetition = repetition_of(teller, kind, delta=chosen.repetition_delta, most=repeated(chosen))
        return Choice(alternative=self.alternatives.index(chosen), repetition=repetition)

    def may_choose(
        self, teller: Teller, kind: ShuffledRound, alternative: int, *, epsilon: float, tolerance: float
    ) -> bool:
        """Returns whether an alternative has the accounts that the rule gives a first round of this kind, if
        the numbers of rounds have a relative error of at most `tolerance`."""
        chosen = self.alternatives[alternative]
        place = next(place for place, group in enumerate(self._groups) if chosen in group)
        counts = self._counts(teller, charged_as(kind)[0], epsilon)
        if counts is None:
            return place == 0
        enough = max(counts) * _ACCOUNTS_GOAL
        missed = all(count * (1 - tolerance) - 1 < enough for count in counts[:place])
        return missed and counts[place] * (1 + tolerance) + 1 >= enough

    def _counts(self, teller: Teller, kind: ShuffledRound, epsilon: float) -> list[int] | None:
        """Returns how many rounds of an approximate kind each size of accounts admits, without repetitions;
        None for a pure kind, or a menu without accounts."""
        firsts = [group[0].filters for group in self._groups]
        if len(firsts) == 1 or not any(teller.charge(kind, firsts[0]).account):
            return None
        return [one.most_alike(teller.charge(kind, one), epsilon=epsilon) for one in firsts]

    @functools.cached_property
    def _groups(self) -> tuple[tuple[Alternative, ...], ...]:
        """Returns the alternatives grouped by their accounts; each group begins with its set without
        repetitions."""
        starts = [place for place, one in enumerate(self.alternatives) if not one.repetition_delta]
        ends = [*starts[1:], len(self.alternatives)]
        return tuple(self.alternatives[start:end] for start, end in zip(starts, ends, strict=True))


# Equal cohorts share one object, which caches its reading at the limit.
@functools.lru_cache(maxsize=256)
def _in_force(
    filters: FilterSet, repetition: RepetitionFilter | None, limit: float | None, judged_at: float | None
) -> FilterSet:
    accounts = filters.accounts and filters.accounts.at(judged_at or 0.0)
    return dataclasses.replace(filters, repetition=repetition, sliding_limit=limit, accounts=accounts)


def _is_raised(value: object) -> TypeGuard[float | None]:
    return value is None or (isinstance(value, float) and 0 < value < math.inf)


def _first_enough(counts: Sequence[int]) -> int:
    """Returns the first position whose count is near enough to the largest."""
    enough = max(counts) * _ACCOUNTS_GOAL
    return next(place for place, count in enumerate(counts) if count >= enough)


def _is_regular(kind: ShuffledRound) -> bool:
    """Returns whether all users report and the expected number of clones is large enough for a Gaussian
    filter to fit well."""
    all_report = kind.sampled_from is None and kind.participation is None
    clones = 2 * kind.honest_reports / (1 + math.exp(min(kind.randomizer.epsilon0, 700.0)))
    return all_report and clones >= _REGULAR_CLONES
