"""Reading a chain for a statement: what its entries say, in the words of a statement.

A chain may have very many entries: what is kept of each is what a statement says of it, not its body.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.answers.budgets import Closure
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.evidence.statement import (
    Breach,
    EpsilonBounds,
    Moment,
    Overspend,
    StatedBudgetChange,
    StatedClosing,
    StatedLoss,
    StatedRefusal,
    StatedRestatement,
    StatedRound,
)
from shuffle_ledger.ledger.reports.listing import closure_in
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import RefusalReason, ReleaseTimes
from shuffle_ledger.ledger.verification.replay import Replay, ReplayedEntry

# Of a round alone, before it is certified what its kind costs.
_NOT_YET_CERTIFIED = EpsilonBounds(epsilon_upper=math.inf, epsilon_lower=0.0)


class ChainReading:
    """Collects what the entries of one chain say, in order."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._admitted: list[StatedRound] = []  # each still without its closing, and not certified
        self._closings: dict[str, StatedClosing] = {}
        # Thousands of rounds are of the same few kinds: each kind is kept once.
        self._kinds: dict[ShuffledRound, ShuffledRound] = {}
        self._charged: dict[ShuffledRound, None] = {}
        self._budget: float | None = None
        self.numerical_policies: dict[str, None] = {}  # a set that keeps its order
        self.refusals: list[StatedRefusal] = []
        self.budget_changes: list[StatedBudgetChange] = []
        self.overspends: list[Overspend] = []
        self.lost: list[StatedLoss] = []
        self.restatements: list[StatedRestatement] = []
        self._broken: EntryBody | None = None  # the first entry after which the promise is not kept
        self.closure: Closure | None = None
        self._is_unbounded = False  # a release may have come before the cohort was opened
        self.moments: list[Moment] = []

    def see(self, step: ReplayedEntry) -> None:
        """Take notice of the next entry, just replayed."""
        body = step.body
        self.numerical_policies[body.numerical_policy] = None
        self.moments.append(
            Moment(
                sequence=body.sequence,
                kind=body.kind,
                round_id=body.round_id,
                actor=body.actor,
                recorded_at=body.recorded_at,
                collected_on=collected_on(body),
                spent=EpsilonBounds.of(body.spent),
                epsilon_budget=body.epsilon_budget,
                digest=self._replay.head_digest.hex(),
            )
        )
        if body.kind is EntryKind.ADMITTED:
            self._admitted.append(self._round(body))
        elif body.kind is EntryKind.REFUSED:
            self.refusals.append(self._refusal(body))
        elif body.kind in (EntryKind.SETTLED, EntryKind.VOIDED):
            self._closings[str(body.round_id)] = self._closing(body)
        elif body.kind in CORRECTED_OR_INCIDENT:
            self.restatements.append(_restatement(body))
            self._charge(body.details["accounted"])
            self._is_unbounded = self._is_unbounded or bool(body.details.get("chosen_after"))
        elif body.kind is EntryKind.CLOSED:
            self.closure = closure_in(body)
        elif body.kind is EntryKind.FROZEN:
            self.lost.append(
                StatedLoss(
                    **_entry(body),
                    reason=body.details.get("reason"),
                )
            )
        self._see_budget(step)
        if self._broken is None and self._replay.fold.overspent:
            self._broken = body

    def breach(self) -> Breach | None:
        """Return since when the promise is not kept, None if it is."""
        body, last = self._broken, self._replay.head_body
        if body is None or last is None:
            return None
        known = self._replay.fold.filtered and not self._is_unbounded
        # A void gives back what was spent when the entries before it were decided.
        most = max(moment.spent.epsilon_upper for moment in self.moments)
        kept_at = most if known and math.isfinite(most) else None
        return Breach(
            sequence=body.sequence,
            recorded_at=body.recorded_at,
            round_id=body.round_id,
            reason=_broken_because(body),
            kept_at_epsilon_upper=kept_at,
        )

    def kinds(self) -> list[ShuffledRound]:
        """Return every kind of round that was or is charged, in the order of their first entries."""
        return list(self._charged)

    def rounds(self, alone: Mapping[ShuffledRound, EpsilonBounds]) -> Iterator[StatedRound]:
        """Yield the admitted rounds in order; `alone` says what each kind costs."""
        for admitted in self._admitted:
            closing = self._closings.get(admitted.round_id)
            if closing is not None and closing.accounted is not None:
                closing = dataclasses.replace(closing, alone=alone[closing.accounted])
            yield dataclasses.replace(admitted, alone=alone[admitted.accounted], closing=closing)

    def _round(self, body: EntryBody) -> StatedRound:
        request = body.details["request"]
        return StatedRound(
            round_id=str(body.round_id),
            use_case=request.get("use_case"),
            collected_on=collected_on(body),
            declared=self._kind(request["round"]),
            accounted=self._charge(body.details["accounted"]),
            **_entry(body),
            numerical_policy=body.numerical_policy,
            method=body.spent.method,
            alone=_NOT_YET_CERTIFIED,
            spent=EpsilonBounds.of(body.spent),
            closing=None,
            audience=tuple(request.get("audience", ())),
        )

    def _refusal(self, body: EntryBody) -> StatedRefusal:
        details, request = body.details, body.details["request"]
        return StatedRefusal(
            round_id=str(body.round_id),
            use_case=request.get("use_case"),
            collected_on=collected_on(body),
            declared=self._kind(request["round"]),
            **_entry(body),
            reason=RefusalReason(details["reason"]),
            message=str(details["message"]),
            requested=EpsilonBounds.of(details["requested"]) if details.get("requested") else None,
            spent=EpsilonBounds.of(body.spent),
            audience=tuple(request.get("audience", ())),
        )

    def _closing(self, body: EntryBody) -> StatedClosing:
        settles = body.kind is EntryKind.SETTLED
        return StatedClosing(
            kind="settled" if settles else "voided",
            **_entry(body),
            reports=body.details.get("reports"),
            accounted=self._charge(body.details["accounted"]) if settles else None,
            alone=_NOT_YET_CERTIFIED if settles else None,
            spent=EpsilonBounds.of(body.spent),
            overspent=bool(body.details.get("overspent", False)),
            reason=body.details.get("reason"),
            attestation=body.details.get("attestation"),
        )

    def _kind(self, described: Mapping[str, Any]) -> ShuffledRound:
        kind = ShuffledRound.from_mapping(described)
        return self._kinds.setdefault(kind, kind)

    def _charge(self, described: Mapping[str, Any]) -> ShuffledRound:
        kind = self._kind(described)
        self._charged[kind] = None
        return kind

    def _see_budget(self, step: ReplayedEntry) -> None:
        body = step.body
        before, self._budget = self._budget, body.epsilon_budget
        if body.kind is EntryKind.OPENED:
            return
        if before is not None and before != body.epsilon_budget:
            reason = body.details.get("reason")
            self.budget_changes.append(
                StatedBudgetChange(
                    **_entry(body),
                    epsilon_before=before,
                    epsilon_after=body.epsilon_budget,
                    reason=None if reason is None else str(reason),
                )
            )
        # Written so that anything but a number within what is promised is an overspend.
        promised = step.promised
        if not body.spent.epsilon_upper <= promised and body.kind is not EntryKind.REFUSED:
            self.overspends.append(
                Overspend(
                    sequence=body.sequence,
                    recorded_at=body.recorded_at,
                    round_id=body.round_id,
                    epsilon_spent_upper=body.spent.epsilon_upper,
                    epsilon_budget=body.epsilon_budget,
                )
            )


def _entry(body: EntryBody) -> dict[str, Any]:
    """Return which entry says something, when and by whom."""
    return {"sequence": body.sequence, "recorded_at": body.recorded_at, "actor": body.actor}


def _restatement(body: EntryBody) -> StatedRestatement:
    details, described = body.details, body.details["round"]
    released = ReleaseTimes.from_mapping(details.get("released", {"after": None, "before": None}))
    return StatedRestatement(
        kind="corrected" if body.kind is EntryKind.CORRECTED else "incident",
        round_id=str(body.round_id),
        **_entry(body),
        round=None if described is None else ShuffledRound.from_mapping(described),
        accounted=ShuffledRound.from_mapping(details["accounted"]),
        released_after=released.after,
        released_before=released.before,
        spent=EpsilonBounds.of(body.spent),
        overspent=bool(details["overspent"]),
        reason=str(details["reason"]),
    )


def _broken_because(body: EntryBody) -> str:
    match body.kind:
        case EntryKind.INCIDENT if body.details["round"] is None:
            return "something was released that nothing admitted, and nothing is known of it"
        case EntryKind.INCIDENT if body.details["chosen_after"]:
            return (
                "something was released that nothing admitted, and it is not attested that this came after"
                " the cohort was opened, which chose how rounds are charged"
            )
        case EntryKind.INCIDENT:
            return "something was released that nothing admitted, and the budget does not cover it"
    return f"the budget does not cover what round {body.round_id} truly was"
