"""A randomizer given by its table of probabilities, bounded by its own optimal decomposition."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import (
    JOINED_RATIO_ERROR,
    TablePairs,
    Twofold,
)
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import (
    JOINED,
    ROOM,
    Bracket,
    Components,
    DecomposedRandomizer,
)
from shuffle_ledger.accounting.randomizers.binary_input import bracketed

# Limits of a table: inputs, outputs, and probabilities in all pairs of inputs together. More: memory and
# time.
_MAXIMUM_ROWS = 64
_MAXIMUM_COLUMNS = 1024
_MAXIMUM_TERMS = 1 << 20
# Triples of inputs that are tried as attacks.
_MAXIMUM_WITNESSES = 8
# Pairs of inputs that are ruled out in the time of one evaluation, for estimates of run time.
_PAIRS_PER_EVALUATION = 30
# Allowed distance of a row's sum from 1, for probabilities written in decimal; the row is divided by its sum.
_SUM_TOLERANCE = 1e-12
# Least positive probability.
_LEAST_PROBABILITY = 1e-50
# Relative distance below which a difference of two probabilities has fewer correct digits than `ROOM` asks
# for; and a bound on the absolute error of all such differences: two floats hold 106 binary digits, of which
# a few are rounded.
_NEARLY_EQUAL = 2.0**-80
_DIFFERENCE_ERROR = 2.0**-102
# Outputs and pairs are joined roughly only if `2 (1 - exp(-epsilon0))` is at least this: ratios then differ
# by much more than round-off, for any number of reports.
_LEAST_ROUGH_SCALE = 0.01
# Least probability of an output, and least difference of the rows, of a table that is analysed as one bit.
_LEAST_OF_A_BIT, _LEAST_GAP = 1e-9, 1e-9
# From this number of outputs on, equal outputs are looked for even with two inputs.
_MANY_OUTPUTS = 64


@dataclass(frozen=True, kw_only=True)
class Table(DecomposedRandomizer):
    """Any randomizer of few inputs and outputs: `rows[x][y]` is the probability of output y under input x.

    A row must sum to 1 within 1e-12; the device draws from the row divided by its sum. Entries are 0 or at
    least 1e-50. If an output is possible under some inputs only, `epsilon0` is infinite.

    Guarantee: the bound is the largest over all pairs of inputs, each with the mass that every other user
    certainly puts on an output, `c(y) = min over x of rows[x][y]`: the largest decomposition there is. Of
    more than 16 inputs the upper bound may be that of a law above all pairs', which is larger.
    Source: Su, Cheng, Wang, Theorems 4 to 6; docs/theory/amplification.md, A11.
    """

    kind = "table"

    rows: tuple[tuple[float, ...], ...]
    epsilon0: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _checked(self.rows))
        object.__setattr__(self, "epsilon0", _largest_ratio(self._masses.high))
        inputs, outputs = self._masses.high.shape
        if (terms := inputs * (inputs - 1) * outputs) > _MAXIMUM_TERMS:
            expected = f"at most {_MAXIMUM_TERMS} probabilities in all pairs of inputs together"
            raise InvalidParameter("rows", f"{terms} in {inputs} rows of {outputs}", expected)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`."""
        return self._components

    def by_blanket(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `DecomposedRandomizer.by_blanket`."""
        split, doubt = self._whole if participation == 1 else self._split(Fraction(participation))
        masses = split.rows(self._masses.extreme())
        pairs, blur = self._pairs(masses, participation * self._masses.rest())
        above, below = (pairs, None) if len(masses.high) > 2 else _grids(pairs)
        return BlanketProfile(
            above=above,
            below=below,
            between=None if below is None else pairs,
            weight=1.0,
            largest_loss=self.epsilon0,
            room=ROOM,
            blur=blur if below is None else blur + 2 * JOINED,
            doubt=doubt,
            smoothing=smoothing,
            outcomes=outcomes,
        )

    @functools.cached_property
    def _bit_law(self) -> BitLaw | None:
        high = self._masses.high
        if high.shape != (2, 2) or high.min() < _LEAST_OF_A_BIT or self.doubt > 0:
            return None
        first = int(high[0, 1] < high[1, 1])  # the input that makes a 1 likelier
        gap = float(self._masses.difference(first, 1 - first)[1])
        if gap < _LEAST_GAP:
            return None
        (not_a, a), (not_b, b) = high[first].tolist(), high[1 - first].tolist()
        return BitLaw(a=a, b=b, not_a=not_a, not_b=not_b, gap=gap)

    @property
    def bit_law(self) -> BitLaw | None:
        """See `DecomposedRandomizer.bit_law`. A table of two rows has one if no output is much less likely
        than the other, and the rows differ by more than round-off."""
        return self._bit_law

    def _pairs(self, masses: Twofold, rest: float) -> tuple[TablePairs, float]:
        """Returns all pairs of inputs, and a bound on the error of ratios in units of `r + 2 (1 -
        exp(-epsilon0))` for every excess r. If it makes them much fewer, pairs that differ by round-off are
        counted once, and outputs that differ by round-off are joined."""
        exact, scale = TablePairs(*masses, rest=rest), -2 * math.expm1(-self.epsilon0)
        inputs, outputs = masses.high.shape
        many = outputs >= _MANY_OUTPUTS
        if scale >= _LEAST_ROUGH_SCALE and (many or inputs > 2):
            fewer = TablePairs(*masses, rest=rest, roughly=True)
            sizes = (len(one) * (one.components if many else 1) for one in (fewer, exact))
            if 2 * next(sizes) <= next(sizes):
                return fewer, 2 * JOINED_RATIO_ERROR / min(scale, 1.0)
        return exact, 0.0

    def terms(self, analysis: str) -> int:
        """See `DecomposedRandomizer.terms`."""
        inputs, outputs = len(self.rows), len(self.rows[0])
        return outputs * (1 + inputs * (inputs - 1) // _PAIRS_PER_EVALUATION)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`. Returns the triples of inputs whose losses vary most; if losses
        are infinite, those that exclude a value with the largest probability."""
        masses = self._masses
        high = masses.high

        def spread(triple: tuple[int, int, int]) -> tuple[float, float]:
            x0, x1, other = triple
            with np.errstate(divide="ignore", invalid="ignore"):
                varies = float(np.nansum(masses.difference(x0, x1) ** 2 / high[other]))
            alone = high[:, high[other] == 0]
            return varies, max(float(alone[a][alone[b] == 0].sum()) for a, b in ((x0, x1), (x1, x0)))

        inputs = range(len(self.rows))
        triples = [(x0, x1, other) for x0, x1 in itertools.combinations(inputs, 2) for other in inputs]
        chosen = sorted(triples, key=spread, reverse=True)[:_MAXIMUM_WITNESSES]
        return tuple(masses.decomposition(x0, x1, masses.high[other], 0.0) for x0, x1, other in chosen)

    @functools.cached_property
    def _components(self) -> Components:
        return _components(self._masses)

    @property
    def doubt(self) -> float:
        """See `LocalRandomizer.doubt`."""
        return self._whole[1]

    @property
    def _masses(self) -> _Masses:
        """Returns the probabilities, each row divided by its exact sum."""
        return self._whole[0]

    @functools.cached_property
    def _whole(self) -> tuple[_Masses, float]:
        return self._split(Fraction(1))

    def _split(self, participation: Fraction) -> tuple[_Masses, float]:
        """Returns the probabilities for users who report with this probability (silence is the last output),
        and a bound on the absolute error of their differences."""
        share, whole = participation.as_integer_ratio()
        high, low, exact = [], [], []
        for row in self.rows:
            parts = [value.as_integer_ratio() for value in row]
            finest = max(below for _, below in parts)
            masses = [share * above * (finest // below) for above, below in parts]
            total = sum(masses) * whole // share
            if participation < 1:
                masses.append(total - sum(masses))
            # Quotients of integers are the nearest floats.
            near = [mass / total for mass in masses]
            high.append(near)
            low.append([_missing(mass, total, one) for mass, one in zip(masses, near, strict=True)])
            exact.append((masses, total))
        split = _Masses(np.array(high), np.array(low))
        return split, _DIFFERENCE_ERROR if split.is_close(exact) else 0.0

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        return {"kind": self.kind, "rows": [list(row) for row in self.rows]}

    def describe(self) -> str:
        """See `LocalRandomizer.describe`."""
        return f"table({[list(row) for row in self.rows]})"


def _missing(above: int, below: int, near: float) -> float:
    """Returns the difference between the exact quotient `above / below` and a float near it, rounded to a
    float."""
    one, unit = near.as_integer_ratio()
    return (above * unit - one * below) / (below * unit)


class _Masses(Twofold):
    """Probabilities of all outputs under all inputs, and the decompositions of pairs of inputs."""

    def is_close(self, exact: Sequence[tuple[list[int], int]]) -> bool:
        """Returns whether an output has different probabilities under two inputs (exactly `masses[y] /
        total`) that two floats resolve to a few digits only, or not at all."""
        order = np.lexsort((self.low, self.high), axis=0)
        high, low = (np.take_along_axis(one, order, axis=0) for one in self)
        near = np.diff(high, axis=0) + np.diff(low, axis=0) <= _NEARLY_EQUAL * high[1:]
        for place, output in np.argwhere(near):
            (masses, total), (others, whole) = (exact[order[one, output]] for one in (place, place + 1))
            if masses[output] * whole != others[output] * total:
                return True
        return False

    def rows(self, inputs: list[int]) -> _Masses:
        """Returns the probabilities of some of the inputs."""
        return _Masses(self.high[inputs], self.low[inputs])

    def extreme(self) -> list[int]:
        """Returns, for a table of two possible outputs, the two rows of which all others are mixtures; else
        all rows."""
        possible = self.high.max(axis=0) > 0
        if possible.sum() != 2:
            return list(range(len(self.high)))
        order = np.lexsort([masses[:, possible][:, 0] for masses in (self.low, self.high)])
        return [int(order[-1]), int(order[0])]

    def decomposition(self, x0: int, x1: int, hidden: FloatArray, rest: float | None = None) -> Decomposition:
        """Returns the decomposition of the pair of inputs x0 and x1, where other users hide with the masses
        `hidden`."""
        return Decomposition(self.high[x0], self.high[x1], hidden, self.difference(x0, x1), rest)

    def rest(self) -> float:
        """Returns the mass of the leftover component: 1 minus the sum of the least probabilities of all
        outputs."""
        inputs = range(len(self.high))
        return math.fsum(np.max([self.difference(0, x) for x in inputs], axis=0))


def _grids(pairs: TablePairs) -> tuple[Pairs, Pairs | None]:
    """Returns pairs above and below those of two inputs, on grids, if these have many components; else the
    pairs themselves and None."""
    brackets = [bracketed(one) for one in pairs]
    if all(one.below is one.above for one in brackets):
        return pairs, None
    above, below = (ListedPairs([one.merged() for one in side]) for side in zip(*brackets, strict=True))
    return above, below


def _components(masses: _Masses) -> Components:
    hidden, rest, inputs = masses.high.min(axis=0), masses.rest(), range(len(masses.high))
    pairs = itertools.permutations(inputs, 2)
    unequal = _different(masses.decomposition(*pair, hidden, rest) for pair in pairs)
    return Components(unequal, _different(masses.decomposition(x, x, hidden, rest) for x in inputs))


def _different(pairs: Iterable[Decomposition]) -> tuple[Bracket, ...]:
    """Returns the brackets of the pairs, without repeated divergences."""
    kinds = {pair.signature(): pair for pair in pairs}
    return tuple(Bracket.exact(pair.merged()) for pair in kinds.values())


def _largest_ratio(masses: FloatArray) -> float:
    """Returns the largest logarithm of the ratio of an output's probabilities under two inputs, rounded
    up."""
    possible = masses[:, masses.max(axis=0) > 0]
    if np.any(possible == 0):
        return math.inf
    return float(np.log(possible.max(axis=0) / possible.min(axis=0)).max()) * (1 + 1e-14) + 1e-15


def _checked(rows: object) -> tuple[tuple[float, ...], ...]:
    expected = f"2 to {_MAXIMUM_ROWS} rows of as many probabilities each, 2 to {_MAXIMUM_COLUMNS}"
    if not isinstance(rows, list | tuple) or not 2 <= len(rows) <= _MAXIMUM_ROWS:
        raise InvalidParameter("rows", rows, expected)
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not 2 <= len(row) <= _MAXIMUM_COLUMNS:
            raise InvalidParameter(f"rows[{number}]", row, expected)
        if len(row) != len(rows[0]):
            raise InvalidParameter(
                f"rows[{number}]", row, f"{len(rows[0])} probabilities, as in the first row"
            )
    return tuple(_checked_row(f"rows[{number}]", row) for number, row in enumerate(rows))


def _checked_row(name: str, row: Sequence[object]) -> tuple[float, ...]:
    expected = f"0 or a probability from {exact_text(_LEAST_PROBABILITY)} to 1"
    values = tuple(validation.real(f"{name}[{place}]", value, expected) for place, value in enumerate(row))
    for place, value in enumerate(values):
        if value != 0 and not _LEAST_PROBABILITY <= value <= 1:
            raise InvalidParameter(f"{name}[{place}]", value, expected)
    if not validation.sums_to_one(values, _SUM_TOLERANCE):
        raise InvalidParameter(name, math.fsum(values), "probabilities that sum to 1")
    return values
