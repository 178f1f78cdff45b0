"""`round import`: checks everything, then opens cohorts and decides rounds in file order.

Rounds are decided together, in one commit, where each is decided at once, and else one by one. Nothing
remembers how far an import came. Each step is safe to repeat: a round that is decided answers with its
present state, one that was registered when the process died is decided now. Running the import again
therefore finishes it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shuffle_ledger.cli.failures import BadLine, BadValue, NeedsYes
from shuffle_ledger.cli.files.problems import Problems
from shuffle_ledger.cli.files.round_files import CohortLine, RequestLine
from shuffle_ledger.cli.rendering.progress import progress_on
from shuffle_ledger.ledger.decisions import check_collection, check_new_cohort
from shuffle_ledger.ledger.errors import NotCollectable, NotFound, TryAgain, UnacceptedWarnings, Unavailable
from shuffle_ledger.ledger.values import (
    POLICY_PLAN,
    Admitted,
    Cohort,
    Outcome,
    Pending,
    Quote,
    Refused,
    RoundRequest,
    checked_reports,
    least_open,
    opening_warnings,
    other_cohort,
    refuse_other_content,
    refuse_uncollectable,
)

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.database import Ledger

TOGETHER_MAX = 32  # rounds in one commit
TOGETHER_SECONDS = 1.0  # fewer rounds follow a commit that took longer: an import that dies loses little
OPENED_AT_ONCE = 200  # cohorts, in one commit
_DECLARED = ("population", "epsilon_budget", "delta_budget", "policy")
_WORDS = {Admitted: "admitted", Refused: "refused", Pending: "pending"}
_SETTLED = "settled"


@dataclass(frozen=True, kw_only=True)
class RefusedLine:
    """A round of the file that the budget refuses, and why."""

    line: int
    round_id: str
    cohort: str  # or all cohorts of the audience, with commas between
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ImportSummary:
    """The result of an import. The counts are of the file's rounds, whenever they were decided."""

    rounds: int
    rounds_admitted: int  # and not settled yet
    rounds_refused: int
    rounds_pending: int  # queued, and no worker answered in time
    rounds_settled: int  # admitted and settled before this run
    rounds_known: int  # how many of all these were decided before this run
    cohorts_opened: int
    cohorts: Mapping[str, Mapping[str, int]]  # by cohort: the same four counts
    refused: tuple[RefusedLine, ...]  # every refused round, in file order
    dry_run: bool = False  # nothing was written: these are the decisions that an import would make now


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """An import that was checked against the ledger and may start."""

    opening: Sequence[Cohort]
    file: Path
    lines: Sequence[RequestLine]


class _Tally:
    """What became of the rounds of a file: how many there are of each state, and which are refused."""

    def __init__(self, lines: Sequence[RequestLine]) -> None:
        self._total: Counter[str] = Counter()
        self._by_cohort = {name: Counter[str]() for line in lines for name in line.request.members}
        self._refused: list[RefusedLine] = []
        self._known = 0

    def add(
        self, line: RequestLine, state: str, refused: Refused | Quote | None = None, *, known: bool = False
    ) -> None:
        """Counts a round, which is one round of each of its cohorts; `known`: decided before this run."""
        names = line.request.members
        for counts in (self._total, *(self._by_cohort[name] for name in names)):
            counts[state] += 1
        self._known += known
        if refused is not None:
            why = {"reason": str(refused.reason), "message": str(refused.message)}
            place = {"round_id": line.request.round_id, "cohort": ",".join(names)}
            self._refused.append(RefusedLine(line=line.line, **place, **why))

    def summary(self, *, opened: int, dry_run: bool = False) -> ImportSummary:
        """Returns it all; `opened`: how many cohorts were opened."""
        total, words = self._total, (*_WORDS.values(), _SETTLED)
        return ImportSummary(
            rounds=total.total(),
            rounds_admitted=total["admitted"],
            rounds_refused=total["refused"],
            rounds_pending=total["pending"],
            rounds_settled=total[_SETTLED],
            rounds_known=self._known,
            cohorts_opened=opened,
            cohorts={name: {word: count[word] for word in words} for name, count in self._by_cohort.items()},
            refused=tuple(sorted(self._refused, key=lambda one: one.line)),
            dry_run=dry_run,
        )


def plan_import(
    ledger: Ledger,
    lines: Sequence[RequestLine],
    cohorts: Sequence[CohortLine],
    *,
    file: Path,
    cohort_file: Path | None = None,
    accept_warnings: bool = False,
) -> ImportPlan:
    """Returns what is to be done, having written nothing.

    Raises:
        BadLine, BadLines: lines that the ledger would not take: a cohort or round that exists with other
            content, a cohort that is not opened, or would be with unusual values, more reports than users, a
            round that must not be collected any more.
    """
    opening, problems = [], Problems(cohort_file or file)
    for wanted in cohorts:
        with problems.of(wanted.line):
            if _is_missing(ledger, wanted.cohort):
                _refuse_plan(wanted.cohort)
                check_new_cohort(wanted.cohort)
                if not accept_warnings:
                    _refuse_unusual(wanted.cohort)
                opening.append(wanted.cohort)
    problems.refuse()
    problems, found = Problems(file), []
    for line in lines:
        with problems.of(line.line):
            found.append(_selected(ledger, line))
    names = {name for line in found for name in line.request.members}
    known = {cohort.name: cohort for cohort in [*ledger.cohorts_among(names), *opening]}
    taken = ledger.perhaps_registered([line.request.round_id for line in found])
    for line in found:
        with problems.of(line.line):
            _check(ledger, line.request, known, taken)
    problems.refuse()
    return ImportPlan(opening=opening, file=file, lines=found)


def _selected(ledger: Ledger, line: RequestLine) -> RequestLine:
    """Returns a line with the cohorts that its selector means; raises NotFound, InvalidValue."""
    if line.selector is None:
        return line
    return line.selected(ledger.audience(line.selector, round_id=line.request.round_id))


def rehearse_import(ledger: Ledger, plan: ImportPlan) -> ImportSummary:
    """Returns the decisions that `run_import` would make now, one after the other. Writes nothing."""
    tally, new = _Tally(plan.lines), list[RequestLine]()
    taken = ledger.perhaps_registered([line.request.round_id for line in plan.lines])
    for line in plan.lines:
        round_id = line.request.round_id
        record = ledger.registered(round_id) if round_id in taken else None
        if record is None or record.outcome is None:
            new.append(line)
            continue
        tally.add(line, record.state, _refusal(record.outcome), known=True)
    requests = [line.request for line in new]
    with progress_on(sys.stderr) as tell:
        quotes = ledger.rehearse(requests, opening=plan.opening, progress=tell) if requests else ()
    for line, answer in zip(new, quotes, strict=True):
        tally.add(line, answer.would_be, answer if answer.would_be == "refused" else None)
    return tally.summary(opened=len(plan.opening), dry_run=True)


def run_import(ledger: Ledger, plan: ImportPlan, *, processes: int | None = None) -> ImportSummary:
    """Opens the cohorts of `plan`, registers and decides its rounds in order, and shows how far it is.

    `processes` compute privacy losses ahead, one per core if None; where workers decide, they compute.

    Raises:
        BadLine: a round cannot be decided, or was voided, or its cohort was frozen or overspent, since the
            plan was made.
    """
    requests, tally = [line.request for line in plan.lines], _Tally(plan.lines)
    rounds = [request.round for request in requests]
    ahead = ledger.losses_ahead(rounds, processes=processes or os.cpu_count() or 1)
    with progress_on(sys.stderr) as tell:
        for start in range(0, len(plan.opening), OPENED_AT_ONCE):
            opened = plan.opening[start : start + OPENED_AT_ONCE]
            ledger.open_many(opened)
            tell("opening cohorts", start + len(opened), len(plan.opening))
    with progress_on(sys.stderr) as tell, ahead as prepare:
        done, size = 0, 1
        while done < len(requests):
            some = requests[done : done + size]
            began = time.monotonic()
            prepare(some)
            with _line_named(plan.file, plan.lines[done].line, done):
                answers = _registered(ledger, some)
            for line, (answer, was_decided) in zip(plan.lines[done:], answers, strict=False):
                state = _SETTLED if answer is None else _WORDS[type(answer)]
                tally.add(line, state, _refusal(answer), known=was_decided)
            done += len(answers)
            tell("rounds", done, len(requests))
            # After a round that was decided before, or that needs a computation, the next batch is one round.
            if len(answers) < size or any(was_decided for _, was_decided in answers):
                size = 1
            elif time.monotonic() - began > TOGETHER_SECONDS:
                size = max(1, size // 2)
            else:
                size = min(2 * size, TOGETHER_MAX)
    return tally.summary(opened=len(plan.opening))


def _refusal(answer: object) -> Refused | None:
    return answer if isinstance(answer, Refused) else None


def _registered(
    ledger: Ledger, requests: Sequence[RoundRequest]
) -> list[tuple[Outcome | Pending | None, bool]]:
    """Registers the first of some rounds, or more. Returns the answer to each, None for a settled round, and
    whether it was decided before.

    Only the first of them can be a repetition, so any conflict is about its line.
    """
    try:
        return [*ledger.register_some(requests)]
    except NotCollectable as closed:
        if closed.state != _SETTLED:
            raise
        return [(None, True)]


def _is_missing(ledger: Ledger, wanted: Cohort) -> bool:
    try:
        found = ledger.cohort(wanted.name)
    except NotFound:
        return True
    stated = (*_DECLARED, "windows") if wanted.windows else _DECLARED
    if any(getattr(found, name) != getattr(wanted, name) for name in stated):
        raise other_cohort(found, wanted, declared=False)
    return False


def _refuse_plan(cohort: Cohort) -> None:
    """Raise BadValue for a cohort to be opened with a plan, which a file of cohorts has no column for."""
    if cohort.policy == POLICY_PLAN:
        expected = "adaptive: a file of cohorts has no plans"
        message = (
            f"policy plan needs a plan, which a file of cohorts cannot give: open cohort {cohort.name!r} with"
            " `cohort open --policy plan --plan FILE`"
        )
        raise BadValue("policy", cohort.policy, expected, message)


def _refuse_unusual(cohort: Cohort) -> None:
    """Raise NeedsYes for a cohort to be opened with unusual values."""
    if warnings := opening_warnings(cohort):
        raise NeedsYes(UnacceptedWarnings(cohort.name, warnings))


def _check(
    ledger: Ledger, request: RoundRequest, cohorts: Mapping[str, Cohort], taken: Collection[str]
) -> None:
    for name in request.members:
        if name not in cohorts:
            raise NotFound(f"no cohort {name!r}; open it, or name it in --cohorts")
    members = [cohorts[name] for name in request.members]
    population = sum(cohort.population for cohort in members)
    per_user = request.round.reports_per_user
    checked_reports(request.round.reports, field="reports", population=population, per_user=per_user)
    if request.round.sampled_from is not None:
        checked_reports(request.round.sampled_from, field="sampled_from", population=population)
    found = ledger.registered(request.round_id) if request.round_id in taken else None
    if found is None:
        with_windows = [cohort for cohort in members if cohort.windows]
        if with_windows and request.days is not None:
            for cohort in with_windows:
                cohort.periods(request)
            check_collection(request, datetime.now(UTC).date())
        return
    refuse_other_content(request, found.request)
    if found.state != _SETTLED:  # which is counted
        least = least_open(members)
        refuse_uncollectable(request.round_id, found.state, least.name, least.status)


@contextmanager
def _line_named(file: Path, line: int, done: int) -> Iterator[None]:
    try:
        yield
    except (ImportError, TryAgain, Unavailable):
        raise  # says nothing about the line
    except Exception as problem:
        raise BadLine(str(file), line, problem, done=done) from problem
