"""Certified accounting of shuffled rounds of local differential privacy: pure functions of parameters.

Names that compute are imported when they are first used, with NumPy and SciPy: what a ledger reads and writes
of rounds needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shuffle_ledger.names import imported_when_used

if TYPE_CHECKING:
    from shuffle_ledger.accounting.accountant import Accountant
    from shuffle_ledger.accounting.certificate import (
        DEFAULT_PRECISION,
        NUMERICAL_POLICY,
        Certificate,
        ErrorBudget,
        RenyiBound,
        is_known_policy,
    )
    from shuffle_ledger.accounting.comparison.attacks import attack_delta, attack_epsilon
    from shuffle_ledger.accounting.comparison.closed_forms import PublishedBound, published_bounds
    from shuffle_ledger.accounting.comparison.conversions import (
        from_dp_accounting,
        rounds_of_dp_event,
        to_dp_accounting,
    )
    from shuffle_ledger.accounting.errors import (
        AccountingError,
        DamagedPrivacyLoss,
        InvalidParameter,
        given_text,
    )
    from shuffle_ledger.accounting.filters.delta_accounts import AccountsReading, DeltaAccounts
    from shuffle_ledger.accounting.filters.filter_set import (
        APPROXIMATE_SHARE,
        LARGEST_APPROXIMATE_SHARE,
        FilterCharge,
        FilterLimits,
        FilterReading,
        FilterSet,
        checked_share,
        share_of_budget,
    )
    from shuffle_ledger.accounting.mechanisms import Estimate, Mechanism, mechanism_of
    from shuffle_ledger.accounting.planning.calibration import (
        CALIBRATION_POLICIES,
        Calibration,
        alike_rounds,
        calibrate,
        calibrate_by,
    )
    from shuffle_ledger.accounting.planning.local_gaussian import LocalGaussianRound, best_local_gaussian
    from shuffle_ledger.accounting.planning.plans import largest_common_epsilon0, place
    from shuffle_ledger.accounting.planning.questions import Curve, certify, curve
    from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
    from shuffle_ledger.accounting.pld.pair_bounds import RoundLoss
    from shuffle_ledger.accounting.printed_numbers import (
        bounds_text,
        exact_text,
        interval_text,
        lower_column,
        lower_text,
        upper_column,
        upper_text,
    )
    from shuffle_ledger.accounting.randomizers import (
        RANDOMIZERS,
        BinaryLocalHash,
        BinomialHistogram,
        BinomialSum,
        BlockHadamard,
        BloomRappor,
        BoundedLaplace,
        CentralLaplace,
        CountMeanSketch,
        Declared,
        DiscreteGaussian,
        DistinctElements,
        Duchi,
        Gaussian,
        Generic,
        HadamardCountMeanSketch,
        HadamardResponse,
        Joint,
        KaryRandomizedResponse,
        Laplace,
        LocalGaussian,
        LocalHash,
        LocalRandomizer,
        OptimizedUnaryEncoding,
        Parallel,
        Piecewise,
        PrivacyLoss,
        Rappor,
        SubsetSelection,
        Table,
        UniformityTester,
    )
    from shuffle_ledger.accounting.randomizers.estimation_error import FrequencyError, frequency_error
    from shuffle_ledger.accounting.randomizers.memoization import memoized_epsilon
    from shuffle_ledger.accounting.randomizers.notation import parse_randomizer
    from shuffle_ledger.accounting.rounds.attributes import attribute_rounds
    from shuffle_ledger.accounting.rounds.dominance import fits
    from shuffle_ledger.accounting.rounds.shuffled_round import (
        ShuffledRound,
        charged_as,
        charged_together,
        honest_share,
    )
    from shuffle_ledger.accounting.rounds.slots import slot_for
    from shuffle_ledger.accounting.rounds.summed_curves import with_summed_curves
    from shuffle_ledger.accounting.validation import MAXIMUM_REPORTS_PER_USER, MAXIMUM_ROUNDS

else:
    __getattr__ = imported_when_used(
        __name__,
        {
            "accountant": "Accountant",
            "certificate": (
                "Certificate DEFAULT_PRECISION ErrorBudget NUMERICAL_POLICY RenyiBound is_known_policy"
            ),
            "comparison.attacks": "attack_delta attack_epsilon",
            "comparison.closed_forms": "PublishedBound published_bounds",
            "comparison.conversions": "from_dp_accounting rounds_of_dp_event to_dp_accounting",
            "errors": "AccountingError DamagedPrivacyLoss InvalidParameter given_text",
            "filters.delta_accounts": "AccountsReading DeltaAccounts",
            "filters.filter_set": (
                "APPROXIMATE_SHARE FilterCharge FilterLimits FilterReading FilterSet "
                "LARGEST_APPROXIMATE_SHARE checked_share share_of_budget"
            ),
            "mechanisms": "Estimate Mechanism mechanism_of",
            "planning.calibration": "CALIBRATION_POLICIES Calibration alike_rounds calibrate calibrate_by",
            "planning.local_gaussian": "LocalGaussianRound best_local_gaussian",
            "planning.plans": "largest_common_epsilon0 place",
            "planning.questions": "Curve certify curve",
            "pld.distribution": "PrivacyLossDistribution",
            "pld.pair_bounds": "RoundLoss",
            "printed_numbers": (
                "bounds_text exact_text interval_text lower_column lower_text upper_column upper_text"
            ),
            "randomizers": (
                "BinaryLocalHash BinomialHistogram BinomialSum BlockHadamard BloomRappor BoundedLaplace "
                "CentralLaplace CountMeanSketch Declared DiscreteGaussian DistinctElements Duchi Gaussian "
                "Generic HadamardCountMeanSketch HadamardResponse Joint KaryRandomizedResponse Laplace "
                "LocalGaussian LocalHash LocalRandomizer OptimizedUnaryEncoding Parallel Piecewise "
                "PrivacyLoss RANDOMIZERS Rappor SubsetSelection Table UniformityTester"
            ),
            "randomizers.estimation_error": "FrequencyError frequency_error",
            "randomizers.memoization": "memoized_epsilon",
            "randomizers.notation": "parse_randomizer",
            "rounds.attributes": "attribute_rounds",
            "rounds.dominance": "fits",
            "rounds.shuffled_round": "ShuffledRound charged_as charged_together honest_share",
            "rounds.slots": "slot_for",
            "rounds.summed_curves": "with_summed_curves",
            "validation": "MAXIMUM_REPORTS_PER_USER MAXIMUM_ROUNDS",
        },
    )

__all__ = [
    "APPROXIMATE_SHARE",
    "CALIBRATION_POLICIES",
    "DEFAULT_PRECISION",
    "LARGEST_APPROXIMATE_SHARE",
    "MAXIMUM_REPORTS_PER_USER",
    "MAXIMUM_ROUNDS",
    "NUMERICAL_POLICY",
    "RANDOMIZERS",
    "Accountant",
    "AccountingError",
    "AccountsReading",
    "BinaryLocalHash",
    "BinomialHistogram",
    "BinomialSum",
    "BlockHadamard",
    "BloomRappor",
    "BoundedLaplace",
    "Calibration",
    "CentralLaplace",
    "Certificate",
    "CountMeanSketch",
    "Curve",
    "DamagedPrivacyLoss",
    "Declared",
    "DeltaAccounts",
    "DiscreteGaussian",
    "DistinctElements",
    "Duchi",
    "ErrorBudget",
    "Estimate",
    "FilterCharge",
    "FilterLimits",
    "FilterReading",
    "FilterSet",
    "FrequencyError",
    "Gaussian",
    "Generic",
    "HadamardCountMeanSketch",
    "HadamardResponse",
    "InvalidParameter",
    "Joint",
    "KaryRandomizedResponse",
    "Laplace",
    "LocalGaussian",
    "LocalGaussianRound",
    "LocalHash",
    "LocalRandomizer",
    "Mechanism",
    "OptimizedUnaryEncoding",
    "Parallel",
    "Piecewise",
    "PrivacyLoss",
    "PrivacyLossDistribution",
    "PublishedBound",
    "Rappor",
    "RenyiBound",
    "RoundLoss",
    "ShuffledRound",
    "SubsetSelection",
    "Table",
    "UniformityTester",
    "alike_rounds",
    "attack_delta",
    "attack_epsilon",
    "attribute_rounds",
    "best_local_gaussian",
    "bounds_text",
    "calibrate",
    "calibrate_by",
    "certify",
    "charged_as",
    "charged_together",
    "checked_share",
    "curve",
    "exact_text",
    "fits",
    "frequency_error",
    "from_dp_accounting",
    "given_text",
    "honest_share",
    "interval_text",
    "is_known_policy",
    "largest_common_epsilon0",
    "lower_column",
    "lower_text",
    "mechanism_of",
    "memoized_epsilon",
    "parse_randomizer",
    "place",
    "published_bounds",
    "rounds_of_dp_event",
    "share_of_budget",
    "slot_for",
    "to_dp_accounting",
    "upper_column",
    "upper_text",
    "with_summed_curves",
]
