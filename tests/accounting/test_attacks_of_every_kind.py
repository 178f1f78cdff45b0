"""Attacks of every kind of randomizer, against all neighbouring datasets of few users of that kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.stats import norm, poisson

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    attribute_rounds,
    parse_randomizer,
)
from shuffle_ledger.accounting.randomizers import RANDOMIZERS
from tests.accounting.alike import alike
from tests.accounting.datasets import largest, shuffled, worst
from tests.accounting.tables import Rows, hadamard, hashes, oue, rappor, response, subsets

E0 = 1.3
E = math.exp(E0)
EPSILONS = (0.0, 0.05, 0.3, 0.9)


def windows() -> Rows:
    """The piecewise mechanism on -1, -0.4, 0 and 1, between all ends of windows."""
    root = math.exp(E0 / 2)
    end = (root + 1) / (root - 1)
    lows = [(end + 1) / 2 * x - (end - 1) / 2 for x in (-1.0, -0.4, 0.0, 1.0)]
    cuts = np.unique([-end, end, *lows, *(low + end - 1 for low in lows)])
    high = (E - root) / (2 * root + 2)
    inside = np.array([(cuts[:-1] >= low - 1e-9) & (cuts[1:] <= low + end - 1 + 1e-9) for low in lows])
    return np.asarray(np.where(inside, high, high / E) * np.diff(cuts))


def laplace(values: tuple[float, ...]) -> Rows:
    ends = np.concatenate([[-np.inf], np.linspace(0, 1, 257), [np.inf]])
    t = E0 * (ends - np.array(values)[:, None])
    below = np.where(t < 0, np.exp(np.minimum(t, 0)) / 2, 1 - np.exp(-np.maximum(t, 0)) / 2)
    return np.asarray(np.diff(below, axis=1))


def gaussian(values: tuple[float, ...]) -> Rows:
    """Noise of deviation 1 on values in [0, 1]."""
    t = np.concatenate([[-np.inf], np.linspace(-5, 6, 257), [np.inf]]) - np.array(values)[:, None]
    left, right = np.diff(norm.cdf(t), axis=1), -np.diff(norm.cdf(-t), axis=1)
    return np.asarray(np.where(t[:, :-1] < 0, left, right))


TABLE = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4]])
#: Local randomizers, each with the laws of its reports; the ends of an interval are in the list of values.
LOCAL: dict[str, list[Rows]] = {
    f"generic(epsilon0={E0})": [response(2, E0), response(3, E0)],  # of any randomizer with this epsilon0
    f"krr(k=2, epsilon0={E0})": [response(2, E0)],
    f"krr(k=4, epsilon0={E0})": [response(4, E0)],
    f"blh(epsilon0={E0}, domain=3)": [hashes(3, 2, E0)],
    f"blh(epsilon0={E0})": [hashes(2, 2, E0)],  # pairwise independent: all that is known of two values
    f"olh(epsilon0={E0}, g=3, domain=3)": [hashes(3, 3, E0)],
    f"olh(epsilon0={E0}, g=3)": [hashes(2, 3, E0)],
    f"rappor(epsilon0={E0}, domain=3)": [rappor(3, E0)],
    f"oue(epsilon0={E0}, domain=3)": [oue(3, E0)],
    f"hadamard(epsilon0={E0}, domain=4)": [hadamard(3, 1, 4, E0)],
    f"hadamard(epsilon0={E0}, domain=8)": [hadamard(7, 1, 8, E0)],
    f"subset(epsilon0={E0}, domain=3, size=1)": [response(3, E0)],
    f"subset(epsilon0={E0}, domain=4, size=2)": [subsets(4, 2, E0)],
    f"block_hadamard(epsilon0={E0}, domain=3, blocks=1)": [hadamard(3, 1, 4, E0)],
    f"block_hadamard(epsilon0={E0}, domain=6, blocks=2)": [hadamard(6, 2, 4, E0)],
    f"block_hadamard(epsilon0={E0}, domain=4, blocks=4)": [hadamard(4, 4, 2, E0)],
    f"laplace(epsilon0={E0})": [laplace((0.0, 1.0))],
    f"bounded_laplace(epsilon0={E0})": [laplace((0.0, 0.3, 0.5, 1.0))],
    "local_gaussian(sigma=1)": [gaussian((0.0, 0.5, 1.0))],
    f"duchi(epsilon0={E0})": [response(2, E0)],
    f"piecewise(epsilon0={E0})": [windows()],
    f"table({TABLE.tolist()})": [TABLE],
    f"joint(krr(k=3, epsilon0={E0}), table({TABLE.tolist()}))": [np.kron(response(3, E0), TABLE)],
    f"parallel((0.25, krr(k=3, epsilon0={E0})), (0.75, table({TABLE.tolist()})))": [
        np.hstack([np.repeat(response(3, E0) / 4, 3, axis=0), np.tile(TABLE * 0.75, (3, 1))])
    ],
}
#: Kinds of which no attack is known: hashes may collide, or the kind is accounted as another one, or only a
#: guarantee is declared.
UNKNOWN = [
    f"bloom_rappor(epsilon0={E0})",
    f"cms(epsilon0={E0}, domain=16)",
    f"hcms(epsilon0={E0}, domain=16)",
    f"joint(krr(k=3, epsilon0={E0}), hcms(epsilon0={E0}))",
    "local_gaussian(sigma=4, delta0=2e-10)",
    "local_gaussian(sigma=1, delta0=1e-3)",
    "declared(epsilon=1)",
    "declared(mu=1)",
    "privacy_loss(losses=[0, 0.5], masses=[0.9, 0.1])",
    "gaussian(sigma=4, relation='add-remove')",
    "discrete_gaussian(sigma=4, relation='add-remove')",
    "central_laplace(scale=4, relation='add-remove')",
]


def divergence(p: Rows, q: Rows, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def asked(written: str, users: int, analysis: str | None = None) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(written), reports=users, analysis=analysis)


@pytest.mark.parametrize("users", [1, 2])
@pytest.mark.parametrize("written", LOCAL)
def test_no_attack_beats_the_reports_of_its_own_kind(written: str, users: int) -> None:
    most_of_all = np.max([worst(rows, users, np.exp(EPSILONS).tolist()) for rows in LOCAL[written]], axis=0)
    for epsilon, most in zip(EPSILONS, most_of_all.tolist(), strict=True):
        found = attack_delta(asked(written, users), epsilon=epsilon)
        assert found is not None
        assert found <= most * (1 + 1e-9) + 1e-15
        assert found >= 0.5 * most - 1e-9


@pytest.mark.parametrize("written", UNKNOWN)
def test_kinds_without_an_attack_say_so(written: str) -> None:
    described = asked(written, 1000)
    assert attack_epsilon(described, delta=1e-6) is None
    assert attack_delta(described, epsilon=0.01) is None


def central(written: str) -> Callable[[float], float]:
    """The divergence at an epsilon of a mechanism with noise of size 2 and sensitivity 1."""
    k = np.arange(-80, 81)
    masses = np.exp(-(k**2) / 8.0)
    masses /= masses.sum()
    return {
        "gaussian(sigma=2)": lambda x: float(norm.cdf(0.25 - 2 * x) - math.exp(x) * norm.cdf(-0.25 - 2 * x)),
        "discrete_gaussian(sigma=2)": lambda x: divergence(masses[:-1], masses[1:], x),
        "central_laplace(scale=2)": lambda x: max(-math.expm1((x - 0.5) / 2), 0.0),
    }[written]


@pytest.mark.parametrize(
    "written", ["gaussian(sigma=2)", "discrete_gaussian(sigma=2)", "central_laplace(scale=2)"]
)
def test_no_attack_beats_a_central_mechanism(written: str) -> None:
    for epsilon in EPSILONS:
        found = attack_delta(asked(written, 5), epsilon=epsilon)
        most = central(written)(epsilon)
        assert found is not None
        assert found <= most * (1 + 1e-9) + 1e-15


def noisy(counts: list[int], users: int, p: float) -> Rows:
    """The law of numbers of messages: a count each, and one noise bit of every user."""
    noise = [math.comb(users, one) * p**one * (1 - p) ** (users - one) for one in range(users + 1)]
    laws = [np.pad(noise, (count, users - count)) for count in counts]
    law = laws[0]
    for one in laws[1:]:
        law = np.multiply.outer(law, one)
    return np.asarray(law)


def protocol(kind: str, users: int) -> Iterator[tuple[Rows, Rows]]:
    """The laws under all pairs of neighbouring datasets of three values, or of two for a sum."""
    p, values = 0.3, 2 if kind == "binomial_sum" else 3
    for others in itertools.combinations_with_replacement(range(values), users - 1):
        for x0, x1 in itertools.permutations(range(2 if kind == "uniformity_tester" else values), 2):
            laws = []
            for x in (x0, x1):
                held = [x, *others]
                numbers = [held.count(label) for label in range(values)]
                if kind == "binomial_sum":
                    laws.append(noisy([sum(held)], users, p))
                elif kind == "binomial_histogram":
                    laws.append(noisy(numbers, users, p))
                elif kind == "distinct_elements":
                    odd = [0.5 if one else (1 - (1 - 2 * p) ** users) / 2 for one in numbers]
                    law = np.ones(1)
                    for one in odd:
                        law = np.multiply.outer(law, [1 - one, one])
                    laws.append(law)
                else:  # ones and zeros of the two labels that differ, each with half of the noise
                    law = np.ones(1)
                    for label in (x0, x1):
                        for count in (numbers[label], users - numbers[label]):
                            law = np.multiply.outer(law, poisson.pmf(np.arange(16) - count, users / 2))
                    laws.append(law)
            yield laws[0], laws[1]


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("binomial_sum", "binomial_sum(p=0.3)"),
        ("binomial_histogram", "binomial_histogram(p=0.3)"),
        ("distinct_elements", "distinct_elements(p=0.3)"),
        ("uniformity_tester", "uniformity_tester(noise=1)"),
    ],
)
def test_no_attack_beats_a_protocol_with_common_noise(kind: str, written: str) -> None:
    pairs = list(protocol(kind, 2))
    for epsilon in (0.05, 0.9):
        most = max(divergence(p, q, epsilon) for p, q in pairs)
        found = attack_delta(asked(written, 2), epsilon=epsilon)
        assert found is not None
        assert found <= most * (1 + 1e-6) + 1e-12


def test_every_kind_is_attacked_or_known_not_to_be() -> None:
    protocols = {"binomial_sum", "binomial_histogram", "distinct_elements", "uniformity_tester"}
    centrals = {"gaussian", "discrete_gaussian", "central_laplace"}
    tried = {parse_randomizer(written).kind for written in (*LOCAL, *UNKNOWN)}
    assert tried | protocols | centrals == set(RANDOMIZERS)


def test_clone_is_attacked_only_if_any_randomizer_is_meant() -> None:
    """`clone` of a composite with another part than `generic` is accounted as `generic`, which hides less."""
    parts = "joint(generic(epsilon0=0.5), krr(k=3, epsilon0=0.5))"
    described, generic = asked(parts, 1000, "clone"), asked("generic(epsilon0=1)", 1000, "clone")
    assert described == generic  # they cost the same
    assert attack_epsilon(described, delta=1e-6) is None
    assert attack_epsilon(generic, delta=1e-6) is not None


def test_gaussian_noise_on_devices_is_not_attacked_as_another_randomizer() -> None:
    """Noise on 1000 values in [0, 1] hides more than the worst randomizer with its local guarantee: that
    one's attack gets more than the 0.0293 of the whole sum."""
    described = asked("local_gaussian(sigma=4, delta0=2e-10)", 1000)
    assert described.written.kind == "local_gaussian"
    assert attack_epsilon(described, delta=1e-6) is None
    worst = alike(
        randomizer=described.randomizer,
        reports=1000,
        delta0=described.delta0,
    )
    assert worst == described
    attacked = attack_epsilon(worst, delta=1e-6)
    assert attacked is not None
    assert attacked > 0.2


@pytest.mark.parametrize(
    "parts",
    [
        ((f"krr(k=3, epsilon0={E0})", response(3, E0)), (f"table({TABLE.tolist()})", TABLE)),
        ((f"table({TABLE.tolist()})", TABLE), (f"duchi(epsilon0={E0})", response(2, E0))),
    ],
)
def test_one_attribute_is_attacked_by_datasets_that_differ_in_it_alone(
    parts: tuple[tuple[str, Rows], tuple[str, Rows]],
) -> None:
    (first, own), (second, other) = parts
    for epsilon in EPSILONS:
        for place, one in enumerate(attribute_rounds(asked(f"joint({first}, {second})", 2))):
            changed, common = (own, other) if place == 0 else (other, own)
            most = max(
                largest(
                    [shuffled([np.kron(row, shared), np.kron(x, y)]) for row in changed], [math.exp(epsilon)]
                )[0]
                for shared, y in itertools.product(common, repeat=2)
                for x in changed
            )
            found = attack_delta(one, epsilon=epsilon)
            assert found is not None
            assert 0.5 * most - 1e-9 <= found <= most * (1 + 1e-9) + 1e-15
            assert found <= Accountant(precision=0.05).certify_delta({one: 1}, epsilon=epsilon).delta_upper
