"""RAPPOR with a memoized permanent response: what all reports of one user reveal, without a shuffler."""

from __future__ import annotations

import math
from collections.abc import Iterable

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter

_MAXIMUM_HASHES = 8  # functions of a Bloom filter
_MAXIMUM_REPORTS = 10**12  # of one value
_ROUND_UP = 1 + 1e-12  # factor for the round-off of logarithms, which is below 1e-12 of them


def memoized_epsilon(
    *, f: float, p: float, q: float, reports: int | Iterable[int] | None = None, hashes: int = 1
) -> float:
    """Returns the smallest local epsilon of all reports of one user together, rounded up.

    For each value a device draws the permanent response once and keeps it: a bit that the value sets is 1
    with probability `1 - f/2`, any other with probability `f/2`. Every report randomizes that response anew:
    a bit is reported as 1 with probability q if it is 1 there, with probability p if it is 0.

    Args:
        f: noise of the permanent response, from 0 (none) to 1 (nothing but noise).
        p: from 0 to below q.
        q: at most 1. With p = 0 and q = 1 the permanent response itself is reported.
        reports: how many reports were made of one value, or of each value that the user had; None for any
            number of reports of one value, which is the epsilon of the permanent response.
        hashes: bits that a value sets, from 1 to 8; 1 is basic RAPPOR.

    Guarantee: take two lives of a user in which reports share a value in the one if and only if they do in
        the other. The likelihoods of all reports differ by at most the factor `exp(epsilon)`, whatever the
        number of bits. It is attained where values set disjoint bits. When a value changes, or returns, is
        not hidden: no finite epsilon holds for lives of another pattern.
    Source: docs/theory/randomizers.md, R5; one report and any number of them: Erlingsson,
        Pihur, Korolova, "RAPPOR: Randomized Aggregatable Privacy-Preserving Ordinal Response", Theorems 2
        and 1.

    Raises:
        InvalidParameter: a value is out of range.
    """
    f, p, q = (validation.between(name, value, 0.0, 1.0) for name, value in (("f", f), ("p", p), ("q", q)))
    if p >= q:
        raise InvalidParameter("p", p, f"a number below q, which is {q}")
    hashes = validation.whole("hashes", hashes, 1, _MAXIMUM_HASHES)
    if reports is None:
        counts = [math.inf]
    else:
        is_text = isinstance(reports, str | bytes)
        listed = [*reports] if isinstance(reports, Iterable) and not is_text else [reports]
        counts = [float(validation.whole("reports", one, 0, _MAXIMUM_REPORTS)) for one in listed]
    # Logarithms of the ratios of a reported 1, and of a reported 0, of one bit.
    of_one = math.log1p((q - p) / p) if p else math.inf
    of_zero = math.log1p((q - p) / (1 - q)) if q < 1 else math.inf
    bits = (_hidden(f, count, ratio) for count in counts if count for ratio in (of_one, of_zero))
    return hashes * math.fsum(bits) * _ROUND_UP


def _hidden(f: float, count: float, log_ratio: float) -> float:
    """Returns what `count` equal reports of a bit reveal of the value behind the permanent response: with s
    the ratio of their likelihoods, `log((1 - f/2 + s f/2) / (f/2 + s (1 - f/2)))`."""
    total = count * log_ratio
    s = math.exp(-total)
    below = f / 2 + s * (1 - f / 2)
    if below == 0:
        return total if total < math.inf and f == 0 else math.inf
    return total if f == 0 else math.log1p((1 - f) * -math.expm1(-total) / below)
