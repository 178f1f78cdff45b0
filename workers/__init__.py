"""Celery: carries identifiers of rounds to `ledger.admission`."""
