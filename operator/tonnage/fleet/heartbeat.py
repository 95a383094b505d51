"""Liveness, readiness and the operator's own metrics, on one small server."""

import contextlib
import logging
import math
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tonnage.cluster.queries import Answers, query_of
from tonnage.control.series import FAMILIES, FleetSeries, Key, MetricSample, ObjectSeries
from tonnage.fleet.logs import Line
from tonnage.units import format_s

FLEET_FAMILIES = {
    "tonnage_tick_age_seconds": "Since the last complete tick",
    "tonnage_objects": "ModelDeployments",
    "tonnage_objects_without_series": "ModelDeployments without series of their own: too many",
    "tonnage_blind": "1 while Prometheus answers nothing that a decision needs",
}
INTERNAL_ERRORS = "Internal errors about one object in a tick; only it stays as it is"
BORN_S = 60
"""For so long a new counter is shown as zero: one that begins above zero has no increase, and
Prometheus must have scraped the zero."""
OBJECT_LABELS = ("namespace", "name")
Place = tuple[str, tuple[str, ...]]
"""Family, and the values of its own labels."""
Counts = dict[Place, tuple[float, float]]
"""The value, and when it began."""


class Exporter(Collector):
    """Shows what the loop last told. The loop tells from its thread, the page asks from others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: FleetSeries | None = None
        self._told_at_s = 0.0
        self._num_faults = 0
        self._counts: dict[Key, Counts] = {}

    def note(self, series: FleetSeries) -> None:
        """Take in the series of a tick that is over."""
        with self._lock:
            self._told, self._told_at_s = series, self._clock()
            self._num_faults += series.num_faults
            self._counts = {each.key: self._add(each) for each in series.objects}

    def _add(self, series: ObjectSeries) -> Counts:
        counts = self._counts.get(series.key, {})
        for each in series.counts:
            place = each.family, each.labels
            value, born_at_s = counts.get(place, (0.0, self._told_at_s))
            counts[place] = value + each.value, born_at_s
        return counts

    def forget(self) -> None:
        """Show nothing more: another process leads, and shows it."""
        with self._lock:
            self._told, self._counts = None, {}

    def collect(self) -> Iterator[Metric]:
        """Yield every family, most of them empty where nothing was told of late."""
        with self._lock:
            now_s = self._clock()
            age_s = now_s - self._told_at_s
            series = self._told if age_s < STALE_S else None
            counts = {
                key: {
                    place: value if now_s - born_at_s >= BORN_S else 0.0
                    for place, (value, born_at_s) in counts.items()
                }
                for key, counts in self._counts.items()
            }
            known_age_s = age_s if self._told else None
            faults = CounterMetricFamily(
                "tonnage_internal_errors", INTERNAL_ERRORS, value=self._num_faults
            )
        yield faults
        of_fleet = (
            (series.num_objects, series.num_left_out, series.is_blind) if series else (None,) * 3
        )
        for (name, text), value in zip(
            FLEET_FAMILIES.items(), (known_age_s, *of_fleet), strict=True
        ):
            yield GaugeMetricFamily(name, text, value=value)
        metrics = {
            name: (CounterMetricFamily if family.is_counter else GaugeMetricFamily)(
                name, family.text, labels=(*OBJECT_LABELS, *family.labels)
            )
            for name, family in FAMILIES.items()
        }
        for each in series.objects if series else ():
            known = counts.get(each.key, {}).items()
            added = (MetricSample(name, value, labels) for (name, labels), value in known)
            for sample in (*each.gauges, *added):
                metrics[sample.family].add_metric((*each.key, *sample.labels), sample.value)
        yield from metrics.values()


LOG = logging.getLogger("tonnage.heartbeat")
CLIENT_S = 10
"""For a client to say what it wants."""
MOST_CLIENTS = 64
"""At once, each with a thread. One more sends the longest away, which is no probe."""
STALE_S = 300
"""A loop that has begun no step of a tick for so long is dead, and so is Kopf's when nothing of it
ran. What a step waits for has a time-out of its own. Series of such a tick are not shown."""
SLOW_S = 60
"""After which the log says where a loop stands."""
UNREADY_S = 900
"""Without a good tick, while the API server is there: a new process reads its settings anew."""
MOST_FRAMES = 8
"""Of where a loop stands, the innermost."""
LOOP, WATCHES = "loop", "MainThread"
"""The threads that beat, by name: ours, and the one in which Kopf's event loop turns."""


class Heartbeat:
    """What the loop says about itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, tick_s: float = 0.0) -> None:
        """``tick_s``: for how long our own loop may have nothing to do."""
        self._clock, self._tick_s = clock, tick_s
        self._ready_at = began_at = clock()
        self.is_ready = False
        """The last tick went through; of who waits for the lead: the Lease can be read."""
        self._beaten_at = {LOOP: began_at}
        self._ended_at = began_at
        """When a tick last ended without a bug."""
        self._told = set[str]()
        """Threads of which the log says where they stand, until they beat again."""
        self.registry = CollectorRegistry()
        self.exporter = Exporter(clock)
        self.registry.register(self.exporter)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.tick_seconds = histogram("tonnage_tick_seconds", "Duration of a tick")
        self.step_seconds = histogram(
            "tonnage_tick_step_seconds", "Duration of one step of a tick", ["step"]
        )
        self.failed_ticks = counter("tonnage_failed_ticks", "Ticks that ended in an error")
        self.held_objects = gauge(
            "tonnage_held_objects", "ModelDeployments whose writes wait for settings.writesPerS"
        )
        self.leads = gauge("tonnage_leader", "1 while this process has the Lease and may write")
        self.settings_valid = gauge(
            "tonnage_settings_valid",
            "1 while a process that started now would take the settings file",
        )
        self.failed_queries = counter(
            "tonnage_failed_queries", "Queries to Prometheus that were not answered", ["query"]
        )
        self.dropped_samples = counter(
            "tonnage_dropped_samples", "Samples that are dropped because they are no finite number"
        )
        self.answer_bytes = gauge(
            "tonnage_answer_bytes", "Size of all answers of Prometheus in the last tick"
        )
        self.clock_skew_seconds = gauge(
            "tonnage_clock_skew_seconds", "By how much the clock of Prometheus is ahead of ours"
        )
        build = gauge("tonnage_build_info", "1 for the version", ["version"])
        build.labels(version("tonnage")).set(1)

    def step(self, name: str) -> AbstractContextManager[object]:
        """Return what measures how long a step of a tick takes; a loop that begins one is alive."""
        self._beaten_at[LOOP] = self._clock()
        return self.step_seconds.labels(name).time()

    def note_ready(self) -> None:
        self.is_ready, self._ready_at = True, self._clock()

    def begin(self) -> None:
        """Expect ticks from now on."""
        self._ready_at = self._clock()
        self.beat()

    def beat(self, thread: str = LOOP) -> None:
        """Note that a loop is alive: it ended a tick or waits for its turn to lead, it turns."""
        self._beaten_at[thread] = self._clock()
        self._told.discard(thread)
        if thread == LOOP:
            self._ended_at = self._beaten_at[LOOP]

    def fail(self, *, is_server_away: bool = False) -> None:
        """Note that a tick failed: that its steps began is no sign of life."""
        self._beaten_at[LOOP] = self._ended_at
        self.failed_ticks.inc()
        self.wait(is_server_away=is_server_away)

    def wait(self, *, is_server_away: bool) -> None:
        """Note that we are not ready; for the API server another process would wait as well."""
        self.is_ready = False
        if is_server_away:
            self._ready_at = self._clock()

    def rest(self, thread: str) -> None:
        """Expect no beat until the next one."""
        self._beaten_at.pop(thread, None)

    def note_answers(self, answers: Answers) -> None:
        """Count what Prometheus answered in a tick, and what it did not."""
        for key in answers.problems:
            self.failed_queries.labels(query_of(key)).inc()
        self.dropped_samples.inc(answers.answered.num_dropped)
        self.answer_bytes.set(answers.bytes_read)
        self.clock_skew_seconds.set(
            math.nan if answers.clock_skew_s is None else answers.clock_skew_s
        )

    def is_alive(self) -> bool:
        """Tell whether to go on with this process; asked by a probe, say where it stands if not."""
        now_s, idle_s = self._clock(), {LOOP: self._tick_s}
        silent_s = {
            thread: now_s - idle_s.get(thread, 0.0) - at
            for thread, at in self._beaten_at.copy().items()
        }
        for thread, passed_s in silent_s.items():
            if passed_s >= SLOW_S and thread not in self._told:
                self._told.add(thread)
                LOG.error(Line("thread is stuck", thread=thread, at=where(thread)))
        if LOOP in silent_s and now_s - self._tick_s - self._ready_at >= UNREADY_S:
            LOG.error(Line("gives up", message=f"no tick went through for {format_s(UNREADY_S)}"))
            return False
        return max(silent_s.values(), default=0.0) < STALE_S


def where(thread: str) -> str:
    """Return in which functions a thread is now, the innermost first."""
    found = [each.ident for each in threading.enumerate() if each.name == thread]
    frame = sys._current_frames().get(found[0] or 0) if found else None
    if frame is None:
        return "it has ended"
    stack = traceback.extract_stack(frame)[: -MOST_FRAMES - 1 : -1]
    return " < ".join(f"{each.name} ({each.filename}:{each.lineno})" for each in stack)


class _QuietHandler(WSGIRequestHandler):
    timeout = CLIENT_S

    def handle(self) -> None:
        # Who says nothing, or goes in the midst of it, is no news either.
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Probes every few seconds are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client: one that says nothing must not hold up the kubelet's probe."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clients: dict[Any, None] = {}
        """Their sockets, the longest first."""
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._clients[request] = None
            is_full = len(self._clients) > MOST_CLIENTS
            longest = next(iter(self._clients)) if is_full else None
            self._clients.pop(longest, None)
        if longest is not None:
            with contextlib.suppress(OSError):
                longest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)


def serve(heartbeat: Heartbeat, *, port: int, host: str = "") -> WSGIServer:
    """Start the server in a thread of its own; stop it by ``shutdown()``."""
    metrics = make_wsgi_app(heartbeat.registry)
    checks: dict[str, Callable[[], bool]] = {
        "/healthz": heartbeat.is_alive,
        "/readyz": lambda: heartbeat.is_ready,
    }

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in {"GET", "HEAD"}:
            start("405 Method Not Allowed", [])
            return [b""]
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start)
            return answer
        if path not in checks:
            start("404 Not Found", [])
            return [b""]
        is_well = checks[path]()
        start("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok" if is_well else b"not ok"]

    server = make_server(host, port, application, server_class=_Server, handler_class=_QuietHandler)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
