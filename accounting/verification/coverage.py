"""Whether charges that somebody states cover their rounds: proven anew, not compared with charges of our own.

A charge is right when a filter's theorem holds at it. The smallest one that can be certified depends on the
precision it was sought with, so a stated charge may be smaller than what another accountant finds, and right
all the same. Any pair above the round's profile will do for a proof: finer ones are tried until one shows it.
"""

from __future__ import annotations

from collections import OrderedDict

from shuffle_ledger.accounting.accountant import DEFAULT_PRECISION, Accountant
from shuffle_ledger.accounting.filters.charges import is_covered
from shuffle_ledger.accounting.filters.filter_set import Charge, FilterSet
from shuffle_ledger.accounting.pld.approximate import ROUNDED
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

#: Parts of the accountant's precision at which a proof is sought, one after the other.
REFINEMENTS = (1.0, 1 / 4, 1 / 16)
_FINEST = 1e-6
# Tried last: of rounds that reveal next to nothing, coarse pairs have the smaller charges, for round-off is
# most of what finer ones cost.
_COARSEST = 0.1
# Twice the orders leave a quarter of what chords and tangents lose between them. Where they would be too
# many, no proof is found, and the orders of whoever made the charge may do.
_FINER = (2.0, 1.0)
_MAXIMUM_REMEMBERED = 10_000


class Coverage:
    """Proves that charges cover their rounds, and remembers which do.

    Args:
        accountant: gives the first pairs.
    """

    def __init__(self, accountant: Accountant) -> None:
        wanted = [accountant.precision, DEFAULT_PRECISION]
        wanted += [max(accountant.precision * part, _FINEST) for part in REFINEMENTS]
        wanted.append(_COARSEST)
        self._accountants = {accountant.precision: accountant}
        self.precisions = tuple(dict.fromkeys(wanted))
        self._known: OrderedDict[tuple[ShuffledRound, FilterSet, Charge], bool] = OrderedDict()

    def covers(self, shuffled: ShuffledRound, filters: FilterSet, charge: Charge) -> bool:
        """Whether a round may be charged so much and no more.

        Guarantee: True only if the theorem of every filter holds at the charge. False says that no proof was
            found at any of `precisions`: for charges of this package, made at one of those or more coarsely,
            that has not been seen.

        Raises:
            ValueError: the charge is one of other filters.
        """
        key = (shuffled, filters, charge)
        if key not in self._known:
            self._known[key] = any(
                self._proves(precision, shuffled, filters, charge) for precision in self.precisions
            )
            while len(self._known) > _MAXIMUM_REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]

    def _proves(self, precision: float, shuffled: ShuffledRound, filters: FilterSet, charge: Charge) -> bool:
        if precision not in self._accountants:
            self._accountants[precision] = Accountant(precision=precision)
        accountant = self._accountants[precision]
        # A charge that is at least a certified one is certified: every condition is monotone.
        enough = charge.at_least(accountant.charge(shuffled, filters))
        if charge == enough:
            return True
        if charge.repetition != enough.repetition:
            return False  # units are counted, and no precision makes them fewer
        pair = accountant.privacy_loss(shuffled).upper
        # Less room than the slack was rounded up by when it was charged, for another computer's last digits.
        slack = shuffled.slack * (1 + ROUNDED / 8)
        return any(is_covered(pair, filters, charge, slack=slack, finer=finer) for finer in _FINER)
