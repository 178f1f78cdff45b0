"""Files that people bring or get: fields, tables, rounds to import, files written whole.

Imports `backends`, `rendering` and `failures`.
"""
