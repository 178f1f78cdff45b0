"""Checks that stated charges cover their rounds, by a new proof and not by comparison with charges computed
here.

A charge is right if the filter's theorem holds at it. The smallest charge that can be certified depends on
the precision of the search, so a stated charge may be smaller than the one another accountant finds, and
still be right. Any pair above the round's profile can prove a charge: finer pairs are tried until one does
(docs/theory/verification.md, V2).
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from fractions import Fraction

from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.certificate import DEFAULT_PRECISION
from shuffle_ledger.accounting.filters.charges import is_covered
from shuffle_ledger.accounting.filters.filter_set import FilterCharge, FilterSet
from shuffle_ledger.accounting.pld.approximate import ROUNDED
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, charged_as

#: Precisions at which stated charges are usually computed: a ledger's by default, and an accountant's. A
#: finer pair is not below a coarser one everywhere: only pairs of a ledger's precision may prove its charges.
USUAL_PRECISIONS = (4e-3, DEFAULT_PRECISION)
#: Precisions at which a proof is sought in turn, as shares of the accountant's precision.
REFINEMENTS = (1.0, 1 / 4, 1 / 16)
# Least precision (relative width of epsilon) that is tried.
_FINEST_PRECISION = 1e-6
# The last precision that is tried: for rounds that reveal almost nothing, coarse pairs have smaller charges,
# since round-off is most of the charge of fine ones.
_COARSEST_PRECISION = 0.1
# Numbers of orders at which a theorem's condition is checked, in units of the usual number. Twice as many
# leave a quarter of the loss between orders; if these are too many for a proof, the usual number is tried.
_ORDER_FACTORS = (2.0, 1.0)
# Answers that are kept. More: memory.
_ANSWERS_KEPT = 10_000


class Coverage:
    """Proves that charges cover their rounds, and caches the answers.

    Args:
        accountant: computes the first pairs.
    """

    def __init__(self, accountant: Accountant) -> None:
        wanted = [accountant.precision, *USUAL_PRECISIONS]
        wanted += [max(accountant.precision * part, _FINEST_PRECISION) for part in REFINEMENTS]
        wanted.append(_COARSEST_PRECISION)
        self._accountants = {accountant.precision: accountant}
        self.precisions = tuple(dict.fromkeys(wanted))
        self._known: OrderedDict[tuple[ShuffledRound, FilterSet, FilterCharge], bool] = OrderedDict()

    def covers(self, shuffled: ShuffledRound, filters: FilterSet, charge: FilterCharge) -> bool:
        """Returns whether `charge` is certainly enough for the round. With several reports of a user, each of
        the rounds that it is charged as must be covered by an equal part of the charge. A charge for a
        certain loss of everything covers any slack: no filter that an account limits holds with it.

        Guarantee: True only if the theorem of every filter holds at the charge. False means that no proof was
            found at any of `precisions`. For charges that this package computed at one of these precisions,
            or at a coarser one, that has not been observed.

        Raises:
            ValueError: the charge belongs to other filters.
        """
        if charge.account and charge.account[0] >= 1:
            slack = max(charge.account[1], 2 * Fraction(shuffled.slack))  # twice: the accountant rounds up
            charge = dataclasses.replace(charge, account=(charge.account[0], slack))
        shuffled, count = charged_as(shuffled)
        if count > 1:
            charge *= Fraction(1, count)
        key = (shuffled, filters, charge)
        if key not in self._known:
            self._known[key] = any(
                self._proves(precision, shuffled, filters, charge) for precision in self.precisions
            )
            while len(self._known) > _ANSWERS_KEPT:
                self._known.popitem(last=False)
        return self._known[key]

    def _proves(
        self, precision: float, shuffled: ShuffledRound, filters: FilterSet, charge: FilterCharge
    ) -> bool:
        if precision not in self._accountants:
            self._accountants[precision] = Accountant(precision=precision)
        accountant = self._accountants[precision]
        # Every condition is monotone, so a charge that is at least a certified one is certified.
        enough = charge.at_least(accountant.charge(shuffled, filters))
        if charge == enough:
            return True
        pair = accountant.privacy_loss(shuffled).upper
        # Room for different last digits on another computer, less than the slack was rounded up by when
        # charged.
        slack = shuffled.slack * (1 + ROUNDED / 8)
        return any(is_covered(pair, filters, charge, slack=slack, finer=finer) for finer in _ORDER_FACTORS)
