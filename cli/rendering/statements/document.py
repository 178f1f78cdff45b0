"""A statement as a document: its chapters, sentences and tables, before it is set in any format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import lower_text, upper_text
from shuffle_ledger.cli.rendering.audit_views import alarm_lines
from shuffle_ledger.cli.rendering.statements import tables
from shuffle_ledger.cli.rendering.statements.numbers import (
    Digits,
    certainty,
    day,
    grouped,
    moment,
    one_in,
    percent,
    plain,
)
from shuffle_ledger.cli.rendering.statements.tables import Table
from shuffle_ledger.ledger.evidence import Breach, CohortStatement, EpsilonBounds, Promise, Statement, Verdict
from shuffle_ledger.ledger.values import Window

VERDICT_WORDS: dict[Verdict, str] = {
    "kept": "Kept",
    "broken": "Broken",
    "unknown": "Cannot be said",
    "no_promise": "See windows",
}
DIGITS_RAISED = "¹²³⁴⁵⁶⁷⁸⁹"
_CAUSES = ("discretization", "truncation", "round-off")
# In the words of the literature on local differential privacy, for who reads the statement without a trusted
# shuffler.
_INTERACTIONS = {
    "sequentially interactive": (
        "The rounds are a sequentially interactive protocol: what is asked may depend on answers, and nobody"
        " is asked twice."
    ),
    "fully interactive": (
        "The rounds are a fully interactive protocol, compositional (k = 1): what is asked may depend on"
        " answers, people are asked again, and their epsilons add up to no more than that."
    ),
}


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A heading with paragraphs."""

    heading: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CohortPages:
    """One cohort's part of the document."""

    cohort: str
    verdict: Verdict
    verdict_word: str
    verdict_sentence: str
    used: float  # share of the budget, for the bar; at most 1
    used_text: str
    chapters: tuple[Chapter, ...]  # the first page
    conditions: Table
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    statement: CohortStatement  # for the drawings


@dataclass(frozen=True, kw_only=True)
class Document:
    """The whole."""

    alarms: tuple[str, ...]  # before everything else: cohorts that are overspent or frozen
    title: str
    subtitle: str
    overview: Table | None  # of several cohorts
    cohorts: tuple[CohortPages, ...]
    evidence: tuple[tuple[str, str], ...]
    terms: tuple[tuple[str, str], ...]  # footnotes 1 to 9


def document_from(statement: Statement, *, rows_max: int) -> Document:
    """Returns the document; tables with more rows than `rows_max` show their beginning and their end."""
    one = statement.cohorts[0] if len(statement.cohorts) == 1 else None
    made = f"Made {moment(statement.made_at)} by {statement.software}"
    named = {
        status: [each.cohort for each in statement.cohorts if each.status == status]
        for status in ("overspent", "frozen")
    }
    return Document(
        alarms=tuple(alarm_lines(named["overspent"], named["frozen"])),
        title=f"Privacy statement: {one.cohort}"
        if one
        else f"Privacy statement: {len(statement.cohorts)} cohorts",
        subtitle=f"As of entry {one.head.sequence:,}, {moment(one.as_of)}. {made}." if one else f"{made}.",
        overview=None if one else tables.overview(statement.cohorts, VERDICT_WORDS),
        cohorts=tuple(_pages(each, statement, rows_max) for each in statement.cohorts),
        evidence=tuple(_evidence(statement)),
        terms=TERMS,
    )


def _pages(cohort: CohortStatement, statement: Statement, rows_max: int) -> CohortPages:
    promise = cohort.promise
    digits = Digits.for_budget(promise.epsilon_budget if promise.has_life else promise.windows[0].epsilon)
    budget = cohort.promise.epsilon_budget
    return CohortPages(
        cohort=cohort.cohort,
        verdict=cohort.verdict,
        verdict_word=VERDICT_WORDS[cohort.verdict],
        verdict_sentence=_verdict_sentence(cohort, digits),
        used=min(1.0, cohort.spent.epsilon_upper / budget) if cohort.promise.has_life else 0.0,
        used_text=f"at most {digits.upper(cohort.spent.epsilon_upper)} of {plain(budget)} spent"
        f" ({percent(cohort.spent.epsilon_upper, budget)})"
        if cohort.promise.has_life
        else "no budget of its whole life: each period has its own",
        chapters=tuple(_chapters(cohort, statement, digits)),
        conditions=tables.conditions(statement.conditions),
        facts=tuple(_facts(cohort, digits)),
        tables=tuple(tables.of_cohort(cohort, digits, rows_max)),
        statement=cohort,
    )


def _verdict_sentence(cohort: CohortStatement, digits: Digits) -> str:
    promise = cohort.promise
    if cohort.verdict == "unknown" and not cohort.chain_problems:
        return (
            f"The ledger’s database was put back to an earlier state, as entry"
            f" {cohort.lost[0].sequence:,} says."
            " The spending of the lost entries is unknown, so it cannot be said whether the promise was kept;"
            " the ledger decides nothing more for this cohort."
        )
    if cohort.verdict == "unknown":
        return (
            "The chain of entries this statement is made from was changed, so that nothing in it"
            " can be relied"
            f" on: {'; '.join(cohort.chain_problems[:3])}."
        )
    if cohort.verdict == "broken" and cohort.breach:
        return _breach_sentence(cohort, cohort.breach, digits)
    if cohort.verdict == "broken":
        first = cohort.overspends[0]
        return (
            f"The promise was not kept: after entry {first.sequence:,} of {day(first.recorded_at)}"
            f" up to epsilon¹"
            f" {digits.upper(first.epsilon_spent_upper)} was spent, of"
            f" {plain(first.epsilon_budget)}. The ledger"
            " charged what really happened, and admits nothing more while it stands above the budget."
        )
    if cohort.verdict == "no_promise":
        return (
            "Nothing is promised of the cohort’s whole life: only the budgets of its windows refuse rounds."
            " The statement of each of their periods says whether its promise was kept."
        )
    return (
        f"The promise of epsilon¹ {plain(promise.epsilon_guaranteed)} at delta²"
        f" {plain(promise.delta_budget)} was kept"
        " after every entry up to this statement's last one, if the conditions below hold."
    )


def _breach_sentence(cohort: CohortStatement, breach: Breach, digits: Digits) -> str:
    delta = plain(cohort.promise.delta_budget)
    found = f"Not kept since entry {breach.sequence:,} of {day(breach.recorded_at)}: {breach.reason}."
    composed = cohort.composition.epsilon_upper
    bounded = (
        f"at most epsilon¹ {digits.upper(composed)}" if math.isfinite(composed) else "no finite epsilon¹"
    )
    return (
        f"{found} If all rounds had been fixed in advance, everything released together would cost {bounded}"
        f" at delta² {delta}. The ledger charged what really happened, and admits nothing more."
    )


def _chapters(cohort: CohortStatement, statement: Statement, digits: Digits) -> list[Chapter]:
    return [
        Chapter(heading="What was promised", paragraphs=tuple(_promised(cohort))),
        Chapter(heading="Was it kept?", paragraphs=tuple(_kept(cohort, digits))),
        Chapter(heading="How sure is that?", paragraphs=tuple(_sure(cohort, statement, digits))),
    ]


def _promised(cohort: CohortStatement) -> list[str]:
    promise, period = cohort.promise, cohort.promise.period
    broken = "This was promised, and is not kept. " if cohort.verdict == "broken" else ""
    unit = f"Protected is {promise.privacy_unit}. The policy is “{promise.policy}”⁴. {promise.policy_assumes}"
    if not promise.has_life:
        return [
            (
                f"The cohort³ {cohort.cohort} has {promise.population:,} users. No budget limits what its"
                " whole life reveals of them."
            ),
            unit,
            *(_promised_of_window(each, alone=True) for each in promise.windows),
            *_limits(promise),
        ]
    whose, known, what = cohort.cohort, "all other users’ data", "any one of them"
    if period is not None:
        whose, known = period.cohort, f"{known} and what the user sent in other rounds"
        what = f"what any one of them sent in rounds collected from {period.first} to {period.last}, UTC"
    return [
        (
            f"{broken}The cohort³ {whose} has {promise.population:,} users. Whoever sees everything"
            f" that is published from their reports, even knowing {known}, learns little about"
            f" {what}: of two answers of a user that seemed equally likely before, one is at most"
            f" {certainty(promise.epsilon_guaranteed)} likely afterwards. This is what epsilon¹"
            f" {plain(promise.epsilon_guaranteed)} means. It may fail with a probability of about delta²"
            f" {plain(promise.delta_budget)} ({one_in(promise.delta_budget)})."
        ),
        unit,
        *map(_promised_of_window, promise.windows),
        *_limits(promise),
    ]


def _limits(promise: Promise) -> list[str]:
    found = []
    if promise.ceiling is not None:
        found.append(
            f"The ledger refuses rounds with which more than epsilon¹ {plain(promise.epsilon_budget)} would"
            f" be spent. That may be raised to {plain(promise.ceiling)}, for any reason:"
            f" what is promised is epsilon¹ {plain(promise.ceiling)}, whether it is or not."
        )
    if promise.local_budget is not None:
        found.append(
            "Where the shuffler is not trusted, the epsilons of a user’s reports add up. The ledger refuses"
            f" rounds with which that sum would be above {plain(promise.local_budget)}. A release that"
            " nothing admitted, or a correction, may still raise it."
        )
    return found


def _budget_of(window: Window) -> str:
    return f"epsilon {plain(window.epsilon)} at delta {plain(window.delta)}"


def _promised_of_window(window: Window, *, alone: bool = False) -> str:
    """Returns the promise of each period of a window; `alone`: there is no budget for the cohort's life."""
    several = (
        f"Over several periods these limits add up: two of them, epsilon¹ {plain(2 * window.epsilon)} at"
        f" delta² {plain(2 * window.delta)}."
    )
    always = several if alone else "The budget above protects what is true of a user in every one of them."
    return (
        f"Promised{'' if alone else ' beside this'} for each {window.described} and each user: if what the"
        " user sent in rounds collected in it were anything else, and what the user sent in other rounds the"
        f" same, everything released would change by at most epsilon¹ {plain(window.epsilon)} at delta²"
        f" {plain(window.delta)}. The statement of each of these periods says whether that was kept."
        f" {always}"
    )


def _kept(cohort: CohortStatement, digits: Digits) -> list[str]:
    admitted, refused = len(cohort.rounds), len(cohort.refusals)
    voided = [each.round_id for each in cohort.rounds if each.closing and each.closing.kind == "voided"]
    leaked = len({each.round_id for each in cohort.told if each.kind == "incident"} & set(voided))
    unreleased = f"{len(voided) - leaked:,} of them voided, and never released"
    if leaked:
        unreleased += f"; {leaked:,} voided, and released all the same"
    answer = {
        "kept": "Yes. ",
        "broken": "No. ",
        "unknown": "It cannot be said. By its own account: ",
        "no_promise": "Of the whole life there is no promise to keep. ",
    }
    found = [
        f"{answer[cohort.verdict]}{_fits_sentence(cohort)}{_spent_sentence(cohort, digits)}"
        f" {admitted:,} rounds⁵ were admitted"
        + (f" ({unreleased})" if voided else "")
        + f" and {refused:,} refused. A refused round must not be collected, and its refusal costs nothing."
    ]
    if cohort.overspends:
        found.append(
            "More was spent than promised after "
            + _listed([f"entry {each.sequence:,}" for each in cohort.overspends])
            + ": see Overspends."
        )
    if cohort.told:
        found.append(
            "What was released was told afterwards by "
            + _listed([f"entry {each.sequence:,}" for each in cohort.told])
            + ": see Told afterwards."
        )
    if cohort.budget_changes:
        found.append(
            "The budget was changed by "
            + _listed([f"entry {each.sequence:,}" for each in cohort.budget_changes])
            + ": see Budget changes."
        )
    if cohort.since:
        found.append(_since_sentence(cohort, digits))
    return found


def _spent_sentence(cohort: CohortStatement, digits: Digits) -> str:
    most, budget = digits.upper(cohort.spent.epsilon_upper), plain(cohort.promise.epsilon_budget)
    if not cohort.promise.has_life:
        return "The statement of each of its periods gives the answer."
    return (
        f"At most epsilon {most} of {budget} is spent, which leaves {digits.lower(cohort.epsilon_remaining)}."
    )


def _fits_sentence(cohort: CohortStatement) -> str:
    if not cohort.fits:
        return ""
    kinds = [
        f"at least {one.rounds_at_least:,} of {one.round.describe()}, {one.round.reports:,} reports"
        for one in cohort.fits
    ]
    today = ", all are collected on the day of this statement" if cohort.promise.windows else ""
    condition = f"if nothing else is registered{today} and no other cohort or quota refuses"
    return f"Of each kind by itself, so many more rounds still fit, {condition}: {'; '.join(kinds)}. "


def _since_sentence(cohort: CohortStatement, digits: Digits) -> str:
    since = cohort.since
    if since is None:
        return ""
    kept = (
        "that entry is, digit by digit, the head that was kept elsewhere, so this statement extends"
        " the earlier one"
        if since.proven
        else "compare that entry’s digest, in the account below, with the earlier statement's head: if they"
        " are equal, this"
        " statement extends it"
    )
    return (
        f"Since entry {since.earlier.sequence:,} of {day(since.recorded_at)}: {since.entries:,} entries,"
        f" {since.rounds_admitted:,} rounds admitted, {since.rounds_refused:,} refused,"
        f" {since.rounds_settled:,}"
        f" settled, {since.rounds_voided:,} voided; spending went from at most"
        f" {digits.upper(since.spent_then.epsilon_upper)} to at most"
        f" {digits.upper(since.spent_now.epsilon_upper)};"
        f" {kept}."
    )


def _sure(cohort: CohortStatement, statement: Statement, digits: Digits) -> list[str]:
    decided = " The larger end decided every round." if math.isfinite(cohort.spent.epsilon_upper) else ""
    interval = (
        f"The number is a proven interval⁶, not an estimate: from {digits.lower(cohort.spent.epsilon_lower)}"
        f" to {digits.upper(cohort.spent.epsilon_upper)}, rounding errors of the computer included.{decided} "
    )
    signed = (
        "A signature binds the last entry’s digest⁷ to a key; compare the key with one you were"
        " given another way."
        if statement.checkpoint
        else "Nobody signed this statement’s digests⁷: they show that the record hangs together,"
        " not who wrote it."
    )
    return [
        (
            (interval if cohort.promise.has_life else "")
            + "Whoever has the evidence bundle can check the record and compute"
            " every number"
            " again on another computer: shuffle-ledger audit verify BUNDLE --public-key KEY."
        ),
        signed + " Without an honest shuffler only each device’s own noise protects a user⁸: all rounds"
        " together then"
        f" reveal up to epsilon {digits.upper(cohort.local_epsilon_upper)}"
        f" ({certainty(cohort.local_epsilon_upper)}, in the words above).",
    ]


def _interval_text(spent: EpsilonBounds, digits: Digits) -> str:
    lower, upper = digits.lower(spent.epsilon_lower), digits.upper(spent.epsilon_upper)
    return f"epsilon from {lower} to {upper}, the larger one decides"


def _budget_facts(promise: Promise) -> list[tuple[str, str]]:
    of_life = f"epsilon {plain(promise.epsilon_budget)} at delta {plain(promise.delta_budget)}"
    return [
        ("Budget", of_life if promise.has_life else "none of its whole life"),
        *_limit_facts(promise),
        ("Policy", f"{promise.policy}. {promise.policy_assumes}"),
        *((f"Each {each.described}", _budget_of(each)) for each in promise.windows),
    ]


def _limit_facts(promise: Promise) -> list[tuple[str, str]]:
    given = (("Promised, the ceiling", promise.ceiling), ("Local budget", promise.local_budget))
    limits = [(name, f"epsilon {plain(value)}") for name, value in given if value is not None]
    if promise.rounds_per_user is not None:
        limits.append(("Rounds per user", f"at most {promise.rounds_per_user:,}, as the devices count"))
    return limits


def _life_facts(cohort: CohortStatement, digits: Digits) -> list[tuple[str, str]]:
    spent, reading = cohort.spent, cohort.composition
    causes = (cohort.discretization, cohort.truncation, cohort.round_off)
    named = zip(_CAUSES, causes, strict=True)
    return [
        (
            "Spent",
            f"{_interval_text(spent, digits)}. What the width comes from: {_causes(named)}",
        ),
        (
            "Left",
            f"epsilon {digits.lower(cohort.epsilon_remaining)}",
        ),
        (
            "Cost so far",
            (
                f"of these very rounds, had they been fixed in advance: epsilon from"
                f" {digits.lower(reading.epsilon_lower)} to {digits.upper(reading.epsilon_upper)}."
                " Rounds may have been chosen by what earlier ones revealed: it is no promise."
            ),
        ),
    ]


def _facts(cohort: CohortStatement, digits: Digits) -> list[tuple[str, str]]:
    promise = cohort.promise
    found = [
        ("Cohort", cohort.cohort),
        ("Users", f"{promise.population:,}"),
        ("Privacy unit", promise.privacy_unit),
        ("Neighbouring relation", promise.neighbours),
        *_budget_facts(promise),
        ("Opened", f"{moment(promise.opened_at)} by {promise.opened_by}"),
        ("Status", cohort.status),
        *(_life_facts(cohort, digits) if promise.has_life else ()),
    ]
    found += [
        (
            f"{each.name} filter",
            (
                f"counts at most epsilon {digits.upper(each.epsilon_upper)}, with delta"
                f" {upper_text(each.delta)} of its own. The smallest count decides: one within the budget is"
                " enough"
            ),
        )
        for each in cohort.filters
    ]
    found += _delta_accounts(cohort)
    found += [
        (
            "Without the shuffler",
            (
                f"epsilon {digits.upper(cohort.local_epsilon_upper)}, delta"
                f" {upper_text(cohort.local_delta_upper)} at most: the sums over a user’s reports."
                f" {_INTERACTIONS[cohort.interaction]}"
            ),
        ),
        ("Decided by", cohort.decided_by.split(";")[0]),  # what it assumes stands beside the policy
        ("Method", f"{cohort.method}; numerical policies: {', '.join(cohort.numerical_policies)}"),
        ("Head of the chain", f"entry {cohort.head.sequence:,}, SHA-256 {grouped(cohort.head.digest)}"),
    ]
    if cohort.head != cohort.head_now:
        found.append(("The chain goes on to", f"entry {cohort.head_now.sequence:,}"))
    if cohort.since:
        earlier = cohort.since.earlier
        found.append(("Compared since", f"entry {earlier.sequence:,}, SHA-256 {grouped(earlier.digest)}"))
    if cohort.rounds_pending:
        found.append(("Waiting for a decision", f"{cohort.rounds_pending:,} rounds"))
    return found


def _delta_accounts(cohort: CohortStatement) -> list[tuple[str, str]]:
    """Returns the delta that approximate rounds have used, and the delta that is set aside for them."""
    accounts = cohort.delta_accounts
    if accounts is None:
        return []
    certain = f"{upper_text(accounts.certain_loss_used_upper)} of {lower_text(accounts.certain_loss_share)}"
    slack = f"{upper_text(accounts.slack_used_upper)} of {lower_text(accounts.slack_share)}"
    text = (
        f"used {certain} for losses that are certain, and {slack} for local deltas, at epsilon"
        f" {plain(accounts.epsilon)}. A round must fit in both"
    )
    return [("Delta of approximate rounds", text)]


def _causes(named: Iterable[tuple[str, float]]) -> str:
    """Returns the causes of an interval's width, without those that are 0."""
    found = [f"{name} {upper_text(value, digits=2)}" for name, value in named if value > 0]
    return ", ".join(found) or "nothing, it has none"


def _evidence(statement: Statement) -> list[tuple[str, str]]:
    found = [
        ("Software", statement.software),
        ("Numerical policy", statement.numerical_policy),
        ("Format", statement.format),
    ]
    checkpoint = statement.checkpoint
    if checkpoint is None:
        return [*found, ("Checkpoint", "none: no signing key was given")]
    return [
        *found,
        ("Checkpoint", f"made {checkpoint['created_at']} of ledger {checkpoint['ledger_id']}"),
        ("Public key", f"Ed25519 {grouped(checkpoint['public_key'])}"),
        ("Signature", grouped(checkpoint["signature"])),
    ]


def _listed(items: Sequence[str], limit: int = 5) -> str:
    shown = list(items[:limit])
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


TERMS: tuple[tuple[str, str], ...] = (
    (
        "Epsilon",
        (
            "How much more likely one user’s answer may make anything that is published, as a natural"
            " logarithm. At 0"
            " nothing is learned about anybody; at 1 odds change at most by a factor of 2.72, at 2 by 7.39."
        ),
    ),
    ("Delta", "A probability with which that may fail. It should be far below one in the number of users."),
    (
        "Cohort",
        "A fixed group of users who share one budget, because the same people report again and again.",
    ),
    (
        "Policy",
        (
            "How the parameters of rounds may be chosen. What spending adds up to depends on whether"
            " earlier results"
            " may influence later rounds."
        ),
    ),
    (
        "Round",
        (
            "One collection. Every device randomizes its answer before it is sent; a shuffler mixes the"
            " reports of many"
            " users; only the mixture is seen, so that each report hides among the others."
        ),
    ),
    (
        "Proven interval",
        (
            "The exact value of the analysis lies between its two ends. Every approximation was made on"
            " the safe side,"
            " and how much each cause contributes is stated."
        ),
    ),
    (
        "Digest, chain",
        (
            "Every decision is an entry. Each entry holds the digest (SHA-256) of the one before: a"
            " byte that changes"
            " anywhere changes every later digest. If the last digest is kept elsewhere, a rewritten"
            " record is detected."
        ),
    ),
    (
        "Without the shuffler",
        (
            "The sum of what the devices’ own randomization allows, over every round a user may have"
            " sent a report for,"
            " voided ones included."
        ),
    ),
    (
        "Slot",
        (
            "A round is charged as the next one of a fixed grid that reveals at least as much: its"
            " reports are rounded"
            " down, its sampling rate up, by at most one percent."
        ),
    ),
)
