"""Privacy and error of frequency estimates: what a target epsilon costs in accuracy.

It repeats Table 4 of Su, Cheng, Wang, "Decomposition-Based Optimal Bounds for Privacy Amplification via
Shuffling": 1,000 users report one of 10 categories by randomized response, delta is 1e-6, and the values are
drawn from a Zipf law of parameter 0.7. For each target it finds the largest epsilon0 that certainly meets it,
runs the mechanism many times, and prints the mean l2 error of the estimates next to the published one. The
last two columns are upper bounds on that mean: of this mechanism, whatever values the users hold, and of the
best protocol with short reports that Feldman, McMillan, Talwar, "Hiding Among the Clones", section 5.1 names.

    python examples/utility.py
"""

from __future__ import annotations

import math

import numpy as np

from shuffle_ledger.accounting import (
    Accountant,
    KaryRandomizedResponse,
    ShuffledRound,
    frequency_error,
    mechanism_of,
)

USERS, CATEGORIES, DELTA = 1000, 10, 1e-6
SIMULATIONS = 2000
# Target epsilon: the published epsilon0 and l2 error, by the bound of the paper.
PUBLISHED = {
    0.01: (0.21, 1.285),
    0.05: (0.73, 0.295),
    0.1: (1.15, 0.163),
    0.2: (1.7, 0.089),
    0.5: (2.65, 0.042),
    1.0: (3.51, 0.025),
}


def simulated_error(epsilon0: float, generator: np.random.Generator, simulations: int = SIMULATIONS) -> float:
    """Returns the mean l2 distance of estimated frequencies from those of the users."""
    weights = np.arange(1, CATEGORIES + 1) ** -0.7
    values = generator.choice(CATEGORIES, size=(simulations, USERS), p=weights / weights.sum())
    mechanism = mechanism_of(KaryRandomizedResponse(k=CATEGORIES, epsilon0=epsilon0))
    reports = mechanism.encode(values, generator)
    errors = [
        np.linalg.norm(mechanism.estimate(sent).values - np.bincount(held, minlength=CATEGORIES) / USERS)
        for sent, held in zip(reports, values, strict=True)
    ]
    return float(np.mean(errors))


def largest_epsilon0(accountant: Accountant, epsilon: float) -> float:
    """Returns the largest epsilon0, to three digits, of which the round's epsilon is at most this one."""
    low, high = 0.0, 6.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        randomizer = KaryRandomizedResponse(k=CATEGORIES, epsilon0=middle)
        shuffled = ShuffledRound(randomizer=randomizer, reports=USERS)
        meets = accountant.certify({shuffled: 1}, delta=DELTA).epsilon_upper <= epsilon
        low, high = (middle, high) if meets else (low, middle)
    return low


def short_reports_error(epsilon0: float) -> float:
    """Returns the root of `1/n + 4 k e/(n (e - 1)^2)`, the expected squared l2 error of that protocol."""
    return math.sqrt((1 + 4 * CATEGORIES * math.exp(epsilon0) / math.expm1(epsilon0) ** 2) / USERS)


def main() -> None:
    """Prints the table."""
    generator, accountant = np.random.default_rng(2024), Accountant()
    print("epsilon  epsilon0 (published)  l2 error (published)   at most  clones, section 5.1")
    for epsilon, (published, published_error) in PUBLISHED.items():
        epsilon0 = largest_epsilon0(accountant, epsilon)
        error = simulated_error(epsilon0, generator)
        bound = frequency_error(KaryRandomizedResponse(k=CATEGORIES, epsilon0=epsilon0), USERS)
        most = float("inf") if bound is None or bound.l2 is None else bound.l2
        short = short_reports_error(epsilon0)
        local = f"{epsilon0:8.3f} ({published:9})"
        print(f"{epsilon:7}  {local}  {error:8.4f} ({published_error:9})  {most:8.4f}  {short:19.4f}")


if __name__ == "__main__":
    main()
