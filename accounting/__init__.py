"""Certified accounting of shuffled rounds of local differential privacy: pure numbers in, pure numbers
out."""

from accounting.accountant import DEFAULT_PRECISION, Accountant
from accounting.attack import attack_delta, attack_epsilon
from accounting.bounds_text import exact_text, lower_column, lower_text, upper_column, upper_text
from accounting.calibration import Calibration, calibrate
from accounting.certificate import NUMERICAL_POLICY, Certificate, ErrorBudget, RenyiBound, is_known_policy
from accounting.delta_accounts import AccountsReading, DeltaAccounts
from accounting.errors import AccountingError, DamagedPrivacyLoss, InvalidParameter
from accounting.filter_menu import Choice, FilterMenu
from accounting.filter_sets import Charge, FilterReading, FilterSet
from accounting.fitting import fits
from accounting.frequency import FrequencyError, frequency_error
from accounting.notation import parse_randomizer
from accounting.plans import largest_common_epsilon0, place
from accounting.privacy_loss import PrivacyLossDistribution
from accounting.randomizers import (
    BinaryLocalHash,
    BinomialHistogram,
    BinomialSum,
    Declared,
    DistinctElements,
    Generic,
    HadamardResponse,
    Joint,
    KaryRandomizedResponse,
    Laplace,
    LocalRandomizer,
    OptimizedUnaryEncoding,
    Parallel,
    Rappor,
    Table,
    UniformityTester,
)
from accounting.repetition import RepetitionFilter
from accounting.round_loss import RoundLoss
from accounting.shuffling import ShuffledRound
from accounting.slots import slot_for

__all__ = [
    "DEFAULT_PRECISION",
    "NUMERICAL_POLICY",
    "Accountant",
    "AccountingError",
    "AccountsReading",
    "BinaryLocalHash",
    "BinomialHistogram",
    "BinomialSum",
    "Calibration",
    "Certificate",
    "Charge",
    "Choice",
    "DamagedPrivacyLoss",
    "Declared",
    "DeltaAccounts",
    "DistinctElements",
    "ErrorBudget",
    "FilterMenu",
    "FilterReading",
    "FilterSet",
    "FrequencyError",
    "Generic",
    "HadamardResponse",
    "InvalidParameter",
    "Joint",
    "KaryRandomizedResponse",
    "Laplace",
    "LocalRandomizer",
    "OptimizedUnaryEncoding",
    "Parallel",
    "PrivacyLossDistribution",
    "Rappor",
    "RenyiBound",
    "RepetitionFilter",
    "RoundLoss",
    "ShuffledRound",
    "Table",
    "UniformityTester",
    "attack_delta",
    "attack_epsilon",
    "calibrate",
    "exact_text",
    "fits",
    "frequency_error",
    "is_known_policy",
    "largest_common_epsilon0",
    "lower_column",
    "lower_text",
    "parse_randomizer",
    "place",
    "slot_for",
    "upper_column",
    "upper_text",
]
