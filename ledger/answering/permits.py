"""Answers about permits: issue them, publish their keys and those revoked, and settle by receipts."""

from __future__ import annotations

from typing import Any

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answers
from shuffle_ledger.ledger.permits import IssuedPermit, PermitKeys, issue_permit, revoked_permits
from shuffle_ledger.ledger.questions import permits as asking
from shuffle_ledger.ledger.questions.fields import Nothing
from shuffle_ledger.ledger.receipts import settle_by_receipt as settled_by
from shuffle_ledger.ledger.values.requests import Incident, Settled


def _keys(call: Call) -> PermitKeys:
    return PermitKeys.of(call.settings, call.store.ledger_id())


@answers(operations.ISSUE_PERMIT)
def issue(call: Call, asked: asking.IssuePermit) -> IssuedPermit:
    name = call.round(asked.round_id)
    return issue_permit(call.store, _keys(call), name, actor=call.actor, releaser=asked.releaser)


@answers(operations.SETTLE_BY_RECEIPT, at="deciding")
def settle_by_receipt(call: Call, asked: asking.SettleByReceipt) -> Settled | Incident:
    caller: dict[str, Any] = {"actor": call.actor, "reaches": call.sees}
    return settled_by(call.store, call.accountant, _keys(call), asked.receipt, **caller)


@answers(operations.PERMIT_KEYS)
def keys(call: Call, _asked: Nothing) -> dict[str, Any]:
    return _keys(call).published


@answers(operations.REVOKED_PERMITS)
def revoked(call: Call, _asked: Nothing) -> str:
    return revoked_permits(call.store, _keys(call))
