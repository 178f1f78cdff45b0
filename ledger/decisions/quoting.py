"""Prices of planned rounds, and what would still fit: nothing here leaves a trace or promises anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from shuffle_ledger.accounting import Accountant, AccountingError, ShuffledRound
from shuffle_ledger.ledger.answers.quotes import BATCH_MAX, BatchQuote, Fits
from shuffle_ledger.ledger.decisions import decide
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.decisions.quotas import with_budgets
from shuffle_ledger.ledger.decisions.windows import unopened_view, views_of
from shuffle_ledger.ledger.errors import (
    InvalidValue,
    NotFound,
    UnacceptedWarning,
    UnacceptedWarnings,
)
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.largest_epsilon0 import largest_epsilon0
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.policies.room import help_of_slots, room_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.repeats import least_open, quote_repeated
from shuffle_ledger.ledger.values.requests import (
    COLLECTION_FIELDS,
    Cohort,
    Quote,
    RefusalReason,
    RefusedBy,
    RoundRequest,
    SlotsHelp,
    epsilon_left,
)

INSTEAD_MAX = 200  # rounds that fit in place of one; more are not counted
_DIGITS = 3  # of the epsilon0 that fits


def quote(store: Store, accountant: Accountant, request: RoundRequest) -> Quote:
    """Return what the answer to a registration would be now. Leaves no trace.

    If the identifier is registered, that is the answer to a repetition; see `values.repeats`.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohort has users.
        Conflict, NotCollectable: as `register`.
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    request = with_budgets(store, request)
    views = views_of(store, request)
    now, _ = quote_next(store, accountant, views, request)
    try:
        record = round_record(store, request.round_id)
    except NotFound:
        return now
    return quote_repeated(request, record, least_open([view.cohort for view in views]).status, now)


def price(store: Store, accountant: Accountant, request: RoundRequest) -> Quote:
    """Return what the answer to a round would be now under a new identifier; raises what `quote` raises."""
    request = with_budgets(store, request, is_new=True)
    views = views_of(store, request)
    now, _ = quote_next(store, accountant, views, request)
    return dataclasses.replace(now, slots_would_help=_help_of_slots(store, accountant, views, request))


def is_first_sample(store: Store, request: RoundRequest) -> bool:
    """Return whether a round would be the first of its one cohort and is a sample; raises NotFound."""
    is_sample = request.round.sampled_from is not None or request.round.participation is not None
    if not is_sample or len(request.members) > 1:
        return False
    return not store.has_decided(request.cohort) and not store.taken([request.round_id])


def check_without_slots(store: Store, accountant: Accountant, request: RoundRequest) -> None:
    """Raise UnacceptedWarnings for the first round of a cohort, if it is a sample that wants declared slots.

    Where the numbers cannot be computed nothing is raised: registering the round says why.

    Raises:
        NotFound: no such cohort.
        InvalidValue: as `register`.
    """
    if not is_first_sample(store, request):
        return
    request = with_budgets(store, request, is_new=True)
    views = views_of(store, request)
    decide.check_request(request, [view.cohort for view in views])
    try:
        found = _help_of_slots(store, accountant, views, request)
    except AccountingError:
        return
    if found is None:
        return
    message = f"{found.described}. Slots cannot be declared after the first decision"
    warning = UnacceptedWarning(field="plan", message=message)
    raise UnacceptedWarnings(request.cohort, [warning], round_id=request.round_id)


def _help_of_slots(
    store: Store, accountant: Accountant, views: Sequence[CohortView], request: RoundRequest
) -> SlotsHelp | None:
    if len(request.members) > 1:
        return None
    losses = LossSource(store=store, accountant=accountant, keep=False)
    return help_of_slots(losses, views[0], request.round)


def quote_next(
    store: Store, accountant: Accountant, views: Sequence[CohortView], request: RoundRequest
) -> tuple[Quote, list[CohortView]]:
    """Return what the answer would be for a new identifier, if its cohorts were as `views` say, and how they
    would be after that answer.

    Of several budgets, the numbers are those of the one with the least left, of those that would refuse the
    round if there are any; `refused_by` names all that would refuse it. `epsilon_remaining` is
    the least of the budgets that promise, which quotas do not.

    Raises:
        InvalidValue, AccountingError, LedgerError: as `quote`.
    """
    decide.check_request(request, [view.cohort for view in views])
    decisions = decide.decide(LossSource(store=store, accountant=accountant, keep=False), views, request)
    pairs = [_quoted(store, view, one) for view, one in zip(views, decisions, strict=True)]
    quotes = [each for each, _ in pairs]
    if len(quotes) == 1:
        return quotes[0], [pairs[0][1]]
    refusing = [each for each in quotes if each.would_be == "refused"]
    # Of a refusal, what remains is what is left now.
    shown = min(refusing or quotes, key=lambda each: each.epsilon_remaining)
    names = tuple(view.cohort.name for view in views)
    promising = [each for each in quotes if each.cohort not in request.quotas]
    if refusing:
        left = min(epsilon_left(each.epsilon_budget, each.epsilon_spent_upper) for each in promising)
    else:
        left = min(each.epsilon_remaining for each in promising)
    by = tuple(map(_refused_by, refusing))
    shown = dataclasses.replace(shown, audience=names, refused_by=by, epsilon_remaining=left)
    return shown, list(views) if refusing else [after for _, after in pairs]


def _refused_by(quoted: Quote) -> RefusedBy:
    if quoted.reason is None:
        raise AssertionError("a refusal has a reason")
    return RefusedBy(
        cohort=quoted.cohort,
        reason=quoted.reason,
        epsilon_spent_upper=quoted.epsilon_spent_upper,
        epsilon_requested_upper=quoted.epsilon_requested_upper,
        epsilon_budget=quoted.epsilon_budget,
        delta_budget=quoted.delta_budget,
    )


def _quoted(store: Store, view: CohortView, decision: decide.Decision) -> tuple[Quote, CohortView]:
    cohort = view.cohort
    admitted = decision.reason is None
    requested = decision.requested
    after = requested if admitted and requested is not None else view.spent
    answer = Quote(
        cohort=cohort.name,
        would_be="admitted" if admitted else "refused",
        reason=decision.reason,
        message=decision.message,
        accounted=decision.accounted,
        epsilon_spent_upper=view.spent.epsilon_upper,
        epsilon_requested_upper=requested.epsilon_upper_or_none if requested else None,
        epsilon_requested_lower=requested.epsilon_lower if requested else None,
        epsilon_remaining=cohort.remaining(after.epsilon_upper),
        epsilon_budget=cohort.epsilon_budget,
        delta_budget=cohort.delta_budget,
    )
    policy = registry.policy_of(store, view)
    if admitted:
        held = {**view.held, decision.accounted: view.held.get(decision.accounted, 0) + 1}
        details = {**view.details, **decision.details}
        local = {**view.local, decision.accounted: view.local.get(decision.accounted, 0) + 1}
        view = dataclasses.replace(view, held=held, local=local, spent=after, details=details)
    return dataclasses.replace(answer, delta_accounts=policy.delta_accounts(view)), view


def quote_batch(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], *, fits: bool = False
) -> BatchQuote:
    """Return the price of rounds of one cohort, one after the other. Leaves no trace.

    Raises:
        InvalidValue: no round, too many, or of several cohorts.
        What `quote` raises.
    """
    if not 1 <= len(requests) <= BATCH_MAX:
        raise InvalidValue(field="rounds", value=len(requests), expected=f"1 to {BATCH_MAX} rounds")
    if len({request.cohort for request in requests}) != 1:
        raise InvalidValue(field="rounds", value="several cohorts", expected="rounds of one cohort")
    first = store.view(requests[0].cohort)
    turns = list(quotes_in_turn(store, accountant, requests))
    quotes, after = [answer for answer, _ in turns], turns[-1][1]
    quotes[0] = dataclasses.replace(
        quotes[0], slots_would_help=_help_of_slots(store, accountant, [first], requests[0])
    )
    admitted = sum(answer.would_be == "admitted" for answer in quotes)
    return BatchQuote(
        cohort=first.cohort.name,
        rounds_admitted=admitted,
        rounds_refused=len(quotes) - admitted,
        epsilon_spent_upper=first.spent.epsilon_upper,
        epsilon_remaining=first.cohort.remaining(after[first.cohort.name].spent.epsilon_upper),
        quotes=tuple(quotes),
        fits=fits_instead(store, accountant, requests[0]) if fits else None,
    )


def rehearse(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], opening: Sequence[Cohort] = ()
) -> Iterator[Quote]:
    """Yield the answer that each of some new rounds would get now, if those before it were registered in this
    order. Leaves no trace.

    Of a refused round of several budgets, the reason is the one in the entry of the first of them.

    Args:
        store: the ledger.
        accountant: computes with the ledger's precision.
        requests: the rounds.
        opening: cohorts without plans that are opened before them.

    Raises:
        What `quote` raises.
    """
    for answer, _ in quotes_in_turn(store, accountant, requests, opening):
        reasons = {one.cohort: one.reason for one in answer.refused_by}
        if reasons:
            reason = reasons.get(answer.audience[0], RefusalReason.REFUSED_ELSEWHERE)
            yield dataclasses.replace(answer, reason=reason)
        else:
            yield answer


def quotes_in_turn(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], opening: Sequence[Cohort] = ()
) -> Iterator[tuple[Quote, Mapping[str, CohortView]]]:
    """Yield the quotes of new rounds, each as if those before it were registered, and its budgets after it.

    Arguments, and errors, are those of `rehearse`.
    """
    views: dict[str, CohortView] = {}
    if opening:
        now = store.now()
        views = {each.name: unopened_view(each, registry.policy_for(each), now) for each in opening}
    for request in requests:
        placed = with_budgets(store, request, is_new=True, known=views)
        before = views_of(store, placed, views)
        answer, left = quote_next(store, accountant, before, placed)
        after = {view.cohort.name: view for view in left}
        views |= after
        yield answer, after


def fits_instead(store: Store, accountant: Accountant, request: RoundRequest) -> Fits:
    """Return what would fit now in place of a round; raises what `quote` raises.

    The number of rounds that are tried is bounded, so that the answer is a matter of seconds.
    """
    try:
        request = with_budgets(store, request, is_new=True)
    except InvalidValue as error:
        if error.field not in COLLECTION_FIELDS:
            raise
        return Fits(rounds=0, epsilon0=None)  # its days have passed
    views = views_of(store, request)
    decide.check_request(request, [view.cohort for view in views])
    losses = LossSource(store=store, accountant=accountant, keep=False)

    def count(described: ShuffledRound) -> int:
        return room_of(losses, views, [described]).turns

    rounds = min(count(request.round), INSTEAD_MAX)

    def takes(described: ShuffledRound) -> bool:
        try:
            return (rounds if described == request.round else count(described)) > 0
        except AccountingError:
            return False

    is_open = all(view.cohort.status == "open" for view in views)
    epsilon0 = largest_epsilon0(takes, request.round, digits=_DIGITS) if is_open else None
    return Fits(rounds=rounds, epsilon0=epsilon0)
