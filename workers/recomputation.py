"""A bundle's compositions computed again with the help of workers: see docs/decisions/0008-recomputation.md.

Batches of questions go to the workers, last one first; this process answers the others, first one first, and
whatever no worker has answered when it gets there. So nothing waits for workers that are slow, killed or not
there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from amqp.exceptions import AMQPError, MessageNacked
from celery.result import AsyncResult
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger.evidence import Answer, Bounds, Question, answered
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.celery_app import RECOMPUTE, create_app
from shuffle_ledger.workers.dispatch import CONFIRM_TIMEOUT_SECONDS

BATCH = 64  # questions in a task: a second or so
IN_FLIGHT_MAX = 256  # tasks
EXPIRES_SECONDS = 3600.0  # the asking process has computed the answer itself by then
_ACCOUNTANTS = 4
_WIDEST = 0.05  # relative, of an answer that is used

Batch: TypeAlias = dict[str, Any]
_LOST = (KombuError, AMQPError, MessageNacked, RedisError, OSError)
_log = logging.getLogger(__name__)


class WithWorkers:
    """Answers questions together with workers.

    **Guarantee**: a worker's answers are used only if they belong to the batch that was sent, all of them are
    valid and narrow intervals, and one of them, chosen at random afterwards and recomputed here, agrees. All
    other answers are computed here. This detects mistakes. It does not detect every attack: use only workers
    that the auditor trusts.
    """

    def __init__(self, settings: Settings, accountant: Accountant) -> None:
        self._app = create_app(settings)
        self._accountant = accountant
        self.from_workers = 0  # how many answers they gave

    def answers(self, questions: Sequence[Question], tell: Callable[[int, int], None]) -> Iterator[Answer]:
        """See `ledger.evidence.compositions.Compositions`."""
        batches = [questions[start : start + BATCH] for start in range(0, len(questions), BATCH)]
        sent = self._send(batches)
        done = 0
        try:
            for place, batch in enumerate(batches):
                found = self._received(sent.get(place), batch)
                for answer in found if found is not None else map(self._here, batch):
                    yield answer
                    done += 1
                    tell(done, len(questions))
        finally:
            for result, _ in sent.values():
                self._forget(result)

    def _send(self, batches: list[Sequence[Question]]) -> dict[int, tuple[AsyncResult, str]]:
        sent: dict[int, tuple[AsyncResult, str]] = {}
        for place in range(len(batches) - 1, 0, -1)[:IN_FLIGHT_MAX]:
            content = written(batches[place], self._accountant.precision)
            try:
                result = self._app.send_task(
                    RECOMPUTE,
                    args=[content],
                    ignore_result=False,
                    expires=EXPIRES_SECONDS,
                    timeout=CONFIRM_TIMEOUT_SECONDS,
                    confirm_timeout=CONFIRM_TIMEOUT_SECONDS,
                )
            except _LOST as error:
                _log.warning("no more is sent to workers, the broker cannot be reached: %s", error)
                break
            sent[place] = (result, digest_of(content))
        return sent

    def _received(
        self, sent: tuple[AsyncResult, str] | None, batch: Sequence[Question]
    ) -> list[Answer] | None:
        """Return a worker's answers, None if there are none yet or none that can be used."""
        if sent is None:
            return None
        result, digest = sent
        try:
            if not result.successful():
                return None
            found = read(result.result, digest, len(batch))
        except _LOST as error:
            _log.warning("a worker's answers cannot be had: %s", error)
            return None
        # Recomputes one randomly chosen answer to check the worker, which cannot know the choice.
        place = secrets.randbelow(len(batch))
        if found is None or not _agree(found[place], self._here(batch[place])):
            _log.error("a worker's answers are not to what was asked, or not right: computing them here")
            return None
        self.from_workers += len(found)
        return found

    def _here(self, question: Question) -> Answer:
        return answered(self._accountant, question)

    def _forget(self, result: AsyncResult) -> None:
        try:
            result.forget()
        except _LOST as error:
            _log.warning("a worker's answers expire by themselves: %s", error)


def answer_batch(content: Mapping[str, Any]) -> Batch:
    """Return the answers to a batch: what a worker does. Pure, so that it may be done twice.

    Raises:
        ValueError: the batch is of another numerical policy.
    """
    if content["numerical_policy"] != NUMERICAL_POLICY:
        raise ValueError(f"asked for {content['numerical_policy']}, this worker has {NUMERICAL_POLICY}")
    accountant = _accountant(float.fromhex(content["precision"]))
    kinds = [ShuffledRound.from_mapping(kind) for kind in content["kinds"]]
    answers: list[list[str] | str] = []
    for counts, delta in content["questions"]:
        rounds = frozenset((kinds[kind], count) for kind, count in counts)
        found = answered(accountant, Question(rounds, float.fromhex(delta)))
        answers.append(found if isinstance(found, str) else [found.lower.hex(), found.upper.hex()])
    return {"batch": digest_of(content), "answers": answers}


def written(batch: Sequence[Question], precision: float) -> Batch:
    """Return a batch as JSON: parameters of rounds and nothing else, each kind once."""
    kinds: dict[ShuffledRound, int] = {}
    questions = []
    for question in batch:
        counts = [[kinds.setdefault(kind, len(kinds)), count] for kind, count in question.rounds]
        questions.append([sorted(counts), question.delta.hex()])
    return {
        "numerical_policy": NUMERICAL_POLICY,
        "precision": precision.hex(),
        "kinds": [kind.to_mapping() for kind in kinds],
        "questions": questions,
    }


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest by which an answer names its batch."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(content: Any, digest: str, count: int) -> list[Answer] | None:
    """Return a worker's answers to the batch of that digest; None if they are not."""
    try:
        if content["batch"] != digest or len(content["answers"]) != count:
            return None
        found = [_answer(each) for each in content["answers"]]
    except (KeyError, TypeError, ValueError):
        return None
    return found


def _answer(written_answer: Any) -> Answer:
    if isinstance(written_answer, str):
        return written_answer
    lower, upper = map(float.fromhex, written_answer)
    if not 0.0 <= lower <= upper:
        raise ValueError("bounds nothing")
    if not upper - lower <= _WIDEST * upper:
        raise ValueError("says too little: whoever asked may say more")
    return Bounds(lower, upper)


def _agree(theirs: Answer, ours: Answer) -> bool:
    if isinstance(theirs, str) or isinstance(ours, str):
        return theirs == ours
    near = [math.isclose(one, other, rel_tol=1e-9) for one, other in zip(theirs, ours, strict=True)]
    return all(near)


@functools.lru_cache(maxsize=_ACCOUNTANTS)
def _accountant(precision: float) -> Accountant:
    return Accountant(precision=precision)
