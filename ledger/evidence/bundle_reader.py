"""Reading a bundle: its members checked against its manifest, its heads against their signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shuffle_ledger.ledger.errors import BadSignature, Damaged, InvalidValue
from shuffle_ledger.ledger.evidence import archive, bundle
from shuffle_ledger.ledger.evidence.findings import Findings
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.saved_heads import SavedHeads, saved_heads


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One cohort's entries as they are in a bundle."""

    cohort: str
    member: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A bundle that was opened."""

    chains: tuple[Chain, ...]
    heads: SavedHeads | None  # None: they cannot be read
    receipts: bytes | None = None  # None: there are none
    findings: Findings = field(default_factory=Findings)

    def cohorts(self) -> tuple[str, ...]:
        """Name the cohorts that there are chains of."""
        return tuple(chain.cohort for chain in self.chains)

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        """Yields a cohort's entries in order; a line that is not an entry is a finding, and left out."""
        for chain in self.chains:
            if chain.cohort != cohort:
                continue
            lines = chain.data.split(b"\n")
            if lines.pop() != b"":
                self._find(chain, len(lines) + 1, "it is not ended by a line feed")
            for number, line in enumerate(lines, start=1):
                entry = bundle.read_line(line, cohort)
                if entry is None:
                    self._find(chain, number, f"line {number} is not written as an entry")
                else:
                    yield entry

    def _find(self, chain: Chain, sequence: int, what: str) -> None:
        self.findings.add(what, member=chain.member, cohort=chain.cohort, sequence=sequence)


def open_bundle(data: bytes, trusted_public_key: bytes | None = None) -> Evidence:
    """Returns the contents of a bundle; every defect of the file as a bundle is a finding.

    Chains are not replayed here: see `evidence.bundle_verifier`.
    """
    findings = Findings()
    unpacked = archive.unpack(data)
    for member, what in unpacked.problems:
        findings.add(what, member=member)
    members = unpacked.members
    manifest = _manifest(members, findings)
    chains = _chains(members, manifest, findings)
    if not chains:
        findings.add("it contains no chain, so nothing in it is evidence of any budget")
    _compare_manifest(members, manifest, chains, findings)
    return Evidence(
        chains=chains,
        heads=_heads(members, trusted_public_key, findings),
        receipts=members.get(bundle.RECEIPTS),
        findings=findings,
    )


def _manifest(members: Mapping[str, bytes], findings: Findings) -> Mapping[str, Any]:
    if bundle.MANIFEST not in members:
        findings.add("it is missing", member=bundle.MANIFEST)
        return {}
    try:
        manifest = bundle.read_json(members[bundle.MANIFEST])
    except Damaged as error:
        findings.add(f"it cannot be read: {error}", member=bundle.MANIFEST)
        return {}
    if not isinstance(manifest, dict) or manifest.get("format") != bundle.BUNDLE_FORMAT:
        findings.add(f"it is not that of a {bundle.BUNDLE_FORMAT}", member=bundle.MANIFEST)
        return {}
    return manifest


def _chains(
    members: Mapping[str, bytes], manifest: Mapping[str, Any], findings: Findings
) -> tuple[Chain, ...]:
    chains = []
    for item in _items(manifest, "cohorts"):
        cohort, member = item.get("cohort"), item.get("member")
        if isinstance(cohort, str) and isinstance(member, str) and member in members:
            chains.append(Chain(cohort=cohort, member=member, data=members[member]))
        else:
            findings.add(
                f"it lists a chain that is not here: {cohort!r} in {member!r}", member=bundle.MANIFEST
            )
    listed = {chain.member for chain in chains}
    for name, data in members.items():
        # Members that the manifest does not list are read too.
        if name.startswith("chains/") and name not in listed:
            findings.add("the manifest names no cohort for it", member=name)
            chains.append(Chain(cohort=_cohort_in(data) or name, member=name, data=data))
    return tuple(chains)


def _cohort_in(data: bytes) -> str | None:
    entry = bundle.read_line(data.split(b"\n", 1)[0], "")
    try:
        return entry.content().cohort if entry is not None else None
    except Damaged:
        return None


def _items(manifest: Mapping[str, Any], field_name: str) -> list[Mapping[str, Any]]:
    listed = manifest.get(field_name)
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _compare_manifest(
    members: Mapping[str, bytes], manifest: Mapping[str, Any], chains: tuple[Chain, ...], findings: Findings
) -> None:
    """Find every member that differs from the manifest, and a manifest that is not what its members give."""
    if not manifest:
        return
    others = {name: data for name, data in members.items() if name != bundle.MANIFEST}
    listed = {str(item.get("name")): item for item in _items(manifest, "members")}
    for name in listed.keys() - others.keys():
        findings.add("it is missing, and in the manifest", member=name)
    for name, data in others.items():
        if listed.get(name) != bundle.listed_member(name, data):
            findings.add("its SHA-256 or its length is not the one in manifest.json", member=name)
    if others.get(bundle.FORMAT_NOTE) != bundle.FORMAT_TEXT.encode("utf-8"):
        what = "it is not the note" if bundle.FORMAT_NOTE in others else "it is missing, the note"
        findings.add(f"{what} that every bundle of this format has", member=bundle.FORMAT_NOTE)
    names = [chain.cohort for chain in chains]
    if len(set(names)) != len(names):
        findings.add("it gives one cohort two chains", member=bundle.MANIFEST)
    try:
        again = bundle.manifest_bytes({name: others[name] for name in sorted(others)}, names)
    except (ValueError, TypeError):
        again = b""
    if members[bundle.MANIFEST] != again or list(members) != [bundle.MANIFEST, *sorted(others)]:
        findings.add("it is not the manifest that the other members give", member=bundle.MANIFEST)


def _heads(
    members: Mapping[str, bytes], trusted_public_key: bytes | None, findings: Findings
) -> SavedHeads | None:
    if bundle.HEADS not in members:
        findings.add("it is missing", member=bundle.HEADS)
        return None
    try:
        value = bundle.read_json(members[bundle.HEADS])
        found = saved_heads(value, trusted_public_key)
    except (Damaged, InvalidValue, BadSignature) as error:
        findings.add(f"it cannot be relied on: {error}", member=bundle.HEADS)
        return None
    _compare_key(members, found, findings)
    return found


def _compare_key(members: Mapping[str, bytes], heads: SavedHeads, findings: Findings) -> None:
    beside = members.get(bundle.PUBLIC_KEY)
    signed = heads.checkpoint.public_key.hex().encode("ascii") + b"\n" if heads.checkpoint else None
    if beside != signed:
        what = f"it is not the key that {bundle.HEADS} is signed with" if signed else "nothing here is signed"
        findings.add(what, member=bundle.PUBLIC_KEY)
