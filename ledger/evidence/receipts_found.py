"""The receipts in a bundle: their signatures, and what the chains beside them contradict."""

from __future__ import annotations

from collections.abc import Collection

from shuffle_ledger.ledger.errors import BadSignature, Damaged
from shuffle_ledger.ledger.evidence import bundle
from shuffle_ledger.ledger.evidence.bundle_reader import Evidence
from shuffle_ledger.ledger.evidence.findings import ReleaserFound
from shuffle_ledger.ledger.receipts import Receipt, receipt_of_document, receipt_problems
from shuffle_ledger.ledger.values.entries import LedgerEntry


def receipts_found(evidence: Evidence) -> tuple[ReleaserFound, ...]:
    """Return who signed receipts in a bundle; whatever is wrong with one is a finding.

    Nothing in a bundle shows whose the keys are: compare them with those you know.
    """
    if evidence.receipts is None:
        return ()
    signed = dict[str, Receipt]()
    try:
        for place, document in enumerate(bundle.read_json(evidence.receipts)["receipts"], start=1):
            try:
                receipt = receipt_of_document(document)
                signed[receipt.digest] = receipt
            except BadSignature as error:
                evidence.findings.add(f"receipt {place}: {error}", member=bundle.RECEIPTS)
    except (Damaged, TypeError, KeyError, AttributeError) as error:
        evidence.findings.add(f"it cannot be read: {error}", member=bundle.RECEIPTS)
    entries = _Entries(evidence)
    for receipt, what in receipt_problems(signed.values(), entries.about, evidence.cohorts()):
        named = f"receipt {receipt.digest} of {receipt.releaser}, round {receipt.permit.round_id}: {what}"
        evidence.findings.add(named, member=bundle.RECEIPTS, cohort=receipt.permit.cohorts[0])
    by_signer: dict[tuple[str, str], list[Receipt]] = {}
    for receipt in signed.values():
        by_signer.setdefault((receipt.releaser, receipt.key["x"]), []).append(receipt)
    return tuple(
        ReleaserFound(
            releaser=releaser, public_key=key, receipts=len(own), reports=sum(each.count for each in own)
        )
        for (releaser, key), own in sorted(by_signer.items(), key=lambda item: item[0])
    )


class _Entries:
    """The entries of a bundle by their rounds; each chain is read once, and only if it is asked for."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._read: dict[str, dict[str, list[LedgerEntry]]] = {}

    def about(self, round_ids: Collection[str], cohorts: Collection[str]) -> list[LedgerEntry]:
        """Return the entries about some rounds in the chains of some cohorts, in order."""
        found = [entry for name in cohorts for each in round_ids for entry in self._of(name).get(each, [])]
        return sorted(found, key=lambda entry: entry.sequence)

    def _of(self, cohort: str) -> dict[str, list[LedgerEntry]]:
        if cohort not in self._read:
            known = self._read.setdefault(cohort, {})
            for entry in self._evidence.entries_of(cohort):
                known.setdefault(str(entry.round_id), []).append(entry)
        return self._read[cohort]
