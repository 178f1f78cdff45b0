"""Answers: one function for each row of `ledger.operations`, in a module for each tag.

A server and a program that opened the database call the same functions.
"""

from shuffle_ledger.ledger.answering.calls import Call, answer_to, silent

__all__ = ["Call", "answer_to", "silent"]
