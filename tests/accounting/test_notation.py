"""Randomizers as they are written: everything is read back as it was, and nothing else is read."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Joint, Parallel, ShuffledRound, Table, parse_randomizer
from shuffle_ledger.accounting.errors import InvalidParameter
from tests.accounting.alike import alike

EPSILONS = st.floats(1e-9, 3.0)
PROBABILITIES = st.floats(1e-6, 0.5)


def _call(kind: str, **parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), **parameters})


@st.composite
def _tables(draw: st.DrawFn) -> dict[str, Any]:
    columns = draw(st.integers(2, 3))
    cells = st.lists(st.integers(0, 9), min_size=columns, max_size=columns).filter(any)
    rows = draw(st.lists(cells, min_size=2, max_size=3))
    return {"kind": "table", "rows": [[value / sum(row) for value in row] for row in rows]}


@st.composite
def _parallels(draw: st.DrawFn, children: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    parts = draw(st.lists(children, min_size=2, max_size=3))
    shares = [draw(st.integers(1, 9)) for _ in parts]
    weighted = [
        {"weight": share / sum(shares), "randomizer": part} for share, part in zip(shares, parts, strict=True)
    ]
    return {"kind": "parallel", "parts": weighted}


LOCAL = st.one_of(
    _call("generic", epsilon0=EPSILONS),
    _call("krr", epsilon0=EPSILONS, k=st.integers(2, 10**6)),
    _call("blh", epsilon0=EPSILONS, domain=st.integers(3, 10**6)),
    _call("oue", epsilon0=EPSILONS),
    _call("hadamard", epsilon0=EPSILONS, domain=st.sampled_from([4, 64, 2**20])),
    _call("laplace", epsilon0=EPSILONS),
    _call("olh", epsilon0=EPSILONS, g=st.integers(2, 10**6)),
    _call("subset", epsilon0=EPSILONS, domain=st.integers(3, 10**6)),
    _call("block_hadamard", epsilon0=EPSILONS, domain=st.integers(3, 10**6)),
    _call("bloom_rappor", epsilon0=EPSILONS, hashes=st.integers(1, 4), flip=PROBABILITIES),
    _tables(),
)
NESTED = st.one_of(
    LOCAL,
    _parallels(LOCAL),
    _call(
        "joint", parts=st.lists(LOCAL.filter(lambda one: one["kind"] != "laplace"), min_size=2, max_size=2)
    ),
)
WHOLE = st.one_of(
    _call(
        "declared",
        epsilon=st.floats(0, 3),
        delta=st.floats(0, 0.01),
        relation=st.sampled_from(["substitution", "add-remove"]),
    ),
    _call("declared", rho=st.floats(1e-6, 10), delta=st.floats(0, 0.01)),
    _call("gaussian", sigma=st.floats(1, 1e3), sensitivity=st.floats(0.01, 10)),
    _call("discrete_gaussian", sigma=st.floats(1, 1e3), sensitivity=st.integers(1, 9)),
    _call("binomial_sum", p=PROBABILITIES, bits=st.integers(1, 1000)),
    _call("binomial_histogram", p=PROBABILITIES, bits=st.integers(1, 1000)),
    _call("uniformity_tester", noise=st.floats(1e-6, 1e3)),
    _call("distinct_elements", p=PROBABILITIES, security=st.floats(1, 300)),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.one_of(NESTED, WHOLE))
def test_every_way_of_writing_is_read_back_exactly(mapping: dict[str, Any]) -> None:
    randomizer = parse_randomizer(mapping)
    for again in (
        parse_randomizer(randomizer.describe()),
        parse_randomizer(randomizer.to_mapping()),
        parse_randomizer(json.loads(json.dumps(randomizer.to_mapping(), allow_nan=False))),
        pickle.loads(pickle.dumps(randomizer)),  # noqa: S301 - our own
    ):
        assert again == randomizer
        assert hash(again) == hash(randomizer)
        assert again.epsilon0 == randomizer.epsilon0
        assert again.to_mapping() == randomizer.to_mapping()
    shuffled = alike(randomizer=randomizer, reports=17)
    assert ShuffledRound.from_mapping(json.loads(json.dumps(shuffled.to_mapping()))) == shuffled


def test_the_examples_of_the_contract() -> None:
    krr = parse_randomizer("krr(k=4, epsilon0=1)")
    joint = parse_randomizer("joint(krr(k=4, epsilon0=1), krr(k=4, epsilon0=1))")
    assert isinstance(joint, Joint)
    assert joint.parts == (krr, krr)
    parallel = parse_randomizer("parallel((0.5, krr(k=10, epsilon0=1)), (0.5, blh(epsilon0=1, domain=64)))")
    assert isinstance(parallel, Parallel)
    assert parallel.weights == (0.5, 0.5)
    written = "table([[0.75, 0.25], [0.25, 0.75]])", "table((0.75, 0.25), (0.25, 0.75))"
    mapping = {"kind": "table", "rows": [[0.75, 0.25], [0.25, 0.75]]}
    assert len({parse_randomizer(one) for one in (*written, "table(rows=[[0.75, 0.25], [0.25, 0.75]])")}) == 1
    assert parse_randomizer(mapping) == parse_randomizer(written[0])
    assert isinstance(parse_randomizer(mapping), Table)


@pytest.mark.parametrize(
    "written",
    [
        "joint(krr(k=4, epsilon0=1))",
        "joint()",
        "joint(1, 2)",
        "joint(krr(k=4, epsilon0=1), 'krr(k=4')",
        "joint(krr(k=4, epsilon0=1), binomial_sum(p=0.5))",
        "joint(krr(k=4, epsilon0=1), declared(epsilon=1))",
        "joint(parts=krr(k=4, epsilon0=1))",
        "parallel(krr(k=4, epsilon0=1), krr(k=4, epsilon0=1))",
        "parallel((0.5, krr(k=4, epsilon0=1)), (0.4, krr(k=4, epsilon0=1)))",
        "parallel((1.5, krr(k=4, epsilon0=1)), (-0.5, krr(k=4, epsilon0=1)))",
        "parallel((1, krr(k=4, epsilon0=1)), (0, krr(k=4, epsilon0=1)))",
        "parallel((0.5, krr(k=4, epsilon0=1), 3), (0.5, krr(k=4, epsilon0=1)))",
        "parallel((0.5, krr(k=4, epsilon0=1)), (0.5, uniformity_tester(noise=1)))",
        "parallel(weights=(0.5, 0.5), parts=(krr(k=4, epsilon0=1), krr(k=4, epsilon0=1)))",
        "table([[0.5, 0.5]])",
        "table([[1], [1]])",
        "table([[0.5, 0.5], [0.5, 0.25, 0.25]])",
        "table([[0.5, 0.5], [0.6, 0.5]])",
        "table([[0.5, 0.5], [1.5, -0.5]])",
        "table([[0.5, 0.5], [1, 1e-60]])",
        "table([[0.5, 0.5], ['a', 'b']])",
        "table([[0.5, 0.5], [0.499999999, 0.5]])",
        "table(0.5, 0.5)",
        "table()",
        "laplace()",
        "laplace(epsilon0=0)",
        "krr([4], epsilon0=1)",
        "krr(k=4, epsilon0='1')",
        "krr(k=[4], epsilon0=1)",
        "krr(k=krr(k=4, epsilon0=1), epsilon0=1)",
        {"kind": "joint", "parts": [{"kind": "krr", "k": 4, "epsilon0": 1}, 7]},
        {"kind": "parallel", "parts": [{"weight": 1}]},
        {"kind": "table", "rows": {"a": 1}},
        {"kind": "table", "rows": [[math.nan, 1.0], [0.5, 0.5]]},
        {"kind": "table", "rows": [[0.5, 0.5]] * 65},
        {"kind": "joint", "parts": [{"kind": "krr", "k": 4, "epsilon0": 1}] * 17},
    ],
)
def test_what_is_written_wrongly_is_refused(written: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_randomizer(written)
    assert caught.value.expected
    assert any(word in str(caught.value) for word in ("expected", "it takes", "known are"))


def test_depth_and_size_are_limited() -> None:
    krr = "krr(k=2, epsilon0=0.1)"
    deep = krr
    for _ in range(9):
        deep = f"parallel((0.5, {deep}), (0.5, {krr}))"
    with pytest.raises(InvalidParameter, match="inside one another"):
        parse_randomizer(deep)
    with pytest.raises(InvalidParameter):
        parse_randomizer("joint(" * 5000 + krr + ")" * 5000)
    # Eight reports of many values each have too many kinds of outcomes to be summed over.
    sizes = ", ".join(f"krr(k={k}, epsilon0=0.{k})" for k in range(3, 9))
    with pytest.raises(InvalidParameter, match="components"):
        parse_randomizer(f"joint({sizes}, {sizes.replace('=0.', '=1.')})")
    skewed = "table([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])"
    with pytest.raises(InvalidParameter, match="pairs of inputs"):
        parse_randomizer(f"joint({', '.join([skewed] * 4)})")


def test_a_row_is_what_it_says_divided_by_its_sum() -> None:
    """Thirds do not sum to 1 in binary; the residual is not another output."""
    thirds = parse_randomizer({"kind": "table", "rows": [[1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]]})
    for bracket in thirds.analysis("blanket").brackets:
        assert math.fsum(bracket.above.a) == pytest.approx(1, abs=1e-15)
    assert thirds.epsilon0 == pytest.approx(math.log(10 / 3))
    assert thirds.to_mapping()["rows"] == [[1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]]
