"""What a job can have a service take beside its memory: texts, orders, ledgers and connections are bounded."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serve_kit import HELLO, SAMPLES, alone, job, memory_of, piece_of, scan, serving, soon

from solar import H5Dataset
from solar.io.channels import frames, service_sockets
from solar.service import job_orders
from solar.service.service import Service

_ = scan  # a fixture


def order(passes: int = 1) -> list[Any]:
    rows = np.tile(np.arange(SAMPLES, dtype=np.int32), passes)
    return [rows, np.arange(0, len(rows) + 1, 8)]


class Caller:
    """A job that tells a service what it likes."""

    def __init__(self, service: Service) -> None:
        self.peer = service_sockets.connect(service.path, 20)
        self.tell(HELLO)

    def tell(self, message: dict[str, Any], *made: int) -> dict[str, Any]:
        frames.send(self.peer, message, made)
        came = frames.receive(self.peer, frames.OF_SERVICE)
        assert came is not None
        frames.close_all([*made, *came[1]])
        return came[0]

    def opens(self, path: Path) -> dict[str, Any]:
        return self.tell({"is": "data"}, frames.hand([piece_of(path)], []))

    def joins(self, arrays: list[Any], batch: int = 8) -> dict[str, Any]:
        return self.tell({"is": "join", "data": 0, "batch": batch}, frames.hand(None, arrays))


@contextmanager
def caller(service: Service) -> Iterator[Caller]:
    one = Caller(service)
    try:
        yield one
    finally:
        one.peer.close()


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that were mapped each time, and of texts that were parsed."""
    found = list[int]()

    def mapping(descriptor: int, size: int, **more: Any) -> mmap.mmap:
        found.append(size)
        return mmap.mmap(descriptor, size, **more)

    def parsing(text: str, **more: Any) -> Any:
        if not more:  # of a frame itself names are checked, too
            found.append(len(text))
        return json.loads(text, **more)

    monkeypatch.setattr(frames, "mmap", SimpleNamespace(mmap=mapping, ACCESS_READ=mmap.ACCESS_READ))
    monkeypatch.setattr(frames, "json", SimpleNamespace(loads=parsing, dumps=json.dumps))
    return found


def test_a_text_of_more_than_a_mebibyte_is_neither_mapped_nor_parsed(
    mapped: list[int], scan: Path, tmp_path: Path
) -> None:
    text = b"[" + b"[],".ljust(3) * 700_000 + b"0]"
    text += b" " * (-len(text) % 8)
    with serving(scan, where=tmp_path) as service, caller(service) as one:
        made = memory_of(frames.HANDED_HEAD.pack(len(text), 0) + text, frames.HANDED_HEAD.size + len(text))
        answer = one.tell({"is": "data"}, made)
        assert answer["is"] == "fault" and "at most 1,048,576" in answer["why"]
    assert mapped == []


def test_memory_that_was_never_written_is_not_taken(mapped: list[int], scan: Path, tmp_path: Path) -> None:
    """Whoever looks at it first gives it: a service would, for a job that has paid nothing."""
    elements = (1 << 28, 1 << 25)
    head = frames.HANDED_HEAD.pack(8, 2) + b"null    "
    head += frames.EACH.pack(b"<i4\0", 0, elements[0]) + frames.EACH.pack(b"<i8\0", 0, elements[1])
    with serving(scan, where=tmp_path, memory=1 << 30) as service, caller(service) as one:
        one.opens(scan)
        before = len(mapped)
        made = memory_of(head, len(head) + 4 * elements[0] + 8 * elements[1])
        looks = os.dup(made)
        answer = one.tell({"is": "join", "data": 0, "batch": 8}, made)
        assert answer["is"] == "fault" and "not all written" in answer["why"]
        assert os.fstat(looks).st_blocks * 512 <= 1 << 20, "nobody has given it any memory"
        os.close(looks)
    assert mapped[before:] == []


def test_an_order_that_no_pass_of_a_training_has_is_refused_before_it_is_mapped(
    mapped: list[int], scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_orders, "SHORT", 16)
    with serving(scan, where=tmp_path) as service, caller(service) as one:
        one.opens(scan)
        before = len(mapped)
        answer = one.joins(order(4 * job_orders.MOST_PASSES))
        assert answer["is"] == "refused" and "has each sample 64 times" in answer["why"]
        assert mapped[before:] == []
        assert one.joins(order(job_orders.MOST_PASSES))["is"] == "joined"


def test_all_that_jobs_tell_is_bounded_by_the_memory_together(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all jobs, of all that each tells. What ends makes room."""
    monkeypatch.setattr(job_orders, "LEAST_FOR_TOLD", 40 << 10)  # an order takes 6 KB, twice while it is looked at
    with serving(scan, where=tmp_path, memory=256 << 10) as service, caller(service) as first, caller(service) as one:
        for each in (first, one):
            assert each.opens(scan)["is"] == "opened"
        assert first.joins(order(), 1)["is"] == "fault", "a batch has 8 samples"
        with caller(service) as again:
            again.opens(scan)
            assert again.joins(order())["is"] == "joined"
            answers = []
            for _ in range(10):
                answers.append(again.tell({"is": "more", "job": 0}, frames.hand(None, order())))
            refused = [one for one in answers if one["is"] == "refused"]
            assert 0 < len(refused) < 9 and refused == answers[-len(refused) :]
            assert "give --memory" in refused[0]["why"] and refused[0]["again"]
            assert one.joins(order())["is"] == "refused", "others' count, too"
        assert soon(lambda: one.joins(order())["is"] == "joined")


def test_the_ledger_of_large_batches_counts(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_orders, "LEAST_FOR_TOLD", 1 << 20)
    with serving(scan, where=tmp_path, memory=8 << 20) as service, caller(service) as one:
        one.opens(scan)
        assert one.joins(order(), 8 << 10)["is"] == "refused"  # 64 batches of 8,192 places of 4 bytes
        assert one.joins(order(), 1 << 10)["is"] == "joined"


def test_texts_count_as_what_they_become(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_orders, "LEAST_FOR_TOLD", 20 << 10)
    long = {**piece_of(scan), "digest": "x" * 1000}
    with serving(scan, where=tmp_path, memory=64 << 10) as service, caller(service) as one:
        answer = one.tell({"is": "data"}, frames.hand([long], []))
        assert answer["is"] == "refused" and "give --memory" in answer["why"]
        assert one.opens(scan)["is"] == "opened"


def test_the_same_data_are_kept_once_and_few_that_differ(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.service.MOST_DATA", 2)
    layouts = {name: H5Dataset(scan, name).layouts for name in ("x", "y", "z")}
    pieces = [{**piece_of(scan), "name": one.name, "digest": one.digest} for one in layouts.values()]
    with serving(scan, where=tmp_path) as service, caller(service) as one, caller(service) as other:
        assert [each.tell({"is": "data"}, frames.hand([pieces[0]], []))["is"] for each in (one, other)] == 2 * [
            "opened"
        ]
        kept = [each.data for each in service._clients.each() if each.data]
        assert len(kept) == 2 and kept[0][0] is kept[1][0]
        assert other.tell({"is": "data"}, frames.hand([pieces[1]], []))["is"] == "opened"
        answer = one.tell({"is": "data"}, frames.hand([pieces[2]], []))
        assert answer["is"] == "refused" and "2 data sets are read that differ" in answer["why"]


def test_a_file_that_is_told_twice_is_refused(scan: Path, tmp_path: Path) -> None:
    """A hundred thousand times the same would be inspected as often."""
    path = os.path.realpath(scan)
    with serving(scan, where=tmp_path) as service, caller(service) as one:
        answer = one.tell({"is": "data"}, frames.hand([{**piece_of(scan), "files": [path, path]}], []))
        assert answer["is"] == "refused" and "told twice" in answer["why"]


def test_who_comes_beside_many_jobs_is_closed_without_a_word(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.service.BESIDE_JOBS", 2)
    with serving(scan, where=tmp_path, jobs=1) as service:
        there = [Caller(service) for _ in range(3)]
        with service_sockets.connect(service.path, 20) as more:
            assert more.recv(1) == b""
        there.pop().peer.close()
        assert soon(lambda: len(service._clients.each()) == 2)
        with caller(service) as again:
            assert again.tell({"is": "status"})["told"]["connections"] == 3
        for one in there:
            one.peer.close()


def test_a_loader_whose_names_are_too_long_for_a_text_reads_by_itself(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(frames, "MOST_VALUES", 64)
    data, found = H5Dataset(scan, "y"), dict[int, Any]()
    with caplog.at_level("INFO", "solar"), serving(scan, where=tmp_path) as service:
        job(data, 0, 8, str(service.path), found)
    assert found[0] == (alone(data, 0, 8), None)
    assert any("names of files and datasets take" in one for one in caplog.messages)
