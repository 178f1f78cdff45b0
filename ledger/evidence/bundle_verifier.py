"""Verification of a bundle, where no ledger is: signature, chains, and every number from its parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, exact_text
from shuffle_ledger.ledger.evidence.bundle import HEADS
from shuffle_ledger.ledger.evidence.bundle_reader import Chain, Evidence, open_bundle
from shuffle_ledger.ledger.evidence.findings import BundleReport, CohortFound
from shuffle_ledger.ledger.evidence.receipts_found import receipts_found
from shuffle_ledger.ledger.evidence.recomputation import Recomputation
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.saved_heads import SavedHead, SavedHeads, heads_by_cohort
from shuffle_ledger.ledger.verification.number_checks import BundleNumbers
from shuffle_ledger.ledger.verification.replay import Replay
from shuffle_ledger.ledger.verification.siblings import JointRounds, disagreements, undeclared

Progress = Callable[[str, int, int], None]


def verify_bundle(
    data: bytes,
    accountant: Accountant,
    *,
    trusted_public_key: bytes | None = None,
    against: SavedHeads | None = None,
    numbers: BundleNumbers = "sampled",
    progress: Progress | None = None,
) -> BundleReport:
    """Return what is wrong with a bundle, and what agrees.

    Args:
        accountant: computes the numbers again; a finer one than the ledger's says more.
        trusted_public_key: the key that must have signed, which somebody gave you another way.
        against: heads that were kept elsewhere: those of these cohorts must be in the chains, and the ledger
            must still have their other cohorts.
        numbers: which numbers are computed again.

    **Guarantee**: a bundle with any byte changed, added or removed is not `ok`, and the finding names the
    member and, within a chain, the entry. A bundle is `vouched` for only if the trusted key signed its heads,
    or if every chain in it has a head that was kept elsewhere; never without the key and without heads. A
    forger who can also sign anew is found out by the trusted key or by heads kept elsewhere, and never gets a
    number past the recomputation that its parameters do not give.
    """
    tell = progress or (lambda _what, _done, _of: None)
    evidence = open_bundle(data, trusted_public_key)
    signed, kept = heads_by_cohort(evidence.heads), heads_by_cohort(against)
    if against is not None:
        _compare_ledgers(evidence, against)
    joint: dict[str, JointRounds] = {}
    cohorts = [
        _cohort(
            evidence,
            chain,
            accountant,
            numbers,
            signed=signed.get(chain.cohort, []),
            kept=kept.get(chain.cohort, []),
            joint=joint,
            tell=tell,
        )
        for chain in evidence.chains
    ]
    members = {chain.cohort: chain.member for chain in evidence.chains}
    cohorts = [_with_siblings(evidence, each, joint, members) for each in cohorts]
    here = {chain.cohort for chain in evidence.chains}
    _compare_absent(evidence, kept.keys() - here, is_compared=not kept.keys().isdisjoint(here))
    releasers = receipts_found(evidence)
    checkpoint = evidence.heads.checkpoint if evidence.heads else None
    signature = evidence.heads.signature if evidence.heads else "none"
    return BundleReport(
        ok=not evidence.findings.listed,
        vouched=not evidence.findings.listed and (signature == "trusted" or here <= kept.keys()),
        sha256=hashlib.sha256(data).hexdigest(),
        findings=tuple(evidence.findings.listed),
        notes=tuple(evidence.findings.notes),
        signature=signature,
        public_key=checkpoint.public_key.hex() if checkpoint else None,
        ledger_id=checkpoint.ledger_id if checkpoint else None,
        created_at=checkpoint.created_at if checkpoint else None,
        software=checkpoint.software if checkpoint else None,
        verified_with=(
            f"shuffle-ledger {version('shuffle-ledger')}, {NUMERICAL_POLICY},"
            f" to {exact_text(accountant.precision)}"
        ),
        compared_with=sum(len(kept.get(cohort, [])) for cohort in here),
        not_in_bundle=tuple(sorted(signed.keys() - here)),
        cohorts=tuple(cohorts),
        releasers=releasers,
    )


def _cohort(
    evidence: Evidence,
    chain: Chain,
    accountant: Accountant,
    numbers: BundleNumbers,
    *,
    signed: list[SavedHead],
    kept: list[SavedHead],
    joint: dict[str, JointRounds],
    tell: Progress,
) -> CohortFound:
    findings, name, length = evidence.findings, chain.cohort, chain.data.count(b"\n")
    replay = Replay(store=evidence, cohort=name, kept=[*signed, *kept])
    recomputation = Recomputation(replay, accountant, numbers, length)
    for step in replay.steps():
        recomputation.see(step)
        tell(f"{name}: checking entries", replay.head_sequence, length)
    checks = recomputation.finish(lambda done, of: tell(f"{name}: asking a second method", done, of))
    if evidence.heads is not None and replay.head_sequence not in {head.sequence for head in signed}:
        named = f"entry {signed[0].sequence}" if signed else "no entry"
        replay.blame(replay.head_sequence, f"the chain ends here, and {HEADS} names {named}")
    replay.miss_kept()
    for problem in replay.problems:
        findings.add(problem.what, member=chain.member, cohort=name, sequence=problem.sequence)
    for sequence, what in recomputation.notes:
        findings.note(what, member=chain.member, cohort=name, sequence=sequence)
    joint[name] = replay.fold.joint
    body, ok = recomputation.last, not findings.concern(name)
    return CohortFound(
        cohort=name,
        ok=ok,
        entries=replay.entries,
        head_sequence=replay.head_sequence,
        head_digest=replay.head_digest.hex(),
        epsilon_budget=body.epsilon_budget if body else None,
        delta_budget=body.delta_budget if body else None,
        epsilon_spent_upper=body.spent.epsilon_upper if body else None,
        epsilon_spent_lower=body.spent.epsilon_lower if body else None,
        promise_kept=recomputation.within and not replay.fold.overspent
        if ok and not replay.fold.frozen
        else None,
        rounds_admitted=replay.kinds[EntryKind.ADMITTED],
        rounds_refused=replay.kinds[EntryKind.REFUSED],
        kinds=len(recomputation.met),
        kinds_confirmed=len(recomputation.opinions.confirmed),
        kinds_without=tuple(kind.in_words for kind in recomputation.opinions.without),
        numbers_stated=recomputation.stated,
        numbers=tuple(checks),
        period=replay.fold.joint.period,
    )


def _with_siblings(
    evidence: Evidence, found: CohortFound, joint: Mapping[str, JointRounds], members: Mapping[str, str]
) -> CohortFound:
    """Return what was found of a cohort, given what the other chains here say of its rounds of several."""
    differing = [
        *undeclared(found.cohort, joint),
        *((sequence, what) for _, sequence, what in disagreements(found.cohort, joint)),
        *_unknown_members(found.cohort, joint, evidence.heads),
    ]
    for sequence, what in differing:
        evidence.findings.add(what, member=members[found.cohort], cohort=found.cohort, sequence=sequence)
    return replace(found, ok=False, promise_kept=None) if differing else found


def _unknown_members(
    cohort: str, joint: Mapping[str, JointRounds], heads: SavedHeads | None
) -> Iterator[tuple[int, str]]:
    """Yield entries of rounds shared with a cohort that the heads do not know, and what to say of them."""
    if heads is None or joint[cohort].frozen:
        return
    known = {head.cohort for head in heads.heads}
    for said in joint[cohort].rounds.values():
        for name in said.audience:
            if name not in known:
                what = f"its round is also of cohort {name!r}, and {HEADS} names no head of that"
                yield said.facts[0].sequence, what


def _compare_absent(evidence: Evidence, absent: Collection[str], *, is_compared: bool) -> None:
    """Note cohorts of kept heads without a chain here: those the ledger lacks, or all if none is compared."""
    known = heads_by_cohort(evidence.heads)
    for cohort in sorted(absent):
        if cohort not in known:
            what = f"a head of it was kept elsewhere, and {HEADS} names no such cohort"
            evidence.findings.add(what, cohort=cohort)
        elif not is_compared:
            evidence.findings.add("a head of it was kept elsewhere, and its chain is not here", cohort=cohort)


def _compare_ledgers(evidence: Evidence, against: SavedHeads) -> None:
    here = evidence.heads.checkpoint if evidence.heads else None
    if here is not None and against.checkpoint is not None and here.ledger_id != against.checkpoint.ledger_id:
        evidence.findings.add(
            f"it is of ledger {here.ledger_id}, what was kept is of {against.checkpoint.ledger_id}"
        )
