"""The status of a service for people and for Prometheus, served over HTTP on the loopback interface."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from solar.errors import PlanError
from solar.io.system.quantities import count, duration, rate, size

ACROSS, HIGH, LINE_HIGH = 640, 160, 110  # of the drawings
LEAST_SPAN = 30.0  # seconds that a drawing has at least
JOBS_SHOWN = 100
PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1f77b4; --other: #c2703d; --faint: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 660px; margin: 2em auto; padding: 0 10px; }
h1 { font-size: 1.3em; } h2 { font-size: 1em; margin: 1.4em 0 .3em; } p { margin: .3em 0; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: 3px 12px 3px 0; }
th { font-weight: 600; border-bottom: 1px solid var(--faint); }
td { white-space: nowrap; } td:last-child { white-space: normal; }
svg { display: block; width: 100%; height: auto; } .back { fill: var(--faint); } .read { fill: var(--ink); }
.l { fill: none; stroke-width: 1.5; } .l.read { stroke: var(--ink); fill: none; }
.l.handed { stroke: var(--other); fill: none; } text { font-size: 11px; fill: currentColor; }
.w { color: var(--other); } b.read { color: var(--ink); } b.handed { color: var(--other); }
"""


class Moment(NamedTuple):
    """What the page remembers of one moment."""

    at: float
    head: float  # of the data, 0 to 1; below 0: nothing is read
    read: int  # bytes, until then
    handed: int

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Self:
        return cls(
            time.monotonic(), status["head"] if status["jobs"] else -1.0, status["read_bytes"], status["handed_bytes"]
        )


def status_html(status: Mapping[str, Any], moments: Sequence[Moment]) -> str:
    """Returns the whole page. The browser reloads it every second."""
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">',
            f"<title>solar serve</title><style>{PAGE_STYLE}</style></head><body><h1>solar serve</h1>",
            *memory_lines(status),
            "<h2>Where it reads</h2>",
            _head(moments),
            "<h2>Bytes a second</h2>",
            *rate_lines(moments),
            "<h2>Trainings</h2>",
            *_jobs(status),
            "</body></html>",
        )
    )


def memory_lines(status: Mapping[str, Any]) -> Iterator[str]:
    since = duration(status["seconds"])
    yield (
        f"<p>{count(status['files'], 'file')}, process {status['pid']}, for {since}. Nobody holds back others "
        f"for more than {duration(status['slack'])}.</p>"
    )
    read, handed = size(status["read_bytes"]), size(status["handed_bytes"])
    yield f"<p>Read {read} in {count(status['requests'], 'request')}; handed on {handed}.</p>"
    share = min(1.0, status["held_bytes"] / max(1, status["memory"]))
    yield f"<p>{size(status['held_bytes'])} of samples are held in {size(status['memory'])}.</p>{_bar(share, ACROSS)}"


def _bar(share: float, wide: int) -> str:
    return (
        f'<svg viewBox="0 0 {wide} 8" role="img" aria-label="{100 * share:.0f} %"><rect class="back" width="{wide}" '
        f'height="8" rx="2"/><rect class="read" width="{share * wide:.1f}" height="8" rx="2"/></svg>'
    )


def _ages(moments: Sequence[Moment]) -> tuple[list[float], float]:
    """Returns how long ago each moment was, and the span of time that is drawn."""
    ages = [moments[-1].at - one.at for one in moments]
    return ages, max(LEAST_SPAN, ages[0])


def _head(moments: Sequence[Moment]) -> str:
    """Returns the position of the head in the data (left to right) over time (downwards; now is at the top)."""
    ages, span = _ages(moments)
    inner = HIGH - 14
    dots = "".join(
        f'<circle class="read" cx="{one.head * ACROSS:.1f}" cy="{7 + age / span * inner:.1f}" r="1.7"/>'
        for one, age in zip(moments, ages, strict=True)
        if one.head >= 0
    )
    now = moments[-1].head
    there = f'<path class="read" d="M{now * ACROSS:.1f} 0l-6-0l6 10l6-10z"/>' if now >= 0 else ""
    said = f"{100 * now:.0f} % of the data" if now >= 0 else "nothing is read"
    return (
        f'<svg viewBox="-7 0 {ACROSS + 14} {HIGH + 17}" role="img" aria-label="the head: {said}"><rect class="back" '
        f'width="{ACROSS}" height="{HIGH}"/>{dots}{there}<text y="{HIGH + 12}">first sample</text>'
        f'<text x="{ACROSS}" y="{HIGH + 12}" text-anchor="end">last sample</text><text x="{ACROSS - 4}" y="{HIGH - 5}" '
        f'text-anchor="end">{duration(span)} ago</text></svg>'
    )


def rate_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """Returns two lines: what is read, and what is handed out. Counts that restart are left out."""
    ages, span = _ages(moments)
    both: dict[str, list[tuple[float, float]]] = {"read": [], "handed": []}
    for before, one, age in zip(moments, moments[1:], ages[1:], strict=False):
        passed = max(one.at - before.at, 1e-3)
        if passed < 0.1:  # the moment of this page, beside the last one
            continue
        both["read"].append((age, max(0, one.read - before.read) / passed))
        both["handed"].append((age, max(0, one.handed - before.handed) / passed))
    top = max((value for line in both.values() for _, value in line), default=0.0) or 1.0
    drawn = ""
    for name, line in both.items():
        points = " ".join(
            f"{ACROSS * (1 - age / span):.1f},{LINE_HIGH * (1 - value / top) + 2:.1f}" for age, value in line
        )
        drawn += f'<polyline class="l {name}" points="{points}"/>'
    now = {name: rate(line[-1][1]) if line else "nothing yet" for name, line in both.items()}
    yield (
        f'<p><b class="read">read</b> {now["read"]}, <b class="handed">handed on</b> {now["handed"]}</p>'
        f'<svg viewBox="0 0 {ACROSS} {LINE_HIGH + 20}" role="img" aria-label="bytes a second"><rect class="back" '
        f'width="{ACROSS}" height="{LINE_HIGH + 4}"/>{drawn}<text x="4" y="13">{rate(top)}</text>'
        f'<text y="{LINE_HIGH + 16}">{duration(span)} ago</text><text x="{ACROSS}" y="{LINE_HIGH + 16}" '
        f'text-anchor="end">now</text></svg>'
    )


def _jobs(status: Mapping[str, Any]) -> Iterator[str]:
    jobs = status["jobs"]
    if not jobs:
        yield "<p>Nobody is there.</p>"
        return
    if status["waited"] > 0.1:
        yield f'<p class="w">Batches have waited {duration(status["waited"])} for room: for those who compute.</p>'
    yield "<table><tr><th>who</th><th>batch</th><th>of those that it told</th><th>pace</th><th></th></tr>"
    for job in jobs[:JOBS_SHOWN]:
        state = "waits for its next batch" if job["waits"] else "computes"
        state = f"left behind: {job['why']}" if job["why"] else state
        pace = "" if job["rate"] >= 1 else f"{job['rate']:.2g} of the fastest's"
        word = "" if state == "computes" else ' class="w"'
        bar = _bar(job["batches"] / max(1, job["told"]), 160)
        yield (
            f"<tr><td>{escape(job['name'])}</td><td>{job['batches']:,} of {job['told']:,}</td><td>{bar}</td>"
            f"<td>{pace}</td><td{word}>{escape(state)}</td></tr>"
        )
    yield "</table>"
    if len(jobs) > JOBS_SHOWN:
        yield f"<p>And {count(len(jobs) - JOBS_SHOWN, 'other')}.</p>"


# (key of the status, name, counter or gauge, help)
SERVICE_FAMILIES = (
    ("read_bytes", "solar_service_read_bytes", "counter", "Bytes read from files, for all jobs."),
    ("requests", "solar_service_requests", "counter", "Requests to the storage, as solar plan counts them."),
    ("handed_bytes", "solar_service_handed_bytes", "counter", "Bytes of samples that jobs had."),
    ("held_bytes", "solar_service_held_bytes", "gauge", "Bytes of samples that are held now."),
    ("memory", "solar_service_memory_bytes", "gauge", "The most memory that is taken for samples and batches."),
    ("connections", "solar_service_connections", "gauge", "Who is connected, with those who only ask."),
    ("waited", "solar_service_room_wait_seconds", "gauge", "How long batches have waited for room by now."),
    ("seconds", "solar_service_uptime_seconds", "gauge", "How long the service has been there."),
)


def metrics(status: Mapping[str, Any]) -> bytes:
    """Yields the status in Prometheus' text format."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # optional: only who serves metrics has it
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise ImportError("metrics need prometheus-client, which is missing: pip install prometheus-client") from error
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

    class Collector:
        def collect(self) -> Iterator[Any]:
            yield from (kinds[kind](name, about, value=status[key]) for key, name, kind, about in SERVICE_FAMILIES)
            jobs = GaugeMetricFamily("solar_service_jobs", "Jobs, by what they do.", labels=["state"])
            states = [
                "left behind" if one["why"] else "waits" if one["waits"] else "computes" for one in status["jobs"]
            ]
            for state in ("computes", "waits", "left behind"):
                jobs.add_metric([state], states.count(state))
            yield jobs

    registry = CollectorRegistry()
    registry.register(Collector())
    return bytes(generate_latest(registry))


# Page: a service's status for people, and for Prometheus, over HTTP on the loopback interface. It only tells.


log = logging.getLogger("solar")

HERE = "127.0.0.1"
# By which a browser may ask. A name of elsewhere that is made to mean this machine (DNS rebinding) is another.
OWN_NAMES = {HERE, "localhost"}
CALLERS, CALLER_SECONDS = 8, 5.0  # that are answered at a time, and how long one may take
EVERY, KEPT = 0.5, 240  # seconds between two moments, and how many are remembered
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Reply(NamedTuple):
    """An answer as it is sent."""

    status: int
    kind: str
    body: bytes


OF_ANOTHER = Reply(421, "text/plain; charset=utf-8", b"This is a page of 127.0.0.1, or localhost.\n")


class Page:
    """Serves the page inside a `with` block. It takes its port when it is made; 0 takes any free one."""

    def __init__(self, status: Callable[[], dict[str, Any]], port: int) -> None:
        self.status = status
        self.moments: deque[Moment] = deque(maxlen=KEPT)
        try:
            self._server = _Server(self, port)
        except (OSError, OverflowError) as error:
            raise PlanError(f"--page {port}: nobody can listen at {HERE}:{port} ({error}): choose another") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HERE}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(EVERY,), name="solar-page")

    def answer(self, path: str) -> Reply:
        """Returns what is at this path."""
        status = self.status()
        if path == "/":
            return Reply(
                200, "text/html; charset=utf-8", status_html(status, [*self.moments, Moment.of(status)]).encode()
            )
        if path == "/metrics":
            try:
                return Reply(200, "text/plain; version=0.0.4; charset=utf-8", metrics(status))
            except ImportError as error:
                return Reply(503, "text/plain; charset=utf-8", f"{error}\n".encode())
        return Reply(404, "text/plain; charset=utf-8", b"There are / and /metrics.\n")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, of: Page, port: int) -> None:
        self.of, self.room = of, threading.Semaphore(CALLERS)
        super().__init__((HERE, port), _Handler)

    def service_actions(self) -> None:
        """Notes a moment for the page, at least once in EVERY seconds."""
        moments = self.of.moments
        if not moments or time.monotonic() - moments[-1].at >= EVERY / 2:
            with suppress(Exception):  # of data that just end: the next moment is told again
                moments.append(Moment.of(self.of.status()))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:  # so that nobody has the service begin threads without an end
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a caller of the page went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = CALLER_SECONDS
    server: _Server

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        path = self.path.partition("?")[0]
        answer = self.server.of.answer(path) if name in OWN_NAMES else OF_ANOTHER
        self._send(answer.status, {"Content-Type": answer.kind, "Content-Length": str(len(answer.body))}, answer.body)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in {**headers, **HEADERS}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "solar"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("page: " + format, *args)
