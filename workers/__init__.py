"""Celery: carries identifiers of rounds to `ledger.decisions.admission`."""
