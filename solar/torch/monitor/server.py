"""A small HTTP server of a loader's metrics, in a thread of its own."""

from __future__ import annotations

import http.server
import logging
import socketserver
import threading
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

log = logging.getLogger("solar")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_PATIENCE = 5.0  # seconds for a client to say what it wants


class MetricsServer:
    """Answers with the text of the moment, in a daemon thread, until `close` or the end of `with` frees the port."""

    def __init__(self, text: Callable[[], str], port: int, host: str) -> None:
        handler = type("Handler", (_Handler,), {"text": staticmethod(text)})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot serve metrics at {host}:{port}: {error.strerror}; choose another port (each process needs its "
                "own; 0 takes any free one)",
            ) from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="solar-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Ends the thread and frees the port. Closing twice does nothing more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    """http.server's own would look up the host's name first, which takes seconds where no name server answers."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics: the request of %s broke off", client_address, exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = CLIENT_PATIENCE
    text: Any

    def do_GET(self) -> None:
        if urlsplit(self.path).path != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        try:
            body = self.text().encode()
        except Exception as error:  # whatever is wrong with a loader is for its own thread to raise
            log.warning("metrics: the counters cannot be had", exc_info=True)
            self.send_error(500, f"the counters cannot be had: {type(error).__name__}")
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: " + format, *args)
