"""Many rounds beside others, on the same work: epsilon of rounds of ten kinds, given their pairs.

The kinds are the published pair of 1,000 users at local epsilons 0.2, 0.4, ..., 2, each repeated equally
often. dp-accounting and prv-accountant get every outcome of the pairs that weighs more than 1e-30, with its
masses; we get the parameters. Discretized pairs are made beforehand, but where it says *from*. *Right down
to* is the smallest delta of 1e-2, 1e-4, ..., 1e-40 down to which all answers were finite and not below the
truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from shuffle_ledger.accounting import Accountant
from tests.benchmarks.accountant_speed import clone_kinds
from tests.benchmarks.case import Case, Interval, Work

FloatArray = npt.NDArray[np.float64]
Answers = Callable[[float], Interval]  # epsilon at a delta

_KINDS = 10
_REPORTS = 1000
_LOG_CUT = math.log(1e-30)
_DEPTHS = range(2, 41, 2)
_ROUNDING = 1e-9  # of a peer's own arithmetic, forgiven
_DELTA = 1e-6


def clone_outcomes(epsilon0: float, reports: int) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the masses of every outcome of the published pair, under both inputs."""
    e = math.exp(epsilon0)
    c = 1 / (2 * e)
    half = math.sqrt(-2 * reports * c * (1 - c) * _LOG_CUT) - _LOG_CUT / 3
    side = np.arange(
        max(0, math.floor(reports * c - half)), min(reports, math.ceil(reports * c + half)) + 1.0
    )
    first, second = (grid.ravel() for grid in np.meshgrid(side, side, indexing="ij"))
    possible = (first + second >= 1) & (first + second <= reports)
    first, second = first[possible], second[possible]
    rest = reports - first - second
    log_mass = gammaln(reports + 1) - gammaln(first + 1) - gammaln(second + 1) - gammaln(rest + 1)
    log_mass += (first + second) * math.log(c) + rest * math.log1p(-2 * c) - math.log(reports)
    p = log_mass + np.log((e * first + second) / (1 + e) / c)
    q = log_mass + np.log((first + e * second) / (1 + e) / c)
    kept = np.maximum(p, q) > _LOG_CUT
    return p[kept], q[kept]


def kinds_outcomes() -> list[tuple[FloatArray, FloatArray]]:
    """The ten kinds."""
    return [clone_outcomes(0.2 * (k + 1), _REPORTS) for k in range(_KINDS)]


def ours(rounds: int, *, warm: bool, precision: float) -> Answers:
    """This package, from the parameters or from privacy losses already made."""
    counts = clone_kinds(_KINDS, rounds)
    ready = Accountant(precision=precision)
    if warm:
        for kind in counts:
            ready.privacy_loss(kind)

    def answer(delta: float) -> Interval:
        accountant = Accountant(precision=precision)
        if warm:
            for kind in counts:
                accountant.adopt(kind, ready.privacy_loss(kind))
        certificate = accountant.certify(counts, delta=delta)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return answer


def dp_accounting(rounds: int, *, warm: bool, spacing: float) -> Answers:
    """dp-accounting: losses rounded up, and down, to a grid; powers by FFT."""
    from dp_accounting.pld import privacy_loss_distribution as library

    outcomes = kinds_outcomes()

    def losses(*, pessimistic: bool) -> list[library.PrivacyLossDistribution]:
        made = []
        for p, q in outcomes:
            under_p, under_q = (dict(enumerate(masses.tolist())) for masses in (p, q))
            made.append(library.from_two_probability_mass_functions(under_q, under_p, pessimistic, spacing))
        return made

    known = [losses(pessimistic=side) for side in (True, False)] if warm else None

    def answer(delta: float) -> Interval:
        sides = known or [losses(pessimistic=side) for side in (True, False)]
        ends = []
        for side in sides:
            powers = [loss.self_compose(rounds // _KINDS) for loss in side]
            total = powers[0]
            for power in powers[1:]:
                total = total.compose(power)
            ends.append(float(total.get_epsilon_for_delta(delta)))
        return Interval(*ends)

    return answer


def prv_accountant(rounds: int, *, share: float) -> Answers:
    """prv-accountant: random variables by their distribution functions, errors as shares of epsilon."""
    import prv_accountant as library

    class Listed(library.PrivacyRandomVariable):  # type: ignore[misc]  # the library publishes no types
        """A privacy random variable with finitely many values."""

        def __init__(self, p: FloatArray, q: FloatArray) -> None:
            order = np.argsort(p - q)
            self._losses, self._log_masses = (p - q)[order], p[order]
            self._sums = np.concatenate([[0.0], np.cumsum(np.exp(self._log_masses))])
            self._sums /= self._sums[-1]

        def cdf(self, t: FloatArray) -> FloatArray:
            sums: FloatArray = self._sums[np.searchsorted(self._losses, t, side="right")]
            return sums

        def mean(self) -> float:
            return float((self._losses * np.exp(self._log_masses)).sum())

        def rdp(self, alpha: float) -> float:
            if alpha == 1:
                return self.mean()
            exponents = self._log_masses + (alpha - 1) * self._losses
            top = exponents.max()
            return float(top + np.log(np.exp(exponents - top).sum())) / (alpha - 1)

    variables = [Listed(p, q) for p, q in kinds_outcomes()]
    repeats = [rounds // _KINDS] * _KINDS
    sized: Sequence[float] = [ours(rounds, warm=False, precision=1e-2)(_DELTA).upper]

    def answer(delta: float) -> Interval:
        accountant = library.PRVAccountant(
            prvs=variables,
            max_self_compositions=repeats,
            eps_error=share * sized[0] / 2,
            delta_error=delta * 1e-3,
        )
        lower, _, upper = accountant.compute_epsilon(delta, repeats)
        return Interval(upper, lower)

    return answer


def at(make: Callable[[], Answers], delta: float) -> Work:
    """The work of answering at one delta."""
    answers = make()
    return lambda: answers(delta)


def depth(make: Callable[[], Answers], rounds: int) -> Work:
    """The work of finding the smallest delta at which the answers are still right."""
    answers, truth = make(), ours(rounds, warm=True, precision=1e-4)

    def run() -> str:
        for exponent in _DEPTHS:
            delta = 10.0**-exponent
            exact = truth(delta)
            try:
                upper = answers(delta).upper
            except (ArithmeticError, RuntimeError, ValueError) as error:
                return f"right down to 1e-{exponent - 2}, then {type(error).__name__}"
            if not math.isfinite(upper):
                return f"right down to 1e-{exponent - 2}, then {upper}"
            if upper < (exact.lower or 0.0) * (1 - _ROUNDING):
                return f"right down to 1e-{exponent - 2}, then {upper:.6g} below {exact.lower:.6g}"
        return f"right down to 1e-{_DEPTHS[-1]}, and asked no further"

    return run


def cases() -> Iterator[Case]:
    """Every method at every task; then how deep each goes."""
    for rounds in (1000, 10_000):
        group = f"{rounds:,} rounds, delta {_DELTA:g}"
        for name, make, needs in [*_methods(rounds), *_from_nothing(rounds)]:
            prepare = partial(at, make, _DELTA)
            yield Case(name=f"{group}: {name}", prepare=prepare, group=group, needs=needs, computes=True)
    for delta in (1e-12, 1e-20, 1e-30):
        group = f"1,000 rounds, delta {delta:g}"
        for name, make, needs in list(_methods(1000))[::2]:
            yield Case(
                name=f"{group}: {name}",
                prepare=partial(at, make, delta),
                group=group,
                needs=needs,
                computes=True,
            )
    for name, make, needs in list(_methods(1000))[::2]:
        prepare = partial(depth, make, 1000)
        yield Case(
            name=f"depth, 1,000 rounds: {name}", prepare=prepare, needs=needs, repeats=1, computes=True
        )


Method = tuple[str, Callable[[], Answers], str | None]


def _methods(rounds: int) -> Iterator[Method]:
    yield "ours", partial(ours, rounds, warm=True, precision=1e-3), None
    yield "ours, precision 1e-4", partial(ours, rounds, warm=True, precision=1e-4), None
    for spacing in (1e-4, 1e-5):
        made = partial(dp_accounting, rounds, warm=True, spacing=spacing)
        yield f"dp-accounting, grid {spacing:g}", made, "dp_accounting"
    for share in (1e-2, 1e-3):
        yield (
            f"prv-accountant, error {share:g}",
            partial(prv_accountant, rounds, share=share),
            "prv_accountant",
        )


def _from_nothing(rounds: int) -> Iterator[Method]:
    yield "ours, from parameters", partial(ours, rounds, warm=False, precision=1e-3), None
    made = partial(dp_accounting, rounds, warm=False, spacing=1e-4)
    yield "dp-accounting, grid 0.0001, from masses", made, "dp_accounting"
