"""Metrics for Prometheus: the requests of this server, and the state of the ledger."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.reports.listing import (
    REFUSALS_READ_MAX,
    cohort_heads,
    count_all_entries,
    refusals_after,
)
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One server's counters, and the ledger's own numbers read when they are asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "shuffle_ledger_http_request_seconds",
            "Time from a request's arrival to its answer, by route.",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._errors = Counter(
            "shuffle_ledger_http_errors",
            "Answers that say the server failed or was busy.",
            ("route", "status"),
            registry=self._registry,
        )
        self._lock = threading.Lock()
        self._refusals: Tally[tuple[str, str]] = Tally()
        self._refusals_read: dict[str, int] = {}

    def observe(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(method, route, str(status)).observe(seconds)
        if status >= 500:
            self._errors.labels(route, str(status)).inc()

    def text(self, store: Store) -> bytes:
        """Return everything in Prometheus' text format."""
        found = CollectorRegistry()
        with self._lock:
            found.register(_Ledger(store, self._refusals_by_reason(store)))
        return generate_latest(self._registry) + generate_latest(found)

    def _refusals_by_reason(self, store: Store) -> dict[tuple[str, str], int]:
        """Return the refusals of every cohort by reason; only what is new since the last time is read."""
        for cohort in {cohort for cohort, kind in count_all_entries(store) if kind == EntryKind.REFUSED}:
            while True:
                page = refusals_after(store, cohort, after=self._refusals_read.get(cohort, 0))
                for entry in page:
                    self._refusals[cohort, str(entry.content().details.get("reason"))] += 1
                    self._refusals_read[cohort] = entry.sequence
                if len(page) < REFUSALS_READ_MAX:
                    break
        return dict(self._refusals)


class _Ledger(Collector):
    def __init__(self, store: Store, refusals: dict[tuple[str, str], int]) -> None:
        self._store = store
        self._reasons = refusals

    def collect(self) -> Iterator[Metric]:
        """Yield what the database says now."""
        yield from self._decisions()
        yield from self._budgets()
        yield from self._queue()

    def _decisions(self) -> Iterator[Metric]:
        admitted = CounterMetricFamily(
            "shuffle_ledger_rounds_admitted", "Rounds admitted, by cohort.", labels=["cohort"]
        )
        for (cohort, kind), count in sorted(count_all_entries(self._store).items()):
            if kind == EntryKind.ADMITTED:
                admitted.add_metric([cohort], count)
        yield admitted
        refused = CounterMetricFamily(
            "shuffle_ledger_rounds_refused",
            "Rounds refused, by cohort and reason.",
            labels=["cohort", "reason"],
        )
        for (cohort, reason), count in sorted(self._reasons.items()):
            refused.add_metric([cohort, reason], count)
        yield refused

    def _budgets(self) -> Iterator[Metric]:
        labels = ["cohort"]
        budget = GaugeMetricFamily("shuffle_ledger_epsilon_budget", "The budget's epsilon.", labels=labels)
        spent = GaugeMetricFamily(
            "shuffle_ledger_epsilon_spent_upper", "Certified upper bound on what is spent.", labels=labels
        )
        used = GaugeMetricFamily(
            "shuffle_ledger_budget_used_ratio", "Spent (at most) over the budget.", labels=labels
        )
        over = GaugeMetricFamily("shuffle_ledger_overspent", "1 if the cohort is overspent.", labels=labels)
        for head in cohort_heads(self._store):
            name, upper = [head.body.cohort], head.body.spent.epsilon_upper
            budget.add_metric(name, head.body.epsilon_budget)
            spent.add_metric(name, upper)
            used.add_metric(name, upper / head.body.epsilon_budget)
            over.add_metric(name, head.status == "overspent")
        yield from (budget, spent, used, over)

    def _queue(self) -> Iterator[Metric]:
        found = health(self._store)
        undecided = found.rounds_pending + found.rounds_stuck
        yield GaugeMetricFamily("shuffle_ledger_rounds_pending", "Rounds not decided yet.", undecided)
        yield GaugeMetricFamily(
            "shuffle_ledger_rounds_stuck",
            "Rounds that failed too often and wait for somebody.",
            found.rounds_stuck,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_task_lag_seconds",
            "Age of the oldest undecided round.",
            found.longest_wait_seconds,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_cohorts_broken",
            "Cohorts in whose history the last scheduled verification found a change.",
            found.cohorts_broken,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_cohorts_overspent",
            "Cohorts whose budget was exceeded.",
            found.cohorts_overspent,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_cohorts_frozen",
            "Cohorts that lost entries, so that what they have spent is unknown.",
            found.cohorts_frozen,
        )
        yield GaugeMetricFamily(
            "shuffle_ledger_cohorts_unverified",
            "Cohorts that no verification passed or failed lately.",
            found.cohorts_unverified,
        )
