"""The ledger behind a command: a database, or a server asked over HTTP.

Imports `failures` only.
"""
