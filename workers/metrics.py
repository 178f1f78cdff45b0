"""The durations of a worker's tasks, for Prometheus, at a separate port.

The processes that run tasks write into files of a folder of this worker, and its main process reads all of
them when it is asked. So nothing is lost when such a process ends, and no task waits for a scrape.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps
from celery.signals import task_postrun, task_prerun
from celery.worker import state

from shuffle_ledger.ledger.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Metric

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # a name of the library, which reads it when it is imported
# Seconds: a round of a known kind takes milliseconds, a new kind seconds, and no task more than 900.
BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 900.0)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of a text such as `127.0.0.1:9808` or `[::1]:9808`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class OwnPort(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery publishes no types
    """Counts tasks in every process of a worker, and answers at the address of the settings."""

    def create(self, _parent: object) -> None:
        """Begin to count, before the processes that run tasks are made: they write into the same folder."""
        self._folder = tempfile.mkdtemp(prefix="shuffle-ledger-metrics-")
        os.environ[FOLDER] = self._folder
        from prometheus_client import CollectorRegistry, Histogram  # noqa: PLC0415 - now it knows the folder
        from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415

        self._registry = CollectorRegistry()
        MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._registry.register(_Running())
        self._seconds = Histogram(
            "shuffle_ledger_worker_task_seconds",
            "Seconds that tasks took, by task and by how they ended.",
            labelnames=("task", "ended"),
            buckets=BUCKETS,
            registry=None,
        )
        self._begun: dict[str, float] = {}  # by identifier, of the tasks that this process runs
        task_prerun.connect(self._begin)
        task_postrun.connect(self._end)

    def start(self, _parent: object) -> None:
        """Answer from now on. A port that is taken ends the worker."""
        from prometheus_client import start_http_server  # noqa: PLC0415 - as above

        host, port = host_and_port(str(Settings().worker_metrics))
        self._server, _ = start_http_server(port, host, self._registry)

    def stop(self, _parent: object) -> None:
        """Answer no longer, and remove the folder."""
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, task_id: str, **_: object) -> None:
        self._begun[task_id] = time.monotonic()

    def _end(self, task_id: str, task: Any, state: str | None, **_: object) -> None:
        begun = self._begun.pop(task_id, None)
        if begun is not None:
            name = task.name.removeprefix("shuffle_ledger.")
            ended = "success" if state == "SUCCESS" else "failure"
            self._seconds.labels(name, ended).observe(time.monotonic() - begun)


class _Running:
    """The tasks that run now, as the main process knows them."""

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client: yield the present number."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        running = len(state.active_requests)
        yield GaugeMetricFamily("shuffle_ledger_worker_tasks_running", "Tasks that run now.", value=running)
