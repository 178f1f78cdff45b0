"""No analyst beats the machine; and where one of its rules is broken on purpose, a game exceeds delta."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.ledger.machine import (
    DELTA_UNIT,
    LOSS_UNIT,
    UNBOUNDED,
    BudgetKind,
    Cause,
    Charge,
    Cost,
    Described,
    InvalidStep,
    Level,
    Limits,
    Posting,
    Round,
    Rules,
    State,
    Total,
    restate,
)
from shuffle_ledger.ledger.machine import budgets as budget_rules
from shuffle_ledger.ledger.machine import filters as rules_of
from shuffle_ledger.ledger.machine import restatements as restating
from shuffle_ledger.ledger.machine import windows as window_rules
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.machine.games import (
    LOST,
    REACH,
    Array,
    Game,
    Kind,
    Masses,
    Opening,
    Step,
    admitted,
    change_to,
    coin,
    coins,
    delta_of,
    epsilon_units,
    expected,
    folded,
    gains,
    open_again,
    reveal,
)

Patch = pytest.MonkeyPatch


def asked(opening: Opening, masses: Masses, *budgets: str, **others: Any) -> Kind:
    """A kind of rounds that are what they are asked for as. Filters charge the pure version."""
    fields = {name: others.pop(name) for name in list(others) if name in Kind.__dataclass_fields__}
    approximate = "certain" in others or "slack" in others
    cost = opening.cost({0: 1.0} if approximate else masses, **others)
    return Kind(masses=masses, costs=dict.fromkeys(budgets or ("a",), cost), **fields)


def otherwise(opening: Opening, declared: Masses, truth: Masses, **fields: Any) -> Kind:
    """A kind of rounds that are declared as less than they are."""
    return Kind(
        masses=truth,
        costs={"a": opening.cost(declared)},
        truths={"a": opening.cost(truth)},
        **fields,
    )


def part(opening: Opening, share: float) -> Masses:
    """As many coins as take about this share of V."""
    each = float(opening.cost(coins(100)).gaussian[0] * LOSS_UNIT) / 100
    return coins(math.floor(share * opening.variance / each))


def reached(opening: Opening, kinds: list[Kind], **others: Any) -> float:
    """The supremum over all analysts, in parts of delta."""
    game = Game(
        kinds=kinds,
        **{
            "states": {"a": opening.state()},
            "promised": lambda named: opening.epsilon,
            **others,
        },
    )
    return game.value() / opening.delta


# The Gaussian filter ------------------------------------------------------------------------------------

STRONG = Opening(epsilon=3.0, delta=3e-2, parts=(0.0, 0.5))
TINY, RARE = coin(1, 1e-6), coin(20, 0.21)


def test_the_increase_of_a_restated_round_is_late(monkeypatch: Patch) -> None:
    kinds = [
        otherwise(STRONG, TINY, coins(109), times=1),
        asked(STRONG, RARE, times=1),
        asked(STRONG, coins(87), times=1),
    ]
    assert 0.5 < reached(STRONG, kinds, rounds=3) <= 1
    monkeypatch.setattr(rules_of, "added_by_restatements", lambda before, sliding: 0)
    assert reached(STRONG, kinds, rounds=3) > 1.1


def test_an_incident_is_late_as_a_whole(monkeypatch: Patch) -> None:
    kinds = [
        otherwise(STRONG, coins(109), coins(109), times=1, is_asked=False),
        asked(STRONG, RARE, times=1),
        asked(STRONG, coins(87), times=1),
    ]
    assert 0.5 < reached(STRONG, kinds, rounds=3) <= 1
    monkeypatch.setattr(rules_of, "added_by_restatements", lambda before, sliding: 0)
    assert reached(STRONG, kinds, rounds=3) > 1.1


VOIDED = Opening(epsilon=5.5, delta=1e-3, parts=(0.0, 0.28, 0.37))


def a_rare_round_and_others() -> list[Kind]:
    """The rare one may be voided."""
    return [
        asked(VOIDED, coin(36, 0.037), times=1),
        asked(VOIDED, coins(100), times=1, may_be_voided=False),
        asked(VOIDED, coins(142), times=1, may_be_voided=False),
    ]


def test_a_void_gives_back_all_gaussian_coordinates_or_none(monkeypatch: Patch) -> None:
    def coordinate_by_coordinate(state: State, charge: Charge) -> Charge:
        fixed = replace(charge, gaussian=(0,) * len(charge.gaussian))
        return replace(fixed, sliding=0) if rules_of.is_intact(state, charge) else fixed

    kinds = a_rare_round_and_others()
    assert 0.5 < reached(VOIDED, kinds, rounds=3) <= 1
    monkeypatch.setattr(rules_of, "left_of", coordinate_by_coordinate)
    assert reached(VOIDED, kinds, rounds=3) > 1.165


def test_a_void_gives_back_only_while_the_reserve_is_intact(monkeypatch: Patch) -> None:
    kinds = a_rare_round_and_others()
    monkeypatch.setattr(rules_of, "is_intact", lambda state, charge: True)
    assert reached(VOIDED, kinds, rounds=3) > 1.165


def test_a_charge_leaves_its_reserve(monkeypatch: Patch) -> None:
    kinds = [replace(kind, may_be_voided=False) for kind in a_rare_round_and_others()]
    assert 0.3 < reached(VOIDED, kinds, rounds=3) <= 1
    monkeypatch.setattr(rules_of, "kept_free", lambda limit, reserve: 0)
    assert reached(VOIDED, kinds, rounds=3) > 1.165


def test_a_release_behind_a_void_is_late_as_a_whole(monkeypatch: Patch) -> None:
    kinds = [
        asked(STRONG, coins(109), times=1, may_be_hidden=True),
        asked(STRONG, RARE, times=1),
        asked(STRONG, coins(87), times=1),
    ]
    assert 0.5 < reached(STRONG, kinds, rounds=3) <= 1
    monkeypatch.setattr(rules_of, "added_by_restatements", lambda before, sliding: 0)
    assert reached(STRONG, kinds, rounds=3) > 1.1


@pytest.mark.slow
def test_any_order_of_moves_stays_within_delta() -> None:
    opening = Opening(epsilon=6.0, delta=1e-2)
    kinds = [
        otherwise(opening, TINY, coins(163)),
        asked(opening, coin(38, 0.08), may_be_hidden=True),
        asked(opening, coins(100)),
    ]
    assert 0.5 < reached(opening, kinds, rounds=3) <= 1


def some_game(draw: random.Random) -> tuple[Opening, list[Kind]]:
    """Any opening, and kinds of rounds that use much of it."""
    with_slots = draw.random() < 0.3
    renyi = draw.choice([0.0, 0.1])
    left = (0.5 if with_slots else 1.0) - 2 * renyi * (1 - with_slots) - 0.11
    epsilon = draw.choice([2.0, 4.0, 6.0])
    kinds_of_slots = [coin(draw.randint(10, 45), draw.choice([0.05, 0.2])), coins(draw.randint(10, 90))]
    delta, changes = draw.choice([1e-2, 1e-3]), dict[str, Any]()
    if with_slots:
        delta = max(2 * delta_of(kinds_of_slots, epsilon), 1e-5) * (1 + 1e-9)
        changes = {"slots": (1, 1), "slots_epsilon": epsilon_units(epsilon)}
    opening = Opening(
        epsilon=epsilon,
        delta=delta,
        gaussian=left,
        certain=0.1,
        slots=0.5 if with_slots else 0.0,
        orders=(3.0, math.inf) if renyi and not with_slots else (),
        renyi=renyi,
        parts=draw.choice([(0.0, 0.5), (0.0, 0.3, 0.6), (0.0, 1 / 64, 1 / 16, 1 / 5, 1 / 2)]),
        changes=changes,
    )
    rare = coin(draw.randint(5 * int(epsilon), 8 * int(epsilon)), draw.choice([0.03, 0.1, 0.2]))
    masses = [rare, part(opening, draw.uniform(0.2, 0.9)), part(opening, draw.uniform(0.1, 0.5))]
    kinds = [asked(opening, one) for one in masses]
    truth = part(opening, draw.uniform(0.02, 0.5))
    kinds.append(otherwise(opening, TINY, truth, is_asked=draw.random() < 0.5, times=1))
    if with_slots:
        kinds += [asked(opening, one, fits=(place,)) for place, one in enumerate(kinds_of_slots)]
    kinds.append(asked(opening, reveal(delta * 0.09), certain=units(delta * 0.09), may_be_voided=False))
    return opening, draw.sample(kinds, 4)


@pytest.mark.slow
def test_no_analyst_beats_any_opening() -> None:
    found = []
    for seed in range(16):
        opening, kinds = some_game(random.Random(seed))  # noqa: S311 - it need not be a secret
        found.append(reached(opening, kinds, rounds=3))
        assert found[-1] <= 1, seed
    assert max(found) > 0.6


# A charge never shrinks ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restated_round_makes_no_room_for_late_increases(monkeypatch: Patch) -> None:
    """A round that reveals nothing is admitted at no reserve, beside one that is voided, and restated."""
    half, limit = [round(float(STRONG.state().limits.promise.gaussian) * one) for one in (0.53, 0.469)]
    filler, empty = Cost(gaussian=(limit, limit)), Cost(gaussian=(half, 1))
    more = {"a": Cost(gaussian=(half + 1, 1))}
    kinds = [
        Kind(masses={0: 1.0}, costs={"a": filler}, times=1),
        Kind(masses={0: 1.0}, costs={"a": empty}, retold=(more,), may_be_voided=False, times=1),
        otherwise(STRONG, TINY, coins(109), times=1, may_be_voided=False),
        asked(STRONG, RARE, times=1, may_be_voided=False),
        asked(STRONG, coins(87), times=1, may_be_voided=False),
    ]
    assert 0.5 < reached(STRONG, kinds, rounds=5) <= 1
    monkeypatch.setattr(rules_of, "no_less", lambda cost, sliding: cost)
    assert reached(STRONG, kinds, rounds=5) > 1.1


def one_that_fits(coordinate: str) -> tuple[Opening, Masses, Cost]:
    """A round that fits once, by this coordinate."""
    shares: dict[str, Any] = {"gaussian": 0.02, "renyi": 0.02, "certain": 0.02, "slack": 0.02}
    shares[{"divergences": "renyi"}.get(coordinate, coordinate)] = 0.9
    opening = Opening(epsilon=2.0, delta=1e-2, orders=(3.0,), parts=(0.0,), has_sliding=False, **shares)
    if coordinate == "gaussian":
        masses = part(opening, 0.9)
    elif coordinate == "divergences":
        masses = coin(25, 0.017)
    else:
        part_of_delta = 0.6 * opening.delta
        price = 1 if coordinate == "certain" else 1 + math.exp(opening.epsilon)
        cost = opening.cost({0: 1.0}, **{coordinate: units(part_of_delta / price)})
        return opening, reveal(part_of_delta), cost
    return opening, masses, opening.cost(masses)


@pytest.mark.parametrize("coordinate", ["gaussian", "divergences", "certain", "slack"])
def test_a_charge_never_shrinks_by_what_is_said_later(coordinate: str, monkeypatch: Patch) -> None:
    opening, masses, cost = one_that_fits(coordinate)
    nothing = {"a": opening.cost({0: 1.0})}
    kind = Kind(masses=masses, costs={"a": cost}, retold=(nothing,), may_be_voided=False)
    assert 0.3 < reached(opening, [kind], rounds=3) <= 1
    larger = rules_of.larger

    def the_last(before: Charge, whole: Charge) -> Charge:
        return replace(larger(before, whole), **{coordinate: getattr(whole, coordinate)})

    monkeypatch.setattr(rules_of, "larger", the_last)
    assert reached(opening, [kind], rounds=3) > 1


def test_a_larger_promise_has_slack_at_its_price(monkeypatch: Patch) -> None:
    """The release differs from a pure version of loss 3, so that it reveals everything at times."""
    opening = Opening(epsilon=1.0, delta=1e-2, gaussian=0.38, slack=0.6, parts=(0.0,), has_sliding=False)
    revealed, high = 0.58 * opening.delta, opening.level(4.0)
    cost = opening.cost(coin(30, revealed), slack=units(revealed / (1 + math.exp(3))))
    kinds = [Kind(masses=reveal(revealed), costs={"a": cost}, may_be_voided=False)]
    moves = [change_to("a", high, high, slack=opening.slack_limit(4.0))]

    def raised(named: Mapping[str, State]) -> float:
        return 4.0 if promised(named) == 4.0 else math.inf

    others = {"rounds": 3, "changes": moves, "promised": raised}
    assert reached(opening, kinds, **others) <= 1
    monkeypatch.setattr(budget_rules, "priced_slack", lambda before, stated: before)
    assert reached(opening, kinds, **others) > 1


def test_divergences_stay_within_their_limits(monkeypatch: Patch) -> None:
    opening, masses, cost = one_that_fits("divergences")
    kinds = [Kind(masses=masses, costs={"a": cost}, may_be_voided=False)]
    assert 0.3 < reached(opening, kinds, rounds=3) <= 1
    allowed = rules_of.most_allowed

    def without_renyi(rules: Rules, limits: Limits, level: Level) -> tuple[int, ...]:
        return (*allowed(rules, limits, level)[: -len(rules.orders)], *(UNBOUNDED for _ in rules.orders))

    monkeypatch.setattr(rules_of, "most_allowed", without_renyi)
    assert reached(opening, kinds, rounds=3) > 1


# Limits, Renyi filters, shares ---------------------------------------------------------------------------


@pytest.mark.slow
def test_several_filters_share_delta() -> None:
    opening = Opening(
        epsilon=2.0, delta=1e-2, gaussian=0.8, orders=(3.0, math.inf), renyi=0.1, parts=(0.0, 0.2, 0.5)
    )
    kinds = [asked(opening, coin(20, 0.02)), asked(opening, coin(8, 0.1)), asked(opening, part(opening, 0.3))]
    assert 0.2 < reached(opening, kinds) <= 1


def test_shares_are_parts_of_one_delta() -> None:
    """Two full shares: an analyst spends one, looks, and takes what then is worth more."""
    delta = 1e-2
    opening = Opening(epsilon=2.0, delta=2 * delta, gaussian=0.5, certain=0.5)
    with pytest.raises(InvalidStep, match="together at most"):
        replace(opening.rules_and_limits[0], delta=units(delta))
    kinds = [asked(opening, part(opening, 0.99)), asked(opening, reveal(delta), certain=units(delta))]
    assert reached(opening, kinds, rounds=2) * opening.delta > 1.8 * delta


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["certain", "slack"])
def test_certain_loss_and_slack_bind_the_filters(limit: str, monkeypatch: Patch) -> None:
    opening = Opening(epsilon=2.0, delta=1e-2, gaussian=0.4, certain=0.3, slack=0.3)
    cost = {limit: units(0.29e-2 if limit == "certain" else 0.29e-2 / (1 + math.exp(2)))}
    kinds = [asked(opening, reveal(0.29e-2), **cost), asked(opening, part(opening, 0.45))]
    assert 0.3 < reached(opening, kinds, rounds=5) <= 1
    filtered = property(lambda standing: max(standing.filters))
    monkeypatch.setattr(rules_of.Coordinates, "filtered", filtered)
    assert reached(opening, kinds, rounds=5) > 1


def test_each_of_several_reports_of_a_user_is_charged(monkeypatch: Patch) -> None:
    opening = Opening(epsilon=2.0, delta=1e-2)
    half = part(opening, 0.22)
    twice = coins(2 * max(half))
    kinds = [Kind(masses=twice, costs={"a": opening.cost(half, parts=2)})]
    assert 0.3 < reached(opening, kinds) <= 1
    whole = rules_of.whole_charge
    monkeypatch.setattr(rules_of, "whole_charge", lambda cost: whole(replace(cost, parts=1)))
    assert reached(opening, kinds) > 1


def units(delta: float) -> int:
    return math.floor(delta / DELTA_UNIT)


# Slots --------------------------------------------------------------------------------------------------


def planned(rounds: list[tuple[Masses, int]], epsilon: float, **others: float) -> Opening:
    """Slots alone, certified at what their composition costs."""
    listed = [masses for masses, count in rounds for _ in range(count)]
    changes = {"slots": tuple(count for _, count in rounds), "slots_epsilon": epsilon_units(epsilon)}
    delta = delta_of(listed, epsilon) * (1 + 1e-9)
    return Opening(epsilon=epsilon, delta=delta, gaussian=0, slots=1.0, parts=(), changes=changes)


def slotted(masses: Masses, *fits: int, **fields: Any) -> Kind:
    return Kind(masses=masses, costs={"a": Cost(fits=fits)}, **fields)


@pytest.mark.slow
def test_each_slot_is_claimed_once(monkeypatch: Patch) -> None:
    opening = planned([(coin(5), 2), (coin(20, 0.1), 2)], 1.0)
    kinds = [slotted(coin(5), 0), slotted(coin(20, 0.1), 1), slotted(coin(4), 0)]
    assert reached(opening, kinds, rounds=6) == pytest.approx(1, abs=1e-6)
    monkeypatch.setattr(rules_of, "claim", lambda rules, total, cost: None)
    monkeypatch.setattr(rules_of, "added", lambda rules, total, charge: replace(total, claims=(1, 1)))
    assert reached(opening, kinds, rounds=6) > 1.2


def test_a_round_that_fits_no_slot_ends_the_slots(monkeypatch: Patch) -> None:
    opening = planned([(coin(8), 2)], 1.0)
    kinds = [slotted(coin(8), 0), slotted(coin(12))]
    assert reached(opening, kinds) == pytest.approx(1, abs=1e-6)
    monkeypatch.setattr(rules_of, "claim", lambda rules, total, cost: 0)
    assert reached(opening, kinds) > 1.2


def test_a_restated_round_is_placed_by_the_last_truth(monkeypatch: Patch) -> None:
    opening = planned([(TINY, 3), (coin(12), 1)], 1.0)
    kinds = [Kind(masses=coin(12), costs={"a": Cost(fits=(0,))}, truths={"a": Cost(fits=(1,))})]
    assert reached(opening, kinds) == pytest.approx(1, abs=1e-6)
    monkeypatch.setattr(rules_of, "place", lambda claimed, fits: claimed)
    assert reached(opening, kinds) > 1.2


SMALL_KIND, RARE_KIND = coin(1), coin(10, (math.e + 1) / (math.e + 199))
# The most revealing pair that both kinds dominate.
BELOW_BOTH = coin(1, ((math.e - 1) / (math.e + 199)) / math.tanh(0.05))


def worst_of_late_fits(opening: Opening, counts: tuple[int, int], truths: list[tuple[int, ...]]) -> float:
    """The supremum over analysts who release three kinds of rounds, and of those that both kinds of slots
    cover say only in the end what they fit: one of `truths`.
    """
    declared = Cost(fits=(0,))
    decided = admitted({"a": opening.state()}, {"a": declared})[0]
    waits = Round(charges={"a": decided.charge or Charge()})

    @functools.cache
    def value(state: State, waiting: int) -> Array:
        best = LOST if waiting else gains(opening.epsilon)
        for masses, fits in ((SMALL_KIND, (1,)), (RARE_KIND, (2,))):
            if postings := admitted({"a": state}, {"a": Cost(fits=fits)}):
                (after,) = folded({"a": state}, postings)
                best = np.maximum(best, expected(value(after, waiting), masses))
        for truth in truths if waiting else ():
            told = restate({"a": state}, waits, Described.STATED, Cause.SETTLE, {"a": Cost(fits=truth)})
            (after,) = folded({"a": state}, told)
            if not after.is_overspent:
                best = np.maximum(best, value(after, waiting - 1))
        if waiting + sum(state.total.claims[1:]) < sum(counts):
            (after,) = folded({"a": state}, admitted({"a": state}, {"a": declared}))
            best = np.maximum(best, expected(value(after, waiting + 1), BELOW_BOTH))
        return best

    return float(value(opening.state(), 0)[REACH]) / opening.delta


@pytest.mark.slow
def test_which_slots_a_round_fits_is_no_choice() -> None:
    """Stated fits must be equal to the true ones: an analyst who leaves some out chooses the slot late."""
    counts = (4, 16)
    opening = planned([(TINY, 60), (SMALL_KIND, counts[0]), (RARE_KIND, counts[1])], 2.0)
    assert worst_of_late_fits(opening, counts, [(1, 2)]) == pytest.approx(1, abs=1e-4)
    assert worst_of_late_fits(opening, counts, [(1,), (2,)]) == pytest.approx(1.0230, abs=1e-3)


BOTH = coin(20, 0.3 * math.tanh(3) / math.tanh(1))  # dominated by both kinds of slots of the next test


@pytest.mark.parametrize("has_filters", [False, True])
def test_a_false_void_does_not_choose_the_slot(has_filters: bool, monkeypatch: Patch) -> None:
    """A round stays in the kind that it claimed, if it is voided and told of as an incident after a look."""
    often, rare = coin(20), coin(60, 0.3)
    opening = planned([(often, 1), (rare, 1)], 2.0)
    if has_filters:  # which have so little of delta that they hold nothing
        opening = replace(opening, parts=(0.0, 0.5), gaussian=1 / 64, slots=0.98, delta=opening.delta / 0.98)

    def kind(masses: Masses, *fits: int, **fields: Any) -> Kind:
        return Kind(masses=masses, costs={"a": opening.cost(masses, fits=fits)}, times=1, **fields)

    truth = {"a": opening.cost(BOTH, fits=(0, 1))}
    kinds = [kind(often, 0), kind(rare, 1), replace(kind(BOTH, 1, may_be_hidden=True), truths=truth)]
    assert 0.9 < reached(opening, kinds, rounds=3) <= 1
    no_charge = rules_of.no_charge
    monkeypatch.setattr(rules_of, "no_charge", lambda rules, claimed: no_charge(rules, claimed=None))
    assert reached(opening, kinds, rounds=3) > 1.4  # 1.54


@pytest.mark.slow
def test_slots_beside_filters_have_their_share() -> None:
    slots = [(coin(5), 2), (coin(20, 0.1), 2)]
    listed = [masses for masses, count in slots for _ in range(count)]
    delta = 2 * delta_of(listed, 1.0) * (1 + 1e-9)
    changes = {"slots": (2, 2), "slots_epsilon": epsilon_units(1.0)}
    opening = Opening(epsilon=1.0, delta=delta, gaussian=0.5, slots=0.5, parts=(0.0, 0.5), changes=changes)
    kinds = [
        asked(opening, coin(5), fits=(0,)),
        asked(opening, coin(20, 0.1), fits=(1,)),
        asked(opening, part(opening, 0.4)),
    ]
    assert 0.4 < reached(opening, kinds, rounds=5) <= 1


def look_and_rare(share: float, whole: float = 1.0) -> tuple[Opening, list[Kind]]:
    """A look that has a slot and costs a filter half, a rare round with a slot, and a round for the filter.

    Slots have a share of `whole` deltas, and the filter all that is left of them.
    """
    opening = Opening(epsilon=3.0, delta=whole * 1e-3, gaussian=0.9999 * (1 - share), parts=(0.0, 0.5))
    look, size, low, high = part(opening, 0.5), 60, 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        is_within = delta_of([look, coin(size, middle)], 3.0) <= share * opening.delta
        low, high = (middle, high) if is_within else (low, middle)
    changes = {"slots": (1, 1), "slots_epsilon": epsilon_units(3.0)}
    opening = replace(opening, slots=share, changes=changes)
    kinds = [
        asked(opening, look, fits=(0,), times=1),
        asked(opening, coin(size, low), fits=(1,), times=1),
        asked(opening, part(opening, 0.47), times=1),
    ]
    return opening, kinds


def test_slots_and_filters_have_parts_of_one_delta() -> None:
    """After the look either the slots hold at the end or the filter does: with a whole delta each, the
    analyst gets what then is worth more."""
    opening, kinds = look_and_rare(3 / 4)
    assert 0.7 < reached(opening, kinds, rounds=3) <= 1
    opening, kinds = look_and_rare(1 / 2, whole=2.0)
    assert reached(opening, kinds, rounds=3) * 2 > 1.5


@pytest.mark.parametrize("refuse", [2.0, 3.0])
def test_a_promise_that_stays_covers_slots_wherever_refuse_at_is_moved(
    refuse: float, monkeypatch: Patch
) -> None:
    """Below the certificate slots decide nothing; what stands in them is promised all the same."""
    opening, kinds = look_and_rare(3 / 4)
    opening = replace(opening, refuse=refuse)
    kinds = [*kinds[:2], asked(opening, part(opening, 0.9), times=2)]
    moves = [change_to("a", opening.level(epsilon)) for epsilon in (2.0, 3.0)]
    others = {"rounds": 3, "changes": moves, "promised": promised}
    assert 0.7 < reached(opening, kinds, **others) <= 1
    monkeypatch.setattr(rules_of.Coordinates, "promised", property(lambda standing: 1))
    assert reached(opening, kinds, **others) > 1.1


def test_a_lowered_promise_keeps_slots_only_within_it(monkeypatch: Patch) -> None:
    """It is lowered while filters hold at the smaller epsilon, and may be raised again."""
    opening, kinds = look_and_rare(3 / 4)
    high, low = opening.level(3.0), opening.level(1.0)
    moves = [change_to("a", low, low), change_to("a", high, high, slack=0)]

    def at(epsilon: float) -> float:
        def only(named: Mapping[str, State]) -> float:
            return epsilon if promised(named) == epsilon else math.inf

        return reached(opening, kinds, rounds=3, changes=moves, promised=only)

    assert at(1.0) <= 1
    assert 0.7 < at(3.0) <= 1
    monkeypatch.setattr(rules_of, "slots_count", lambda rules, level: bool(rules.slots))
    assert at(1.0) > 1.1


# Openings, changes, incidents ----------------------------------------------------------------------------

LOOK, REGULAR, UNUSUAL = coin(18, 0.2), coins(38), coin(55, 0.031)


def two_openings() -> tuple[Opening, list[Step]]:
    """Slots for one round that is known already, and for one of the two others."""
    delta = max(delta_of([LOOK, other], 2.0) for other in (REGULAR, UNUSUAL)) * (1 + 1e-9)

    def opening(*slots: int) -> Opening:
        changes = {"slots": slots, "slots_epsilon": epsilon_units(2.0)}
        return Opening(epsilon=2.0, delta=delta, gaussian=0, slots=1.0, parts=(), changes=changes)

    steps = []
    for slots in ((1, 1, 0), (1, 0, 1)):
        rules, limits = opening(*slots).rules_and_limits
        steps.append(open_again(rules, limits))
    return opening(1, 1, 0), steps


def test_a_look_before_opening_again_is_charged_as_unrandomized(monkeypatch: Patch) -> None:
    opening, steps = two_openings()
    look = Kind(
        masses=LOOK, costs={"a": Cost(fits=(0,))}, truths={"a": Cost(fits=(0,))}, is_asked=False, times=1
    )
    kinds = [look, slotted(REGULAR, 1), slotted(UNUSUAL, 2)]
    assert 0.5 < reached(opening, kinds, rounds=3, changes=steps) <= 1
    monkeypatch.setattr(restating, "is_after_opening", lambda released_after, opened_at: True)
    assert reached(opening, kinds, rounds=3, changes=steps) > 1.316


@pytest.mark.slow
def test_no_budget_is_opened_again_after_a_decision(monkeypatch: Patch) -> None:
    opening, steps = two_openings()
    kinds = [slotted(LOOK, 0), slotted(REGULAR, 1), slotted(UNUSUAL, 2)]
    assert 0.5 < reached(opening, kinds, rounds=4, changes=steps) <= 1
    monkeypatch.setattr(budget_rules, "may_open_again", lambda state: True)
    assert reached(opening, kinds, rounds=4, changes=steps) > 1.316


def promised(named: Mapping[str, State]) -> float:
    return float(budget_rules.promised_level(named["a"].limits).epsilon / 10**30)


def test_a_moved_budget_promises_its_ceiling(monkeypatch: Patch) -> None:
    opening = Opening(epsilon=10.0, refuse=3.0, delta=1e-2, parts=(0.0,))
    small = Opening(epsilon=3.0, delta=1e-2, parts=(0.0,))
    kinds = [asked(opening, part(small, 0.999), times=1), asked(opening, coins(664), times=1)]
    raises = [change_to("a", opening.level(10.0))]
    others = {"rounds": 2, "changes": raises, "promised": promised}
    assert 0.3 < reached(opening, kinds, **others) <= 1
    monkeypatch.setattr(budget_rules, "promised_level", lambda limits: limits.refuse)
    assert reached(opening, kinds, **others) > 1.6


@pytest.mark.parametrize("rule", ["sliding_counts", "slots_count"])
def test_a_lowered_promise_is_read_at_its_level(rule: str, monkeypatch: Patch) -> None:
    """Charges on a sliding reserve, and certificates of slots, tell nothing of a smaller epsilon."""
    slots = [(coin(20, 0.02), 1), (coins(30), 1)]
    listed = [masses for masses, _ in slots]
    opening = Opening(epsilon=4.0, delta=1e-2, parts=(0.0, 0.5))
    if rule == "slots_count":
        opening = planned([(one, 1) for one in (coin(45, 0.1), coins(100))], 4.0)
    assert listed
    kinds = (
        [asked(opening, part(opening, 0.9), times=1), asked(opening, coin(20, 0.02))]
        if rule == "sliding_counts"
        else [slotted(coin(45, 0.1), 0), slotted(coins(100), 1)]
    )
    lower = opening.level(2.0)

    def lowered(named: Mapping[str, State]) -> float:
        return 2.0 if named["a"].limits.promise == lower else math.inf

    others = {"rounds": 2, "changes": [change_to("a", lower, lower)], "promised": lowered}
    assert reached(opening, kinds, **others) <= 1
    broken = (
        (lambda limits, level: limits.sliding is not None)
        if rule == "sliding_counts"
        else (lambda rules, level: bool(rules.slots))
    )
    monkeypatch.setattr(rules_of, rule, broken)
    assert reached(opening, kinds, **others) > 1


def test_a_release_that_was_too_much_ends_the_promise(monkeypatch: Patch) -> None:
    opening = Opening(epsilon=2.0, delta=1e-2)
    kinds = [
        asked(opening, part(opening, 0.9)),
        otherwise(opening, coins(100), coins(100), is_asked=False),
        otherwise(opening, TINY, coins(150)),
    ]
    assert 0.5 < reached(opening, kinds, rounds=2) <= 1
    monkeypatch.setattr(budget_rules, "overspends", lambda rules, limits, total: False)
    assert reached(opening, kinds, rounds=2) > 1.5


# Several budgets -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_period_that_a_round_meets_is_charged(monkeypatch: Patch) -> None:
    opening = Opening(epsilon=2.0, delta=1e-2, parts=(0.0, 0.5))
    window = Window(unit="day", sliding=2, epsilon=2.0, delta=1e-2)
    days = [date(2026, 2, day) for day in (1, 2, 3)]

    def names(day: date) -> list[str]:
        return [period.name for period in window.periods("a", day, day)]

    mine = "a@2026-02-01+2d"
    assert [mine in names(day) for day in days] == [True, True, False]
    everywhere = {name: opening.state(name) for day in days for name in names(day)}

    is_mine = [mine in names(day) for day in days]

    def game() -> float:
        masses = part(opening, 0.9)
        kinds = [
            asked(opening, masses, *names(day), times=2, is_mine=is_of_mine)
            for day, is_of_mine in zip(days, is_mine, strict=True)
        ]
        return reached(opening, kinds, rounds=4, states=everywhere, mine=mine)

    assert 0.3 < game() <= 1
    monkeypatch.setattr(
        window_rules, "starts_before", lambda unit, count, start: []
    )  # one period of each round
    assert game() > 1


def test_a_round_of_two_cohorts_is_admitted_by_both() -> None:
    opening = Opening(epsilon=2.0, delta=1e-2, parts=(0.0, 0.5))
    states = {"a": opening.state("a"), "b": opening.state("b")}
    masses = part(opening, 0.9)
    kinds = [
        asked(opening, masses, "a", "b", is_mine=True, may_be_voided=False),
        asked(opening, masses, "b", may_be_voided=False),
        asked(opening, masses, "a", may_be_voided=False),
    ]

    def by_one(named: Mapping[str, State], costs: Mapping[str, Cost]) -> tuple[Posting, ...]:
        alone = [admitted({name: named[name]}, {name: costs[name]}) for name in costs]
        return tuple(posting for postings in alone for posting in postings)

    assert 0.3 < reached(opening, kinds, states=states, rounds=4) <= 1
    assert reached(opening, kinds, states=states, rounds=4, admits=by_one) > 1.5


def test_rounds_of_a_team_with_a_quota_are_charged_to_their_cohort() -> None:
    opening = Opening(epsilon=2.0, delta=1e-2, parts=(0.0, 0.5))
    quota = replace(opening.state("a@team=x").rules, kind=BudgetKind.QUOTA)
    states = {"a": opening.state(), "a@team=x": replace(opening.state(), rules=quota)}
    masses, larger = part(opening, 0.9), opening.level(2.0)
    moves = [change_to("a@team=x", opening.level(1.0)), change_to("a@team=x", larger)]

    def game(*charged: str) -> float:
        kinds = [asked(opening, masses, *charged, is_mine=True), asked(opening, masses, "a")]
        return reached(opening, kinds, states=states, rounds=3, changes=moves)

    assert 0.3 < game("a", "a@team=x") <= 1
    assert game("a@team=x") > 1


def test_a_user_joins_so_many_rounds_and_the_incidents(monkeypatch: Patch) -> None:
    opening = Opening(
        epsilon=2.0, delta=1e-2, parts=(0.0, 0.5), has_sliding=False, changes={"rounds_per_user": 2}
    )
    masses = part(opening, 0.3)
    kinds = [
        asked(opening, masses, may_be_voided=False),
        otherwise(opening, masses, masses, is_asked=False, times=1),
    ]
    assert 0.3 < reached(opening, kinds, rounds=5, joins=2) <= 1
    assert reached(opening, kinds, rounds=5) > 1, "a user who joins more is not covered"

    def without_incidents(rules: Rules, total: Total) -> int:
        return min(total.rounds, rules.rounds_per_user or 1)

    monkeypatch.setattr(rules_of, "rounds_of_one_user", without_incidents)
    larger = [
        asked(opening, part(opening, 0.48), may_be_voided=False),
        replace(kinds[1], masses=part(opening, 0.48)),
    ]
    assert reached(opening, larger, rounds=4, joins=2) > 1
