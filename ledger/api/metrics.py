"""Metrics for Prometheus: what this server did, and what the ledger says whichever server is asked.

No label grows with the ledger: cohorts are counted, and only those that used most of their budgets are named.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.api.figures import Figures, LedgerFigures
from shuffle_ledger.ledger.health import ALARMS, health
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
            uses=service.uses,
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
        yield from self._waiting()
        yield from self._cohorts()
        yield from self._alarms()

    def _decided(self) -> Iterator[Metric]:
        figures = self._figures
        yield CounterMetricFamily(
            "shuffle_ledger_rounds_admitted", "Rounds admitted, in all cohorts.", figures.rounds_admitted
        )
        yield CounterMetricFamily(
            "shuffle_ledger_refusals", "Rounds refused, in all cohorts.", figures.rounds_refused
        )
        refused = CounterMetricFamily(
            "shuffle_ledger_rounds_refused",
            "Rounds refused, by reason; none until all refusals were read once.",
            labels=["reason"],
        )
        for reason, count in sorted((figures.refused_by_reason or {}).items()):
            refused.add_metric([reason], count)
        yield refused

    def _budgets(self) -> Iterator[Metric]:
        labels, most = ["cohort"], " Of the cohorts that used most of their budgets."
        budget = GaugeMetricFamily("shuffle_ledger_epsilon_budget", "Epsilon allowed." + most, labels=labels)
        spent = GaugeMetricFamily(
            "shuffle_ledger_epsilon_spent_upper", "Upper bound on epsilon spent." + most, labels=labels
        )
        used = GaugeMetricFamily(
            "shuffle_ledger_budget_used_ratio",
            "Upper bound on epsilon spent, over the budget." + most,
            labels=labels,
        )
        over = GaugeMetricFamily("shuffle_ledger_overspent", "1: overspent." + most, labels=labels)
        for use in self._figures.worst or ():
            budget.add_metric([use.cohort], use.epsilon_budget)
            spent.add_metric([use.cohort], use.epsilon_spent_upper)
            used.add_metric([use.cohort], use.ratio)
            over.add_metric([use.cohort], use.status == "overspent")
        shares = GaugeMetricFamily(
            "shuffle_ledger_cohorts_used_at_least",
            "Cohorts that used at least this share of their budgets.",
            labels=["share"],
        )
        for share, count in self._figures.used_at_least.items():
            shares.add_metric([str(share)], count)
        yield from (budget, spent, used, over, shares)

    def _waiting(self) -> Iterator[Metric]:
        found = self._figures.health
        undecided = found.rounds_pending + found.rounds_stuck
        yield GaugeMetricFamily("shuffle_ledger_rounds_pending", "Rounds not decided yet.", undecided)
        yield GaugeMetricFamily(
            "shuffle_ledger_rounds_stuck",
            "Rounds that failed too often to be retried.",
            found.rounds_stuck,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_webhooks_paused",
            "Webhooks to which a message failed too often.",
            found.webhooks_paused,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_webhooks_failing",
            "Webhooks that are paused, or to which nothing could be sent for 15 minutes.",
            found.webhooks_failing,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_task_lag_seconds",
            "Age of the oldest undecided round that is not stuck.",
            found.longest_wait_seconds,
        )
        queues = GaugeMetricFamily(
            "shuffle_ledger_queue_messages", "Messages at the broker, by queue.", labels=["queue"]
        )
        for name, length in (found.queues or {}).items():
            queues.add_metric([name.rpartition(".")[2]], length)
        yield queues
        if found.workers is not None:
            yield GaugeMetricFamily(
                "shuffle_ledger_workers", "Workers that wait for rounds at the broker.", found.workers
            )

    def _cohorts(self) -> Iterator[Metric]:
        found = self._figures.health
        gauges = {
            "cohorts": ("Cohorts.", found.cohorts),
            "cohorts_broken": (
                "Cohorts in which verification found a change.",
                found.cohorts_broken,
            ),
            "cohorts_overspent": (
                "Cohorts whose budget did not cover what was released or promised.",
                found.cohorts_overspent,
            ),
            "cohorts_frozen": ("Cohorts that lost entries: their spending is unknown.", found.cohorts_frozen),
            "cohorts_unverified": ("Cohorts not verified lately.", found.cohorts_unverified),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"shuffle_ledger_{name}", meaning, value)

    def _alarms(self) -> Iterator[Metric]:
        found = self._figures.health
        words = Tally(alarm.split(" ", 1)[0] for alarm in found.alarms)
        alarms = GaugeMetricFamily(
            "shuffle_ledger_alarms", "Alarms of `health`, by their first word.", labels=["alarm"]
        )
        for word in ALARMS:
            alarms.add_metric([word], words[word])
        yield alarms
        yield GaugeMetricFamily(
            "shuffle_ledger_alarms_acknowledged", "Alarms that a setting ended.", len(found.acknowledged)
        )
        if found.checkpointed_at is not None:
            age = (found.at - found.checkpointed_at).total_seconds()
            yield GaugeMetricFamily("shuffle_ledger_checkpoint_age_seconds", "Of the last checkpoint.", age)
        yield GaugeMetricFamily(
            "shuffle_ledger_figures_timestamp_seconds",
            "When the figures about the ledger were read, by the database's clock.",
            found.at.timestamp(),
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_figures_complete",
            "0: figures of single cohorts, or refusals by reason, are left out until all were read once.",
            self._figures.is_complete,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_figures_read_seconds", "How long reading them took.", self._figures.read_seconds
        )
