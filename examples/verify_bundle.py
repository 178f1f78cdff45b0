"""Checks an evidence bundle of shuffle-ledger with Python's standard library alone: `verify_bundle.py FILE`.

It shares no code with shuffle-ledger. It checks every digest, every link of every chain, that each chain
ends with the head in heads.json, and that chains say the same of rounds of several cohorts. It checks neither
the signature of heads.json, for Ed25519 is not in the standard library, nor the numbers: `shuffle-ledger
audit verify FILE` does both. The exit code is 0 when all it checks holds, else 1. See docs/bundle-format.md.
"""

import hashlib
import json
import re
import sys
import zipfile

# What entries say of a round of several cohorts: the same in the chains of all of them.
SHARED = {
    "admitted": ("request",),
    "refused": ("request", "refused_by"),
    "settled": ("reports",),
    "voided": ("reason", "attestation"),
    "corrected": ("round", "reason"),
    "incident": ("request", "registered_by", "round", "released", "reason"),
}
# SHA-256 of FORMAT.md, whose bytes are the same in every bundle.
NOTE = "f34e2e5ee120dd2e9152adb5826ac21a461c323c80cbba96fde161a0d3c39b1c"
LINE = re.compile(rb"([1-9][0-9]*) ([0-9a-f]{64}) ([0-9a-f]{64}) (.+)")


def digest_of(cohort, sequence, previous, body):
    """Returns the digest of an entry: SHA-256 over five parts, each preceded by its length."""
    found = hashlib.sha256()
    for part in (b"shuffle-ledger/entry/1", cohort.encode(), sequence.to_bytes(8, "big"), previous, body):
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


def read_chain(cohort, data):
    """Returns what is wrong with a chain, and its last entry's sequence and digest."""
    found, sequence, previous = [], 0, bytes(32)
    if not data.endswith(b"\n"):
        found.append("its last line is not ended")
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        fields = LINE.fullmatch(line)
        if not fields:
            found.append(f"entry {number}: the line is not written as an entry")
            continue
        stated, before, digest, body = fields.groups()
        before, digest = bytes.fromhex(before.decode()), bytes.fromhex(digest.decode())
        if int(stated) != sequence + 1:
            found.append(f"entry {number}: it is numbered {int(stated)}, after {sequence}")
        if before != previous:
            found.append(f"entry {number}: it does not continue from the entry before it")
        if digest_of(cohort, int(stated), before, body) != digest:
            found.append(f"entry {number}: its digest is not that of its content")
        try:
            content = json.loads(body)
            if (content["cohort"], content["sequence"]) != (cohort, int(stated)):
                found.append(f"entry {number}: it says that it belongs elsewhere")
            if any(type(each) is not int for each in (content["sequence"], content["version"])):
                found.append(f"entry {number}: its sequence or its version is no whole number")
        except (ValueError, KeyError, TypeError):
            found.append(f"entry {number}: its body is not that of an entry")
        sequence, previous = int(stated), digest
    return found, sequence, previous.hex()


def recorded_later(data, signed_at):
    """Yields which entries were recorded after the moment at which the heads were signed, if they were."""
    for line in data.split(b"\n")[:-1] if signed_at else ():
        fields = LINE.fullmatch(line)
        moment = json.loads(fields.group(4)).get("recorded_at", "") if fields else ""
        if moment > signed_at:  # both in UTC with microseconds, so the order of texts is that of moments
            yield f"entry {fields.group(1).decode()}: it was recorded after the heads were signed"


def joint_rounds(data):
    """Returns what a chain says of each round of several cohorts: its audience, and facts in order; and
    whether the chain is frozen, so that it may have lost some.
    """
    rounds, frozen = {}, False
    for line in data.split(b"\n"):
        fields = LINE.fullmatch(line)
        body = json.loads(fields.group(4)) if fields else {"kind": None}
        frozen = frozen or body["kind"] == "frozen"
        if body["kind"] not in SHARED:
            continue
        details, name = body["details"], body["round_id"]
        audience = details.get("request", {}).get("audience")
        if audience:
            rounds.setdefault(name, (audience, []))
        if name in rounds:
            said = {each: details[each] for each in SHARED[body["kind"]]}
            rounds[name][1].append((body["kind"], body["actor"], said))
    return rounds, frozen


def disagreements(chains):
    """Yields which rounds two chains say otherwise of, where both are here and none is frozen."""
    said = {cohort: joint_rounds(data) for cohort, data in chains.items()}
    for cohort, (rounds, frozen) in said.items():
        for name, (audience, facts) in rounds.items():
            for other in audience:
                theirs, other_frozen = said.get(other, ({}, True))
                if not (frozen or other_frozen) and theirs.get(name, (audience, []))[1] != facts:
                    yield f"round {name}: the chains of {cohort} and {other} say otherwise"


def problems(path):
    """Yields everything that is wrong with a bundle."""
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            yield f"{archive.testzip()}: its checksum in the archive is wrong"
            return
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    if manifest["format"] != "shuffle-ledger-bundle-1":
        yield f"manifest.json: unknown format {manifest['format']}"
    listed = {item["name"]: item for item in manifest["members"]}
    for name in sorted(members.keys() ^ listed.keys()):
        yield f"{name}: it is {'missing' if name in listed else 'not in the manifest'}"
    for name in sorted(members.keys() & listed.keys()):
        stated = (listed[name]["bytes"], listed[name]["sha256"])
        if stated != (len(members[name]), hashlib.sha256(members[name]).hexdigest()):
            yield f"{name}: its length or SHA-256 is not the one in the manifest"
    if hashlib.sha256(members.get("FORMAT.md", b"")).hexdigest() != NOTE:
        yield "FORMAT.md: it is not the note that every bundle has"
    if not manifest["cohorts"]:
        yield "manifest.json: it lists no chain"
    signed = json.loads(members["heads.json"])
    heads = {head["cohort"]: head for head in signed["heads"]}
    for item in manifest["cohorts"]:
        cohort, name = item["cohort"], item["member"]
        found, sequence, digest = read_chain(cohort, members[name])
        yield from (f"{name}: {what}" for what in found)
        yield from (f"{name}: {what}" for what in recorded_later(members[name], signed.get("created_at")))
        stated = heads.get(cohort, {"sequence": None, "digest": None})
        if (stated["sequence"], stated["digest"]) != (sequence, digest):
            yield f"{name}: the chain ends with entry {sequence}, {digest}; heads.json says otherwise"
    yield from disagreements({item["cohort"]: members[item["member"]] for item in manifest["cohorts"]})


def main():
    """Prints what is wrong, or that nothing is."""
    try:
        found = list(problems(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - whatever a changed file makes of it, the verdict is that it was changed
        found = [f"the bundle cannot be read: {type(error).__name__}: {error}"]
    print("\n".join(found) or "Digests, chains and heads hold. Signature and numbers were not checked.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
