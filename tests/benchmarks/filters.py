"""What adaptivity costs: the share of rounds admitted, and the time of a decision."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    Accountant,
    FilterSet,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import admit, open_cohort, quote, register
from shuffle_ledger.ledger.machine import ROUNDS_MAX, Cost, State
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import SLOTS_SHARE, BudgetPolicy, decided
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, Cohort, RoundRequest
from tests.accounting.alike import alike
from tests.benchmarks.case import Case, Work

_DECISIONS = 20
_MIXES = 60
_MIXED_ROUNDS = 3_000
_SCHEDULE_LEAST = 25
_MIXED_LEAST = 5  # of each kind alone, and of all together, so that a round more or less is not everything
_PRECISION = 4e-3
_SEARCH_PARTS = 16  # the first step of a search is its beginning over this
_SHARES: tuple[tuple[str, int, int | None], ...] = (
    ("generic(epsilon0=1)", 10_000, None),
    ("generic(epsilon0=4)", 100_000, None),
    ("generic(epsilon0=4)", 10_000, None),
    ("generic(epsilon0=4)", 1_000, None),
    ("generic(epsilon0=1)", 10_000, 100_000),
    ("generic(epsilon0=4)", 10_000, 1_000_000),
    ("generic(epsilon0=2)", 1_000, 10_000),
    ("generic(epsilon0=4)", 1_000, 100_000),
    ("generic(epsilon0=4)", 1_000, 10_000),
    ("declared(epsilon=0.1, delta=1e-11)", 1, None),
)
_BUDGETS = ((0.3, 1e-9), (1.0, 1e-6), (4.0, 1e-9))
_PLAIN = ("krr(k=8, epsilon0=1)", 10**8, None)
_REGULAR = ("generic(epsilon0=1)", 10_000, None)
# Kinds that a cohort may begin with before it goes on with regular rounds.
_IRREGULAR: tuple[tuple[str, int, int | None], ...] = (
    ("generic(epsilon0=4)", 1_000, 100_000),
    ("generic(epsilon0=4)", 1_000, 10_000),
)


def made(randomizer: str, reports: int, population: int | None) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(randomizer),
        reports=reports,
        sampled_from=population,
    )


REGULAR_KINDS = (
    made("generic(epsilon0=1)", 10_000, None),
    made("generic(epsilon0=2)", 100_000, None),
    made("generic(epsilon0=0.5)", 4_000, None),
    made("krr(k=10, epsilon0=2)", 20_000, None),
)
_KINDS = (
    *REGULAR_KINDS,
    made("generic(epsilon0=4)", 10_000, None),
    made("generic(epsilon0=4)", 1_000, None),
    made("generic(epsilon0=2)", 1_000, None),
    made("krr(k=8, epsilon0=2)", 300, None),
    made("hadamard(epsilon0=8, domain=262144)", 150_000, None),
    made("generic(epsilon0=1)", 1_000, 10_000),
    made("generic(epsilon0=1)", 10_000, 100_000),
    made("generic(epsilon0=2)", 1_000, 10_000),
    made("generic(epsilon0=3)", 1_000, 100_000),
    made("generic(epsilon0=4)", 1_000, 10_000),
    made("generic(epsilon0=4)", 10_000, 100_000),
    made("generic(epsilon0=4)", 1_000, 100_000),
    made("oue(epsilon0=8, domain=4096)", 200_000, 2_000_000),
)
_MIXED_BUDGETS = ((0.3, 1e-6), (1, 1e-6), (1, 1e-9), (2, 1e-8), (4, 1e-9), (8, 1e-6), (2, 1e-12))


# Schedules of regular kinds: what a cohort repeats, in this order.
_WEEKLY = made("krr(k=16, epsilon0=3)", 58_000, None)
_MONTHLY = made("hadamard(epsilon0=4, domain=4096)", 58_000, None)
# 52 weekly rounds, and 12 monthly ones in front of the first of their month.
YEAR = tuple(
    kind
    for week in range(52)
    for kind in ((_MONTHLY, _WEEKLY) if week == 0 or week * 12 // 52 > (week - 1) * 12 // 52 else (_WEEKLY,))
)
_SCHEDULES = (
    *((kind,) for kind in REGULAR_KINDS),
    REGULAR_KINDS[:2],
    (REGULAR_KINDS[1], *(REGULAR_KINDS[2],) * 4),
    REGULAR_KINDS,
    YEAR,
)
# 1 % samples of reports that reveal much: a few rounds of them use up the filters.
STRONG_SAMPLES = (
    made("generic(epsilon0=4)", 1_000, 100_000),
    made("generic(epsilon0=3)", 1_000, 100_000),
)
_SCHEDULE_BUDGETS = ((0.3, 1e-6), (0.5, 1e-6), (1.0, 1e-9), (2.0, 1e-8), (4.0, 1e-6))


def within(accountant: Accountant, rounds: Mapping[ShuffledRound, int], epsilon: float, delta: float) -> bool:
    return accountant.certify(rounds, delta=delta).epsilon_upper <= epsilon


def largest_count(holds: Callable[[int], bool], about: int) -> int:
    """The largest number up to `ROUNDS_MAX` at which a monotone condition holds; 0 if there is none."""
    low, high = 0, ROUNDS_MAX + 1
    count = min(max(about, 1), ROUNDS_MAX)
    step = max(1, count // _SEARCH_PARTS)
    while low < count < high:
        if holds(count):
            low, count = count, min(count + step, high)
        else:
            high, count = count, max(count - step, low)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class Budget:
    """A new budget of policy `adaptive`, and what the machine says of rounds that are charged to it."""

    def __init__(
        self,
        accountant: Accountant,
        epsilon: float,
        delta: float,
        *,
        slots: tuple[ShuffledRound, int] | None = None,
        approximate_share: float = APPROXIMATE_SHARE,
    ) -> None:
        bounds, declared = (0.0, 0.0), () if slots is None else (slots,)
        if declared:
            whole = accountant.certify(dict(declared), delta=delta * SLOTS_SHARE)
            bounds = (whole.epsilon_upper, whole.epsilon_lower)
        self.accountant = accountant
        cohort = Cohort(
            name="new",
            population=10**9,
            epsilon_budget=epsilon,
            delta_budget=delta,
            policy=POLICY_ADAPTIVE,
        )
        self.policy = BudgetPolicy.opened(
            cohort, slots=declared, slots_epsilon=bounds, approximate_share=approximate_share
        )
        self.state: State = machine.new_state(self.policy.machine_rules, self.policy.limits)
        self.costs: dict[ShuffledRound, Cost] = {}

    @property
    def filters(self) -> FilterSet:
        """Its filters, which a budget of this policy has."""
        assert self.policy.filters is not None
        return self.policy.filters

    def cost(self, kind: ShuffledRound) -> Cost:
        """Return the cost of a round."""
        if kind not in self.costs:
            charge = self.accountant.charge(kind, self.filters)
            self.costs[kind] = cost_of(charge, fits=self.policy.fitting(kind))
        return self.costs[kind]

    def admits(self, kind: ShuffledRound) -> bool:
        """Decides a round, and charges it if it is admitted."""
        posting = decided(self.state, self.cost(kind))
        self.state = machine.fold(self.state, posting)
        return not posting.reasons

    def room(self, kind: ShuffledRound) -> int:
        """How many more rounds of one kind are admitted."""
        return machine.room(self.state, self.cost(kind)).budget

    def epsilon_upper(self) -> float:
        """The smallest epsilon at which one of its filters holds now."""
        return min(one.epsilon_upper for one in self.policy.readings_of(self.state))


def admitted(accountant: Accountant, order: Sequence[ShuffledRound], epsilon: float, delta: float) -> int:
    """How many of some rounds a new budget admits, in this order, until it refuses one."""
    budget = Budget(accountant, epsilon, delta)
    return next((number for number, kind in enumerate(order) if not budget.admits(kind)), len(order))


def admitted_of_schedule(
    accountant: Accountant, schedule: Sequence[ShuffledRound], epsilon: float, delta: float
) -> tuple[int, int]:
    """How many rounds of a schedule that is repeated the filters admit, and how many composition would."""

    def order(count: int) -> list[ShuffledRound]:
        return list(itertools.islice(itertools.cycle(schedule), count))

    def fits(count: int) -> bool:
        return within(accountant, Counter(order(count)), epsilon, delta)

    most = largest_count(fits, len(schedule))
    return admitted(accountant, order(most), epsilon, delta), most


def schedules() -> Work:
    """How near to composition the filters come with schedules of regular kinds."""
    accountant = Accountant(precision=_PRECISION)

    def run() -> str:
        cases = itertools.product(_SCHEDULES, _SCHEDULE_BUDGETS)
        counts = [admitted_of_schedule(accountant, schedule, *budget) for schedule, budget in cases]
        # Where few rounds fit, one of them is a large share.
        shares = sorted(kept / exact for kept, exact in counts if exact >= _SCHEDULE_LEAST)
        year = admitted_of_schedule(accountant, YEAR, 0.5, 1e-6)
        return (
            f"{len(shares)} schedules: least {shares[0]:.1%}, median {shares[len(shares) // 2]:.1%};"
            f" a year at (0.5, 1e-6): {year[0]} of {year[1]}"
        )

    return run


def shares_of_mixes(accountant: Accountant, pool: Sequence[ShuffledRound]) -> Iterator[float]:
    """Rounds of two to four kinds in random order: what the filters admit of what composition would."""
    chance = random.Random(0)  # noqa: S311  # the same mixes every time
    while True:
        budget = chance.choice(_MIXED_BUDGETS)
        kinds = chance.sample(pool, chance.choice((2, 3, 4)))
        order = chance.choices(kinds, k=_MIXED_ROUNDS)
        few = all(within(accountant, {kind: _MIXED_LEAST}, *budget) for kind in kinds)
        if not few or any(within(accountant, {kind: _MIXED_ROUNDS}, *budget) for kind in kinds):
            continue
        fits = partial(_prefix_fits, accountant, order, *budget)
        exact = largest_count(fits, _MIXED_LEAST)
        if exact >= _MIXED_LEAST:
            yield admitted(accountant, order, *budget) / exact


def _prefix_fits(
    accountant: Accountant, order: Sequence[ShuffledRound], epsilon: float, delta: float, count: int
) -> bool:
    return within(accountant, Counter(order[:count]), epsilon, delta)


def mixes(pool: Sequence[ShuffledRound]) -> Work:
    """How near to composition the filters come with mixed rounds."""
    accountant = Accountant(precision=_PRECISION)

    def run() -> str:
        found = sorted(itertools.islice(shares_of_mixes(accountant, pool), _MIXES))
        enough = sum(one >= 0.8 for one in found)
        return (
            f"least {found[0]:.1%}, a tenth below {found[_MIXES // 10]:.1%}, median"
            f" {found[_MIXES // 2]:.1%}; {enough} of {_MIXES} at 80 % or more"
        )

    return run


def share(shuffled: ShuffledRound, epsilon: float, delta: float) -> Work:
    """How many rounds of a kind filters admit, beside how many the exact composition would."""
    accountant = Accountant(precision=_PRECISION)
    accountant.privacy_loss(shuffled)

    def run() -> str:
        kept = Budget(accountant, epsilon, delta).room(shuffled)
        exact = largest_count(lambda count: within(accountant, {shuffled: count}, epsilon, delta), kept)
        return f"{kept:,} of {exact:,} rounds, {kept / max(exact, 1):.1%}"

    return run


def admitted_beside_slots(
    accountant: Accountant, kind: ShuffledRound, epsilon: float, delta: float
) -> tuple[int, int]:
    """How many rounds a budget admits that declares as many slots of them as its share of delta has room for,
    beside its filters; and how many composition would."""
    exact = largest_count(lambda count: within(accountant, {kind: count}, epsilon, delta), 64)
    slots = largest_count(
        lambda count: within(accountant, {kind: count}, epsilon, delta * SLOTS_SHARE), max(exact, 1)
    )
    budget = Budget(accountant, epsilon, delta, slots=(kind, slots) if slots else None)
    return next(number for number in itertools.count() if not budget.admits(kind)), exact


def slots_beside_filters() -> Work:
    """How near to composition small samples of strong reports come with declared slots beside the filters."""
    accountant = Accountant(precision=_PRECISION)

    def run() -> str:
        cases = itertools.product(STRONG_SAMPLES, _SCHEDULE_BUDGETS)
        counts = [admitted_beside_slots(accountant, kind, *budget) for kind, budget in cases]
        shares = sorted(kept / exact for kept, exact in counts if exact >= _SCHEDULE_LEAST)
        return f"{len(shares)} budgets: least {shares[0]:.1%}, median {shares[len(shares) // 2]:.1%}"

    return run


def mixed(first: ShuffledRound, epsilon: float, delta: float) -> Work:
    """How many regular rounds fit after one irregular round, beside how many the exact composition would."""
    accountant, regular = Accountant(precision=_PRECISION), made(*_REGULAR)

    def run() -> str:
        budget = Budget(accountant, epsilon, delta)
        kept = budget.room(regular) if budget.admits(first) else 0
        exact = largest_count(lambda n: within(accountant, {first: 1, regular: n}, epsilon, delta), kept)
        return f"{kept:,} of {exact:,} rounds, {kept / max(exact, 1):.1%}"

    return run


def decisions(kind: tuple[str, int, int | None], history: int) -> Work:
    """Rounds of one known kind, quoted in a cohort that has a history: all of a decision but its writing."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'bench.db'}"
    schema.initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=_PRECISION)
    cohort = {"name": "bench", "population": 10**9, "epsilon": 50.0, "delta": 1e-9, "actor": "bench"}
    open_cohort(store, policy="adaptive", **cohort)  # type: ignore[arg-type]  # as the table says
    numbers = itertools.count()

    def request() -> RoundRequest:
        return RoundRequest(round_id=f"round-{next(numbers)}", cohort="bench", round=made(*kind))

    for _ in range(history):
        wanted = request()
        register(store, wanted, actor="bench")
        admit(store, accountant, wanted.round_id)

    def run() -> str:
        for _ in range(_DECISIONS):
            quote(store, accountant, request())
        return f"{_DECISIONS} decisions"

    run()
    return run


def charging(shuffled: ShuffledRound) -> Work:
    """A kind's charges, when its privacy loss is known: once for every kind and budget."""
    accountant = Accountant(precision=_PRECISION)
    accountant.privacy_loss(shuffled)
    budgets = (FilterSet.for_budget(epsilon=1.0, delta=1e-9 * (1 + n / 1000)) for n in itertools.count())

    def run() -> str:
        return f"{float(accountant.charge(shuffled, next(budgets)).gaussian[0]):.6g}"

    return run


def named(randomizer: str, reports: int, population: int | None) -> str:
    return f"{randomizer}, {reports:,}" + (f" of {population:,}" if population else "")


def cases() -> Iterator[Case]:
    """Shares of rounds admitted, decisions after histories, and charges from known losses."""
    alike = ((share, "", kind) for kind in _SHARES)
    after_others = ((mixed, f"{named(*_REGULAR)} after ", kind) for kind in _IRREGULAR)
    kinds = itertools.chain(alike, after_others)
    for (work, after, kind), (epsilon, delta) in itertools.product(kinds, _BUDGETS):
        yield Case(
            name=f"{after}{named(*kind)}, ({epsilon:g}, {delta:g})",
            prepare=partial(work, made(*kind), epsilon, delta),
            repeats=1,
            computes=True,
        )
    for pool, whose in ((REGULAR_KINDS, "regular kinds"), (_KINDS, "any kinds")):
        yield Case(
            name=f"{_MIXES} random mixes of {whose}", prepare=partial(mixes, pool), repeats=1, computes=True
        )
    yield Case(name="schedules of regular kinds", prepare=schedules, repeats=1, computes=True)
    yield Case(
        name="1 % samples of strong reports, slots beside filters",
        prepare=slots_beside_filters,
        repeats=1,
        computes=True,
    )
    for history in (10, 10_000):
        yield Case(
            name=f"{_DECISIONS} decisions, history of {history:,}",
            prepare=partial(decisions, _PLAIN, history),
            group=f"history {history}",
            computes=True,
        )
    for kind in _SHARES[:4]:
        yield Case(name=f"charges of {named(*kind)}", prepare=partial(charging, made(*kind)), computes=True)
