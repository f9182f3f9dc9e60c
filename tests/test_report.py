"""The report of Stats says what a loader did, in words that the numbers bear out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_kit import KEYS, MIB, counts, used

from solar import DataLoader, H5Dataset
from solar.io.codec.codec import FILTER
from solar.loader.report import report
from solar.loader.stats import CAUSES, Stats


def test_before_the_first_batch_the_report_says_so() -> None:
    stats = Stats()
    assert stats.report() == "No batch has been handed out."
    stats.waited("storage", 3.0)
    assert stats.report() == "No batch has been handed out. 3.0 s of waiting: 3.0 s for storage."


def test_the_report_of_a_training_that_waited() -> None:
    stats = used(3, 1200, 60.9, {"storage": 2.9, "decode": 0.8, "collate": 0.4})
    stats.held(40 * MIB)
    stats.held(-30 * MIB)
    assert stats.report() == (
        "3 epochs: 1,200 batches, 76,800 samples, 4.7 GiB of data.\n"
        "For this: 4.7 GiB read in 9,600 requests.\n"
        "Memory for batches: 10 MiB now, 40 MiB at most.\n"
        "Your training waited for data 6.3 % of the time (4.1 s of 65 s): 2.9 s for storage, 0.80 s for decoding, "
        "0.40 s for collating.\n"
        "Most of it is storage: the files were read at 77.4 MB/s, 512 KiB a request. If the storage can do more, read "
        "further ahead (`ahead`); if not, it is the limit."
    )


def test_one_of_each_is_said_in_the_singular() -> None:
    stats = Stats()
    stats.batch(1, 1, counts(requests=1, bytes_read=1))
    stats.epoch()
    assert stats.report() == "1 epoch: 1 batch, 1 sample, 1 B of data.\nFor this: 1 B read in 1 request."


def test_a_training_that_hardly_waited_gets_no_advice() -> None:
    last = used(busy=100.0, waits={"storage": 0.0004}).report().splitlines()[-1]
    said = "Your training hardly waited for data: less than 0.1 % of the time (less than 1 ms of 100 s)."
    assert last == f"{said} There is nothing to gain."
    assert "hardly waited for data: 0 % of the time (0 s of 9.0 s)." in used(busy=9.0).report().splitlines()[-1]
    assert "hardly waited for data: 4.8 % of the time" in used(busy=60.0, waits={"storage": 3.0}).report()
    assert "of it is" not in used(busy=60.0, waits={"storage": 3.0}).report()


@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_a_moment_of_waiting_gets_no_advice(busy: float) -> None:
    for cause in CAUSES:
        text = used(busy=busy, waits={cause: 0.032}, bytes_decoded=12 * MIB).report()
        assert "32 ms" in text
        assert text.endswith("In all that is less than 1.0 s: nothing to gain yet.")
        assert "would" not in text


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
    "all": ({"storage": 2.0}, {}, "All of it is storage: the files were read at 52.4 MB/s"),
    "most": ({"decode": 1.5, "storage": 1.0}, {}, r"Most of it is decode: .*More cores would help\.$"),
    "buffer": ({"buffer": 2.0, "storage": 1.0}, {}, "for batches to be put.*\n.*no larger buffer or faster storage"),
    "plan": ({"plan": 2.0}, {}, "for the buffer to be planned and made.\n.*PlanSampler the next epoch is planned"),
    "largest": ({"decode": 1.0, "storage": 0.9, "collate": 0.9}, {}, "The largest part of it is decode: "),
    "in the cache": ({"storage": 2.0}, {"bytes_mapped": 40 * MIB, "bytes_read": 0, "requests": 0},
                     "100 % of the bytes were in the page cache already, so faster storage would not help"),
    "no room": ({"storage": 2.0}, {"bypassed": 8}, "800 of 800 requests went past the page cache, which has no room"),
    "libhdf5": ({"storage": 2.0}, {"bytes_read": 0, "requests": 0}, "no bytes were counted. Either libhdf5 reads"),
    "too much read": ({"storage": 2.0}, {"bytes_read": 40 * MIB}, "Each sample cost 10 times its size in reading"),
    "too much decoded": ({"decode": 2.0}, {"bytes_decoded": 12 * MIB}, "cost 3.0 times its size in decompression"),
    "transform": ({"transform": 2.0}, {}, "thread_safe=True.*num_workers"),
    "exchange": ({"exchange": 2.0}, {}, "for other ranks.\n.*the slowest rank sets the pace"),
    "device copy": ({"device copy": 2.0}, {}, "for the copy to the device.\n.*give the loader device="),
    "collate": ({"collate": 2.0}, {}, "leave collate_fn to the default"),
}  # fmt: skip


@pytest.mark.parametrize(("waits", "changed", "said"), ADVISED.values(), ids=ADVISED)
def test_advice_is_of_the_cause_waited_for_most(waits: Any, changed: dict[str, int], said: str) -> None:
    text = used(waits=waits, **changed).report()
    assert re.search(said, text), text
    assert text.splitlines()[-1].count("of it is") == 1


def test_no_generator_is_advised_where_the_epochs_to_come_are_known() -> None:
    assert "generator" not in used(waits={"plan": 2.0}).report(foreseen=True)
    assert "With a `generator` or a PlanSampler" in used(waits={"plan": 2.0}).report()


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


def test_a_buffer_is_advised_where_it_is_known_to_gain_something() -> None:
    said = "A buffer would help: it does."
    for cause in ("decode", "storage"):
        waited = used(waits={cause: 2.0}, bytes_decoded=12 * MIB)
        assert waited.report(buffer=said).endswith(f" {said}")
        assert "buffer" not in waited.report()
    assert said not in used(waits={"transform": 2.0}).report(buffer=said)


def test_amplification_is_told_only_where_there_is_some() -> None:
    assert "its size" not in used(waits={"storage": 2.0, "decode": 1.0}, bytes_decoded=4 * MIB).report()


def test_chunks_are_blamed_only_where_samples_share_them() -> None:
    decoding = used(waits={"decode": 2.0}, bytes_decoded=228 * MIB)
    said = "each sample cost 57 times its size in decompression, because 360 samples share a chunk: "
    assert said in decoding.report((1,), 360).lower()
    assert "share a chunk" not in decoding.report((1,))
    reading = used(waits={"storage": 2.0}, bytes_read=20 * MIB)
    assert "cost 5.0 times its size in reading, because 8 samples share a chunk" in reading.report((1,), 8)
    assert "chunk" not in reading.report()


def test_a_plan_that_reads_samples_again_says_for_how_much_memory() -> None:
    reading = used(waits={"storage": 2.0}, bytes_read=20 * MIB)
    said = "The plan read each sample 5.0 times, because memory held only 25 % of the data."
    assert reading.report(memory=0.25).endswith(said)
    assert reading.report(memory=1.0).endswith("The plan read each sample 5.0 times.")
    assert "The plan" not in reading.report()


def test_a_loader_reports_what_it_knows_of_its_data(make: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (4000, 256)).astype("f4")
    path = make("a.h5", chunked=(rows, {"chunks": (40, 256), "compression": "gzip"}), plain=rows)
    told: list[Any] = []
    monkeypatch.setattr("solar.loader.report.report", lambda *arguments: told.append(arguments[2:]) or "")
    for name, buffer in (("chunked", 0), ("plain", 0), ("plain", 2 * MIB)):
        with DataLoader(H5Dataset(path, name), batch_size=16, shuffle=True, buffer=buffer) as loader:
            list(loader)
            loader.report()
    assert [arguments[:3] for arguments in told] == [({1}, 40, 0.0), (set(), 1, 0.0), (set(), 1, 2 * MIB / rows.nbytes)]
    # What a buffer would gain; and what the one there is would gain, if it knew more than this epoch.
    assert [bool(arguments[3]) for arguments in told] == [True, False, True]


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


def test_where_a_service_makes_the_batches_the_advice_is_to_ask_it() -> None:
    stats = used(3, 1200, 60.9, {"buffer": 40.0, "collate": 1.0})
    alone, served = str(stats.report()), str(stats.report(served=True))
    assert "put together from the buffer" in alone and "service" not in alone
    assert (
        "40 s for the service, or to copy its batches" in served and "buffer" not in served.partition("Most of it")[0]
    )
    assert "`solar serve --status` says what it reads and who waits for whom" in served
    epochs = [(number, {**stats.as_dict(), "wait_seconds": {"buffer": 40.0}}) for number in (1, 2)]
    assert "   buffer  " in _in_words(stats, epochs) and "  service  " in _in_words(stats, epochs, served=True)


def _in_words(stats: Stats, epochs: Any, **told: Any) -> str:
    """The rows of the epochs in a report."""
    rows = report(stats.as_dict(), epochs, **told).splitlines()
    return "\n".join(rows[rows.index(next(row for row in rows if row.startswith("epoch "))) :][:3])
