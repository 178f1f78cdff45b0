"""`permit`: permits of admitted rounds, their keys, and the receipts of releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.failures import BadValue, ExitCode
from shuffle_ledger.cli.files.output_files import write_whole
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    NO_LEDGER,
    TEXT,
    asking_options,
    database_options,
    output_options,
    releaser_option,
    server_refused,
)
from shuffle_ledger.cli.rendering.present import facts, present
from shuffle_ledger.ledger.errors import BadSignature
from shuffle_ledger.ledger.permits import IssuedPermit, PermitKeys, jwk
from shuffle_ledger.ledger.receipts import Receipt, read_receipt, receipt_problems, stored_receipts
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values import SigningKey

_OUTPUT = click.option("--output", "-o", type=NEW_FILE, metavar="FILE", help="Write it to this file.")


@click.command("issue")
@click.argument("round_id", metavar="ID")
@releaser_option
@_OUTPUT
@asking_options
@output_options
def issue_(round_id: str, releaser: str | None, output: Path | None, as_json: bool, **where: Any) -> None:
    """Sign the permit of the admitted round ID. Asked again, it is the same permit."""
    with open_ledger(**where) as ledger:
        issued = ledger.permit(round_id, releaser=releaser)
    _write(output, issued.permit)
    present(issued, lambda: permit_facts(issued, output), as_json=as_json)


def permit_facts(issued: IssuedPermit, output: Path | None) -> Table:
    """Returns a permit as a table for people."""
    rows = {
        "event": issued.event,
        "for": issued.releaser or "any releaser",
        "expires at": issued.expires_at.isoformat(timespec="seconds"),
        "file": str(output) if output else "none: printed by --json, written by --output",
    }
    return facts(f"Permit of round {issued.round_id}", rows)


@click.command("keys")
@_OUTPUT
@asking_options
@output_options
def keys_(output: Path | None, as_json: bool, **where: Any) -> None:
    """Print the public keys of permits, retired ones included, as a JWK set for gates."""
    with open_ledger(**where) as ledger:
        found = ledger.permit_keys()
    _write(output, json.dumps(found))
    names = {key["kid"]: "published" for key in found["keys"]}
    present(found, lambda: facts(f"Keys of permits of ledger {found['ledger']}", names), as_json=as_json)


@click.command("revoked")
@_OUTPUT
@asking_options
@output_options
def revoked_(output: Path | None, as_json: bool, **where: Any) -> None:
    """Print the signed list of permits that count no more, which is good for an hour."""
    with open_ledger(**where) as ledger:
        token = ledger.revoked_permits()
    _write(output, token)
    present({"revoked": token}, lambda: token if output is None else f"written to {output}", as_json=as_json)


@click.command("keygen")
@click.argument("file", type=NEW_FILE)
@click.option("--name", type=TEXT, metavar="NAME", help="Of a releaser (default: the key's thumbprint).")
@_OUTPUT
@server_refused(NO_LEDGER)
@output_options
def keygen(file: Path, name: str | None, output: Path | None, as_json: bool) -> None:
    """Make a key that signs permits or receipts, in the new FILE; print its public half as a JWK set."""
    key = SigningKey.generate()
    key.save(file)
    public = {"keys": [jwk(key.public_key_bytes, name)]}
    _write(output, json.dumps(public))
    rows = {"file": str(file), "public key": public["keys"][0]["x"]}
    present(public, lambda: facts(f"Key {public['keys'][0]['kid']}", rows), as_json=as_json)


@click.command("verify")
@click.argument("receipts", type=FILE, metavar="[RECEIPTS]", required=False)
@database_options("receipts are compared with its chains; of a server, take a bundle and `audit verify`")
@output_options
def verify_(receipts: Path | None, settings: Settings, as_json: bool) -> int:
    """Compare receipts with the ledger: exits with 6 if they differ.

    These are the receipts that the ledger keeps, and those in the file RECEIPTS. Each line of it has a
    receipt, or is a line of a gate's state.
    """
    bad, kept = list[dict[str, str]](), list[Receipt]()
    with open_session(settings) as session:
        keys, known = PermitKeys.of(settings, session.store.ledger_id()), stored_receipts(session.store)
        for token in _lines(receipts) if receipts else ():
            try:
                kept.append(read_receipt(token, releasers=keys.releasers, permits=keys.published))
            except BadSignature as error:
                bad.append({"receipt": token[:80], "what": str(error)})
        every = {each.digest: each for each in [*known, *kept]}
        found = receipt_problems(every.values(), session.store.entries_about)
    problems = bad + [
        {"receipt": each.digest, "round_id": each.permit.round_id, "releaser": each.releaser, "what": what}
        for each, what in found
    ]
    document = {"ok": not problems, "receipts": len(every) + len(bad), "problems": problems}
    rows = {f"{each.get('round_id', '')} {each['receipt'][:16]}": each["what"] for each in problems}
    title = f"Receipts: {document['receipts']}, {'NOT as the chains say' if problems else 'all agree'}"
    present(document, lambda: facts(title, rows), as_json=as_json)
    return ExitCode.NOT_VERIFIED if problems else ExitCode.DONE


def _write(output: Path | None, text: str) -> None:
    if output is not None:
        write_whole(output, text + "\n")


def _lines(file: Path) -> Iterator[str]:
    for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), start=1):
        try:
            token = json.loads(line)["receipt"] if line.startswith("{") else line.strip()
        except (ValueError, KeyError, RecursionError) as error:
            raise BadValue("RECEIPTS", line, "a receipt", f"{file}, line {number} has no receipt") from error
        if token:
            yield str(token)
