"""What people read: tables on the terminal, charts and statements.

Imports `failures` only.
"""
