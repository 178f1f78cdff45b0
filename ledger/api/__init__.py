"""The HTTP API: who asks, what they ask, and the answers of `ledger`. Nothing in `ledger` imports this."""
