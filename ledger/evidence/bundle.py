"""The evidence bundle: chains, heads and digests in one file, to be verified where no ledger is.

`docs/bundle-format.md` describes the format, so that anyone can write another verifier.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.errors import Damaged, NoCohort
from shuffle_ledger.ledger.evidence.archive import pack
from shuffle_ledger.ledger.receipts import receipts_document
from shuffle_ledger.ledger.reports.budgets import heads
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE, LedgerEntry
from shuffle_ledger.ledger.values.signing import SigningKey

BUNDLE_FORMAT: Final = "shuffle-ledger-bundle-1"
MANIFEST: Final = "manifest.json"
FORMAT_NOTE: Final = "FORMAT.md"
HEADS: Final = "heads.json"  # a checkpoint, or plain heads if the ledger does not sign
PUBLIC_KEY: Final = "public-key.txt"
RECEIPTS: Final = "receipts.json"  # only where there are some
_LINE = re.compile(rb"([1-9][0-9]{0,18}) ([0-9a-f]{64}) ([0-9a-f]{64}) ([^\n]+)", re.DOTALL)

FORMAT_TEXT: Final = """\
# What this is

An evidence bundle of shuffle-ledger: the complete record of one or more privacy budgets, for checking on a
computer that has no ledger. `shuffle-ledger audit verify FILE` checks it, and computes its numbers again.

    manifest.json      every other file here, with its length and SHA-256; every cohort, with its last entry
    heads.json         the last entry of every chain, as a signed checkpoint or as a plain list
    public-key.txt     the Ed25519 key of the signature, if there is one: compare it with the one you know
    receipts.json      the receipts of releases, if there are some: JSON web signatures, each with the keys
                       of its releaser and of its permit: compare these with those you know
    chains/NNNNNN.txt  one cohort's entries, in order, one per line

A line is `sequence previous_digest digest body`, separated by single spaces and ended by a line feed; digests
are hexadecimal, the body is JSON. An entry's digest is the SHA-256 of five parts, each preceded by its length
as 8 bytes, most significant first:

    the text shuffle-ledger/entry/1
    the cohort's name, in UTF-8
    the sequence, 8 bytes
    the previous digest, 32 bytes
    the body, byte for byte

The first entry has sequence 1 and a previous digest of zeros. A floating-point number in a body is the
shortest decimal number that reads as the same double; infinity is written {"$float": "inf"}.
"""


@dataclass(frozen=True, kw_only=True)
class BundleMade:
    """A bundle that was made."""

    data: bytes
    sha256: str  # of the whole file: quote it beside the statement
    cohorts: tuple[str, ...]
    entries: int
    public_key: str | None  # hexadecimal; None: not signed


def make_bundle(
    store: Store,
    cohorts: Iterable[str],
    *,
    signing_key: SigningKey | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> BundleMade:
    """Return the evidence of cohorts: their chains up to the heads of one moment, signed if there is a key.

    Args:
        checkpoint: signed heads made a moment ago, to use instead of making new ones.

    **Guarantee**: the same ledger, heads and receipts give the same bytes.

    Raises:
        NotFound: no such cohort.
        Damaged: a chain does not reach the head that is signed; `audit verify` says where.
    """
    if checkpoint is None and signing_key is not None:
        checkpoint = make_checkpoint(store, signing_key)
    named = checkpoint.to_json() if checkpoint is not None else heads(store)
    last = {head["cohort"]: (head["sequence"], head["digest"]) for head in named["heads"]}
    members: dict[str, bytes] = {}
    count = 0
    names = sorted(set(cohorts))
    for number, name in enumerate(names, start=1):
        if name not in last:
            raise NoCohort(name)
        chain = io.BytesIO()  # a chain may be large: its lines are in memory once
        chain.writelines(_lines(store, name, *last[name]))
        members[f"chains/{number:06}.txt"] = chain.getvalue()
        count += last[name][0]
        if progress is not None:
            progress("writing chains", number, len(names))
    members[FORMAT_NOTE] = FORMAT_TEXT.encode("utf-8")
    members[HEADS] = json_bytes(named)
    kept = receipts_document(store, names)
    if kept:
        members[RECEIPTS] = json_bytes({"receipts": kept})
    if checkpoint is not None:
        members[PUBLIC_KEY] = checkpoint.public_key.hex().encode("ascii") + b"\n"
    members = {name: members[name] for name in sorted(members)}
    data = pack({MANIFEST: manifest_bytes(members, names), **members})
    return BundleMade(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        cohorts=tuple(names),
        entries=count,
        public_key=checkpoint.public_key.hex() if checkpoint is not None else None,
    )


def manifest_bytes(members: Mapping[str, bytes], cohorts: Iterable[str]) -> bytes:
    """Return the manifest of members, chains of `cohorts` in order among them: it follows from them."""
    chains = [name for name in members if name.startswith("chains/")]
    listed = []
    for cohort, member in zip(cohorts, chains, strict=True):
        last = _last_line(members[member])
        head = {"sequence": int(last[1]), "digest": last[3].decode("ascii")} if last else None
        count = members[member].count(b"\n")
        listed.append({"cohort": cohort, "member": member, "entries": count, "head": head})
    content = {
        "format": BUNDLE_FORMAT,
        "members": [listed_member(name, data) for name, data in members.items()],
        "cohorts": listed,
    }
    return json_bytes(content)


def listed_member(name: str, data: bytes) -> dict[str, Any]:
    """Return how the manifest lists a member."""
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return a mapping without floats as the one JSON text that a bundle has of it."""
    return canonical.encode(content) + b"\n"


def read_json(data: bytes) -> Any:
    """Return the value of which `data` is the one JSON text; raises Damaged."""
    if not data.endswith(b"\n"):
        raise Damaged("it does not end with a line feed")
    return canonical.decode(data[:-1])


def read_line(line: bytes, cohort: str) -> LedgerEntry | None:
    """Return the entry on a line without its line feed; None when it is not written as one.

    `kind` and `round_id` are not on the line: they are taken from the body, where it can be read.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    sequence, previous, digest, body = found.groups()
    try:
        content = json.loads(body)
        kind, round_id = str(content["kind"]), content["round_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind, round_id = "", None
    return LedgerEntry(
        cohort=cohort,
        sequence=int(sequence),
        kind=kind,
        round_id=round_id,
        body=body,
        previous_digest=bytes.fromhex(previous.decode("ascii")),
        digest=bytes.fromhex(digest.decode("ascii")),
    )


def _lines(store: Store, cohort: str, last: int, digest: str) -> Iterator[bytes]:
    expected = FIRST_SEQUENCE
    reached = ""
    for entry in store.entries_of(cohort):
        if entry.sequence != expected or b"\n" in entry.body:
            break
        reached = entry.digest.hex()
        head = f"{entry.sequence} {entry.previous_digest.hex()} {reached} "
        yield head.encode("ascii") + entry.body + b"\n"
        expected += 1
        if entry.sequence == last:
            break
    if (expected - 1, reached) != (last, digest):
        raise Damaged(f"cohort {cohort!r}: its chain does not lead to its head, entry {last}")


def _last_line(chain: bytes) -> re.Match[bytes] | None:
    return _LINE.fullmatch(chain[chain.rfind(b"\n", 0, -1) + 1 : -1]) if chain.endswith(b"\n") else None
