"""Privacy profiles as pictures: what `--plot` writes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shuffle_ledger.accounting import Accountant, Certificate, ShuffledRound, upper_text
from shuffle_ledger.cli.rendering.charts import DOTS_PER_INCH, INK, LIMIT, SPENT, quieten
from shuffle_ledger.ledger.files import write_bytes_whole

_POINTS = 41
# The picture ends where delta falls to the first of these at a finite epsilon.
_DEPTHS = (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)
_LEAST_DELTA = 1e-18
# Removes the dates and program names that the formats would otherwise contain.
_UNDATED: Mapping[str, Mapping[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".png": {"Software": None},
}


def plot_profile(
    accountant: Accountant,
    rounds: Mapping[ShuffledRound, int],
    *,
    answer: Certificate,
    title: str,
    picture: Path,
) -> None:
    """Writes delta as a function of epsilon, from above and from below, and where `answer` lies.

    The format follows the suffix of `picture`. The file is whole or not there.
    """
    points = _profile(accountant, rounds)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    at = [point.epsilon_upper for point in points]
    above = [max(point.delta_upper, _LEAST_DELTA) for point in points]
    below = [max(point.delta_lower, _LEAST_DELTA) for point in points]
    axes.fill_between(at, below, above, color=SPENT, alpha=0.25, linewidth=0)
    axes.plot(at, above, color=SPENT, linewidth=1.8, label="delta, at most")
    axes.plot(at, below, color=SPENT, linewidth=1.0, linestyle=(0, (4, 2)), label="delta, at least")
    if math.isfinite(answer.epsilon_upper) and answer.delta_upper > 0:
        label = f"epsilon {upper_text(answer.epsilon_upper)}, delta {upper_text(answer.delta_upper)}"
        axes.plot([answer.epsilon_upper], [answer.delta_upper], "o", color=INK, markersize=5, label=label)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("epsilon", color=INK)
    axes.set_ylabel("delta", color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize="small", wrap=True)
    axes.grid(color=LIMIT, alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, fontsize="small")
    quieten(axes)
    write_whole(figure, picture)


def write_whole(figure: Figure, picture: Path) -> None:
    """Writes the figure in the format of its suffix."""
    suffix, drawn = picture.suffix.lower(), io.BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, format=suffix[1:], metadata=dict(_UNDATED[suffix]))
    write_bytes_whole(picture, drawn.getvalue())


def _profile(accountant: Accountant, rounds: Mapping[ShuffledRound, int]) -> tuple[Certificate, ...]:
    ends = (accountant.certify(rounds, delta=delta).epsilon_upper for delta in _DEPTHS)
    end = next((found for found in ends if math.isfinite(found)), 1.0) or 1.0
    return accountant.profile(rounds, epsilons=[end * step / (_POINTS - 1) for step in range(_POINTS)])
