"""Metrics for Prometheus: what this server did, and what the ledger says whichever server is asked.

No label grows with the ledger: cohorts are counted, and only those that used most of their budgets are named.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.api.figures import Figures, LedgerFigures
from shuffle_ledger.ledger.health import ALARMS, Health, health
from shuffle_ledger.ledger.reports.listing import CohortUse
from shuffle_ledger.ledger.storage.tables import SCHEMA_REVISION

if TYPE_CHECKING:
    from shuffle_ledger.ledger.api.dependencies import Service

# Upper ends of the cells of every histogram of durations, in seconds.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """One server's counters, and the ledger's figures."""

    def __init__(self, service: Service) -> None:
        self._figures = LedgerFigures(
            service.store,
            service.dispatch.health or partial(health, service.store),
            worst_max=service.settings.metrics_cohorts,
        )
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "shuffle_ledger_http_request_seconds",
            "Time from a request's arrival to its answer, by route.",
            ("method", "route", "status"),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self._errors = Counter(
            "shuffle_ledger_http_errors",
            "Answers that say the server failed or was busy.",
            ("route", "status"),
            registry=self._registry,
        )
        self._decisions = Histogram(
            "shuffle_ledger_decision_seconds",
            "Time from a registration's arrival to its outcome, or to the answer that it is pending.",
            ("outcome",),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        build = Gauge(
            "shuffle_ledger_build_info",
            "1; the labels say which code this server runs.",
            ("version", "numerical_policy", "schema"),
            registry=self._registry,
        )
        build.labels(version("shuffle-ledger"), NUMERICAL_POLICY, SCHEMA_REVISION).set(1)
        ProcessCollector(registry=self._registry)

    def observe(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(method, route, str(status)).observe(seconds)
        if status >= 500:
            self._errors.labels(route, str(status)).inc()

    def observe_decision(self, outcome: str, seconds: float) -> None:
        """Count a registration: `admitted`, `refused` or `pending`."""
        self._decisions.labels(outcome).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format; raises TryAgain, Unavailable."""
        found = CollectorRegistry()
        found.register(_Ledger(self._figures.latest()))
        return generate_latest(self._registry) + generate_latest(found)

    def close(self) -> None:
        """Read no more figures."""
        self._figures.close()


class _Ledger(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield what the database said when the figures were read."""
        yield from self._decided()
        yield from self._budgets()
        for name, meaning, value, *label in _of_health(self._figures.health):
            if value is not None:
                yield _metric(name, meaning, value, *label)
        complete, seconds = self._figures.is_complete, self._figures.read_seconds
        meaning = (
            "0: figures of single cohorts, or refusals by reason, are left out until all were read once."
        )
        yield _metric("figures_complete", meaning, complete)
        yield _metric("figures_read_seconds", "How long reading them took.", seconds)

    def _decided(self) -> Iterator[Metric]:
        figures, kind = self._figures, CounterMetricFamily
        reasons = dict(sorted((figures.refused_by_reason or {}).items()))
        admitted, refused = figures.rounds_admitted, figures.rounds_refused
        yield _metric("rounds_admitted", "Rounds admitted, in all cohorts.", admitted, kind=kind)
        yield _metric("refusals", "Rounds refused, in all cohorts.", refused, kind=kind)
        meaning = "Rounds refused, by reason; none until all refusals were read once."
        yield _metric("rounds_refused", meaning, reasons, "reason", kind=kind)

    def _budgets(self) -> Iterator[Metric]:
        most, uses = (
            " Of the cohorts that used most of their budgets; periods that are over are none.",
            self._figures.worst or (),
        )
        rows: tuple[tuple[str, str, Callable[[CohortUse], float]], ...] = (
            ("epsilon_budget", "Epsilon allowed.", lambda use: use.epsilon_budget),
            ("epsilon_spent_upper", "Upper bound on epsilon spent.", lambda use: use.epsilon_spent_upper),
            ("budget_used_ratio", "Upper bound on epsilon spent, over the budget.", lambda use: use.ratio),
            ("overspent", "1: overspent.", lambda use: use.status == "overspent"),
        )
        for name, meaning, read in rows:
            yield _metric(name, meaning + most, {use.cohort: read(use) for use in uses}, "cohort")
        shares = {str(share): count for share, count in self._figures.used_at_least.items()}
        meaning = "Cohorts that used at least this share of their budgets."
        yield _metric("cohorts_used_at_least", meaning, shares, "share")


def _metric(
    name: str,
    meaning: str,
    value: float | Mapping[str, float],
    label: str = "",
    *,
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """Return a metric of one value, or of values by a label."""
    if not isinstance(value, Mapping):
        return kind(f"shuffle_ledger_{name}", meaning, value)
    found = kind(f"shuffle_ledger_{name}", meaning, labels=[label])
    for each, number in value.items():
        found.add_metric([each], number)
    return found


def _of_health(found: Health) -> tuple[tuple[Any, ...], ...]:
    """Return names, meanings and values of what waits and what is wrong; None: it is left out."""
    words = Tally(alarm.split(" ", 1)[0] for alarm in found.alarms)
    alarms = {each: words[each] for each in ALARMS}
    queues = {name.rpartition(".")[2]: length for name, length in (found.queues or {}).items()}
    age = None if found.checkpointed_at is None else (found.at - found.checkpointed_at).total_seconds()
    read_at = "When the figures about the ledger were read, by the database's clock."
    return (
        ("rounds_pending", "Rounds not decided yet.", found.rounds_pending + found.rounds_stuck),
        ("rounds_stuck", "Rounds that failed too often to be retried.", found.rounds_stuck),
        ("webhooks_paused", "Webhooks to which a message failed too often.", found.webhooks_paused),
        (
            "webhooks_failing",
            "Webhooks that are paused, or to which nothing could be sent for 15 minutes.",
            found.webhooks_failing,
        ),
        (
            "task_lag_seconds",
            "Age of the oldest undecided round that is not stuck.",
            found.longest_wait_seconds,
        ),
        ("queue_messages", "Messages at the broker, by queue.", queues, "queue"),
        ("workers", "Workers that wait for rounds at the broker.", found.workers),
        ("cohorts", "Cohorts.", found.cohorts),
        ("cohorts_broken", "Cohorts in which verification found a change.", found.cohorts_broken),
        (
            "cohorts_overspent",
            "Cohorts whose budget did not cover what was released or promised.",
            found.cohorts_overspent,
        ),
        ("cohorts_frozen", "Cohorts that lost entries: their spending is unknown.", found.cohorts_frozen),
        ("cohorts_unverified", "Cohorts not verified lately.", found.cohorts_unverified),
        ("alarms", "Alarms of `health`, by their first word.", alarms, "alarm"),
        ("alarms_acknowledged", "Alarms that a setting ended.", len(found.acknowledged)),
        ("checkpoint_age_seconds", "Of the last checkpoint.", age),
        ("figures_timestamp_seconds", read_at, found.at.timestamp()),
    )
