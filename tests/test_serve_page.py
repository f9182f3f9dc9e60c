"""A service's page: what it tells, to whom, and what a browser makes of it; the same for Prometheus."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from serve_kit import FIELDS, Process, scan, serving, soon

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import PlanError
from solar.service import status_page as pages
from solar.service.service import Service
from solar.service.status_page import Moment, Page, status_html

_ = scan  # a fixture

NOBODY: dict[str, Any] = {
    "pid": 7, "files": 2, "memory": 1 << 30, "seconds": 70.0, "connections": 0, "jobs": [], "read_bytes": 3 << 20,
    "requests": 12, "held_bytes": 1 << 29, "handed_bytes": 9 << 20, "head": -1.0, "waited": 0.0,
    "slack": 2.0,
}  # fmt: skip


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    with socket.create_connection(("127.0.0.1", port), 60) as peer:
        lines = [f"{method} {path} HTTP/1.0", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        peer.sendall("\r\n".join(lines).encode())
        with closing(http.client.HTTPResponse(peer, method=method)) as answer:
            answer.begin()
            return answer.status, dict(answer.getheaders()), answer.read().decode()


class Checked(HTMLParser):
    """What stands in a page: its elements are closed in the order in which they began."""

    ALONE = ("meta", "circle", "rect", "path", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if self.open[-1:] != ["style"] else ""


@pytest.fixture
def shown(scan: Path, tmp_path: Path) -> Iterator[tuple[Service, Page]]:
    with serving(scan, where=tmp_path) as service, Page(service.status, 0) as of:
        yield service, of


def test_it_shows_who_is_there_and_where_the_head_is(scan: Path, shown: tuple[Service, Page]) -> None:
    service, of = shown
    assert "Nobody is there." in Checked(ask(of.port, Host="localhost")[2]).words
    data = H5Dataset(scan, FIELDS)
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service=str(service.path)) as loader:
        batches = iter(loader)
        for _ in range(40):
            next(batches)
        assert soon(lambda: service.status()["jobs"][0]["batches"] >= 40)
        status, headers, text = ask(of.port, Host=f"127.0.0.1:{of.port}")
        told = service.status()
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    found = Checked(text)
    assert f"process {told['pid']}" in found.words and "2 MiB" in found.words
    number = re.search(rf"(\d+) of {told['jobs'][0]['told']}", found.words)  # the job copies two ahead meanwhile
    assert number and 40 <= int(number[1]) <= told["jobs"][0]["batches"]
    assert 0 <= told["head"] < 1 and re.search(r"the head: \d+ % of the data", text)
    assert ("meta", {"http-equiv": "refresh", "content": "1"}) in found.elements


def test_it_has_no_script_no_path_and_nothing_from_elsewhere(scan: Path, shown: tuple[Service, Page]) -> None:
    _, headers, text = ask(shown[1].port, Host="localhost")
    found = Checked(text)
    assert not {"script", "link", "img", "iframe", "a"} & {name for name, _ in found.elements}
    assert not {key for _, of in found.elements for key in of} & {"src", "href", "style", "onload"}
    assert str(scan) not in text and str(scan.parent) not in text and str(shown[0].path) not in text
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert headers["Cache-Control"] == "no-store" and headers["Server"].strip() == "solar"


def test_names_that_jobs_give_themselves_are_words() -> None:
    wicked = "<script>alert(1)</script>&\"'"
    job = {"name": wicked, "batches": 3, "told": 9, "waits": True, "why": wicked, "rate": 0.25}
    told = {**NOBODY, "jobs": [job] * 120, "waited": 2.0, "head": 0.25}
    found = Checked(status_html(told, [Moment.of(told)]))
    assert "script" not in {name for name, _ in found.elements}
    assert found.words.count("0.25 of the fastest's") == 100 and "for more than 2 s" in found.words
    assert found.words.count(wicked) == 200 and "And 20 others." in found.words  # a name and a reason, of a hundred


def test_lines_are_bytes_a_second() -> None:
    told = {
        **NOBODY,
        "jobs": [{"name": "a", "batches": 1, "told": 2, "waits": False, "why": "", "rate": 1.0}],
        "head": 0.5,
    }
    moments = [Moment(100.0 + n, 0.5, (1 << 20) * n, (3 << 20) * n) for n in range(60)]
    found = Checked(status_html(told, moments))
    assert re.search("read 1.05 MB/s, handed on 3.15 MB/s", found.words), found.words
    assert len([1 for name, _ in found.elements if name == "circle"]) == 60
    anew = [*moments, Moment(160.0, 0.5, 0, 0)]  # the next data set counts from zero: no line goes below
    assert "-" not in "".join(
        of["points"] or "" for name, of in Checked(status_html(told, anew)).elements if name == "polyline"
    )


# --- who may ask what ----


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]", "localhost."]
)
def test_a_name_that_means_this_machine_elsewhere_is_refused(host: str, shown: tuple[Service, Page]) -> None:
    """A page of evil.example that makes its name mean 127.0.0.1 asks by that name."""
    for path in ("/", "/metrics"):
        status, _, text = ask(shown[1].port, path, Host=host)
        assert status == 421 and "This is a page of 127.0.0.1" in text and "served" not in text
    assert ask(shown[1].port)[0] == 421  # and who names none


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "x"])
def test_nothing_but_get_is_answered(method: str, shown: tuple[Service, Page]) -> None:
    status, headers, _ = ask(shown[1].port, method=method, Host="localhost")
    assert status == 501 and "Access-Control-Allow-Origin" not in headers


def test_other_paths_are_not_there(shown: tuple[Service, Page]) -> None:
    for path in ("/../etc/passwd", "/status", "/%2e%2e/", "/index.html"):
        assert ask(shown[1].port, path, Host="localhost")[0] == 404
    assert ask(shown[1].port, "/?x=<script>", Host="localhost")[0] == 200


def test_it_is_seen_from_this_machine_alone(shown: tuple[Service, Page]) -> None:
    other = socket.create_server(("127.0.0.2", shown[1].port))  # in use if every address were listened at
    other.close()


def test_who_says_nothing_keeps_nobody_waiting_and_begins_no_thread_more(shown: tuple[Service, Page]) -> None:
    of, before, most = shown[1], set(threading.enumerate()), 0

    def callers() -> int:
        """Threads that began here: tests before may have left others of that name, which end when they like."""
        return sum("process_request" in one.name for one in set(threading.enumerate()) - before)

    with ExitStack() as stack:

        def full() -> bool:
            """Whether as many callers as may be have a thread, once another one has come."""
            nonlocal most
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", of.port))))
            most = max(most, callers())
            return len(silent) >= 60 and callers() == pages.CALLERS

        silent: list[socket.socket] = []
        assert soon(full) and most == pages.CALLERS
        for one in silent:
            one.close()
        assert soon(lambda: _answers(of.port))
    assert soon(lambda: callers() == 0)


def _answers(port: int) -> bool:
    try:
        return ask(port, Host="localhost")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_garbage_ends_nothing(shown: tuple[Service, Page]) -> None:
    for body in (
        b"\0" * 200,
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 100_000,
        b"GET / HTTP/1.0\r\n" + b"a:b\r\n" * 500,
    ):
        with socket.create_connection(("127.0.0.1", shown[1].port)) as peer:
            peer.settimeout(60)
            with suppress(OSError):  # it may be closed before all was sent
                peer.sendall(body)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass
    assert soon(lambda: _answers(shown[1].port))


def test_a_port_in_use_is_named(shown: tuple[Service, Page]) -> None:
    with pytest.raises(PlanError, match=rf"--page {shown[1].port}: nobody can listen at 127.0.0.1:{shown[1].port}"):
        Page(shown[0].status, shown[1].port)


def test_it_leaves_neither_port_nor_thread() -> None:
    before = set(threading.enumerate())
    with Page(lambda: NOBODY, 0) as of:
        assert ask(of.port, Host="localhost")[0] == 200
    assert soon(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(ConnectionRefusedError):
        ask(of.port)


# --- Prometheus ----


def test_prometheus_reads_the_same(scan: Path, shown: tuple[Service, Page]) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    service, of = shown
    data = H5Dataset(scan, FIELDS)
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service=str(service.path), epochs=1) as loader:
        for _ in loader:
            pass
        assert soon(lambda: service.status()["jobs"][0]["batches"] == 150)
        status, headers, text = ask(of.port, "/metrics", Host="localhost")
        told = service.status()
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(parser.text_string_to_metric_families(text))
    found = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    assert found["solar_service_read_bytes_total",] == told["read_bytes"] > 0
    assert (
        found["solar_service_handed_bytes_total",] == told["handed_bytes"] == (1200 - 8) * (1024 + 8)
    )  # but the first
    assert found["solar_service_memory_bytes",] == 2 << 20
    assert sum(found["solar_service_jobs", state] for state in ("computes", "waits", "left behind")) == 1
    assert all(family.documentation for family in families)


def test_without_prometheus_client_the_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with Page(lambda: NOBODY, 0) as of:
        status, _, text = ask(of.port, "/metrics", Host="localhost")
        assert status == 503 and "pip install prometheus-client" in text
        assert ask(of.port, Host="localhost")[0] == 200


# --- the command, in a browser ----


def test_a_browser_shows_it(scan: Path, tmp_path: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with Process(scan, tmp_path, "--page") as service:
        assert service.process.stdout is not None
        url = service.process.stdout.readline().split()[3].rstrip(",")
        data = H5Dataset(scan, FIELDS)
        with DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service=str(service.socket)) as loader:
            batches = iter(loader)
            next(batches)
            picture = tmp_path / "page.png"
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
            flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=720,760"]
            shot = [chromium, *flags, f"--screenshot={picture}", url]
            subprocess.run(shot, check=True, capture_output=True, timeout=120)
            dom = [chromium, *flags, "--virtual-time-budget=100", "--dump-dom", url]
            text = subprocess.run(dom, check=True, capture_output=True, text=True, timeout=120).stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<h1>solar serve</h1>" in text and re.search(r"[\d,]+ of (150|300)<", text)
