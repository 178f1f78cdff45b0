"""Long work, statements and verifications: done in the background, kept for a while, and bounded."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.errors import InvalidValue, NotFound, TryAgain
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.operations import State, StatementProgress, VerificationProgress

WAIT_SECONDS: Final = 25.0  # for an answer before it is made in the background; proxies wait for a minute
UNFINISHED_MAX: Final = 8  # jobs in line or under way
KEPT_MAX: Final = 32  # finished jobs
KEPT_BYTES_MAX: Final = 64 << 20  # of all of their answers
DOCUMENT_BYTES_MAX: Final = 32 << 20  # of one that is kept
KEPT_SECONDS: Final = 3600.0

Work = Callable[[Accountant, Progress], bytes]
Kind = Literal["statement", "verification"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A question. Equal questions share a job."""

    kind: Kind
    what: object  # hashable: of this kind, all that determines the answer
    form: str = "json"  # of the answer
    cohorts: tuple[str, ...] | None  # that the answer is about; None: all


@dataclass(kw_only=True)
class Job:
    """One answer that was asked for."""

    wanted: Wanted
    job_id: str = field(default_factory=lambda: secrets.token_hex(16))
    task: asyncio.Task[bytes] | None = None
    told: tuple[str, int, int] | None = None
    finished_at: float | None = None
    is_kept: bool = False  # somebody was told that it is made in the background

    def tell(self, step: str, done: int, of: int) -> None:
        """Remember how far the work is."""
        self.told = (step, done, of)

    def progress(self) -> StatementProgress | VerificationProgress:
        """Return how far it is."""
        step, done, of = self.told or (None, None, None)
        state: State = "waiting" if self.told is None else "making"
        if self.wanted.kind == "verification":
            return VerificationProgress(verification_id=self.job_id, state=state, step=step, done=done, of=of)
        return StatementProgress(statement_id=self.job_id, state=state, step=step, done=done, of=of)

    async def made(self, *, wait_seconds: float) -> bytes | None:
        """Return the answer, None if it is not finished in time; raises what making it raises."""
        if self.task is None:
            raise AssertionError("a job has begun")
        done, _ = await asyncio.wait({self.task}, timeout=wait_seconds)
        return self.task.result() if done else None


class Jobs:
    """The answers that a server makes or keeps. For one event loop.

    They are in memory: an answer says nothing that the ledger does not, so after a restart it is asked for
    again and made anew.
    """

    def __init__(self, thread: AccountantThread, clock: Callable[[], float] = time.monotonic) -> None:
        """Work on a thread."""
        self._thread = thread
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def begin(self, wanted: Wanted, work: Work) -> Job:
        """Return the job of a question; the same one for as long as it is not finished.

        Raises:
            TryAgain: `UNFINISHED_MAX` others are not finished.
        """
        self._tidy()
        unfinished = [job for job in self._jobs.values() if job.finished_at is None]
        for job in unfinished:
            if job.wanted == wanted:
                return job
        if len(unfinished) >= UNFINISHED_MAX:
            raise TryAgain(
                f"{UNFINISHED_MAX} statements and verifications are in line before this one: ask again later"
            )
        job = Job(wanted=wanted)
        job.task = asyncio.ensure_future(self._made(job, work))
        self._jobs[job.job_id] = job
        return job

    def find(
        self,
        token: AccessToken,
        job_id: str,
        *,
        kind: Literal["statement", "verification"],
        form: str = "json",
    ) -> Job:
        """Return a job; raises NotFound if there is none of this kind and form about cohorts that the token
        sees."""
        self._tidy()
        job = self._jobs.get(job_id)
        is_it = job is not None and (job.wanted.kind, job.wanted.form) == (kind, form)
        if job is None or not is_it or not _sees(token, job.wanted):
            raise NotFound(
                f"no {kind} {job_id!r} is made or kept here: this server keeps one for an hour, and"
                " none over its restart. Ask for it again with the same request"
            )
        return job

    def forget(self, job: Job) -> None:
        """Keep an answer no longer: it was given at once."""
        self._jobs.pop(job.job_id, None)

    async def _made(self, job: Job, work: Work) -> bytes:
        try:
            found = await self._thread.run(lambda accountant: work(accountant, job.tell))
            if job.is_kept and len(found) > DOCUMENT_BYTES_MAX:
                kind, limit = job.wanted.kind, f"{DOCUMENT_BYTES_MAX >> 20} MiB"
                expected = f"fewer of them: the {kind} is larger than {limit}"
                raise InvalidValue(field="cohorts", value=f"{len(found):,} bytes", expected=expected)
            return found
        finally:
            job.finished_at = self._clock()

    def _tidy(self) -> None:
        """Drop finished jobs that are too old, too many, or too large together: the oldest first."""
        finished = [job for job in self._jobs.values() if job.finished_at is not None]
        finished.sort(key=lambda job: -(job.finished_at or 0.0))
        size = 0
        for number, job in enumerate(finished):
            size += _size(job)
            too_old = self._clock() - (job.finished_at or 0.0) > KEPT_SECONDS
            if too_old or number >= KEPT_MAX or size > KEPT_BYTES_MAX:
                self.forget(job)


def _size(job: Job) -> int:
    task = job.task
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return 0
    return len(task.result())


def _sees(token: AccessToken, wanted: Wanted) -> bool:
    if wanted.cohorts is None:
        return token.cohorts is None
    return all(map(token.sees, wanted.cohorts))
