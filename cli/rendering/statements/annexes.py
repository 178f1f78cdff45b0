"""The annexes of a statement: each cohort's account with its tables and drawings, and the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from shuffle_ledger.accounting import ShuffledRound, exact_text, lower_text, upper_text
from shuffle_ledger.cli.rendering.statements.blocks import (
    Block,
    Column,
    Drawing,
    Facts,
    Grid,
    Heading,
    shortened,
)
from shuffle_ledger.cli.rendering.statements.drawings import drawing, in_words
from shuffle_ledger.cli.rendering.statements.numbers import Digits, day, grouped, moment
from shuffle_ledger.ledger.evidence import (
    CohortPromise,
    CohortStatement,
    EpsilonBounds,
    StatedKind,
    StatedRestatement,
    StatedRound,
    Statement,
)
from shuffle_ledger.ledger.values import refusal_in_words

_DRAWINGS: Final[Mapping[Literal["spending", "profile"], str]] = {
    "spending": "The spending at the end of each day, beside the budget. The band is the certified interval.",
    "profile": "The rounds that are charged, composed: a smaller δ for a larger ε.",
}
# In the words of the literature on local differential privacy, for readers without a trusted shuffler.
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
_CAUSES = ("discretization", "truncation", "round-off")
_RELEASED = {
    "receipt": "\nby receipt of",
    "attested": "\nby hand",
    "contradicted": "\nRECEIPT DIFFERS:",
    "none": "",
}


def account(cohort: CohortStatement, rows_max: int, number: int) -> Iterator[Block]:
    """Yields the annex of a cohort; `number` counts cohorts, and a table has at most `rows_max` rows."""
    promise = cohort.promise
    digits = Digits.for_budget(promise.epsilon_budget if promise.has_life else promise.windows[0].epsilon)
    yield Heading(text=f"Annex: the account of {cohort.cohort}", level=2, new_page=True)
    yield Facts(rows=tuple(_facts(cohort, digits)))
    for what, caption in (_DRAWINGS if promise.has_life else {}).items():
        words = in_words(cohort, what)
        yield Drawing(svg=drawing(cohort, what, name=f"{what}-{number}"), caption=caption, words=words)
    if cohort.told:
        yield _restatements(cohort, digits, rows_max)
    if cohort.charged is not None:
        yield _kinds(cohort.charged, digits, rows_max)
    yield _rounds(cohort, digits, rows_max)
    if any(each.closing and each.closing.kind == "voided" for each in cohort.rounds):
        yield _voids(cohort, rows_max)
    yield _refusals(cohort, digits, rows_max)


def evidence(statement: Statement) -> Iterator[Block]:
    """Yields what the statement was made with, and who signed the digests."""
    checkpoint = statement.checkpoint
    signed = (
        (("Checkpoint", "none: no signing key was given"),)
        if checkpoint is None
        else (
            ("Checkpoint", f"made {checkpoint['created_at']} of ledger {checkpoint['ledger_id']}"),
            ("Public key", f"Ed25519 {grouped(checkpoint['public_key'])}"),
            ("Signature", grouped(checkpoint["signature"])),
        )
    )
    yield Heading(text="Annex: evidence", level=2)
    yield Facts(
        rows=(
            ("Software", statement.software),
            ("Numerical policy", statement.numerical_policy),
            ("Format", statement.format),
            *signed,
        )
    )


def _facts(cohort: CohortStatement, digits: Digits) -> Iterator[tuple[str, str]]:
    promise, head = cohort.promise, cohort.head
    yield "Privacy unit", promise.privacy_unit
    yield "Neighbouring relation", promise.neighbours
    yield from _limits(promise)
    before = promise.openings - 1
    again = f", in place of {before} earlier one{'s' if before > 1 else ''}" if before else ""
    yield "Opened", f"{moment(promise.opened_at)} by {promise.opened_by}{again}"
    yield "Status", cohort.status
    if cohort.closure is not None:
        yield "Closed", cohort.closure.described
    if promise.has_life:
        yield from _life(cohort, digits)
    for each in cohort.filters:
        yield (
            f"{each.name} filter",
            f"at most epsilon {digits.upper(each.epsilon_upper)}, at its delta {upper_text(each.delta)}",
        )
    if cohort.filters:
        yield "Decided by", "the smallest of these counts: one within the budget is enough"
    else:
        yield "Decided by", cohort.decided_by.split(";")[0]  # what it assumes stands with the conditions
    yield from _delta_accounts(cohort)
    yield (
        "Without the shuffler",
        (
            f"epsilon {digits.upper(cohort.local_epsilon_upper)}, delta"
            f" {upper_text(cohort.local_delta_upper)} at most: the sums over a user’s reports."
            f" {_INTERACTIONS[cohort.interaction]}"
        ),
    )
    yield "Method", f"{cohort.method}; numerical policies: {', '.join(cohort.numerical_policies)}"
    yield "Head of the chain", f"entry {head.sequence:,}, SHA-256 {grouped(head.digest)}"
    if head != cohort.head_now:
        yield "The chain goes on to", f"entry {cohort.head_now.sequence:,}"
    if cohort.since:
        earlier = cohort.since.earlier
        yield "Compared since", f"entry {earlier.sequence:,}, SHA-256 {grouped(earlier.digest)}"
    if cohort.rounds_pending:
        yield "Waiting for a decision", f"{cohort.rounds_pending:,} rounds"


def _limits(promise: CohortPromise) -> Iterator[tuple[str, str]]:
    if promise.has_life:
        yield (
            "Budget",
            f"epsilon {exact_text(promise.epsilon_budget)} at delta {exact_text(promise.delta_budget)}",
        )
    if promise.ceiling is not None:
        yield "Promised, the ceiling", f"epsilon {exact_text(promise.ceiling)}"
    if promise.local_budget is not None:
        yield "Local budget", f"epsilon {exact_text(promise.local_budget)}"
    if promise.rounds_per_user is not None:
        yield "Rounds per user", f"at most {promise.rounds_per_user:,}, as the devices count"


def _life(cohort: CohortStatement, digits: Digits) -> Iterator[tuple[str, str]]:
    causes = zip(_CAUSES, (cohort.discretization, cohort.truncation, cohort.round_off), strict=True)
    widths = ", ".join(f"{name} {upper_text(value, digits=2)}" for name, value in causes if value > 0)
    width = f", the larger one decides. What the width comes from: {widths or 'nothing, it has none'}"
    yield (
        "Spent",
        _between(cohort.spent, digits) + (width if math.isfinite(cohort.spent.epsilon_upper) else ""),
    )
    yield (
        "Cost so far",
        (
            f"of these very rounds, had they been fixed in advance: {_between(cohort.composition, digits)}."
            " Rounds may have been chosen by what earlier ones revealed: it is no promise."
        ),
    )


def _between(bounds: EpsilonBounds, digits: Digits) -> str:
    if math.isinf(bounds.epsilon_upper):
        return f"at least {lower_text(bounds.epsilon_lower)}, and no finite epsilon is proven to bound it"
    return f"epsilon from {digits.lower(bounds.epsilon_lower)} to {digits.upper(bounds.epsilon_upper)}"


def _delta_accounts(cohort: CohortStatement) -> Iterator[tuple[str, str]]:
    """Yields the delta that approximate rounds have used, and the delta that is set aside for them."""
    accounts = cohort.delta_accounts
    if accounts is None:
        return
    certain = f"{upper_text(accounts.certain_loss_used_upper)} of {lower_text(accounts.certain_loss_share)}"
    slack = f"{upper_text(accounts.slack_used_upper)} of {lower_text(accounts.slack_share)}"
    yield (
        "Delta of approximate rounds",
        (
            f"used {certain} for losses that are certain, and {slack} for local deltas, at epsilon"
            f" {exact_text(accounts.epsilon)}. A round must fit in both"
        ),
    )


def _restatements(cohort: CohortStatement, digits: Digits, rows_max: int) -> Grid:
    rows = [
        (
            f"{each.sequence:,}",
            moment(each.recorded_at),
            f"{each.round_id}\n{'corrected' if each.kind == 'corrected' else 'incident'}",
            each.round.in_words if each.round else "unknown",
            digits.upper(each.spent.epsilon_upper) + ("\noverspent" if each.overspent else ""),
            f"{each.actor}: {each.reason}",
        )
        for each in cohort.told
    ]
    return _table(
        "Corrections and incidents",
        "Corrections say what admitted rounds truly were; incidents are releases that nothing admitted.",
        (
            Column("Entry", 8, numeric=True),
            Column("Recorded", 24),
            Column("Round", 32),
            Column("What was released", 40),
            Column("Spent, at most", 14, numeric=True),
            Column("By, and why", 40),
        ),
        rows,
        rows_max,
        alarming=any(each.overspent for each in cohort.told),
    )


def _kinds(charged: Iterable[StatedKind], digits: Digits, rows_max: int) -> Grid:
    rows = [
        (
            mechanism(each.round).replace("\n", ", "),
            f"{each.round.reports:,}",
            f"{each.rounds:,}",
            digits.lower(each.alone.epsilon_lower),
            digits.upper(each.alone.epsilon_upper),
        )
        for each in sorted(charged, key=lambda each: (-each.rounds, -each.alone.epsilon_upper))
    ]
    return _table(
        "What is charged, by kind",
        "Rounds that are charged alike, incidents among them. What a round reveals alone is an interval. The"
        " epsilons of several do not add up: what all rounds together reveal stands in the account.",
        (
            Column("Mechanism", 48),
            Column("Reports", 14, numeric=True),
            Column("Rounds", 10, numeric=True),
            Column("ε alone, at least", 14, numeric=True),
            Column("at most", 14, numeric=True),
        ),
        rows,
        rows_max,
    )


def _rounds(cohort: CohortStatement, digits: Digits, rows_max: int) -> Grid:
    last = {each.round_id: each for each in cohort.told}
    alone = {each.round: each.alone for each in cohort.charged or ()}
    return _table(
        "Rounds admitted",
        "In the order of decision. Reports: as declared, as charged (the slot⁹), and as settled or told"
        " afterwards. ε alone: what the round would reveal by itself. ε total: what all rounds together"
        " reveal, after this one. By hand: only the actor who settled says how many reports were released; by"
        " receipt: the releaser signed it; permitted: a permit was signed for the releaser.",
        (
            Column("Entry", 8, numeric=True),
            Column("Round", 27),
            Column("Mechanism, as declared", 25),
            Column("Reports", 13, numeric=True),
            Column("ε alone, at most", 11, numeric=True),
            Column("ε total, at least", 11, numeric=True),
            Column("at most", 11, numeric=True),
            Column("Closed", 16),
        ),
        [
            _round_row(each, digits, last.get(each.round_id), alone, totals=cohort.promise.has_life)
            for each in cohort.rounds
        ],
        rows_max,
    )


def _round_row(
    stated: StatedRound,
    digits: Digits,
    restated: StatedRestatement | None,
    charged: Mapping[ShuffledRound, EpsilonBounds],
    *,
    totals: bool,
) -> tuple[str, ...]:
    """Returns the row of a round.

    Args:
        stated: the round.
        digits: how its numbers are printed.
        restated: its last correction, or its incident; None: there is none.
        charged: the bounds of each kind alone.
        totals: whether all rounds together have a budget.
    """
    closing = stated.closing
    reports = [f"{stated.declared.reports:,}"]
    if stated.accounted.reports != stated.declared.reports:
        reports.append(f"charged {stated.accounted.reports:,}")
    closed, alone = "open", [digits.upper(stated.alone.epsilon_upper)]
    if closing is not None:
        closed = f"{closing.kind}\nentry {closing.sequence:,}\n{closing.actor}, {day(closing.recorded_at)}"
        if closing.reports is not None:
            reports.append(f"settled {closing.reports:,}")
        if closing.alone is not None and closing.alone != stated.alone:
            alone.append(f"settled {digits.upper(closing.alone.epsilon_upper)}")
        if closing.overspent:
            closed += "\noverspent"
    if restated is not None:
        word = "corrected" if restated.kind == "corrected" else "released"
        reports += [f"{word} {restated.round.reports:,}"] if restated.round else []
        if restated.accounted in charged:
            alone.append(f"{word} {digits.upper(charged[restated.accounted].epsilon_upper)}")
        closed += f"\n{word}, entry {restated.sequence:,}"
    if stated.release is not None:
        closed += _RELEASED[stated.release.basis] + "".join(
            f"\n{each.releaser}, {each.reports:,} reports" for each in stated.release.receipts
        )
        closed += "\npermitted" if stated.release.permitted_at else ""
    origin = ", ".join(each for each in (stated.use_case, stated.actor) if each)
    when = f"for {day(stated.collected_on)}, " if stated.collected_on else ""
    return (
        f"{stated.sequence:,}",
        f"{stated.round_id}\n{origin}\n{when}decided {day(stated.recorded_at)}",
        mechanism(stated.declared),
        "\n".join(reports),
        "\n".join(alone),
        digits.lower(stated.spent.epsilon_lower) if totals else "",
        digits.upper(stated.spent.epsilon_upper) if totals else "",
        closed,
    )


def _voids(cohort: CohortStatement, rows_max: int) -> Grid:
    rows = [
        (
            f"{each.closing.sequence:,}",
            each.round_id,
            f"{each.closing.actor}\n{moment(each.closing.recorded_at)}",
            each.closing.reason or "",
            each.closing.attestation or "",
        )
        for each in cohort.rounds
        if each.closing and each.closing.kind == "voided"
    ]
    return _table(
        "Rounds voided",
        "Admitted, and then never released, as was attested; an incident of the same round says otherwise."
        " They gave back what they reserved. Without the shuffler they count.",
        (
            Column("Entry", 8, numeric=True),
            Column("Round", 22),
            Column("By", 20),
            Column("Reason", 25),
            Column("Attested", 25),
        ),
        rows,
        rows_max,
    )


def _refusals(cohort: CohortStatement, digits: Digits, rows_max: int) -> Grid:
    rows = [
        (
            f"{each.sequence:,}",
            f"{each.round_id}\n{each.use_case or ''}".strip(),
            f"{mechanism(each.declared)}\n{each.declared.reports:,} reports",
            digits.upper(each.requested.epsilon_upper) if each.requested else "not computed",
            f"{refusal_in_words(each.reason)}\n{each.actor}, {day(each.recorded_at)}",
        )
        for each in cohort.refusals
    ]
    return _table(
        "Rounds refused",
        "They were not to be collected, and the refusals cost nothing; an incident of the same round is"
        " charged. What they asked for is the total with them.",
        (
            Column("Entry", 8, numeric=True),
            Column("Round", 26),
            Column("Mechanism, as declared", 33),
            Column("Asked for ε, at most", 13, numeric=True),
            Column("Reason", 20),
        ),
        rows,
        rows_max,
    )


def mechanism(shuffled: ShuffledRound) -> str:
    """Returns what a round does, without its number of reports: the call, and what differs from defaults."""
    return f"{shuffled.randomizer.describe()}\n{', '.join((shuffled.stated_analysis, *shuffled.particulars))}"


def _table(
    title: str,
    intro: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[str, ...]],
    rows_max: int,
    *,
    alarming: bool = False,
) -> Grid:
    shown, left_out = shortened(rows, rows_max)
    return Grid(
        title=f"{title} ({len(rows):,})",
        level=3,
        intro=intro,
        columns=columns,
        rows=shown,
        left_out=left_out,
        alarming=alarming,
    )
