"""A statement as a document: the answers, the conditions, the terms, and behind them the annexes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from shuffle_ledger.accounting import exact_text, upper_text
from shuffle_ledger.cli.rendering.audit_views import alarm_lines
from shuffle_ledger.cli.rendering.statements.annexes import account, evidence
from shuffle_ledger.cli.rendering.statements.blocks import (
    Answer,
    Block,
    Column,
    Document,
    Facts,
    Grid,
    Heading,
    Paragraph,
    Points,
    Terms,
    shortened,
)
from shuffle_ledger.cli.rendering.statements.numbers import (
    Digits,
    certainty,
    day,
    grouped,
    moment,
    one_in,
    percent,
    share_upper,
)
from shuffle_ledger.cli.rendering.statements.terms import TERMS
from shuffle_ledger.ledger.answers import ASSUMES
from shuffle_ledger.ledger.evidence import (
    CohortPromise,
    CohortStatement,
    PromiseState,
    StatedPromise,
    Statement,
)

FINDINGS_SHOWN = 10  # of each sort, on the first page
_STATES: dict[PromiseState, str] = {
    "kept": "Kept",
    "so_far": "Kept so far",
    "not_begun": "Not begun",
    "broken": "Not kept",
    "unknown": "Cannot be said",
}
_ALARMING = ("broken", "unknown")
PERIODS_NAMED = 3  # in a sentence
PERIODS_SHOWN = 12  # on the first page of one cohort


def document_from(statement: Statement, *, rows_max: int) -> Document:
    """Returns the document; tables with more rows than `rows_max` show their beginning and their end."""
    one = statement.cohorts[0] if len(statement.cohorts) == 1 else None
    made = f"Made {moment(statement.made_at)} by {statement.software}."
    frozen = [each.cohort for each in statement.cohorts if each.status == "frozen"]
    blocks: list[Block] = [] if one else [_overview(statement, rows_max, level=2)]
    for number, each in enumerate(statement.cohorts):
        if not one:
            blocks.append(Heading(text=each.cohort, level=2, new_page=number > 0))
        blocks += _first_page(each, statement, level=2 if one else 3)
    blocks += _conditions(statement)
    blocks.append(Heading(text="Terms", level=2))
    blocks.append(Terms(listed=TERMS))
    for number, each in enumerate(statement.cohorts):
        blocks += account(each, rows_max, number)
    blocks += evidence(statement)
    what = one.cohort if one else f"{len(statement.cohorts)} cohorts"
    return Document(
        alarms=tuple(alarm_lines(statement.broken, frozen)),
        title=f"Privacy statement: {what}",
        subtitle=f"As of entry {one.head.sequence:,}, {moment(one.as_of)}. {made}" if one else made,
        blocks=tuple(blocks),
    )


def _failing(cohort: CohortStatement, statement: Statement) -> list[StatedPromise]:
    """Returns a cohort's promises that are not kept, or of which that cannot be said, the worst first."""
    own = [each for each in statement.promises if each.cohort == cohort.cohort and each.state in _ALARMING]
    return sorted(own, key=lambda each: _ALARMING.index(each.state))


def _word(cohort: CohortStatement, statement: Statement) -> str:
    """Returns whether the promise is kept; of a cohort with windows, whether all its promises are."""
    failing = _failing(cohort, statement)
    if failing and cohort.verdict in ("kept", "no_promise"):
        return _STATES[failing[0].state]
    if cohort.verdict != "no_promise":
        return _STATES[cohort.state(statement.made_at)]
    return "Kept so far" if statement.promises else "See the periods"


def _overview(statement: Statement, rows_max: int, *, level: int) -> Grid:
    """Returns one line for each promise, and whether it is kept; those that are not come first."""
    alarming = [each for each in statement.promises if each.state in _ALARMING]
    others = [each for each in statement.promises if each.state not in _ALARMING]
    rows = [
        (
            each.cohort,
            "its whole life" if each.first is None else f"{each.period}\n{each.first} to {each.last}",
            f"ε {exact_text(each.epsilon)} at δ {exact_text(each.delta)}",
            Digits.for_budget(each.epsilon).upper(each.epsilon_spent_upper),
            percent(each.epsilon_spent_upper, each.epsilon),
            _STATES[each.state],
        )
        for each in (*alarming, *others)
    ]
    # Rows are left out from the middle, but none of a promise that is not kept.
    shown, left_out = shortened(rows, max(rows_max, 2 * len(alarming)))
    return Grid(
        title="All promises",
        level=level,
        intro=(
            "What was promised to the users of each cohort, and whether it is kept. A period is listed if"
            " rounds were charged to it, or if it is today’s. Days are those of UTC."
        ),
        columns=(
            Column("Cohort", 24),
            Column("Promised for", 22),
            Column("Promise", 22),
            Column("Used, at most", 11, numeric=True),
            Column("of it", 9, numeric=True),
            Column("Promise is", 14),
        ),
        rows=shown,
        left_out=left_out,
        alarming=bool(alarming),
    )


def _first_page(cohort: CohortStatement, statement: Statement, *, level: int) -> Iterator[Block]:
    digits, promise = _digits(cohort.promise), cohort.promise
    yield Answer(
        word=_word(cohort, statement),
        sentence=_sentence(cohort, statement, digits),
        good=cohort.verdict in ("kept", "no_promise") and not _failing(cohort, statement),
        used=share_upper(cohort.spent.epsilon_upper, promise.epsilon_budget) if promise.has_life else None,
    )
    yield Facts(rows=tuple(_answers(cohort, statement, digits)))
    if len(statement.cohorts) == 1 and statement.promises:
        yield _overview(statement, PERIODS_SHOWN, level=level)
    yield Heading(text="Findings", level=level)
    yield Points(items=tuple(_findings(cohort, digits)) or (_NOTHING_FOUND,))
    yield Heading(text="What is promised", level=level)
    yield from map(_paragraph, _promised(cohort))
    yield Heading(text="How sure is that?", level=level)
    yield Points(items=tuple(_sure(cohort, statement, digits)))


_NOTHING_FOUND = "Nothing unusual: no overspend, no correction, no incident, no change of the budget."


def _paragraph(text: str) -> Paragraph:
    return Paragraph(text=text)


def _digits(promise: CohortPromise) -> Digits:
    return Digits.for_budget(promise.epsilon_budget if promise.has_life else promise.windows[0].epsilon)


def _sentence(cohort: CohortStatement, statement: Statement, digits: Digits) -> str:
    if cohort.verdict == "unknown":
        return _unknown(cohort)
    if cohort.verdict == "broken":
        return f"{_broken(cohort, digits)} The ledger charged what really happened, and admits nothing more."
    failing = [each.period for each in _failing(cohort, statement)]
    if failing:
        more = f" and {len(failing) - PERIODS_NAMED:,} more" if len(failing) > PERIODS_NAMED else ""
        named = ", ".join(failing[:PERIODS_NAMED])
        return f"Look at the promise of {named}{more}: the statement of that period says what happened."
    if cohort.verdict == "no_promise":
        return (
            "Nothing is promised of the cohort’s whole life. Each period has its own budget, and a statement"
            " that says whether its promise is kept."
        )
    if cohort.promise.period and cohort.state(statement.made_at) == "not_begun":
        return (
            f"The period begins on {cohort.promise.period.first}. What is admitted for it already stays"
            " within the promise, if the conditions hold."
        )
    return (
        f"No more was spent than was promised, up to entry {cohort.head.sequence:,} of {day(cohort.as_of)},"
        " if the conditions hold."
    )


def _unknown(cohort: CohortStatement) -> str:
    if not cohort.chain_problems:
        return (
            f"The ledger’s database was put back to an earlier state, as entry {cohort.lost[0].sequence:,}"
            " says. What the lost entries spent is unknown. The ledger decides nothing more for this cohort."
        )
    return (
        "The record that this statement is made from was changed. Nothing in it can be relied on:"
        f" {'; '.join(cohort.chain_problems[:3])}."
    )


def _broken(cohort: CohortStatement, digits: Digits) -> str:
    if cohort.breach is None:
        first = cohort.overspends[0]
        return (
            f"After entry {first.sequence:,} of {day(first.recorded_at)},"
            f" {_spent(first.epsilon_spent_upper, digits)} was spent, of {exact_text(first.epsilon_budget)}."
        )
    composed = cohort.composition.epsilon_upper
    return (
        f"Not kept since entry {cohort.breach.sequence:,} of {day(cohort.breach.recorded_at)}:"
        f" {cohort.breach.reason}. If all rounds had been fixed in advance, everything released together"
        f" would cost {_spent(composed, digits)} at delta² {exact_text(cohort.promise.delta_budget)}."
    )


def _answers(cohort: CohortStatement, statement: Statement, digits: Digits) -> Iterator[tuple[str, str]]:
    promise, spent = cohort.promise, cohort.spent.epsilon_upper
    yield "Promise", "\n".join([*_promises(promise), f"for each of {promise.population:,} users"])
    yield "Period", _period(cohort)
    if promise.has_life:
        budget = promise.epsilon_budget
        used = f"at most {digits.upper(spent)} of {exact_text(budget)} ({percent(spent, budget)})"
        yield "Used", used if math.isfinite(spent) else "nothing bounds it"
        left = cohort.epsilon_remaining
        yield "Left", f"at least {digits.lower(left)}" if left else "nothing"
    yield from _tightest(cohort, statement)
    if cohort.fits and cohort.status == "open":
        yield "Still fits", "\n".join(_fits(cohort))
    voided = [each.round_id for each in cohort.rounds if each.closing and each.closing.kind == "voided"]
    leaked = len({each.round_id for each in cohort.told if each.kind == "incident"} & set(voided))
    closed = f" ({len(voided) - leaked:,} of them voided and never released)" if voided else ""
    closed += f", {leaked:,} voided and released all the same" if leaked else ""
    yield "Rounds⁵", f"{len(cohort.rounds):,} admitted{closed}, {len(cohort.refusals):,} refused"
    signed = statement.checkpoint
    yield (
        "Signature",
        f"by the key\n{grouped(signed['public_key'])}" if signed else "none: no key signed this",
    )
    key = " --public-key KEY" if signed else " --against HEADS"
    yield "How to verify", f"shuffle-ledger audit verify BUNDLE{key}"


def _tightest(cohort: CohortStatement, statement: Statement) -> Iterator[tuple[str, str]]:
    """Yields what is used of the present period with the least left, if that is less than of the life."""
    present = [each for each in statement.promises if each.cohort == cohort.cohort and each.state == "so_far"]
    if not present or _failing(cohort, statement):
        return
    least = min(present, key=lambda each: each.epsilon - each.epsilon_spent_upper)
    if least.first is not None:
        used = Digits.for_budget(least.epsilon).upper(least.epsilon_spent_upper)
        share = percent(least.epsilon_spent_upper, least.epsilon)
        days = f"{least.first} to {least.last}"
        yield "Least left", f"of {days}: at most {used} of {exact_text(least.epsilon)} used ({share})"


def _promises(promise: CohortPromise) -> Iterator[str]:
    """Yields what is promised: for the whole life, or for the period that this is about, and for others."""
    if promise.has_life:
        yield _budget_text(promise.epsilon_guaranteed, promise.delta_budget)
    for each in promise.windows:
        yield f"each {each.described}: {_budget_text(each.epsilon, each.delta)}"


def _budget_text(epsilon: float, delta: float) -> str:
    return f"epsilon¹ {exact_text(epsilon)} at delta² {exact_text(delta)}"


def _period(cohort: CohortStatement) -> str:
    period = cohort.promise.period
    if period is not None:
        return f"{period.first} to {period.last}, days of collection in UTC"
    opened = day(cohort.promise.opened_at)
    if cohort.promise.has_life:
        return f"the whole life of the cohort³, opened {opened}"
    return f"each by itself; the cohort³ was opened {opened}"


def _fits(cohort: CohortStatement) -> Iterator[str]:
    for one in cohort.fits or ():
        count = f"at least {one.rounds_at_least:,} more" if one.rounds_at_least else "none"
        yield f"{count} of {one.round.in_words}"
    today = ", if collected today" if cohort.promise.windows else ""
    yield (f"each kind by itself{today}, if nothing else is registered and no other cohort or quota refuses")


def _findings(cohort: CohortStatement, digits: Digits) -> Iterator[str]:
    """Yields what is worth knowing before anything else, the worst first."""
    yield from cohort.chain_problems
    for lost in cohort.lost:
        yield (
            f"Entries were lost before entry {lost.sequence:,}, as {lost.actor} recorded on"
            f" {day(lost.recorded_at)}: {lost.reason or 'no reason was given'}."
        )
    yield from _some(
        f"After entry {each.sequence:,} of {day(each.recorded_at)}"
        f"{f', round {each.round_id},' if each.round_id else ''}"
        f" {_spent(each.epsilon_spent_upper, digits)} was spent, of {exact_text(each.epsilon_budget)}."
        for each in cohort.overspends
    )
    yield from _some(
        f"Entry {each.sequence:,} of {day(each.recorded_at)} records"
        f" {'a correction' if each.kind == 'corrected' else 'an incident'}, round {each.round_id}:"
        f" {each.reason}."
        for each in cohort.told
    )
    yield from _some(
        f"Entry {each.sequence:,} of {day(each.recorded_at)}: {each.actor} changed the budget from epsilon"
        f" {exact_text(each.epsilon_before)} to {exact_text(each.epsilon_after)}:"
        f" {each.reason or 'no reason was given'}."
        for each in cohort.budget_changes
    )
    if cohort.since:
        yield _since(cohort, digits)


def _spent(epsilon: float, digits: Digits) -> str:
    return f"at most epsilon¹ {digits.upper(epsilon)}" if math.isfinite(epsilon) else "an unknown epsilon¹"


def _some(found: Iterable[str]) -> Iterator[str]:
    listed = list(found)
    yield from listed[:FINDINGS_SHOWN]
    if len(listed) > FINDINGS_SHOWN:
        yield f"{len(listed) - FINDINGS_SHOWN:,} more of this sort: the JSON form of this statement has them."


def _since(cohort: CohortStatement, digits: Digits) -> str:
    since = cohort.since
    if since is None:
        return ""
    proof = (
        "That entry is, digit by digit, the one that was kept elsewhere, so this statement extends the"
        " earlier one."
        if since.proven
        else "Compare that entry’s digest in the annex with the earlier statement: if they are equal, this"
        " statement extends it."
    )
    return (
        f"Since entry {since.earlier.sequence:,} of {day(since.recorded_at)}: {since.entries:,} entries,"
        f" {since.rounds_admitted:,} rounds admitted, {since.rounds_refused:,} refused,"
        f" {since.rounds_settled:,} settled, {since.rounds_voided:,} voided. Used went from at most"
        f" {digits.upper(since.spent_then.epsilon_upper)} to at most"
        f" {digits.upper(since.spent_now.epsilon_upper)}. {proof}"
    )


def _promised(cohort: CohortStatement) -> Iterator[str]:
    promise, period = cohort.promise, cohort.promise.period
    if cohort.verdict == "broken":
        yield "This was promised, and is not kept."
    if promise.has_life:
        known, what = "all other users’ data", "any one of them"
        if period is not None:
            known += " and what the user sent in other rounds"
            what = f"what any one of them sent in rounds collected from {period.first} to {period.last}"
        yield (
            "Somebody who sees everything that is published from these reports, and even knows"
            f" {known}, learns little about {what}. Of two answers of a user that seemed equally likely"
            f" before, one is at most {certainty(promise.epsilon_guaranteed)} likely afterwards. This may"
            f" fail with a probability of about delta² {exact_text(promise.delta_budget)}"
            f" ({one_in(promise.delta_budget)})."
        )
    yield f"Protected is {promise.privacy_unit}."
    for each in promise.windows:
        yield (
            f"For each {each.described} by itself: if what a user sent in rounds collected in it were"
            " anything else, and the rest the same, everything released would change by at most"
            f" {_budget_text(each.epsilon, each.delta)}. Over several of them the limits add up: two,"
            f" {_budget_text(2 * each.epsilon, 2 * each.delta)}."
        )
    if promise.ceiling is not None:
        yield (
            f"The budget is epsilon¹ {exact_text(promise.epsilon_budget)} today. It may be raised up to the"
            f" promised {exact_text(promise.ceiling)}, for any reason."
        )
    if promise.local_budget is not None:
        yield (
            "Where the shuffler is not trusted, the epsilons of a user’s reports add up. Rounds with which"
            f" that sum would be above {exact_text(promise.local_budget)} are refused. A correction or an"
            " incident may still raise it."
        )


def _sure(cohort: CohortStatement, statement: Statement, digits: Digits) -> Iterator[str]:
    if cohort.promise.has_life and math.isfinite(cohort.spent.epsilon_upper):
        below, above = digits.lower(cohort.spent.epsilon_lower), digits.upper(cohort.spent.epsilon_upper)
        yield (
            f"What is used is a proven interval⁶, not an estimate: from {below} to {above}, rounding errors"
            " of the computer included. The larger end decides."
        )
    yield (
        "With the evidence bundle, the record can be checked and every number computed again on another"
        " computer, without this ledger."
    )
    yield (
        "The signature binds the last entry’s digest⁷ to a key. Compare the key with one that you were given"
        " another way."
        if statement.checkpoint
        else "Nobody signed the digests⁷ of this statement: they show that the record hangs together, not who"
        " wrote it."
    )
    local, local_delta = cohort.local_epsilon_upper, cohort.local_delta_upper
    if local or local_delta:
        bound = "whatever was sent: nothing bounds it"
        if math.isfinite(local):
            bound = f"up to epsilon {digits.upper(local)}"
            bound += (
                f" at delta {upper_text(local_delta)}"
                if local_delta
                else ": of two answers that seemed equally likely before, one is at most"
                f" {certainty(local)} likely afterwards"
            )
        yield (
            "Without an honest shuffler only each device’s own noise protects a user⁸: all rounds together"
            f" then reveal {bound}."
        )


def _conditions(statement: Statement) -> Iterator[Block]:
    """Yields the conditions of all promises, and what follows if one fails."""
    yield Grid(
        title="The conditions, and what follows if one fails",
        level=2,
        intro="No software can check these from within: people have to vouch for them.",
        columns=(Column("Condition", 15), Column("Holds when", 45), Column("Otherwise", 40)),
        rows=tuple((each.name, each.holds_when, each.otherwise) for each in statement.conditions),
        new_page=True,
    )
    assumed = {each.promise.policy: each.promise.policy_assumes for each in statement.cohorts}
    for policy, paragraph in assumed.items():
        yield Heading(text=f"What the policy⁴ {policy} takes for granted", level=2)
        yield Points(items=ASSUMES.get(policy, (paragraph,)))
