"""Checkpoints on a schedule: signed, written where the settings say, never over what the ledger has lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shuffle_ledger.ledger import files
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.errors import BadSignature, Damaged, InvalidValue
from shuffle_ledger.ledger.storage import anchor, engine
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.census import broken_chains
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.signing import SigningKey, read_public_key

if TYPE_CHECKING:
    from shuffle_ledger.ledger.settings import Settings

LATEST = "checkpoint.json"
MISSED_MAX = 3  # consecutive misses before an alarm


def trusted_key(settings: Settings) -> bytes | None:
    """Return the public key that the settings trust for what the scheduler signs; raises InvalidValue."""
    if settings.checkpoint_key is not None:
        return read_public_key(settings.checkpoint_key)
    return None if settings.signing_key is None else SigningKey.load(settings.signing_key).public_key_bytes


@dataclass(frozen=True, kw_only=True)
class ScheduledCheckpoints:
    """Where checkpoints are written on a schedule: the latest one, and the last one of each day."""

    directory: Path
    every_seconds: float
    trusted_public_key: bytes | None = None

    @classmethod
    def of(cls, settings: Settings) -> ScheduledCheckpoints | None:
        """Return what the settings say; None where they name no directory. Raises InvalidValue."""
        if settings.checkpoint_directory is None:
            return None
        key = settings.checkpoint_key
        return cls(
            directory=settings.checkpoint_directory,
            every_seconds=settings.checkpoint_every_seconds,
            trusted_public_key=read_public_key(key) if key else None,
        )

    def write(self, store: Store, signing_key: SigningKey) -> Checkpoint:
        """Sign the heads of all chains and write them, as the latest checkpoint and as today's.

        **Guarantee**: a checkpoint is replaced only by one that extends it, and nothing is signed that the
        last verification found damaged.

        Raises:
            BehindCheckpoint: the ledger lacks what the last checkpoint, or the store's anchor, has seen.
            BadSignature, InvalidValue: the last checkpoint was changed; nothing was written.
            Damaged: verification found something.
            OSError: a file cannot be written, or another process has been writing for too long.
        """
        with engine.reading_once(store.engine) as connection:
            broken = broken_chains(connection, limit=anchor.NAMED_MAX)
        if broken:
            names = ", ".join(each.cohort for each in broken)
            raise Damaged(f"verification found something in {names}: such heads are not signed")
        # From reading the last one to writing the next: two schedulers at once do not undo each other's.
        with files.alone_in(self.directory):
            before = self._last_file()
            if before is not None:
                anchor.refuse_losses(store.engine, self._read(before))
            made = make_checkpoint(store, signing_key)
            content = json.dumps(made.to_json(), ensure_ascii=False).encode("utf-8") + b"\n"
            for name in (f"checkpoint-{made.created_at:%Y-%m-%d}.json", LATEST):
                files.write_bytes_whole(self.directory / name, content)
            return made

    def look(self, store: Store, now: datetime) -> tuple[datetime | None, list[str]]:
        """Returns the time of the last checkpoint, and the problems with it, as sentences."""
        path = self._last_file()
        if path is None:
            return None, ["there is none yet"]
        try:
            last = self._read(path)
        except (BadSignature, InvalidValue) as error:
            return None, [str(error)]
        with engine.reading(store.engine) as connection:
            lost = anchor.losses(connection, last)
        wrong = [f"the ledger is behind it: {lost.describe()}"] if lost else []
        seconds = (now - last.created_at).total_seconds()
        if seconds > (MISSED_MAX + 1) * self.every_seconds:
            wrong.append(f"the last one is {seconds:.0f} seconds old")
        return last.created_at, wrong

    def _read(self, path: Path) -> Checkpoint:
        return Anchor(path=path, trusted_public_key=self.trusted_public_key).read()

    def _last_file(self) -> Path | None:
        """Return the latest checkpoint's file; without it the last day's: removing it gains nothing."""
        latest = self.directory / LATEST
        if latest.exists():
            return latest
        return max(self.directory.glob("checkpoint-????-??-??.json"), default=None)
