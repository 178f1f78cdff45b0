"""Webhooks: services that subscribe to events of the ledger, and the delivery of signed messages to them.

Imports `reports`, `verification` and what lies below them.
"""

from shuffle_ledger.ledger.webhooks.delivery import Delivered, deliver
from shuffle_ledger.ledger.webhooks.subscriptions import (
    THRESHOLD,
    NewSubscription,
    NoticeKind,
    Subscription,
    list_subscriptions,
    resume,
    subscribe,
    unsubscribe,
)

__all__ = [
    "THRESHOLD",
    "Delivered",
    "NewSubscription",
    "NoticeKind",
    "Subscription",
    "deliver",
    "list_subscriptions",
    "resume",
    "subscribe",
    "unsubscribe",
]
