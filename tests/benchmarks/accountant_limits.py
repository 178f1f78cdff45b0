"""The accountant at its limits: every randomizer, some tables, and many of both drawn at random, from 10 to
1e9 reports; a hundred kinds, repeated questions, and samples in which chance decides how many are honest."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from shuffle_ledger.accounting import Accountant, ShuffledRound, attack_epsilon, parse_randomizer
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from tests.accounting.alike import alike
from tests.benchmarks.accountant_speed import clone_kinds, composition
from tests.benchmarks.case import Case, Interval, Work

RANDOMIZERS = (
    "generic(epsilon0=1)",
    "krr(epsilon0=1, k=2)",
    "krr(epsilon0=2, k=10)",
    "blh(epsilon0=2)",
    "rappor(epsilon0=4)",
    "oue(epsilon0=2)",
    "hadamard(epsilon0=4)",
    "laplace(epsilon0=1)",
)
_SAMPLED = (
    ("generic(epsilon0=1)", 200, 10_000),
    ("generic(epsilon0=1)", 1000, 10_000),
    ("krr(epsilon0=2, k=10)", 1000, 100_000),
    ("generic(epsilon0=1)", 10_000, 10**6),
    ("generic(epsilon0=1)", 10**5, 10**8),
    ("laplace(epsilon0=1)", 1000, 10_000),
    ("hadamard(epsilon0=4)", 1000, 10_000),
    ("binomial_sum(p=0.9)", 1000, 10_000),
    ("uniformity_tester(noise=2)", 1000, 10_000),
)
_ATTACKED = ("krr(epsilon0=2, k=10)", "hadamard(epsilon0=4)", "laplace(epsilon0=1)")
_QUESTIONS = 1000
_LONG_SECONDS = 1.0


def _written(rows: FloatArray) -> str:
    """The table whose rows are in these proportions."""
    return f"table({(rows / rows.sum(axis=1, keepdims=True)).tolist()})"


def tables() -> dict[str, str]:
    """Tables of probabilities, by what they are."""
    draw = np.random.default_rng(1)
    return {
        "10-ary response as a table": _written(1 + np.expm1(2.0) * np.eye(10)),
        "random table, 10 x 10": _written(draw.gamma(1.0, size=(10, 10))),
        "rows nearly equal, 10 x 10": _written(1 + 0.05 * draw.uniform(size=(10, 10))),
        "random table, 2 x 1000": _written(draw.uniform(0.2, 1.0, size=(2, 1000))),
        "random table, 20 x 20": _written(draw.gamma(1.0, size=(20, 20))),
        "random table, 50 x 10": _written(draw.gamma(1.0, size=(50, 10))),
        "random table, 30 x 30": _written(draw.gamma(1.0, size=(30, 30))),
        "10-ary response with noise of 1e-9": _noisy_response(10, 1e-9),
        "30-ary response with noise of 1e-4": _noisy_response(30, 1e-4),
        "30-ary response with noise of 0.1": _noisy_response(30, 0.1),
        "probabilities of 1e-12, 8 x 8": _written(np.where(draw.uniform(size=(8, 8)) < 0.3, 1e-12, 1.0)),
        "many scales, 10 x 16": _written(np.maximum(draw.dirichlet(np.full(16, 0.1), size=10), 1e-30)),
    }


def _noisy_response(inputs: int, noise: float) -> str:
    draw = np.random.default_rng(2)
    return _written(1 + 10 * np.eye(inputs) + noise * draw.uniform(size=(inputs, inputs)))


def privacy_loss(randomizer: str, reports: int) -> Work:
    """One round's privacy loss from nothing."""
    shuffled = alike(randomizer=parse_randomizer(randomizer), reports=reports)

    def run() -> str:
        return f"{Accountant().privacy_loss(shuffled).upper.index.size} losses"

    return run


def losses_of_many(written: Sequence[str], seed: int) -> Work:
    """The privacy losses of one round of each of these randomizers, from nothing, of 10 to 1e9 reports."""
    draw = np.random.default_rng(seed)
    rounds = [
        alike(randomizer=parse_randomizer(one), reports=round(10 ** draw.uniform(1, 9))) for one in written
    ]
    return _each(rounds, lambda one: Accountant().privacy_loss(one))


def epsilons_of_samples(written: Sequence[str], seed: int) -> Work:
    """The epsilon of one round of each of these randomizers, from nothing, of a partly honest sample."""
    draw = np.random.default_rng(seed)
    rounds = [
        alike(
            randomizer=parse_randomizer(one),
            reports=(reports := round(10 ** draw.uniform(1, 5))),
            sampled_from=round(reports * 10 ** draw.uniform(0.1, 4)),
            honest_fraction=round(draw.uniform(0.3, 0.99), 3),
        )
        for one in written
    ]
    return _each(rounds, lambda one: Accountant().certify({one: 1}, delta=1e-8))


def _each(rounds: Sequence[ShuffledRound], work: Callable[[ShuffledRound], object]) -> Work:
    def run() -> str:
        seconds = []
        for one in rounds:
            start = time.process_time()
            work(one)
            seconds.append(time.process_time() - start)
        longer = sum(one > _LONG_SECONDS for one in seconds)
        median = statistics.median(seconds)
        long = f"{longer} of {len(seconds)} over {_LONG_SECONDS:g} s"
        return f"median {median:.2g} s, at most {max(seconds):.2g} s, {long}"

    return run


def random_categorical(number: int) -> list[str]:
    """Randomizers of categories of up to a million, some joined, some in parallel, with any epsilon0."""
    draw = random.Random(4)  # noqa: S311 - it need not be a secret

    def one() -> str:
        epsilon0 = f"epsilon0={math.exp(draw.uniform(math.log(0.02), math.log(12))):.4g}"
        kind = draw.choice(["generic", "krr", "krr", "blh", "rappor", "oue", "hadamard"])
        return f"{kind}({epsilon0}{f', k={round(10 ** draw.uniform(0.3, 6))}' if kind == 'krr' else ''})"

    forms = ("{}", "{}", "joint({}, {})", "parallel((0.4, {}), (0.6, {}))")
    return [draw.choice(forms).format(one(), one()) for _ in range(number)]


def random_tables(number: int, most: int) -> list[str]:
    """Tables of at most `most` rows and outputs, from nearly uniform ones to ones of many scales."""
    draw = np.random.default_rng(5)
    found = []
    for _ in range(number):
        inputs, outputs = (round(2 * (most / 2) ** share) for share in draw.uniform(size=2))
        rows = draw.dirichlet(np.full(outputs, 10 ** draw.uniform(-1, 1)), size=inputs)
        found.append(_written(np.maximum(rows, 1e-30)))
    return found


def _kind_of_table(draw: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Rows in proportion to a table of this many inputs and outputs: of all scales, noisy response, a kernel,
    two scales, or independent exponentials of normal numbers."""
    distance = np.abs(np.linspace(0, 1, shape[0])[:, None] - np.linspace(0, 1, shape[1]))
    noise = 1 + 10 ** draw.uniform(-6, 0) * draw.uniform(size=shape)
    match draw.integers(5):
        case 0:
            return draw.dirichlet(np.full(shape[1], 10 ** draw.uniform(-1, 1)), size=shape[0])
        case 1:
            return np.asarray(noise + np.expm1(draw.uniform(0.1, 6)) * np.eye(*shape))
        case 2:
            return np.asarray(np.exp(-draw.uniform(0.5, 20) * distance ** draw.integers(1, 3)))
        case 3:
            rare = draw.uniform(size=shape) < draw.uniform(0.1, 0.9)
            return np.asarray(noise * np.where(rare, 10 ** draw.uniform(-12, -1), 1.0))
        case _:
            return np.asarray(np.exp(draw.uniform(0.2, 4) * draw.normal(size=shape)))


def tables_of_all_kinds(number: int, most: int, epsilon0: float) -> list[str]:
    """Tables of at most `most` probabilities and 64 inputs, with local privacy of at most `epsilon0`."""
    draw = np.random.default_rng(9)
    found = []
    for _ in range(number):
        size = most / 4 ** draw.integers(3)
        inputs = round(2 * 32 ** draw.uniform())
        rows = _kind_of_table(draw, (inputs, max(round(size / inputs * draw.uniform(0.1, 1)), 2)))
        found.append(_written(np.maximum(rows, rows.max(axis=0) * math.exp(-epsilon0))))
    return found


def repeated_question(kinds: int, rounds: int) -> Work:
    """A question that was answered before, asked a thousand times."""
    accountant, counts = Accountant(), clone_kinds(kinds, rounds)
    accountant.certify(counts, delta=1e-6)

    def run() -> Interval:
        for _ in range(_QUESTIONS - 1):
            accountant.certify(counts, delta=1e-6)
        certificate = accountant.certify(counts, delta=1e-6)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def partly_honest(randomizer: str, sample: int, population: int) -> Work:
    """A hundred rounds of a sample of a population of which 80 % are honest, from nothing."""
    shuffled = alike(
        randomizer=parse_randomizer(randomizer),
        reports=sample,
        sampled_from=population,
        honest_fraction=0.8,
    )

    def run() -> Interval:
        certificate = Accountant().certify({shuffled: 100}, delta=1e-8)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def attack_on_a_sample(randomizer: str) -> Work:
    """The epsilon of the known attack on a sample of 1,000 of 10,000 users, of whom 80 % are honest."""
    shuffled = alike(
        randomizer=parse_randomizer(randomizer),
        reports=1000,
        sampled_from=10_000,
        honest_fraction=0.8,
    )

    def run() -> str:
        return f"{attack_epsilon(shuffled, delta=1e-8):.6g}"

    return run


def cases() -> Iterator[Case]:
    """Losses, then questions."""
    for written in RANDOMIZERS:
        for reports in (10, 10**3, 10**6, 10**9):
            prepare = partial(privacy_loss, written, reports)
            yield Case(name=f"loss, {written}, n = {reports:g}", prepare=prepare, computes=True)
    for described, written in tables().items():
        for reports in (10, 100, 10**3, 10**6, 10**9):
            prepare = partial(privacy_loss, written, reports)
            yield Case(name=f"loss, {described}, n = {reports:g}", prepare=prepare, computes=True)
    prepare = partial(losses_of_many, random_categorical(200), 6)
    yield Case(name="losses of 200 random randomizers of categories", prepare=prepare, computes=True)
    prepare = partial(losses_of_many, random_tables(100, 32), 7)
    yield Case(name="losses of 100 random tables of up to 32 x 32", prepare=prepare, computes=True)
    prepare = partial(losses_of_many, tables_of_all_kinds(300, 1024, 15.0), 10)
    yield Case(name="losses of 300 tables of all kinds, epsilon0 <= 15", prepare=prepare, computes=True)
    prepare = partial(losses_of_many, tables_of_all_kinds(300, 1024, 29.0), 10)
    yield Case(name="losses of 300 tables of all kinds, epsilon0 <= 29", prepare=prepare, computes=True)
    for written, sample, population in _SAMPLED:
        name = f"100 rounds of {written}, {sample} of {population:g}, 80 % honest"
        prepare = partial(partly_honest, written, sample, population)
        yield Case(name=name, prepare=prepare, computes=True)
    prepare = partial(epsilons_of_samples, random_categorical(100), 8)
    yield Case(name="epsilon of 100 random samples, partly honest", prepare=prepare, computes=True)
    for written in _ATTACKED:
        prepare = partial(attack_on_a_sample, written)
        yield Case(name=f"attack on {written}, 1000 of 10000, 80 % honest", prepare=prepare, computes=True)
    prepare = partial(composition, 100, 10**6, 1e-6, warm=True)
    yield Case(name="100 kinds, 10000 rounds of each", prepare=prepare, computes=True)
    for kinds in (1, 100):
        prepare = partial(repeated_question, kinds, 10_000)
        yield Case(name=f"the same question again, {_QUESTIONS} times, {kinds} kinds", prepare=prepare)
