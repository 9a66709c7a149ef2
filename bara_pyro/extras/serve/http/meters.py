"""Count and time requests and batches for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Meters:
    """Metrics of one server, in a separate registry.

    Args:
        held: returns the number of rows that wait or are being computed.
    """

    def __init__(self, held: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        times = "Seconds from request to answer."
        self.requests = Counter("bara_requests", "Requests answered.", ("path", "status"), registry=registry)
        self.seconds = Histogram("bara_request_seconds", times, ("path",), buckets=SECONDS, registry=registry)
        self.rows = Counter("bara_rows", "Rows computed.", registry=registry)
        self.batch_rows = Histogram("bara_batch_rows", "Rows per batch.", buckets=ROWS, registry=registry)
        self.batch_seconds = Histogram(
            "bara_batch_seconds", "Seconds per batch.", buckets=SECONDS, registry=registry
        )
        Gauge("bara_rows_held", "Rows waiting or being computed.", registry=registry).set_function(held)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Record a computed batch."""
        self.rows.inc(rows)
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
