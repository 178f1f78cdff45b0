"""Reading a chain for a statement: what its entries say, in the words of a statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.evidence.statement import (
    EpsilonBounds,
    Moment,
    Overspend,
    StatedBudgetChange,
    StatedClosing,
    StatedLoss,
    StatedRefusal,
    StatedRound,
)
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import RefusalReason
from shuffle_ledger.ledger.verification.replay import Replay, Step


class Reading:
    """Collects what the entries of one chain say, in order."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._admitted: list[EntryBody] = []
        self._closings: dict[str, EntryBody] = {}
        self._budget: float | None = None
        self.numerical_policies: dict[str, None] = {}  # a set that keeps its order
        self.refusals: list[StatedRefusal] = []
        self.budget_changes: list[StatedBudgetChange] = []
        self.overspends: list[Overspend] = []
        self.lost: list[StatedLoss] = []
        self.moments: list[Moment] = []

    def see(self, step: Step) -> None:
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
                spent=_bounds(body.spent.to_mapping()),
                epsilon_budget=body.epsilon_budget,
                digest=self._replay.head_digest.hex(),
            )
        )
        if body.kind is EntryKind.ADMITTED:
            self._admitted.append(body)
        elif body.kind is EntryKind.REFUSED:
            self.refusals.append(_refusal(body))
        elif body.kind in (EntryKind.SETTLED, EntryKind.VOIDED):
            self._closings[str(body.round_id)] = body
        elif body.kind is EntryKind.FROZEN:
            self.lost.append(
                StatedLoss(
                    sequence=body.sequence,
                    recorded_at=body.recorded_at,
                    actor=body.actor,
                    reason=body.details.get("reason"),
                )
            )
        self._see_budget(body)

    def kinds(self) -> list[ShuffledRound]:
        """Return every kind of round that was or is charged, in the order of their first entries."""
        found: dict[ShuffledRound, None] = {}
        for body in self._admitted:
            found[ShuffledRound.from_mapping(body.details["accounted"])] = None
            closing = self._closings.get(str(body.round_id))
            if closing is not None:
                found[ShuffledRound.from_mapping(closing.details["accounted"])] = None
        return list(found)

    def rounds(self, alone: Mapping[ShuffledRound, EpsilonBounds]) -> Iterator[StatedRound]:
        """Yield the admitted rounds in order; `alone` says what each kind costs."""
        for body in self._admitted:
            request = body.details["request"]
            accounted = ShuffledRound.from_mapping(body.details["accounted"])
            closing = self._closings.get(str(body.round_id))
            yield StatedRound(
                round_id=str(body.round_id),
                use_case=request.get("use_case"),
                collected_on=collected_on(body),
                declared=ShuffledRound.from_mapping(request["round"]),
                accounted=accounted,
                sequence=body.sequence,
                recorded_at=body.recorded_at,
                actor=body.actor,
                numerical_policy=body.numerical_policy,
                method=body.spent.method,
                alone=alone[accounted],
                spent=_bounds(body.spent.to_mapping()),
                closing=_closing(closing, alone) if closing else None,
            )

    def _see_budget(self, body: EntryBody) -> None:
        before, self._budget = self._budget, body.epsilon_budget
        if before is not None and before != body.epsilon_budget:
            reason = body.details.get("reason")
            self.budget_changes.append(
                StatedBudgetChange(
                    sequence=body.sequence,
                    recorded_at=body.recorded_at,
                    actor=body.actor,
                    epsilon_before=before,
                    epsilon_after=body.epsilon_budget,
                    reason=None if reason is None else str(reason),
                )
            )
        # Written so that anything but a number within the budget is an overspend.
        if not body.spent.epsilon_upper <= body.epsilon_budget and body.kind is not EntryKind.REFUSED:
            self.overspends.append(
                Overspend(
                    sequence=body.sequence,
                    recorded_at=body.recorded_at,
                    round_id=body.round_id,
                    epsilon_spent_upper=body.spent.epsilon_upper,
                    epsilon_budget=body.epsilon_budget,
                )
            )


def _refusal(body: EntryBody) -> StatedRefusal:
    details, request = body.details, body.details["request"]
    return StatedRefusal(
        round_id=str(body.round_id),
        use_case=request.get("use_case"),
        collected_on=collected_on(body),
        declared=ShuffledRound.from_mapping(request["round"]),
        sequence=body.sequence,
        recorded_at=body.recorded_at,
        actor=body.actor,
        reason=RefusalReason(details["reason"]),
        message=str(details["message"]),
        requested=_bounds(details["requested"]) if details.get("requested") else None,
        spent=_bounds(body.spent.to_mapping()),
    )


def _closing(body: EntryBody, alone: Mapping[ShuffledRound, EpsilonBounds]) -> StatedClosing:
    settles = body.kind is EntryKind.SETTLED
    accounted = ShuffledRound.from_mapping(body.details["accounted"]) if settles else None
    return StatedClosing(
        kind="settled" if settles else "voided",
        sequence=body.sequence,
        recorded_at=body.recorded_at,
        actor=body.actor,
        reports=body.details.get("reports"),
        accounted=accounted,
        alone=alone[accounted] if accounted else None,
        spent=_bounds(body.spent.to_mapping()),
        overspent=bool(body.details.get("overspent", False)),
        reason=body.details.get("reason"),
        attestation=body.details.get("attestation"),
    )


def _bounds(spending: Mapping[str, Any]) -> EpsilonBounds:
    return EpsilonBounds(epsilon_upper=spending["epsilon_upper"], epsilon_lower=spending["epsilon_lower"])
