"""The HTTP API: authentication, requests, and the answers of `ledger`. Nothing in `ledger` imports this."""

from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.connections import listener_on, run_server
from shuffle_ledger.ledger.api.dependencies import Dispatch

__all__ = ["Dispatch", "create_app", "listener_on", "run_server"]
