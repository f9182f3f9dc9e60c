"""Stats counts what a loader did, from any thread. How its report says it: test_report.py."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from stats_kit import KEYS, counts, used

from solar import DataLoader, H5Dataset
from solar.loader.stats import CAUSES, ROWS, Stats


def test_a_new_one_is_zero_in_every_counter() -> None:
    totals = Stats().as_dict()
    assert set(totals) == KEYS
    assert set(totals.pop("wait_seconds")) == set(CAUSES)
    assert not any(totals.values())


def test_counts_of_batches_add_up() -> None:
    stats = Stats()
    stats.batch(64, 1000, counts(bytes_read=700, bytes_mapped=300, bytes_decoded=5, bypassed=2, buffer_hits=1))
    stats.batch(10, 500, counts(bytes_read=50, requests=1))
    stats.epoch()
    totals = stats.as_dict()
    found = {key: totals[key] for key in KEYS - {"wait_seconds", "wait_share"}}
    assert found == {
        "epochs": 1, "batches": 2, "samples": 74, "batch_bytes": 1500, "bytes": 1050, "bytes_mapped": 300,
        "bytes_decoded": 5, "requests": 9, "calls": 0, "bypassed": 2, "buffer_hits": 1, "exchanged_bytes": 0,
        "retries": 0, "skipped": 0, "resident_bytes": 0, "peak_bytes": 0, "busy_seconds": 0.0,
        "device_bytes": 0, "device_peak_bytes": 0, "device_copy_seconds": 0.0, "device_decode_seconds": 0.0,
        "device_hits": 0, "device_resident_samples": 0, "device_resident_bytes": 0,
        "stage_requests": 0, "stage_bytes": 0, "stage_written": 0,
    }  # fmt: skip


def test_a_batch_that_libhdf5_read_counts_without_requests() -> None:
    stats = Stats()
    stats.batch(3, 600, {})
    assert (stats.as_dict()["batch_bytes"], stats.as_dict()["bytes"], stats.as_dict()["requests"]) == (600, 0, 0)


def test_a_batch_handed_out_is_counted_at_once_as_its_parts_would_be() -> None:
    counts = {"requests": 2, "bytes_read": 100, "read_ns": 3, "decode_ns": 1}
    at_once, in_parts = Stats(), Stats()
    at_once.held(64)
    at_once.handed_out(4, 64, counts, 1.0, 0.25, 0.25)
    in_parts.held(64)
    in_parts.batch(4, 64, counts)
    in_parts.held(-64)
    in_parts.split(0.5, counts)
    in_parts.waited("transform", 0.25)
    in_parts.waited("collate", 0.25)
    assert at_once.as_dict() == in_parts.as_dict()
    at_once.handed_out(0, 0, {}, 0.5, 2.0, 3.0)  # made beside the training, for longer than it waited
    assert at_once.as_dict()["wait_seconds"]["transform"] == 0.75
    assert at_once.as_dict()["wait_seconds"]["collate"] == 0.25


def test_the_share_waited_is_of_waiting_and_computing_together() -> None:
    stats = Stats()
    stats.waited("storage", 1.0)
    stats.waited("collate", 0.5)
    stats.waited("storage", 0.5)
    stats.busy(6.0)
    totals = stats.as_dict()
    assert totals["wait_seconds"] == dict.fromkeys(CAUSES, 0.0) | {"storage": 1.5, "collate": 0.5}
    assert totals["wait_share"] == pytest.approx(0.25)


def test_a_wait_for_a_read_is_split_as_its_threads_spent_their_time() -> None:
    stats = Stats()
    stats.split(4.0, counts(read_ns=1000, decode_ns=3000))
    stats.split(1.0, counts(read_ns=500))
    stats.split(1.0, counts(read_ns=0))
    stats.split(1.0, {})
    waits = stats.as_dict()["wait_seconds"]
    assert (waits["storage"], waits["decode"]) == (pytest.approx(4.0), pytest.approx(3.0))


def test_a_wait_for_a_batch_that_was_in_memory_is_the_buffers_and_not_the_storages() -> None:
    stats = Stats()
    stats.split(1.0, counts(made_by_run=1))
    stats.split(2.0, counts(made_by_run=1, bytes_read=0))
    stats.split(4.0, counts(made_by_run=1, bytes_read=0, decode_ns=9000))  # kept as it is stored
    stats.split(8.0, counts(made_by_run=1, bytes_read=0, bytes_mapped=1))
    stats.split(16.0, counts(bytes_read=0))  # without a buffer
    waits = stats.as_dict()["wait_seconds"]
    assert {cause: waits[cause] for cause in ("storage", "buffer", "decode")} == {
        "storage": 25.0, "buffer": 3.0, "decode": 3.0,
    }  # fmt: skip


def test_a_loader_all_of_whose_samples_are_in_memory_waits_for_its_buffer(make: Callable[..., str]) -> None:
    data = H5Dataset(make("a.h5", x=np.zeros((256, 64, 64), "f4")), "x")
    with DataLoader(data, 16, shuffle=True, buffer="64MiB", epochs=2) as loader:
        found = []
        for _ in range(2):
            assert len(list(loader)) == 16
            found.append(loader.stats())
        assert len(loader.report().splitlines()) >= 6
    (first, second), (waits, later) = found, [one["wait_seconds"] for one in found]
    assert second["bytes"] == first["bytes"] > 0
    assert later["storage"] == waits["storage"]
    assert later["buffer"] > waits["buffer"]
    assert waits["plan"] > 0


def test_epochs_are_told_one_by_one_the_first_and_the_latest() -> None:
    stats = Stats()
    for epoch in range(1, 21):
        stats.batch(10 * epoch, 1, counts(bytes_read=epoch, bytes_mapped=2, buffer_hits=3))
        stats.waited("decode", 1.0)
        stats.busy(epoch)
        stats.epoch()
    found = stats.by_epoch()
    assert [number for number, _ in found] == [1, *range(20 - ROWS + 2, 21)]
    for number, one in found:
        assert (one["samples"], one["bytes"], one["buffer_hits"]) == (10 * number, number + 2, 3)
        assert (one["busy_seconds"], one["wait_seconds"]["decode"]) == (number, 1.0)
    table = [line.split() for line in stats.report().splitlines()[3:]]
    assert ["1", "2.0", "s", "5", "50", "%", "decode", "3", "B", "3"] in table
    assert table.index(["..."]) == 1
    stats.reset()
    assert stats.by_epoch() == []


def test_an_epoch_is_whole_with_its_last_batch_whether_the_loop_asks_for_more_or_not(make: Callable[..., str]) -> None:
    dataset = H5Dataset(make("a.h5", x=np.zeros((10, 8), "f4")), "x")
    asks, stops = DataLoader(dataset, 4), DataLoader(dataset, 4)
    for epochs in (1, 2, 3):
        for _ in asks:
            pass
        batches = iter(stops)
        for whole in (epochs - 1, epochs - 1, epochs):  # three batches, as Lightning takes them
            next(batches)
            assert stops.stats()["epochs"] == whole
        assert asks.stats()["epochs"] == epochs
        assert stops.report().startswith(f"{epochs} epoch")
        rows = [
            [(number, row["samples"], row["bytes"]) for number, row in one._stats.by_epoch()] for one in (asks, stops)
        ]
        assert rows[0] == rows[1] == [(number, 10, 320) for number in range(1, epochs + 1)]


def test_memory_held_is_counted_now_and_at_its_peak_and_outlives_a_reset() -> None:
    stats = Stats()
    for delta in (100, 200, -150):
        stats.held(delta)
    assert (stats.as_dict()["resident_bytes"], stats.as_dict()["peak_bytes"]) == (150, 300)
    stats.batch(1, 1, counts())
    stats.reset()
    assert (stats.as_dict()["resident_bytes"], stats.as_dict()["peak_bytes"]) == (150, 150)
    assert stats.as_dict()["batches"] == 0
    stats.held(-150)
    assert stats.as_dict()["resident_bytes"] == 0


def test_a_copy_begins_at_zero() -> None:
    stats = used(waits={"storage": 1.0})
    for again in (copy.copy(stats), copy.deepcopy(stats), pickle.loads(pickle.dumps(stats))):
        assert again.as_dict() == Stats().as_dict()
    assert stats.as_dict()["batches"] == 100


def test_what_it_gives_is_json_even_of_numpys_integers() -> None:
    stats = Stats()
    stats.batch(np.int64(5), np.int64(100), counts())  # type: ignore[arg-type]
    assert json.loads(json.dumps(stats.as_dict()))["samples"] == 5


def test_a_cause_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cause='disk'.*storage, decode"):
        Stats().waited("disk", 1.0)


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_count_at_once_lose_nothing() -> None:
    stats, rounds = Stats(), 50

    class Yielding(dict[str, int]):
        """Lets another thread run in the midst of an addition."""

        def items(self) -> Any:
            for item in super().items():
                time.sleep(1e-6)
                yield item

    def count() -> None:
        for _ in range(rounds):
            stats.batch(1, 2, Yielding(counts()))
            stats.waited("collate", 1.0)
            stats.held(3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = stats.as_dict()
    done = 4 * rounds
    assert [totals[key] for key in ("batches", "samples", "batch_bytes", "requests", "resident_bytes")] == [
        done, done, 2 * done, 8 * done, 3 * done,
    ]  # fmt: skip
    assert totals["wait_seconds"]["collate"] == done


def test_memory_may_be_let_go_in_the_midst_of_counting() -> None:
    """As the garbage collector does it: in the same thread, anywhere."""
    stats = Stats()

    class Releasing(dict[str, int]):
        def items(self) -> Any:
            stats.held(-1)
            return super().items()

    thread = threading.Thread(target=stats.batch, args=(1, 1, Releasing(counts())), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    assert stats.as_dict()["resident_bytes"] < 0


@pytest.mark.slow
@pytest.mark.usefixtures("often_switched")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # of os.fork, since Python 3.12
def test_a_child_forked_while_a_thread_counts_can_count() -> None:
    stats, stop = Stats(), threading.Event()

    def count() -> None:
        while not stop.is_set():
            stats.batch(1, 1, {})

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(30):
            assert _ended(stats) == 0
    finally:
        stop.set()
        thread.join()


def _ended(stats: Stats) -> int:
    """The exit status of a forked child that counts; that of a killed one if it hangs."""
    child = os.fork()
    if child == 0:
        stats.batch(1, 1, {})
        os._exit(0)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]
