"""Privacy budgets of shuffled telemetry: certified accounting, a ledger of decisions, and its client.

    import shuffle_ledger as sl

    sl.certify({"krr(k=10, epsilon0=1.15)": 52}, reports=100_000, delta=1e-9)

Names are imported when they are first used. docs/accounting.md describes the library, docs/http.md the
client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shuffle_ledger.accounting import (
        Accountant,
        AccountingError,
        BinaryLocalHash,
        BinomialHistogram,
        BinomialSum,
        Calibration,
        Certificate,
        Curve,
        Declared,
        DistinctElements,
        FilterSet,
        Generic,
        HadamardResponse,
        InvalidParameter,
        Joint,
        KaryRandomizedResponse,
        Laplace,
        LocalGaussianRound,
        LocalRandomizer,
        OptimizedUnaryEncoding,
        Parallel,
        PrivacyLossDistribution,
        Rappor,
        ShuffledRound,
        Table,
        UniformityTester,
        attack_delta,
        attack_epsilon,
        best_local_gaussian,
        certify,
        curve,
        frequency_error,
        largest_common_epsilon0,
        memoized_epsilon,
        parse_randomizer,
        slot_for,
        to_dp_accounting,
    )
    from shuffle_ledger.ledger.client import AsyncLedgerClient, LedgerClient
    from shuffle_ledger.ledger.errors import LedgerError
    from shuffle_ledger.ledger.reports import calibrate
    from shuffle_ledger.ledger.values import (
        Admitted,
        Cohort,
        Pending,
        Quote,
        Refused,
        RoundRecord,
        RoundRequest,
        Settled,
        Voided,
    )

    __version__: str

__all__ = [
    "Accountant",
    "AccountingError",
    "Admitted",
    "AsyncLedgerClient",
    "BinaryLocalHash",
    "BinomialHistogram",
    "BinomialSum",
    "Calibration",
    "Certificate",
    "Cohort",
    "Curve",
    "Declared",
    "DistinctElements",
    "FilterSet",
    "Generic",
    "HadamardResponse",
    "InvalidParameter",
    "Joint",
    "KaryRandomizedResponse",
    "Laplace",
    "LedgerClient",
    "LedgerError",
    "LocalGaussianRound",
    "LocalRandomizer",
    "OptimizedUnaryEncoding",
    "Parallel",
    "Pending",
    "PrivacyLossDistribution",
    "Quote",
    "Rappor",
    "Refused",
    "RoundRecord",
    "RoundRequest",
    "Settled",
    "ShuffledRound",
    "Table",
    "UniformityTester",
    "Voided",
    "__version__",
    "attack_delta",
    "attack_epsilon",
    "best_local_gaussian",
    "calibrate",
    "certify",
    "curve",
    "frequency_error",
    "largest_common_epsilon0",
    "memoized_epsilon",
    "parse_randomizer",
    "slot_for",
    "to_dp_accounting",
]
_LEDGER = {
    "AsyncLedgerClient": "shuffle_ledger.ledger.client",
    "LedgerClient": "shuffle_ledger.ledger.client",
    "LedgerError": "shuffle_ledger.ledger.errors",
    "calibrate": "shuffle_ledger.ledger.reports",
    **dict.fromkeys(
        (
            "Admitted",
            "Cohort",
            "Pending",
            "Quote",
            "Refused",
            "RoundRecord",
            "RoundRequest",
            "Settled",
            "Voided",
        ),
        "shuffle_ledger.ledger.values",
    ),
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used: the command line's help must not wait for SciPy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("shuffle-ledger")
    else:
        value = getattr(import_module(_LEDGER.get(name, "shuffle_ledger.accounting")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
