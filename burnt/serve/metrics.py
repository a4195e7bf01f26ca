"""Metrics: what the server counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server. All may be changed from any thread."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"burnt_serve_{name}", text, ["model", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"burnt_serve_{name}", text, ["model"], buckets=buckets, registry=registry)

        self.requests = counter("requests", "Answered requests by HTTP status.", "code")
        text = "Time from the first byte of a prediction's request to its answer."
        self.seconds = histogram("request_seconds", text, _SECONDS)
        self.batch_rows = histogram("batch_items", "Items that were run together.", _ROWS)
        self.device_seconds = counter("device_seconds", "Time in which a model ran.")
        text = "Batches that failed; their requests were run one by one."
        self.failed_batches = counter("failed_batches", text)
        self.nonfinite_answers = counter("nonfinite_answers", "Answers with NaN or infinity.")
        self.reloads = counter("reloads", "New versions that were found.", "result")
        text = "1 for the version that is served."
        self.info = Gauge("burnt_serve_model_info", text, ["model", "version"], registry=registry)
        Gauge("burnt_serve_queue_requests", "Requests that wait.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)
