"""Page: a service's status for people, and for Prometheus, over HTTP on the loopback interface. It only tells."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from solar.errors import PlanError
from solar.serve.shown import Moment, metrics, page

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
    """What is asked for, as it is sent."""

    status: int
    kind: str
    body: bytes


OF_ANOTHER = Reply(421, "text/plain; charset=utf-8", b"This is a page of 127.0.0.1, or localhost.\n")


class Page:
    """Answers while it is entered. The port is taken when it is made: 0 takes any free one."""

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

    def answer(self, asked: str) -> Reply:
        """What is at this path."""
        told = self.status()
        if asked == "/":
            return Reply(200, "text/html; charset=utf-8", page(told, [*self.moments, Moment.of(told)]).encode())
        if asked == "/metrics":
            try:
                return Reply(200, "text/plain; version=0.0.4; charset=utf-8", metrics(told))
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
        """Once in EVERY seconds, or more often: the moments that the page draws."""
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
        asked = self.path.partition("?")[0]
        answer = self.server.of.answer(asked) if name in OWN_NAMES else OF_ANOTHER
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
