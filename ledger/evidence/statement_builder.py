"""Making statements: one pass over the chain, then what its kinds of rounds cost alone, then the profile."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import TypeAlias

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.answers.budgets import FittingRounds, status_now
from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.answers.summaries import ASSUMES, assumes
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.evidence.chain_reader import ChainReading
from shuffle_ledger.ledger.evidence.conditions import (
    CONDITIONS,
    NEIGHBOURS,
    NEIGHBOURS_OF_PERIOD,
    OF_AUDIENCES,
    OF_CAPS,
    OF_SEVERAL_REPORTS,
    OF_WINDOWS,
    POLICY_UNKNOWN,
    PRIVACY_UNIT,
    PRIVACY_UNIT_OF_SEVERAL,
    Condition,
    interaction_of,
    unit_of_period,
)
from shuffle_ledger.ledger.evidence.statement import (
    CohortPromise,
    CohortStatement,
    EpsilonBounds,
    Since,
    StatedKind,
    StatedProfilePoint,
    StatedPromise,
    Statement,
    Verdict,
    state_of_promise,
)
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.receipts import stated_releases
from shuffle_ledger.ledger.reports.budgets import unknown_readings
from shuffle_ledger.ledger.reports.forecasts import by_frequency, what_fits
from shuffle_ledger.ledger.reports.listing import closure_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE, EntryBody, EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import Cohort, declared_from
from shuffle_ledger.ledger.values.saved_heads import SavedHead
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.verification.replay import PROBLEMS_MAX, EntrySource, Problem, Replay
from shuffle_ledger.ledger.verification.sibling_chains import siblings_in
from shuffle_ledger.ledger.verification.siblings import JointRounds

# Orders of magnitude of delta around the budget's at which the profile is shown.
PROFILE_DECADES = (-4, -3, -2, -1, 0, 1, 2, 3, 4)
PROFILE_DELTA_MAX = 0.1

AsOf: TypeAlias = "datetime | int | None"  # a moment, a sequence, or now
Progress: TypeAlias = Callable[[str, int, int], None]  # what, how many are done, of how many


def make_statement(
    store: Store,
    accountant: Accountant,
    cohorts: Iterable[str],
    *,
    made_at: datetime,
    as_of: AsOf = None,
    since: Mapping[str, int] | None = None,
    kept_heads: Iterable[tuple[str, Head]] = (),
    progress: Progress | None = None,
) -> Statement:
    """Return a statement about cohorts.

    Args:
        made_at: when; a statement never asks a clock.
        as_of: it says what stood after the last entry that is not later; every entry when None. Where entries
            behind that one were lost, it goes on to the freeze that says so.
        since: by cohort, the entry after which changes are counted.
        kept_heads: heads that somebody kept elsewhere; a chain that does not contain one of them is damaged.
        progress: told what is being done.

    **Guarantee**: all spending is quoted from the entries, whose digests and links are checked on the way.
    Where the chains of other cohorts say otherwise of the same rounds, the verdict is unknown.
    The costs of single rounds, the composition and the profile are certified now.

    Raises:
        NotFound: no such cohort.
        InvalidValue: `as_of` or `since` names no entry; or a quota, which promises nothing.
        Damaged: an entry cannot be read, or does not follow from those before it.
        BehindCheckpoint: the store has an anchor, and lacks what the anchor has seen: more was spent than its
            entries say.
    """
    store.check_anchor()
    kept = list(kept_heads)
    tell = progress or (lambda _what, _done, _of: None)
    chains: dict[str, JointRounds] = {}
    made = tuple(
        _cohort_statement(
            store,
            accountant,
            _promising(store.cohort(checked_text("cohort", name))),
            as_of=as_of,
            since=(since or {}).get(name),
            kept=[head for cohort, head in kept if cohort == name],
            tell=tell,
            chains=chains,
        )
        for name in cohorts
    )
    made = tuple(_with_releases(store, _of_lost(_with_siblings(store, each, chains))) for each in made)
    promises: tuple[StatedPromise, ...] = ()
    has_several = len(made) > 1 or any(each.promise.windows for each in made)
    if has_several and not isinstance(as_of, int):
        on = (as_of or made_at).astimezone(UTC).date()
        found = (_promises(store, each, chains, as_of=as_of, on=on, tell=tell) for each in made)
        # A period that is stated beside its cohort is one promise.
        promises = tuple(dict.fromkeys(itertools.chain.from_iterable(found)))
    return Statement(
        made_at=made_at,
        software=f"shuffle-ledger {version('shuffle-ledger')}",
        numerical_policy=NUMERICAL_POLICY,
        conditions=_conditions(made),
        cohorts=made,
        checkpoint=None,
        promises=promises,
    )


def _conditions(made: Iterable[CohortStatement]) -> tuple[Condition, ...]:
    return (
        *CONDITIONS,
        *([OF_AUDIENCES] if any(map(_has_audiences, made)) else []),
        *([OF_SEVERAL_REPORTS] if any(map(_has_several_reports, made)) else []),
        *([OF_CAPS] if any(each.promise.rounds_per_user for each in made) else []),
        *([OF_WINDOWS] if any(each.promise.windows or each.promise.period for each in made) else []),
    )


def _promises(
    store: Store,
    stated: CohortStatement,
    chains: dict[str, JointRounds],
    *,
    as_of: datetime | None,
    on: date,
    tell: Progress,
) -> Iterator[StatedPromise]:
    """Yield the promise of a cohort's life, then those of all periods that rounds were charged to by then,
    and of one of each window that contains that day, whose chains are read as that of the cohort."""
    promise = stated.promise
    if promise.has_life:
        period = promise.period
        first, last = (None, None) if period is None else (period.first, period.last)
        yield StatedPromise(
            cohort=stated.cohort,
            period="life" if period is None else period.label,
            first=first,
            last=last,
            epsilon=promise.epsilon_guaranteed,
            delta=promise.delta_budget,
            epsilon_spent_upper=math.inf if stated.verdict == "unknown" else stated.spent.epsilon_upper,
            state=state_of_promise(stated.verdict, first, last, on),
        )
    begun = store.periods_after(stated.cohort, date.min) if promise.windows else []
    of_day = [next(window.periods(stated.cohort, on, on)) for window in promise.windows]
    named = {period.name: period for period in (*begun, *of_day)}
    chained = {period.name for period in begun}
    for period in sorted(named.values(), key=lambda each: (each.first, -each.last.toordinal())):
        window = next(each for each in promise.windows if each.kind == period.kind)
        is_begun = period.name in chained
        found = _period_found(store, period.name, chains, as_of=as_of, tell=tell) if is_begun else None
        if found is None and period not in of_day:
            continue  # its first round came after the moment of the statement
        verdict, spent = found or ("kept", 0.0)
        yield StatedPromise(
            cohort=stated.cohort,
            period=period.label,
            first=period.first,
            last=period.last,
            epsilon=window.epsilon,
            delta=window.delta,
            epsilon_spent_upper=spent,
            state=state_of_promise(verdict, period.first, period.last, on),
        )


def _period_found(
    store: Store, name: str, chains: dict[str, JointRounds], *, as_of: datetime | None, tell: Progress
) -> tuple[Verdict, float] | None:
    """Return the verdict on a period's chain and the epsilon that was spent in it; None: it had no entry."""
    try:
        last = _last_sequence(store, store.cohort(name), as_of, store.view(name).head_sequence)
    except InvalidValue:
        return None
    try:
        replay, reading, body, _ = _read(store, name, last, [], tell)
    except Damaged:
        return "unknown", math.inf
    chains[name] = replay.fold.joint
    verdict = _verdict(replay, reading)
    if _differing(store, name, chains, last):
        verdict = "unknown"
    return verdict, math.inf if verdict == "unknown" else body.spent.epsilon_upper


def _promising(cohort: Cohort) -> Cohort:
    """Return a cohort, or a period of its windows; raise InvalidValue for a quota."""
    if cohort.quota is not None:
        expected = f"{cohort.quota.cohort!r}: a quota promises nothing to users, its cohort does"
        raise InvalidValue(field="cohort", value=cohort.name, expected=expected)
    return cohort


def _has_audiences(cohort: CohortStatement) -> bool:
    return any(each.audience for each in cohort.rounds) or any(each.audience for each in cohort.refusals)


def _has_several_reports(cohort: CohortStatement) -> bool:
    """Return whether a round of a cohort may have several reports of a user."""
    kinds = [each.accounted for each in cohort.rounds] + [each.accounted for each in cohort.told]
    return any(kind.reports_per_user > 1 for kind in kinds)


class _Beginning:
    """A chain's entries up to one of them."""

    def __init__(self, source: EntrySource, last: int) -> None:
        self._source, self._last = source, last

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        """Yield a cohort's entries in order."""
        return itertools.takewhile(lambda each: each.sequence <= self._last, self._source.entries_of(cohort))


def _differing(store: Store, cohort: str, chains: Mapping[str, JointRounds], last: int) -> list[Problem]:
    """Return where other chains say otherwise of a cohort's rounds, up to an entry."""
    return [each for each in siblings_in(store, cohort, chains) if (each.sequence or 0) <= last]


def _with_siblings(
    store: Store, found: CohortStatement, chains: Mapping[str, JointRounds]
) -> CohortStatement:
    """Return the statement of a cohort, given what other chains say of its rounds of several cohorts."""
    differ = _differing(store, found.cohort, chains, found.head.sequence)
    if not differ:
        return found
    problems = (*found.chain_problems, *_spelled(differ))[:PROBLEMS_MAX]
    return dataclasses.replace(found, verdict="unknown", chain_problems=problems)


def _with_releases(store: Store, found: CohortStatement) -> CohortStatement:
    """Return the statement of a cohort with what the word on each release rests on: permits and receipts."""
    charged = {
        each.round_id: None if each.closing is None else each.closing.reports or 0 for each in found.rounds
    }
    charged |= {each.round_id: each.round.reports for each in found.told if each.round}
    releases = stated_releases(store, charged)
    rounds = (dataclasses.replace(each, release=releases[each.round_id]) for each in found.rounds)
    return dataclasses.replace(found, rounds=tuple(rounds))


def _spelled(problems: Iterable[Problem]) -> Iterator[str]:
    for each in problems:
        yield f"entry {each.sequence}: {each.what}" if each.sequence else each.what


def _read(
    store: Store, cohort: str, last: int, kept: list[Head], tell: Progress
) -> tuple[Replay, ChainReading, EntryBody, EntryBody]:
    """Return what a chain says up to an entry, with the bodies of that entry and of the opening; raises
    Damaged if nothing can be stated about it."""
    heads = [SavedHead(head.sequence, head.digest) for head in kept if head.sequence <= last]
    replay = Replay(store=_Beginning(store, last), cohort=cohort, kept=heads)
    reading = ChainReading(replay)
    for step in replay.steps():
        reading.see(step)
        tell(f"{cohort}: reading entries", step.sequence, last)
    replay.miss_kept()
    body, opened = replay.head_body, replay.fold.opened
    if body is None or opened is None or not replay.readable:
        first = next((each for each in replay.problems if each.sequence), None)
        where = f"entry {first.sequence}: {first.what}" if first else "it has no entries"
        raise Damaged(f"cohort {cohort!r}: nothing can be stated about its chain; {where}")
    return replay, reading, body, opened


def _cohort_statement(
    store: Store,
    accountant: Accountant,
    cohort: Cohort,
    *,
    as_of: AsOf,
    since: int | None,
    kept: list[Head],
    tell: Progress,
    chains: dict[str, JointRounds],
) -> CohortStatement:
    view = store.view(cohort.name)
    now = Head(sequence=view.head_sequence, digest=view.head_digest.hex())
    last = _last_sequence(store, cohort, as_of, now.sequence)
    _check_since(since, last)
    replay, reading, body, opened = _read(store, cohort.name, last, kept, tell)
    chains[cohort.name] = replay.fold.joint
    closure = reading.closure
    if cohort.parent is not None and last == now.sequence:
        closure = closure_of(store, cohort)
    (policy, state), delta = replay.fold.budget, body.delta_budget
    has_life, spent, held = replay.fold.joint.has_life, body.spent, dict(+replay.fold.held)
    if not has_life:  # what a round costs alone is stated at the delta of a period
        delta = min(window.delta for window in replay.fold.joint.windows)
    kinds = list(dict.fromkeys([*reading.kinds(), *held]))
    alone = _alone(store, accountant, kinds, delta, lambda n, of: tell(f"{cohort.name}: rounds alone", n, of))
    profile: tuple[StatedProfilePoint, ...] = ()
    if has_life:
        profile = _profile(
            store, accountant, held, delta, lambda n, of: tell(f"{cohort.name}: profile", n, of)
        )
    local_epsilon_upper, local_delta_upper = local_bounds(replay.fold.local.items())
    return CohortStatement(
        cohort=cohort.name,
        verdict=_verdict(replay, reading),
        chain_problems=tuple(_spelled(replay.problems)),
        promise=_promise(replay, opened, body),
        status=status_now(replay.fold.status, is_closed=closure is not None),
        closure=closure,
        spent=EpsilonBounds.of(spent),
        epsilon_remaining=body.epsilon_remaining,
        discretization=body.spent.discretization,
        truncation=body.spent.truncation,
        round_off=body.spent.round_off,
        method=body.spent.method,
        decided_by=policy.decided_by,
        filters=policy.readings_of(state),
        delta_accounts=policy.accounts_of(state),
        numerical_policies=tuple(reading.numerical_policies),
        composition=_at(profile, delta) if profile else EpsilonBounds.of(spent),
        local_epsilon_upper=local_epsilon_upper,
        local_delta_upper=local_delta_upper,
        interaction=interaction_of(replay.fold.local, replay.fold.held),
        rounds=tuple(reading.rounds(alone)),
        refusals=tuple(reading.refusals),
        budget_changes=tuple(reading.budget_changes),
        overspends=tuple(reading.overspends),
        lost=tuple(reading.lost),
        told=tuple(reading.restatements),
        breach=reading.breach(),
        moments=tuple(reading.moments),
        profile=profile,
        since=_since(reading, since, kept) if since else None,
        rounds_pending=store.count_pending(cohort.name) if last == now.sequence else None,
        fits=_fits(store, accountant, view, replay) if last == now.sequence else None,
        charged=tuple(StatedKind(round=each, rounds=held[each], alone=alone[each]) for each in held),
        as_of=body.recorded_at,
        head=Head(sequence=replay.head_sequence, digest=replay.head_digest.hex()),
        head_now=now,
    )


def _of_lost(found: CohortStatement) -> CohortStatement:
    """Return the statement of a cohort that lost entries: no number that leaves out what was lost is a
    bound."""
    if not found.lost:
        return found
    return dataclasses.replace(
        found,
        filters=unknown_readings(found.filters),
        delta_accounts=None,
        composition=dataclasses.replace(found.composition, epsilon_upper=math.inf),
        profile=tuple(dataclasses.replace(each, epsilon_upper=math.inf) for each in found.profile),
        local_epsilon_upper=math.inf,
        local_delta_upper=1.0,
    )


def _check_since(since: int | None, last: int) -> None:
    if since is not None and not FIRST_SEQUENCE <= since <= last:
        raise InvalidValue(field="since", value=since, expected=f"an entry from {FIRST_SEQUENCE} to {last}")


def _fits(
    store: Store, accountant: Accountant, view: CohortView, replay: Replay
) -> tuple[FittingRounds, ...]:
    losses = LossSource(store=store, accountant=accountant, keep=False)
    return what_fits(losses, view, by_frequency(replay.fold.local))


def _last_sequence(store: Store, cohort: Cohort, as_of: AsOf, head: int) -> int:
    if as_of is None:
        return head
    if isinstance(as_of, int):
        if not FIRST_SEQUENCE <= as_of <= head:
            raise InvalidValue(
                field="as_of",
                value=as_of,
                expected=f"an entry of {cohort.name!r}, from {FIRST_SEQUENCE} to {head}",
            )
        return as_of
    # All entries are read, for a clock may have been put back between two of them.
    early, freezes = list[int](), set[int]()
    for body in (entry.content() for entry in store.entries_of(cohort.name)):
        if body.recorded_at <= as_of:
            early.append(body.sequence)
        if body.kind is EntryKind.FROZEN:
            freezes.add(body.sequence)
    if not early:
        expected = f"a moment from {cohort.opened_at} on, when {cohort.name!r} was opened"
        raise InvalidValue(field="as_of", value=as_of.isoformat(), expected=expected)
    # Entries that a freeze says were lost may have been written by then.
    return early[-1] + 1 if early[-1] + 1 in freezes else early[-1]


def _verdict(replay: Replay, reading: ChainReading) -> Verdict:
    if replay.problems or reading.lost:
        return "unknown"
    if not replay.fold.joint.has_life:
        return "no_promise"
    return "broken" if reading.overspends or replay.fold.overspent else "kept"


def _promise(replay: Replay, opened: EntryBody, body: EntryBody) -> CohortPromise:
    policy, declared = str(opened.details["policy"]), declared_from(opened.details)
    period = declared["period"]
    is_single = all(kind.reports_per_user == 1 for kind in [*replay.fold.local, *+replay.fold.held])
    unit = PRIVACY_UNIT if is_single else PRIVACY_UNIT_OF_SEVERAL
    return CohortPromise(
        population=int(opened.details["population"]),
        privacy_unit=unit if period is None else unit_of_period(period),
        neighbours=NEIGHBOURS if period is None else NEIGHBOURS_OF_PERIOD,
        windows=declared["windows"],
        period=period,
        ceiling=declared["ceiling"],
        local_budget=declared["local_budget"],
        rounds_per_user=declared["rounds_per_user"],
        epsilon_budget=body.epsilon_budget,
        delta_budget=body.delta_budget,
        policy=policy,
        policy_assumes=assumes(policy) if policy in ASSUMES else POLICY_UNKNOWN,
        opened_at=opened.recorded_at,
        opened_by=opened.actor,
        openings=replay.kinds[EntryKind.OPENED],
    )


def _alone(
    store: Store,
    accountant: Accountant,
    kinds: list[ShuffledRound],
    delta: float,
    tell: Callable[[int, int], None],
) -> dict[ShuffledRound, EpsilonBounds]:
    found = {}
    for done, kind in enumerate(kinds, start=1):
        spent = loss_cache.certify(store, accountant, {kind: 1}, delta=delta, keep=False)
        found[kind] = EpsilonBounds.of(spent)
        tell(done, len(kinds))
    return found


def _profile(
    store: Store,
    accountant: Accountant,
    held: Mapping[ShuffledRound, int],
    delta: float,
    tell: Callable[[int, int], None],
) -> tuple[StatedProfilePoint, ...]:
    # In decimals, so that none prints the round-off of a product.
    deltas = [float(Decimal(repr(delta)).scaleb(decade)) for decade in PROFILE_DECADES]
    points = []
    for done, each in enumerate(deltas, start=1):
        if each == delta or 0 < each <= PROFILE_DELTA_MAX:
            spent = loss_cache.certify(store, accountant, held, delta=each, keep=False)
            bounds = {"epsilon_upper": spent.epsilon_upper, "epsilon_lower": spent.epsilon_lower}
            points.append(StatedProfilePoint(delta=each, **bounds))
        tell(done, len(deltas))
    return tuple(points)


def _at(profile: tuple[StatedProfilePoint, ...], delta: float) -> EpsilonBounds:
    point = next(each for each in profile if each.delta == delta)
    return EpsilonBounds(epsilon_upper=point.epsilon_upper, epsilon_lower=point.epsilon_lower)


def _since(reading: ChainReading, since: int, kept: list[Head]) -> Since:
    then, now = reading.moments[since - 1], reading.moments[-1]
    later = [moment.kind for moment in reading.moments[since:]]
    earlier = Head(sequence=since, digest=then.digest)
    return Since(
        earlier=earlier,
        recorded_at=then.recorded_at,
        proven=earlier in kept,
        entries=len(later),
        rounds_admitted=later.count(EntryKind.ADMITTED),
        rounds_refused=later.count(EntryKind.REFUSED),
        rounds_settled=later.count(EntryKind.SETTLED),
        rounds_voided=later.count(EntryKind.VOIDED),
        spent_then=then.spent,
        spent_now=now.spent,
        epsilon_budget_then=then.epsilon_budget,
    )
