"""Metrics: what the server counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server. All may be changed from any thread."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "burnt_serve_requests", "Answered requests by HTTP status.", ["model", "code"], registry=registry
        )
        self.seconds = Histogram(
            "burnt_serve_request_seconds",
            "Time from the first byte of a prediction's request to its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_rows = Histogram(
            "burnt_serve_batch_items",
            "Items that were run together.",
            ["model"],
            buckets=_ROWS,
            registry=registry,
        )
        self.device_seconds = Counter(
            "burnt_serve_device_seconds", "Time in which a model ran.", ["model"], registry=registry
        )
        self.failed_batches = Counter(
            "burnt_serve_failed_batches",
            "Batches that failed; their requests were run one by one.",
            ["model"],
            registry=registry,
        )
        self.nonfinite_answers = Counter(
            "burnt_serve_nonfinite_answers", "Answers with NaN or infinity.", ["model"], registry=registry
        )
        self.reloads = Counter(
            "burnt_serve_reloads", "New versions that were found.", ["model", "result"], registry=registry
        )
        self.info = Gauge(
            "burnt_serve_model_info",
            "1 for the version that is served.",
            ["model", "version"],
            registry=registry,
        )
        Gauge("burnt_serve_queue_requests", "Requests that wait.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)
