"""The counters as Prometheus reads them, over HTTP, as TensorBoard scalars; the progress bar."""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import re
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solar import DataLoader, H5Dataset
from solar.loader.metrics import progress, prometheus_text, serve, write_scalars
from solar.loader.stats import CAUSES, Stats

Labels = frozenset[tuple[str, str]]
Series = dict[tuple[str, Labels], float]


class Loader:
    """What metrics need of a loader."""

    def __init__(self, counted: Stats) -> None:
        self.counted = counted

    def stats(self) -> dict[str, Any]:
        return self.counted.as_dict()


def used(batches: int = 2) -> Stats:
    stats = Stats()
    for _ in range(batches):
        stats.batch(64, 1000, {"requests": 8, "bytes_read": 700, "bytes_mapped": 300, "bytes_decoded": 2000})
    stats.waited("storage", 0.25)
    stats.waited("device copy", 1e-7)
    stats.busy(0.75)
    stats.held(5000)
    stats.held(-1000)
    stats.epoch()
    return stats


# --- the text ----

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text: str) -> tuple[Series, dict[str, str]]:
    """The samples and the families' types of a text in format 0.0.4, each of whose lines must be as specified."""
    assert text.endswith("\n")
    series: Series = {}
    types: dict[str, str] = {}
    helped: list[str] = []
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, about = line.split(" ", 3)
            assert name not in helped
            assert about and "\\" not in about
            helped.append(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types and name == helped[-1] and kind in {"counter", "gauge"}
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name, inside, value = found.groups()
            pairs = [(key, re.sub(r'\\[\\"n]', lambda m: ESCAPED[m[0]], said)) for key, said in labels_of(inside or "")]
            key = (name, frozenset(pairs))
            assert len(dict(pairs)) == len(pairs) and key not in series
            assert name == helped[-1] and name in types, "samples of a family stand together, below its TYPE"
            series[key] = float(value)
    assert list(types) == helped
    return series, types


def labels_of(inside: str) -> list[tuple[str, str]]:
    assert "".join(found[0] for found in LABEL.finditer(inside)) == inside
    return [found.groups() for found in LABEL.finditer(inside)]  # type: ignore[misc]


def test_every_counter_is_in_the_text_with_its_type() -> None:
    series, types = parsed(prometheus_text(used()))
    none: Labels = frozenset()
    assert {name: value for (name, labels), value in series.items() if labels == none} == {
        "solar_epochs_total": 1, "solar_batches_total": 2, "solar_samples_total": 128, "solar_batch_bytes_total": 2000,
        "solar_read_bytes_total": 2000, "solar_mapped_bytes_total": 600, "solar_decoded_bytes_total": 4000,
        "solar_requests_total": 16, "solar_calls_total": 0, "solar_bypassed_requests_total": 0,
        "solar_buffer_hits_total": 0,
        "solar_exchanged_bytes_total": 0, "solar_retries_total": 0, "solar_skipped_samples_total": 0,
        "solar_device_bytes_total": 0, "solar_device_copy_seconds_total": 0, "solar_device_decode_seconds_total": 0,
        "solar_device_peak_bytes": 0, "solar_device_hits_total": 0, "solar_device_resident_samples": 0,
        "solar_device_resident_bytes": 0,
        "solar_stage_requests_total": 0, "solar_stage_bytes_total": 0, "solar_stage_written_bytes_total": 0,
        "solar_resident_bytes": 4000, "solar_peak_bytes": 5000, "solar_busy_seconds_total": 0.75,
    }  # fmt: skip
    waits = {dict(labels)["cause"]: value for (name, labels), value in series.items() if labels != none}
    assert waits == dict.fromkeys(CAUSES, 0.0) | {"storage": 0.25, "device copy": 1e-7}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in types.items())


def test_a_loader_gives_the_text_of_its_stats() -> None:
    stats = used()
    assert prometheus_text(Loader(stats)) == prometheus_text(stats)


def test_a_real_loader_is_counted_batch_by_batch(make: Callable[..., str]) -> None:
    loader = DataLoader(H5Dataset(make("a.h5", x=np.zeros((50, 5), "f4")), "x"), 8, shuffle=True)
    for _ in range(2):
        for _ in loader:
            pass
    with serve(loader, port=0) as server:
        series, _ = parsed(ask(server.port)[2].decode())
    names = ("epochs_total", "batches_total", "samples_total", "batch_bytes_total", "resident_bytes")
    assert [series[f"solar_{name}", frozenset()] for name in names] == [2, 14, 100, 2000, 0]
    assert loader.report().startswith("2 epochs: 14 batches, 100 samples, 2 KiB of data.\n")


def test_several_loaders_are_told_apart_by_their_names() -> None:
    text = prometheus_text({"train": used(3), "validation": Loader(used(1))}, {"rank": "7"})
    series, _ = parsed(text)
    batches = {labels: value for (name, labels), value in series.items() if name == "solar_batches_total"}
    assert batches == {
        frozenset({("loader", "train"), ("rank", "7")}): 3,
        frozenset({("loader", "validation"), ("rank", "7")}): 1,
    }
    assert parsed(prometheus_text({}))[0] == {}


@given(st.text(), st.text())
def test_labels_of_any_text_come_back_as_they_were(name: str, value: str) -> None:
    series, _ = parsed(prometheus_text({name: Stats()}, {"scan": value}))
    assert {dict(labels)["loader"] for _, labels in series} == {name}
    assert {dict(labels)["scan"] for _, labels in series} == {value}


@pytest.mark.parametrize("name", ["", "1st", "a-b", "__name__", "é", "cause", "loader", "a\n"])
def test_a_label_that_prometheus_or_we_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        prometheus_text(Stats(), {name: "x"})


def test_what_is_no_loader_is_refused_by_its_type() -> None:
    class Other:
        def stats(self) -> dict[str, int]:
            return {"hits": 1}

    for wrong in ([1, 2], Other(), None):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            prometheus_text(wrong)


def test_prometheus_own_parser_reads_the_same() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    text = prometheus_text({'a"\\\n,b': used(), "plain": used(5)}, {"rank": "0"})
    families = list(parser.text_string_to_metric_families(text))
    theirs = {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}
    series, types = parsed(text)
    assert theirs == series
    kinds = {(family.name + "_total" if family.type == "counter" else family.name): family.type for family in families}
    assert kinds == types
    assert all(family.documentation for family in families)


# --- the server ----


def ask(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()
    finally:
        connection.close()


def test_the_server_answers_with_the_counters_of_the_moment() -> None:
    stats = used(1)
    with serve({"train": stats}, port=0, labels={"rank": "3"}) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        for _ in range(2):
            status, kind, body = ask(server.port)
            assert status == 200 and kind is not None and kind.startswith("text/plain; version=")
            assert parsed(body.decode()) == parsed(prometheus_text({"train": stats}, {"rank": "3"}))
            stats.batch(1, 1, {})
        one, _ = parsed(ask(server.port, "/metrics?name[]=solar_batches_total")[2].decode())
        assert {name for name, _ in one} == {"solar_batches_total"}
        assert ask(server.port, method="POST")[0] == 405


def test_it_is_seen_from_this_machine_alone_unless_told() -> None:
    with serve(Stats(), port=0) as server:
        assert server.host == "127.0.0.1"
        other = socket.create_server(("127.0.0.2", server.port))  # in use if every address were listened at
        other.close()


def test_a_closed_server_leaves_neither_port_nor_thread() -> None:
    before = set(threading.enumerate())
    server = serve(Stats(), port=0)
    server.close()
    server.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        ask(server.port)


def test_a_port_can_be_served_again_at_once() -> None:
    with serve(Stats(), port=0) as server, socket.create_connection(("127.0.0.1", server.port)) as asking:
        asking.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        while asking.recv(4096):  # to the end: the side that closes first has the port lingering
            pass
    serve(Stats(), port=server.port).close()


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with serve(Stats(), port=0) as server, pytest.raises(OSError, match=rf"127.0.0.1:{server.port}.*another port"):
        serve(Stats(), port=server.port)


def test_a_wrong_label_or_loader_is_said_when_the_server_is_made() -> None:
    with pytest.raises(ValueError, match="a-b"):
        serve(Stats(), port=0, labels={"a-b": ""})
    with pytest.raises(TypeError, match="int"):
        serve(3, port=0)


def test_a_loader_that_fails_is_an_error_500_and_the_server_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    loader = Loader(used())
    with serve(loader, port=0) as server:
        loader.stats = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        assert ask(server.port)[0] == 500
        del loader.stats
        assert ask(server.port)[0] == 200
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with serve(Stats(), port=0) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server.port)[0] == 200


def test_without_prometheus_client_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match="pip install prometheus-client"):
        serve(Stats(), port=0)


# --- TensorBoard ----


class Writer:
    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert tag not in self.scalars
        self.scalars[tag] = (value, step)


def test_every_counter_becomes_a_scalar_of_the_step() -> None:
    writer, stats = Writer(), used()
    write_scalars(writer, Loader(stats), 17)
    assert {step for _, step in writer.scalars.values()} == {17}
    totals = stats.as_dict()
    waits = totals.pop("wait_seconds")
    expected = totals | {f"wait_seconds/{cause.replace(' ', '_')}": seconds for cause, seconds in waits.items()}
    assert {tag: value for tag, (value, _) in writer.scalars.items()} == {
        f"solar/{tag}": value for tag, value in expected.items()
    }
    write_scalars(writer, stats, 18, prefix="data/train/")
    assert writer.scalars["data/train/batches"] == (2, 18)


# --- the progress bar ----


def test_without_tqdm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        progress(range(3))


needs_tqdm = pytest.mark.skipif(importlib.util.find_spec("tqdm") is None, reason="tqdm is not installed")


@pytest.fixture
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thread with which tqdm watches over its bars, and which it never ends."""
    monkeypatch.setattr(importlib.import_module("tqdm").tqdm, "monitor_interval", 0)


@needs_tqdm
@pytest.mark.usefixtures("_unwatched")
def test_a_bar_hands_on_every_batch_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([5, 6, 7], "epoch 1")) == [5, 6, 7]
    shown = capsys.readouterr().err
    assert "epoch 1: 100%" in shown
    assert "3/3" in shown


@needs_tqdm
@pytest.mark.usefixtures("_unwatched")
@pytest.mark.parametrize(("batches", "shown"), [(4, "4/4"), (None, "4batch")])
def test_a_bar_of_a_number_is_moved_by_hand(
    capsys: pytest.CaptureFixture[str], batches: int | None, shown: str
) -> None:
    bar = progress(batches)
    for _ in range(4):
        bar.update()
    bar.close()
    assert shown in capsys.readouterr().err
