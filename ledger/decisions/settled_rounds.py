"""The round that a settlement charges: one pure rule for settlement and for verification."""

from __future__ import annotations

from shuffle_ledger.accounting import ShuffledRound, fits, honest_share, slot_for
from shuffle_ledger.ledger.decisions.truths import truth_of


def really_shuffled(accounted: ShuffledRound, declared: ShuffledRound, reports: int) -> ShuffledRound:
    """Return the round to charge when `reports` reports arrived.

    If the accounted round dominates the round that arrived, it stays charged. Otherwise the charge is the
    slot, rounded once, of the declared round with the reports that arrived.

    Args:
        accounted: the round that was charged at admission.
        declared: the round as it was registered.
        reports: the reports that arrived, in the unit of the registration.

    **Guarantee**: the answer dominates what happened. Users who were sampled and dropped out were at risk all
    the same, so the sampling rate stays (up to rounding up): the smaller sample's own rate would make a round
    cheaper because reports were lost.
    """
    if declared.reports_per_user > 1:
        truth = truth_of(declared, reports)
        return accounted if fits(truth, accounted) else slot_for(truth)
    if _is_covered(accounted, declared, reports):
        return accounted
    return slot_for(truth_of(declared, reports))


def _is_covered(accounted: ShuffledRound, declared: ShuffledRound, reports: int) -> bool:
    """Returns whether the charge of the declared round covers it with `reports` reports."""
    if declared.sampled_from is None or accounted.sampled_from is None:
        # After a correction, both may count another share of their reports as honest.
        honest = honest_share(declared.honest_fraction, reports)
        are_enough = reports >= accounted.reports and honest >= accounted.honest_reports
        return declared.sampled_from is None and are_enough
    if declared.honest_fraction < 1:
        return accounted == declared and reports == declared.reports
    # The rate at which users were at risk, in integers: with fewer reports than declared it is that declared.
    sample = max(reports, declared.reports)
    population = max(reports, declared.sampled_from)
    no_higher = sample * accounted.sampled_from <= accounted.reports * population
    return no_higher and reports >= accounted.reports
