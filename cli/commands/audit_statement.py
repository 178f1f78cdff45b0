"""`audit statement`: the promise to a cohort's users, whether it was kept, and the evidence."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, Literal

import click

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.backends.settings import settings_from
from shuffle_ledger.cli.failures import ExitCode, require
from shuffle_ledger.cli.files.fields import Misread, whole_number
from shuffle_ledger.cli.files.output_files import checked_place, write_bytes_whole
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    WHOLE,
    asking_options,
    output_options,
    signing_key_option,
)
from shuffle_ledger.cli.rendering.audit_views import alarm_lines
from shuffle_ledger.cli.rendering.present import document_of, present
from shuffle_ledger.cli.rendering.progress import progress_on
from shuffle_ledger.ledger.checkpoints import sign_standing
from shuffle_ledger.ledger.errors import DoesNotExtend
from shuffle_ledger.ledger.evidence import AsOf, Statement, StatementWanted, read_earlier_heads
from shuffle_ledger.ledger.values import DAY_EXPECTED, NotADay, SigningKey, day_from

LOST = "entries were lost when the database was put back, and what they spent is unknown"
UNKNOWN_PERIOD = "its record was changed or entries were lost: whether its promise is kept cannot be said"
Form = Literal["html", "pdf", "json"]
_BEGINS_WITH_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
# The libraries of extras that set each form, the one whose extra brings the other first.
_NEEDED: Mapping[Form, tuple[str, ...]] = {
    "html": ("jinja2", "matplotlib"),
    "pdf": ("typst", "matplotlib"),
    "json": (),
}
_OF_SUFFIX: Mapping[str, Form] = {".htm": "html", **{f".{form}": form for form in _NEEDED}}


class AsOfType(click.ParamType[AsOf]):
    """Reads a sequence, a day (its end) or a moment (UTC unless it says otherwise)."""

    name = "an entry's sequence, a day as YYYY-MM-DD, or a moment as YYYY-MM-DDTHH:MM:SS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        if not isinstance(value, str):
            return None
        text = value.strip()
        for read in (whole_number, _end_of_day, _moment):
            try:
                return read(text)
            except (Misread, NotADay) as meant:
                if _BEGINS_WITH_DAY.match(text) and str(meant) != DAY_EXPECTED:
                    return self.fail(f"got {value!r}, expected {meant}", param, ctx)
            except ValueError:
                continue
        return self.fail(f"got {value!r}, expected {self.name}", param, ctx)


@click.command()
@click.argument("cohort", required=False)
@click.option("--all", "every", is_flag=True, help="All cohorts, in one statement.")
@click.option(
    "--as-of", type=AsOfType(), metavar="WHEN", help="What stood then: SEQUENCE, day or moment (UTC)."
)
@click.option("--since", type=WHOLE, metavar="SEQUENCE", help="Also say what changed after this entry.")
@click.option(
    "--extends",
    type=FILE,
    help="Prove that it extends this: an earlier checkpoint, heads, or JSON statement.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "pdf", "json"]),
    help="As what.  [default: as the name of the file ends, else html; json for --json without -o]",
)
@click.option("--output", "-o", type=NEW_FILE, help="Write the statement there; else to standard output.")
@click.option("--bundle", type=NEW_FILE, metavar="FILE.zip", help="Write the evidence, for `audit verify`.")
@signing_key_option
@asking_options
@output_options
def statement(
    cohort: str | None,
    every: bool,
    as_of: AsOf,
    since: int | None,
    extends: Path | None,
    form: Form | None,
    output: Path | None,
    bundle: Path | None,
    signing_key: Path | None,
    as_json: bool,
    **where: Any,
) -> int:
    """State what was promised to COHORT's users, and whether it was kept: exits with 6 if unknown.

    With --json, standard output is the JSON statement, or with -o a summary of what was written.
    """
    _check_usage(cohort, as_of, since, every=every)
    form = _form(form, output, bundle, as_json=as_json)
    for module in _NEEDED[form]:
        require(module)
    path = signing_key or settings_from().signing_key
    key = SigningKey.load(path) if path is not None else None
    earlier = read_earlier_heads(extends) if extends else []
    sequences = {name: head.sequence for name, head in earlier}
    if extends is not None and cohort is not None:
        _check_earlier_head(extends, sequences, cohort)
    names = (cohort,) if cohort is not None else None
    wanted = StatementWanted(cohorts=names, as_of=as_of, since=since, kept=tuple(earlier))
    opening = open_ledger(**where)
    with opening as ledger, progress_on(sys.stderr) as tell:
        checkpoint = sign_standing(ledger.standing(follows=None), key) if key is not None else None
        made = ledger.statement(wanted, checkpoint=checkpoint, progress=tell)
        evidence = b""
        if bundle is not None:
            evidence = ledger.bundle(names, checkpoint=checkpoint, progress=tell)
            write_bytes_whole(bundle, evidence)
    content = _SETTERS[form](made)
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return _exit_code(made)
    write_bytes_whole(output, content)
    if as_json:
        written = {
            "output": str(output),
            "format": form,
            "sha256": _sha256(content),
            "bundle": {"output": str(bundle), "sha256": _sha256(evidence)} if bundle is not None else None,
            "cohorts": {
                each.cohort: {"verdict": each.verdict, "status": each.status, "head": each.head}
                for each in made.cohorts
            },
        }
        present(written, lambda: "", as_json=True)
    return _exit_code(made)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_usage(cohort: str | None, as_of: AsOf, since: int | None, *, every: bool) -> None:
    if (cohort is None) == (not every):
        raise click.UsageError("name one COHORT, or say --all")
    if every and (isinstance(as_of, int) or since is not None):
        message = "--as-of takes a day or a moment with --all, and --since nothing: entries count by cohort"
        raise click.UsageError(message)


def _check_earlier_head(file: Path, sequences: Mapping[str, int], cohort: str) -> None:
    name = unicodedata.normalize("NFC", cohort)  # as the ledger stores it
    if name not in sequences:
        message = f"{file} holds no head of cohort {name!r}: nothing shows that its record only grew since"
        raise DoesNotExtend(message)


def _form(form: Form | None, output: Path | None, bundle: Path | None, *, as_json: bool) -> Form:
    for path in (output, bundle):
        if path is not None:
            checked_place(path)  # before what may take minutes
    if output is not None and bundle is not None and output.resolve() == bundle.resolve():
        raise click.UsageError("-o and --bundle name the same file")
    if as_json and output is None and form not in (None, "json"):
        raise click.UsageError(f"--json prints JSON and nothing else: name a file with -o for {form}")
    if bundle is not None and bundle.suffix.lower() in _OF_SUFFIX:
        raise click.UsageError(f"--bundle: got {bundle.name!r}, expected a name that ends in .zip")
    if output is None:
        return form or ("json" if as_json else "html")
    return _form_of_file(form, output)


def _form_of_file(form: Form | None, output: Path) -> Form:
    """Returns the form of what is written to a file, as its name says; a name without a suffix says none."""
    named = _OF_SUFFIX.get(output.suffix.lower())
    if form is None and named is None and output.suffix:
        known = "a name that ends in .html, .pdf or .json, or --format"
        raise click.UsageError(f"-o: got {output.name!r}, expected {known}")
    if form is not None and named not in (None, form):
        raise click.UsageError(
            f"-o: got {output.name!r}, expected a name that ends in .{form}, or --format {named}"
        )
    return form or named or "html"


def _exit_code(made: Statement) -> ExitCode:
    for line in alarm_lines(made.broken, []):
        sys.stderr.write(f"shuffle-ledger: {line}\n")
    why = {each.cohort: (*each.chain_problems, LOST)[0] for each in made.cohorts}
    for name in made.unknown:
        sys.stderr.write(f"shuffle-ledger: {name}: {why.get(name, UNKNOWN_PERIOD)}\n")
    return ExitCode.NOT_VERIFIED if made.unknown else ExitCode.DONE


def statement_files_here() -> dict[str, Callable[[Statement], bytes]]:
    """Returns how statements are set as files for people, where the libraries for that are installed."""
    return {
        form: _SETTERS[form]
        for form in _SETTERS
        if all(importlib.util.find_spec(module) for module in _NEEDED[form])
    }


def _html(made: Statement) -> bytes:
    from shuffle_ledger.cli.rendering.statements.html import html  # noqa: PLC0415 - Matplotlib takes a second to import

    return html(made)


def _pdf(made: Statement) -> bytes:
    from shuffle_ledger.cli.rendering.statements.pdf import pdf  # noqa: PLC0415 - nor for Typst

    return pdf(made)


def _json(made: Statement) -> bytes:
    return (json.dumps(document_of(made), allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


_SETTERS: Mapping[Form, Callable[[Statement], bytes]] = {
    "html": _html,
    "pdf": _pdf,
    "json": _json,
}


def _end_of_day(text: str) -> datetime:
    return datetime.combine(day_from(text), time.max, tzinfo=UTC)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
