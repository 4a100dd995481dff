"""``/metrics``: what the service and its queue do, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...db.errors import StoreError
from ...db.store import Store

_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_METHODS = ("GET", "HEAD", "POST", "DELETE")
_KEEP_COUNTS = 15.0  # seconds for which a count of all measurements is good enough


class Metrics:
    """The service's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams = 0
        requests = Counter(
            "pfatune_http_requests",
            "Requests by route, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        seconds = Histogram(
            "pfatune_http_request_seconds",
            "Time from a request to the start of its answer, by route.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        lookups = Counter(
            "pfatune_config_lookups",
            "Configurations asked for, by where the answer came from.",
            ["provenance"],
            registry=self.registry,
        )
        self._requests, self._seconds, self._lookups = requests, seconds, lookups
        self._counters: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._lookup_counters = {
            name: lookups.labels(name) for name in ("exact", "bucket", "nearest", "portfolio", "default")
        }
        self.refreshed = Gauge(
            "pfatune_served_refresh_timestamp_seconds",
            "When the served configurations were last read.",
            registry=self.registry,
        )
        Gauge("pfatune_http_event_streams", "Streams of events that are open.", registry=self.registry).set_function(
            lambda: self.streams
        )

    def looked_up(self, provenance: str) -> None:
        """Count one lookup."""
        self._lookup_counters[provenance].inc()

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        key = (route, method, status)
        counters = self._counters.get(key)
        if counters is None:
            counters = self._requests.labels(route, method, str(status)), self._seconds.labels(route)
            self._counters[key] = counters
        counters[0].inc()
        counters[1].observe(seconds)

    def watch(self, store: Store, served: Callable[[], int]) -> None:
        """Read the queue and the measurements of a store whenever metrics are asked for."""
        self.registry.register(_StoreCollector(store))
        Gauge("pfatune_served_configs", "Shapes with a tuned configuration.", registry=self.registry).set_function(
            lambda: float(served())
        )

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)


class _StoreCollector(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted = 0.0
        self._measurements: GaugeMetricFamily | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("pfatune_database_up", "1 if the database could be read just now.")
        try:
            families = [self._jobs(), self._oldest(), self._kinds()]
        except StoreError:
            families = []
        up.add_metric([], 1.0 if families else 0.0)
        yield up
        yield from families

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def _jobs(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("pfatune_jobs", "Jobs by state.", labels=["state"])
        for state, count in self._store.jobs.counts().items():
            family.add_metric([state.value], count)
        return family

    def _oldest(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("pfatune_oldest_queued_job_seconds", "How long the oldest queued job has waited.")
        family.add_metric([], self._store.jobs.oldest_queued_seconds() or 0.0)
        return family

    def _kinds(self) -> GaugeMetricFamily:
        if self._measurements is None or time.monotonic() - self._counted > _KEEP_COUNTS:
            labels = ["backend", "soc", "kind"]
            family = GaugeMetricFamily("pfatune_measurements", "Measurements by backend, chip and kind.", labels=labels)
            for (backend, soc, kind), count in self._store.measurement_counts().items():
                family.add_metric([backend, soc, kind.value], count)
            self._measurements, self._counted = family, time.monotonic()
        return self._measurements


class Measured:
    """Middleware that counts and times requests, by the route's template."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Set by the router; the paths themselves would be endless labels.
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.answered(route, method, message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, counted)
