"""Joint rounds of datasets that differ in one attribute, against all shuffled outputs of two users."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    attribute_rounds,
)
from tests.accounting.alike import alike

E0 = 1.0


def response(k: int) -> np.ndarray:
    weights = np.exp(E0 * np.eye(k))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def unary(kept: float, stray: float, size: int) -> np.ndarray:
    outputs = np.array(list(itertools.product((0, 1), repeat=size)))
    chances = np.where(np.eye(size) == 1, kept, stray)[:, None, :]
    return np.asarray(np.where(outputs == 1, chances, 1 - chances).prod(axis=2))


TABLE = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4]])
PARTS = {
    f"krr(k=3, epsilon0={E0})": response(3),
    f"oue(epsilon0={E0}, domain=3)": unary(0.5, 1 / (math.exp(E0) + 1), 3),
    f"generic(epsilon0={E0})": response(2),
    f"duchi(epsilon0={E0})": response(2),
    f"table({TABLE.tolist()})": TABLE,
}


def divergence(laws: np.ndarray, common: np.ndarray, order: float) -> float:
    """The largest over pairs of two laws of the differing user, next to one law of the other user."""
    seen = [np.multiply.outer(law, common) for law in laws]
    both = [(one + one.T) / 2 for one in seen]
    return max(
        float(np.maximum(one - order * other, 0).sum()) for one, other in itertools.permutations(both, 2)
    )


@pytest.mark.parametrize("written", list(itertools.permutations(PARTS, 2)), ids=str)
def test_no_change_of_one_attribute_shows_more(written: tuple[str, str]) -> None:
    first, second = (PARTS[one] for one in written)
    described = alike(
        randomizer=f"joint({', '.join(written)})",
        reports=2,
    )
    accountant = Accountant(precision=0.01)
    attribute, other = attribute_rounds(described)
    assert other.randomizer.epsilon0 == pytest.approx(np.log((second.max(0) / second.min(0)).max()))
    whole = "blanket" if "krr" in str(written) else None
    for epsilon in (0.0, 0.5):
        # The other user may hold any values; the second attribute is any, and the same in both datasets.
        largest = max(
            divergence(
                np.array([np.kron(one, second[shared]) for one in first]),
                np.kron(first[x], second[y]),
                math.exp(epsilon),
            )
            for shared in range(len(second))
            for x in range(len(first))
            for y in range(len(second))
        )
        bound = accountant.certify_delta({attribute: 1}, epsilon=epsilon).delta_upper
        assert largest <= bound
        if whole is not None:
            assert bound <= accountant.certify_delta({described: 1}, epsilon=epsilon).delta_upper * 1.01


def test_other_rounds_have_no_attributes() -> None:
    for text, why in (
        ("krr(k=4, epsilon0=1)", "a joint, such as"),
        ("joint(generic(epsilon0=1), krr(k=4, epsilon0=1))", "clone knows no parts: name another analysis"),
        ("parallel((0.5, blh(epsilon0=1)), (0.5, duchi(epsilon0=2)))", "a joint, such as"),
    ):
        described = ShuffledRound(randomizer=text, reports=10)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match=why):
            attribute_rounds(described)
