"""A web server of the tests: it gives ranges of files, writes down what it sent, and lies if it is told to."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from solar.io.remote import location


@dataclass
class Sent:
    """An answer: the bytes of the file from `first` on, as many as were sent; none for a HEAD."""

    method: str
    name: str
    first: int = 0
    nbytes: int = 0
    status: int = 206


Fault = Callable[["Asked", int], bool]  # answers instead, if it likes: then it is true. How many were asked before


@dataclass
class Web:
    """A server on this machine, until the test ends."""

    folder: Path
    port: int = 0
    sent: list[Sent] = field(default_factory=list)
    fault: Fault | None = None
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, path: str | Path) -> str:
        return f"http://127.0.0.1:{self.port}/{Path(path).name}"

    def data(self) -> list[Sent]:
        """What was sent of data."""
        return [one for one in self.sent if one.method == "GET"]


class Asked(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        web = self.web
        with web.lock:
            before, web.asked = web.asked, web.asked + 1
        if web.fault is not None and web.fault(self, before):
            return
        path = web.folder / self.path.lstrip("/")
        if not path.is_file():
            return self.status(404)
        nbytes = path.stat().st_size
        if not with_body:
            web.sent.append(Sent("HEAD", path.name, status=200))
            return self.head(200, nbytes, path)
        first, last = self.range(nbytes)
        web.sent.append(Sent("GET", path.name, first, last + 1 - first))
        self.head(206, last + 1 - first, path, f"bytes {first}-{last}/{nbytes}")
        self.wfile.write(self.bytes_of(path, first, last + 1 - first))

    def range(self, nbytes: int) -> tuple[int, int]:
        """The first and the last byte that are asked for."""
        asked = self.headers.get("Range", f"bytes=0-{nbytes - 1}").removeprefix("bytes=")
        first, last = (int(one) for one in asked.split("-"))
        return first, min(last, nbytes - 1)

    def bytes_of(self, path: Path, first: int, nbytes: int) -> bytes:
        with path.open("rb") as file:
            file.seek(first)
            return file.read(nbytes)

    def head(self, status: int, nbytes: int | None, path: Path, content: str | None = None, mark: str = "") -> None:
        facts = path.stat()
        self.send_response(status)
        self.send_header("Last-Modified", formatdate(facts.st_mtime, usegmt=True))
        self.send_header("ETag", f'"{mark or f"{facts.st_mtime_ns:x}-{facts.st_ino:x}"}"')
        if nbytes is not None:
            self.send_header("Content-Length", str(nbytes))
        if content is not None:
            self.send_header("Content-Range", content)
        self.end_headers()

    def status(self, code: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None: ...  # a client that goes away is no error here


@contextlib.contextmanager
def served(folder: Path, secure: ssl.SSLContext | None = None) -> Iterator[Web]:
    web = Web(folder)
    server = _Quiet(("127.0.0.1", 0), type("Handler", (Asked,), {"web": web}))
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        location.store_of.cache_clear()  # or its connections would stay, of every test
        server.shutdown()
        server.server_close()


def twice(sample: Any) -> Any:
    """A transform that other processes find: here, as a package's top-level `tests` may hide a module of ours."""
    return {"x": 2 * sample["x"]}
