"""Stats counts what a loader did, from any thread; its report says it in words that the numbers bear out."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solar import DataLoader, H5Dataset
from solar.io.codec import FILTER
from solar.torch.report import report
from solar.torch.stats import CAUSES, ROWS, Stats

KEYS = {
    "epochs", "batches", "samples", "batch_bytes", "bytes", "bytes_mapped", "bytes_decoded", "requests", "bypassed",
    "retries", "skipped", "buffer_hits", "exchanged_bytes", "resident_bytes", "peak_bytes", "busy_seconds",
    "wait_seconds", "wait_share",
    "device_bytes", "device_peak_bytes", "device_copy_seconds", "device_decode_seconds",
    "device_hits", "device_resident_samples", "device_resident_bytes",
}  # fmt: skip
MIB = 2**20


def counts(**changed: int) -> dict[str, int]:
    """What the engine says of one batch of 4 MiB."""
    plain = {
        "rows": 64, "requests": 8, "bypassed": 0, "bytes_read": 4 * MIB, "bytes_mapped": 0, "chunks_decoded": 0,
        "bytes_decoded": 0, "read_ns": 3000, "decode_ns": 0,
    }  # fmt: skip
    return plain | changed


def used(epochs: int = 1, batches: int = 100, busy: float = 6.0, waits: Any = None, **changed: int) -> Stats:
    """The Stats of a training that waited as told."""
    stats = Stats()
    for _ in range(batches):
        stats.batch(64, 4 * MIB, counts(**changed))
    for cause, seconds in (waits or {}).items():
        stats.waited(cause, seconds)
    stats.busy(busy)
    for _ in range(epochs):
        stats.epoch()
    return stats


# --- counting ----


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
        "bytes_decoded": 5, "requests": 9, "bypassed": 2, "buffer_hits": 1, "exchanged_bytes": 0,
        "retries": 0, "skipped": 0, "resident_bytes": 0, "peak_bytes": 0, "busy_seconds": 0.0,
        "device_bytes": 0, "device_peak_bytes": 0, "device_copy_seconds": 0.0, "device_decode_seconds": 0.0,
        "device_hits": 0, "device_resident_samples": 0, "device_resident_bytes": 0,
    }  # fmt: skip


def test_a_batch_that_libhdf5_read_counts_without_requests() -> None:
    stats = Stats()
    stats.batch(3, 600, {})
    assert (stats.as_dict()["batch_bytes"], stats.as_dict()["bytes"], stats.as_dict()["requests"]) == (600, 0, 0)


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
    assert ["1", "2.0", "s", "5", "50", "%", "decode", "3", "bytes", "3"] in table
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
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    assert stats.as_dict()["resident_bytes"] < 0


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


# --- in words ----


def test_before_the_first_batch_the_report_says_so() -> None:
    stats = Stats()
    assert stats.report() == "No batch has been handed out."
    stats.waited("storage", 3.0)
    assert stats.report() == "No batch has been handed out. 3.0 s of waiting: 3.0 s for storage."


def test_the_report_of_a_training_that_waited() -> None:
    stats = used(3, 1200, 125.9, {"storage": 2.9, "decode": 0.8, "collate": 0.4})
    stats.held(40 * MIB)
    stats.held(-30 * MIB)
    assert stats.report() == (
        "3 epochs: 1,200 batches, 76,800 samples, 4.7 GiB of data.\n"
        "For this: 4.7 GiB read in 9,600 requests.\n"
        "Memory for batches: 10 MiB now, 40 MiB at most.\n"
        "Your training waited for data 3.2 % of the time (4.1 s of 130 s): 2.9 s for storage, 0.80 s for decoding, "
        "0.40 s for collating.\n"
        "Most of it is storage: the files were read at 37 MiB/s, 512 KiB a request. If the storage can do more, read "
        "further ahead (`ahead`); if not, it is the limit."
    )


def test_one_of_each_is_said_in_the_singular() -> None:
    stats = Stats()
    stats.batch(1, 1, counts(requests=1, bytes_read=1))
    stats.epoch()
    assert stats.report() == "1 epoch: 1 batch, 1 sample, 1 byte of data.\nFor this: 1 byte read in 1 request."


def test_a_training_that_hardly_waited_gets_no_advice() -> None:
    last = used(busy=100.0, waits={"storage": 0.0004}).report().splitlines()[-1]
    assert last == "Your training hardly waited for data: less than 0.1 % of the time (less than 1 ms of 100 s)."
    assert used(busy=9.0).report().splitlines()[-1].endswith("hardly waited for data: 0 % of the time (0 s of 9.0 s).")


def test_a_loop_that_computes_nothing_is_told_the_loaders_speed_instead() -> None:
    text = used(busy=0.001, waits={"storage": 2.0}).report()
    assert "Your training" not in text
    assert "this is the loader's own speed, 3,198 samples a second.\n2.0 s of waiting: 2.0 s for storage.\nAll" in text


def test_the_first_epoch_is_told_from_later_ones() -> None:
    first, later = (used(epochs, waits={"storage": 2.0}).report() for epochs in (0, 1))
    assert first.startswith("Not one whole epoch yet: 100 batches")
    assert "This is the first epoch: what stays in the page cache need not be read again" in first
    assert "first epoch" not in later


def test_causes_below_a_hundredth_of_the_waiting_are_left_out() -> None:
    text = used(waits={"transform": 5.0, "storage": 0.04}).report()
    assert "(5.0 s of 11 s): 5.0 s for transforms, casts and normalising." in text


ADVISED = {
    "all": ({"storage": 2.0}, {}, "All of it is storage: the files were read at 50 MiB/s"),
    "most": ({"decode": 1.5, "storage": 1.0}, {}, r"Most of it is decode: .*More cores would help\.$"),
    "buffer": ({"buffer": 2.0, "storage": 1.0}, {}, "for batches to be put.*\n.*no larger buffer or faster storage"),
    "plan": ({"plan": 2.0}, {}, "for the buffer to be planned and made.\n.*PlanSampler, and `epochs`"),
    "largest": ({"decode": 1.0, "storage": 0.9, "collate": 0.9}, {}, "The largest part of it is decode: "),
    "in the cache": ({"storage": 2.0}, {"bytes_mapped": 40 * MIB, "bytes_read": 0, "requests": 0},
                     "100 % of the bytes were in the page cache already, so faster storage would not help"),
    "no room": ({"storage": 2.0}, {"bypassed": 8}, "800 of 800 requests went past the page cache, which has no room"),
    "libhdf5": ({"storage": 2.0}, {"bytes_read": 0, "requests": 0}, "no bytes were counted. Either libhdf5 reads"),
    "too much read": ({"storage": 2.0}, {"bytes_read": 40 * MIB}, "For each byte of the batches 10.0 bytes were read"),
    "too much decoded": ({"decode": 2.0}, {"bytes_decoded": 12 * MIB}, "3.0 bytes were decoded, for chunks come whole"),
    "transform": ({"transform": 2.0}, {}, "thread_safe=True.*num_workers"),
    "exchange": ({"exchange": 2.0}, {}, "for samples from other ranks.\n.*the rank that reads slowest"),
    "device copy": ({"device copy": 2.0}, {}, "for the copy to the device.\n.*give the loader device="),
    "collate": ({"collate": 2.0}, {}, "leave collate_fn to the default"),
}  # fmt: skip


@pytest.mark.parametrize(("waits", "changed", "said"), ADVISED.values(), ids=ADVISED)
def test_advice_is_of_the_cause_waited_for_most(waits: Any, changed: dict[str, int], said: str) -> None:
    text = used(waits=waits, **changed).report()
    assert re.search(said, text), text
    assert text.splitlines()[-1].count("of it is") == 1


@pytest.mark.parametrize(
    ("filters", "said"),
    {(1, 2): "LZ4 or Zstandard in place of gzip", (307,): "in place of bzip2", (FILTER,): "--coder pack"}.items(),
)
def test_a_faster_codec_is_advised_where_there_is_one(filters: tuple[int, ...], said: str) -> None:
    decoding = used(waits={"decode": 2.0})
    assert said in decoding.report(filters)
    assert said not in used(waits={"storage": 2.0}).report(filters)
    for fast in ((32004,), (32015, 2), ()):
        assert "codec" not in decoding.report(fast)


def test_a_buffer_is_advised_where_chunks_are_decoded_again_and_again() -> None:
    times = {"bytes_decoded": 12 * MIB}
    assert "(`buffer`)" in used(waits={"decode": 2.0}, **times).report()
    assert "(`buffer`)" not in used(waits={"decode": 2.0}, buffer_hits=1, **times).report()
    assert "(`buffer`)" not in used(waits={"decode": 2.0}, bytes_decoded=4 * MIB).report()


def test_amplification_is_told_only_where_there_is_some() -> None:
    assert "For each byte" not in used(waits={"storage": 2.0, "decode": 1.0}, bytes_decoded=4 * MIB).report()


numbers = st.integers(0, 10**15)


@given(
    totals=st.fixed_dictionaries(dict.fromkeys(KEYS - {"busy_seconds", "wait_seconds", "wait_share"}, numbers)),
    busy=st.floats(0, 1e9),
    waits=st.fixed_dictionaries(dict.fromkeys(CAUSES, st.floats(0, 1e9))),
)
def test_every_count_can_be_put_into_words(totals: dict[str, int], busy: float, waits: dict[str, float]) -> None:
    totals["bytes"] += totals["bytes_mapped"]
    waited = sum(waits.values())
    share = waited / (waited + busy) if waited + busy else 0.0
    text = report(totals | {"busy_seconds": busy, "wait_seconds": waits, "wait_share": share})
    assert re.search(r"\bnan\b|\binf\b|-\d|\{|\}", text) is None
    assert all(line.endswith(".") for line in text.splitlines())


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
