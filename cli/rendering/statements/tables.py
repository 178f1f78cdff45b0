"""The tables of a statement, as texts in columns; a line break within a cell is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.rendering.statements.numbers import Digits, day, moment, percent, plain
from shuffle_ledger.ledger.evidence import (
    CohortStatement,
    Condition,
    EpsilonBounds,
    StatedKind,
    StatedRound,
    StatedTold,
    Verdict,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's heading; numbers stand right, below each other."""

    name: str
    width: int  # share of the table's width, relative to the others
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, with a sentence above it."""

    title: str
    intro: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0  # rows that are not shown, from the middle
    alarming: bool = False


def conditions(listed: Iterable[Condition]) -> Table:
    """Returns the conditions of the promise, and the effect if one fails."""
    return Table(
        title="The conditions, and what follows if one fails",
        intro=(
            "The numbers hold while these conditions hold. No software can check them from within;"
            " people have to vouch for them."
        ),
        columns=(
            Column(name="Condition", width=20),
            Column(name="Holds when", width=45),
            Column(name="Otherwise", width=35),
        ),
        rows=tuple((each.name, each.holds_when, each.otherwise) for each in listed),
    )


def overview(cohorts: Sequence[CohortStatement], words: Mapping[Verdict, str]) -> Table:
    """Returns one line per cohort."""
    rows = []
    for each in cohorts:
        if not each.promise.has_life:
            rows.append(
                (each.cohort, words[each.verdict], f"{each.promise.population:,}", *_of_periods(each))
            )
            continue
        digits = Digits.for_budget(each.promise.epsilon_budget)
        spent, budget = each.spent.epsilon_upper, each.promise.epsilon_budget
        counts = (f"{len(each.rounds):,}", f"{len(each.refusals):,}")
        told = (plain(budget), plain(each.promise.delta_budget), digits.upper(spent), percent(spent, budget))
        rows.append((each.cohort, words[each.verdict], f"{each.promise.population:,}", *told, *counts))
    return Table(
        title="All cohorts",
        intro="Each has its own pages below.",
        columns=(
            Column(name="Cohort", width=22),
            Column(name="Promise", width=12),
            Column(name="Users", width=14, numeric=True),
            Column(name="Budget ε", width=9, numeric=True),
            Column(name="at δ", width=9, numeric=True),
            Column(name="Spent, at most", width=12, numeric=True),
            Column(name="of budget", width=9, numeric=True),
            Column(name="Admitted", width=9, numeric=True),
            Column(name="Refused", width=9, numeric=True),
        ),
        rows=tuple(rows),
        alarming=any(each.verdict in ("broken", "unknown") for each in cohorts),
    )


def _of_periods(cohort: CohortStatement) -> tuple[str, ...]:
    """Returns what the table says of a cohort without a budget of its life: no number but counts."""
    return ("of periods", "", "", "", f"{len(cohort.rounds):,}", f"{len(cohort.refusals):,}")


def of_cohort(cohort: CohortStatement, digits: Digits, rows_max: int) -> Iterable[Table]:
    """Yields a cohort's tables: problems first."""
    if cohort.chain_problems:
        yield _problems(cohort)
    if cohort.lost:
        yield _lost(cohort, rows_max)
    if cohort.overspends:
        yield _overspends(cohort, digits, rows_max)
    if cohort.told:
        yield _told(cohort, digits, rows_max)
    if cohort.budget_changes:
        yield _budget_changes(cohort, rows_max)
    if cohort.charged is not None:
        yield _kinds(cohort.charged, digits, rows_max)
    yield _rounds(cohort, digits, rows_max)
    if any(each.closing and each.closing.kind == "voided" for each in cohort.rounds):
        yield _voids(cohort, rows_max)
    yield _refusals(cohort, digits, rows_max)


def _problems(cohort: CohortStatement) -> Table:
    return Table(
        title="The chain is damaged",
        intro="What was changed, as far as the chain itself tells.",
        columns=(Column(name="Found", width=1),),
        rows=tuple((each,) for each in cohort.chain_problems),
        alarming=True,
    )


def _lost(cohort: CohortStatement, rows_max: int) -> Table:
    rows = [
        (f"{each.sequence:,}", moment(each.recorded_at), each.actor, each.reason or "")
        for each in cohort.lost
    ]
    return _table(
        "Entries lost",
        "The database was put back to an earlier state. What followed that state is gone, and what it spent.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Recorded", width=24),
            Column(name="By", width=20),
            Column(name="Reason", width=48),
        ),
        rows,
        rows_max,
        alarming=True,
    )


def _told(cohort: CohortStatement, digits: Digits, rows_max: int) -> Table:
    rows = [
        (
            f"{each.sequence:,}",
            moment(each.recorded_at),
            f"{each.round_id}\n{'corrected' if each.kind == 'corrected' else 'incident'}",
            f"{each.round.describe()}, {each.round.reports:,} reports" if each.round else "unknown",
            digits.upper(each.spent.epsilon_upper) + ("\noverspent" if each.overspent else ""),
            f"{each.actor}: {each.reason}",
        )
        for each in cohort.told
    ]
    return _table(
        "Told afterwards",
        "Corrections say what admitted rounds truly were; incidents are releases that nothing admitted.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Recorded", width=24),
            Column(name="Round", width=32),
            Column(name="What was released", width=40),
            Column(name="Spent, at most", width=14, numeric=True),
            Column(name="By, and why", width=40),
        ),
        rows,
        rows_max,
        alarming=any(each.overspent for each in cohort.told),
    )


def _overspends(cohort: CohortStatement, digits: Digits, rows_max: int) -> Table:
    rows = [
        (
            f"{each.sequence:,}",
            moment(each.recorded_at),
            each.round_id or "",
            digits.upper(each.epsilon_spent_upper),
            plain(each.epsilon_budget),
        )
        for each in cohort.overspends
    ]
    return _table(
        "Overspends",
        "After each of these entries more was spent than the budget then in force.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Recorded", width=24),
            Column(name="Round", width=40),
            Column(name="Spent, at most", width=14, numeric=True),
            Column(name="Budget", width=14, numeric=True),
        ),
        rows,
        rows_max,
        alarming=True,
    )


def _budget_changes(cohort: CohortStatement, rows_max: int) -> Table:
    rows = [
        (
            f"{each.sequence:,}",
            moment(each.recorded_at),
            each.actor,
            plain(each.epsilon_before),
            plain(each.epsilon_after),
            each.reason or "no reason was given",
        )
        for each in cohort.budget_changes
    ]
    return _table(
        "Budget changes",
        "The promise itself was changed; each change is an entry that says who did it and why.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Recorded", width=22),
            Column(name="By", width=15),
            Column(name="From ε", width=9, numeric=True),
            Column(name="To ε", width=9, numeric=True),
            Column(name="Reason", width=37),
        ),
        rows,
        rows_max,
    )


def _kinds(charged: Iterable[StatedKind], digits: Digits, rows_max: int) -> Table:
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
            Column(name="Mechanism", width=48),
            Column(name="Reports", width=14, numeric=True),
            Column(name="Rounds", width=10, numeric=True),
            Column(name="ε alone, at least", width=14, numeric=True),
            Column(name="at most", width=14, numeric=True),
        ),
        rows,
        rows_max,
    )


_RELEASED = {
    "receipt": "\nby receipt of",
    "attested": "\nby hand",
    "contradicted": "\nRECEIPT DIFFERS:",
    "none": "",
}


def _rounds(cohort: CohortStatement, digits: Digits, rows_max: int) -> Table:
    last = {each.round_id: each for each in cohort.told}
    alone = {each.round: each.alone for each in cohort.charged or ()}
    return _table(
        "Rounds admitted",
        "In the order of decision. Reports: as declared, as charged (the slot⁹), and as settled or told"
        " afterwards. ε alone: what the round would reveal by itself. ε total: what all rounds together"
        " reveal, after this one. By hand: only the actor who settled says how many reports were released; by"
        " receipt: the releaser signed it; permitted: a permit was signed for the releaser.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Round", width=27),
            Column(name="Mechanism, as declared", width=25),
            Column(name="Reports", width=13, numeric=True),
            Column(name="ε alone, at most", width=11, numeric=True),
            Column(name="ε total, at least", width=11, numeric=True),
            Column(name="at most", width=11, numeric=True),
            Column(name="Closed", width=16),
        ),
        [_round_row(each, digits, last.get(each.round_id), alone) for each in cohort.rounds],
        rows_max,
    )


def _round_row(
    stated: StatedRound,
    digits: Digits,
    told: StatedTold | None,
    charged: Mapping[ShuffledRound, EpsilonBounds],
) -> tuple[str, ...]:
    """Returns the row of a round.

    Args:
        stated: the round.
        digits: how its numbers are printed.
        told: its last correction, or its incident; None: there is none.
        charged: the bounds of each kind alone.
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
    if told is not None:
        word = "corrected" if told.kind == "corrected" else "released"
        reports += [f"{word} {told.round.reports:,}"] if told.round else []
        if told.accounted in charged:
            alone.append(f"{word} {digits.upper(charged[told.accounted].epsilon_upper)}")
        closed += f"\n{word}, entry {told.sequence:,}"
    if stated.release is not None:
        closed += _RELEASED[stated.release.basis] + "".join(
            f"\n{each.releaser}, {each.reports:,} reports" for each in stated.release.receipts
        )
        closed += "\npermitted" if stated.release.permitted_at else ""
    whose = ", ".join(each for each in (stated.use_case, stated.actor) if each)
    when = f"for {day(stated.collected_on)}, " if stated.collected_on else ""
    return (
        f"{stated.sequence:,}",
        f"{stated.round_id}\n{whose}\n{when}decided {day(stated.recorded_at)}",
        mechanism(stated.declared),
        "\n".join(reports),
        "\n".join(alone),
        digits.lower(stated.spent.epsilon_lower),
        digits.upper(stated.spent.epsilon_upper),
        closed,
    )


def _voids(cohort: CohortStatement, rows_max: int) -> Table:
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
            Column(name="Entry", width=8, numeric=True),
            Column(name="Round", width=22),
            Column(name="By", width=20),
            Column(name="Reason", width=25),
            Column(name="Attested", width=25),
        ),
        rows,
        rows_max,
    )


def _refusals(cohort: CohortStatement, digits: Digits, rows_max: int) -> Table:
    rows = [
        (
            f"{each.sequence:,}",
            f"{each.round_id}\n{each.use_case or ''}".strip(),
            f"{mechanism(each.declared)}\n{each.declared.reports:,} reports",
            digits.upper(each.requested.epsilon_upper) if each.requested else "not computed",
            f"{each.reason.replace('_', ' ')}\n{each.actor}, {day(each.recorded_at)}",
        )
        for each in cohort.refusals
    ]
    return _table(
        "Rounds refused",
        "They were not to be collected, and the refusals cost nothing; an incident of the same round is"
        " charged. What they asked for is the total with them.",
        (
            Column(name="Entry", width=8, numeric=True),
            Column(name="Round", width=26),
            Column(name="Mechanism, as declared", width=33),
            Column(name="Asked for ε, at most", width=13, numeric=True),
            Column(name="Reason", width=20),
        ),
        rows,
        rows_max,
    )


def mechanism(shuffled: ShuffledRound) -> str:
    """Returns what a round does, without its number of reports: the call, and what differs from defaults."""
    rest = [shuffled.stated_analysis]
    if shuffled.sampled_from is not None:
        rest.append(f"secret sample of {shuffled.sampled_from:,}")
    if shuffled.participation is not None:
        rest.append(f"participation {plain(shuffled.participation)}")
    if shuffled.honest_fraction != 1:
        rest.append(f"honest fraction {plain(shuffled.honest_fraction)}")
    if shuffled.delta0:
        rest.append(f"delta0 {plain(shuffled.delta0)}")
    if shuffled.reports_per_user > 1:
        rest.append(f"at most {shuffled.reports_per_user} reports of each user")
    return f"{shuffled.randomizer.describe()}\n{', '.join(rest)}"


def _table(
    title: str,
    intro: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[str, ...]],
    rows_max: int,
    *,
    alarming: bool = False,
) -> Table:
    left_out = max(0, len(rows) - rows_max)
    shown = [*rows[: rows_max // 2], *rows[len(rows) - (rows_max - rows_max // 2) :]] if left_out else rows
    return Table(
        title=f"{title} ({len(rows):,})",
        intro=intro,
        columns=columns,
        rows=tuple(shown),
        left_out=left_out,
        alarming=alarming,
    )
