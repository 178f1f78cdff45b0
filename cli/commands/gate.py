"""`gate`: whether a batch of reports may be released, asked without a ledger."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click

from shuffle_ledger.accounting import parse_randomizer
from shuffle_ledger.cli.failures import BadValue, RefusedByGate
from shuffle_ledger.cli.files.output_files import checked_place, write_whole
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    NO_LEDGER,
    REAL,
    TEXT,
    WHOLE,
    output_options,
    server_refused,
)
from shuffle_ledger.cli.rendering.present import facts, present
from shuffle_ledger.gate import LEEWAY_SECONDS, Gate, GateRefused


@click.command("gate")
@click.option("--permit", type=FILE, required=True, help="The permit of the round.")
@click.option("--count", type=WHOLE, required=True, metavar="N", help="Reports in the batch.")
@click.option("--randomizer", metavar="R", help="What the devices ran; must be the permit's.")
@click.option("--revoked", type=FILE, help="The signed list of revoked permits (`permit revoked`).")
@click.option(
    "--keys",
    type=FILE,
    default="permit-keys.json",
    show_default=True,
    envvar="SHUFFLE_LEDGER_GATE_KEYS",
    show_envvar=True,
    help="The ledger's public keys (`permit keys`).",
)
@click.option(
    "--state",
    type=NEW_FILE,
    default="gate-state.jsonl",
    show_default=True,
    envvar="SHUFFLE_LEDGER_GATE_STATE",
    show_envvar=True,
    help="This gate's list of released rounds.",
)
@click.option("--ledger", type=TEXT, metavar="ID", help="The accepted ledger (default: that of the keys).")
@click.option("--releaser", type=TEXT, metavar="NAME", help="This gate's name.")
@click.option("--signing-key", type=FILE, help="This gate's key, which signs the receipt.")
@click.option("--receipt", type=NEW_FILE, help="Write the receipt to this file.")
@click.option("--batch", type=FILE, help="What will be released: the receipt gets its SHA-256.")
@click.option(
    "--leeway",
    type=REAL,
    default=LEEWAY_SECONDS,
    metavar="SECONDS",
    help=f"By which clocks may differ (default: {LEEWAY_SECONDS}).",
)
@click.option("--check", is_flag=True, help="Only check: use nothing up and sign nothing.")
@server_refused(NO_LEDGER)
@output_options
def gate(
    permit: Path,
    count: int,
    randomizer: str | None,
    revoked: Path | None,
    keys: Path,
    state: Path,
    ledger: str | None,
    releaser: str | None,
    signing_key: Path | None,
    receipt: Path | None,
    batch: Path | None,
    leeway: float,
    check: bool,
    as_json: bool,
) -> None:
    """Say whether a batch of N reports may be released, and use its permit up.

    Release the batch after that, never before. Exits with 0 if it may be released, and with a code from 10 on
    for each reason why not: docs/permits.md lists them.
    """
    if receipt is not None and signing_key is None:
        raise click.UsageError("--receipt needs --signing-key, which signs it")
    known = _read_json(keys)
    pem = signing_key.read_bytes() if signing_key else None
    try:
        door = Gate(
            known, state=state, ledger=ledger, releaser=releaser, signing_key=pem, leeway_seconds=leeway
        )
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    token = permit.read_text("utf-8", "replace")
    listed = revoked.read_text("utf-8", "replace") if revoked else None
    digest = _digest(batch) if batch else None
    # As the permit names it, with the parameters that were left out.
    asked: dict[str, Any] = {
        "randomizer": parse_randomizer(randomizer).describe() if randomizer is not None else None
    }
    asked |= {"count": count, "revoked": listed}
    if receipt is not None:
        checked_place(receipt)  # before the permit is used up
    said: dict[str, object] = {"randomizer_checked": randomizer is not None, "revoked_checked": bool(listed)}
    try:
        if check:
            found = door.check(token, **asked)
            said |= {"round_id": found.round_id, "count": count, "used": False}
        else:
            said |= {**vars(door.release(token, **asked, batch_sha256=digest)), "used": True}
    except GateRefused as error:
        raise RefusedByGate(str(error), code=error.code, kind=error.kind, receipt=error.receipt) from error
    if receipt is not None and not check:
        write_whole(receipt, f"{said['receipt']}\n")
    rows: dict[str, object] = {"batch": f"{'could' if check else 'may'} be released", "reports": count}
    rows |= {"randomizer": "checked" if randomizer else "NOT checked: none was given"}
    rows["revocations"] = "checked" if listed else "NOT checked: no list was given"
    rows["receipt"] = str(receipt) if receipt else "none" if check or not pem else "printed by --json"
    present(
        {"released": not check, **said},
        lambda: facts(f"Round {said['round_id']}", rows),
        as_json=as_json,
    )


def _read_json(keys: Path) -> Any:
    try:
        return json.loads(keys.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadValue("--keys", str(keys), "a JWK set, as `permit keys -o FILE` writes it") from error


def _digest(batch: Path) -> str:
    with batch.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
