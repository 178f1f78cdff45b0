"""Workers help an auditor: what they answer is checked, and nothing waits for them."""

from __future__ import annotations

import copy
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.evidence.compositions import Answer, Bounds, InThisProcess, Question
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers import recomputation
from shuffle_ledger.workers.recomputation import WithWorkers, answer_batch, digest_of, read, written
from tests.workers.conftest import awaited, kill_group, remove_queues, running, settings_at

SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
KINDS = [
    ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000 + 100 * number)
    for number in range(3)
]


def question(count: int) -> Question:
    rounds = frozenset((kind, count + place) for place, kind in enumerate(KINDS))
    return Question(rounds, 1e-7)


QUESTIONS = [question(count) for count in range(1, 13)]


def nobody(_done: int, _of: int) -> None: ...


def assert_same(answered: list[Answer], expected: list[Answer]) -> None:
    """The same but for the last digit: in another process sets of rounds have another order."""
    for one, other in zip(answered, expected, strict=True):
        assert isinstance(one, Bounds)
        assert one == pytest.approx(other, rel=1e-12)


@pytest.fixture(scope="module")
def expected() -> list[Answer]:
    return list(InThisProcess(Accountant()).answers(QUESTIONS, nobody))


@pytest.fixture(params=["rabbitmq", "redis"])
def settings(request: pytest.FixtureRequest, database_url: str) -> Iterator[Settings]:
    """Yield settings with a real broker."""
    found = settings_at(request.param, database_url)
    yield found
    remove_queues(found)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "BATCH", 2)


class Slow(WithWorkers):
    """One whose own first answer waits until workers have answered enough."""

    def __init__(self, settings: Settings, ready: Callable[[], Any]) -> None:
        super().__init__(settings, Accountant())
        self._ready: Callable[[], Any] | None = ready

    def _here(self, question: Question) -> Answer:
        if self._ready is not None:
            self._ready()
            self._ready = None
        return super()._here(question)


@pytest.mark.system
def test_workers_answer_and_one_that_is_killed_loses_nothing(
    settings: Settings, tmp_path: Path, expected: list[Answer]
) -> None:
    log = tmp_path / "log"
    told: list[tuple[int, int]] = []
    answered: list[Answer] = []

    def meanwhile() -> None:
        with running(settings, log, SCRIPT, "worker", "--concurrency", "1") as first:
            awaited(lambda: b"ready" in log.read_bytes(), log)
            kill_group(first)
        with running(settings, log, SCRIPT, "worker", "--concurrency", "1"):
            awaited(lambda: log.read_bytes().count(b"succeeded") >= 4, log)

    asking = Slow(settings, meanwhile)
    answered = list(asking.answers(QUESTIONS, lambda done, of: told.append((done, of))))
    assert_same(answered, expected)
    assert asking.from_workers >= 6, "they answered most of it"
    assert told[-1] == (len(QUESTIONS), len(QUESTIONS))


@pytest.mark.system
def test_without_workers_and_without_a_broker_everything_is_answered(
    settings: Settings, expected: list[Answer]
) -> None:
    assert_same(list(WithWorkers(settings, Accountant()).answers(QUESTIONS, nobody)), expected)
    nowhere = settings.model_copy(update={"broker_url": "amqp://guest:guest@127.0.0.1:1//"})
    alone = WithWorkers(nowhere, Accountant())
    assert_same(list(alone.answers(QUESTIONS[:4], nobody)), expected[:4])
    assert alone.from_workers == 0


class Result:
    """A worker's answer that is there already."""

    def __init__(self, content: Any) -> None:
        self.result = content

    def successful(self) -> bool:
        return True

    def forget(self) -> None: ...


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: answer["answers"].__setitem__(1, [(0.1).hex(), (0.2).hex()]),
        lambda answer: answer["answers"].__setitem__(0, [(0.3).hex(), (0.2).hex()]),
        lambda answer: answer["answers"].__setitem__(0, ["nan", "nan"]),
        lambda answer: answer["answers"].pop(),
        lambda answer: answer.update(batch="0" * 64),
        lambda answer: answer.clear(),
    ],
)
def test_what_a_worker_should_not_say_is_computed_here(
    monkeypatch: pytest.MonkeyPatch, lie: Callable[[dict[str, Any]], None], expected: list[Answer]
) -> None:
    def send_task(_app: Celery, _name: str, *, args: list[Any], **_: Any) -> Result:
        answer = copy.deepcopy(answer_batch(args[0]))
        lie(answer)
        return Result(answer)

    asking = WithWorkers(Settings(broker_url="memory://"), Accountant())
    monkeypatch.setattr(Celery, "send_task", send_task)
    assert_same(list(asking.answers(QUESTIONS[:4], nobody)), expected[:4])
    assert asking.from_workers == 0


@pytest.mark.parametrize("place", [0, 1])
def test_which_answer_is_computed_here_too_is_drawn_when_the_answer_is_there(
    monkeypatch: pytest.MonkeyPatch, place: int, expected: list[Answer]
) -> None:
    """A narrow wrong answer anywhere in a batch is found if the random choice hits it; the worker cannot know
    it."""
    drawn: list[int] = []

    def send_task(_app: Celery, _name: str, *, args: list[Any], **_: Any) -> Result:
        assert not drawn
        answer = copy.deepcopy(answer_batch(args[0]))
        answer["answers"][place] = [(1e-6).hex(), (1.01e-6).hex()]
        return Result(answer)

    def draw(size: int) -> int:
        drawn.append(size)
        return place

    asking = WithWorkers(Settings(broker_url="memory://"), Accountant())
    monkeypatch.setattr(Celery, "send_task", send_task)
    monkeypatch.setattr(secrets, "randbelow", draw)
    assert_same(list(asking.answers(QUESTIONS[:4], nobody)), expected[:4])
    assert (asking.from_workers, drawn) == (0, [2])


def test_a_batch_is_answered_the_same_twice_and_by_the_same_policy_only(expected: list[Answer]) -> None:
    content = written(QUESTIONS, 1e-3)
    answers = answer_batch(content)
    assert answer_batch(content) == answers
    found = read(answers, digest_of(content), len(QUESTIONS))
    assert found is not None
    assert_same(found, expected)
    assert all(isinstance(each, Bounds) for each in expected)
    with pytest.raises(ValueError, match="another-policy"):
        answer_batch({**content, "numerical_policy": "another-policy"})
