"""The footnotes of a statement: nine terms, in the order of their numbers."""

from __future__ import annotations

from typing import Final

TERMS: Final[tuple[tuple[str, str], ...]] = (
    (
        "Epsilon",
        (
            "How much more likely one user’s answer may make anything that is published, as a natural"
            " logarithm. At 0 nothing is learned about anybody; at 1 odds change at most by a factor of"
            " 2.72, at 2 by 7.39."
        ),
    ),
    ("Delta", "A probability with which that may fail. It should be far below one in the number of users."),
    (
        "Cohort",
        "A fixed group of users who share one budget, because the same people report again and again.",
    ),
    (
        "Policy",
        (
            "How the parameters of rounds may be chosen. What spending adds up to depends on whether"
            " earlier results may influence later rounds."
        ),
    ),
    (
        "Round",
        (
            "One collection. Every device randomizes its answer before it is sent; a shuffler mixes the"
            " reports of many users; only the mixture is seen, so that each report hides among the others. A"
            " refused round must not be collected, and its refusal costs nothing."
        ),
    ),
    (
        "Proven interval",
        (
            "The exact value of the analysis lies between its two ends. Every approximation was made on the"
            " safe side, and how much each cause contributes is stated."
        ),
    ),
    (
        "Digest, chain",
        (
            "Every decision is an entry. Each entry holds the digest (SHA-256) of the one before: a byte"
            " that changes anywhere changes every later digest. If the last digest is kept elsewhere, a"
            " rewritten record is detected."
        ),
    ),
    (
        "Without the shuffler",
        (
            "The sum of what the devices’ own randomization allows, over every round that a user may have"
            " sent a report for, voided ones included."
        ),
    ),
    (
        "Slot",
        (
            "A round is charged as the next one of a fixed grid that reveals at least as much: its reports"
            " are rounded down, its sampling rate up, by at most one percent."
        ),
    ),
)
