"""Stats: counts what a loader did, and what the training waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from solar.io.system import lifecycle

if TYPE_CHECKING:
    from solar.loader.report import Report

CAUSES = (
    *("storage", "decode", "buffer", "plan", "transform", "exchange"),
    *("device copy", "collate", "dataset", "start"),
)
OTHER_WAITS = (
    *(("exchange_wait_ns", "exchange"), ("ranks_ns", "exchange")),
    *(("device_wait_ns", "device copy"), ("convert_wait_ns", "transform")),
)
TOTALS = ("epochs", "batches", "samples", "skipped", "batch_bytes", "device_bytes", "device_hits")
SECONDS = ("busy_seconds", "device_copy_seconds", "device_decode_seconds")
PEAKS = {"resident_bytes": "peak_bytes", "landed_bytes": "device_peak_bytes"}  # the largest value of each
LEVELS = (*PEAKS, *PEAKS.values(), "device_resident_samples", "device_resident_bytes")  # which rise and fall
FOLDED = 64  # batches whose counts are added up together
ROWS = 8  # epochs that are remembered one by one: the first, and the latest of the others
NATIVE = (  # summed over batches
    "requests", "calls", "retries", "bypassed", "bytes_read", "bytes_mapped", "bytes_decoded", "buffer_hits",
    "exchanged_bytes", "stage_requests", "stage_bytes", "stage_written",
)  # fmt: skip

# One for all Stats: it is held for less than a microsecond. Reentrant, for `held` is called when memory is let go, and
# the garbage collector may do that in the midst of anything. Taken around fork, so that no child inherits it locked.
_LOCK = threading.RLock()
lifecycle.hold_over_fork(_LOCK)


# A batch reaches Stats in one of two ways: `noted`, and later `fold` (direct batches, solar.arrays, torch's iterators),
# or `handed_out` (the queue of EpochIterator). Copies to a device are counted apart, by `waited` and `device_took`. A
# new counter is a line of TOTALS, and is counted in both ways. FAMILIES in metrics.py, `_amounts` in report.py, KEYS
# in tests/stats_kit.py and the list in docs/guide.md name it.


class Stats:
    """A loader's counters since it was made or since `reset`. Any thread may count and read.

    A copy, also by pickle, begins at zero and counts its own reads.

    >>> stats = Stats()
    >>> stats.batch(64, 4 << 20, {"requests": 8, "bytes_read": 4 << 20})
    >>> stats.waited("storage", 0.5)
    >>> stats.busy(1.5)
    >>> stats.as_dict()["wait_share"]
    0.25
    """

    def __init__(self) -> None:
        # Rows of `fold`, counted later: a batch in a hurry adds its own here, which takes no lock.
        self.noted: deque[tuple[float, float, float, float, int, int, tuple[str, ...], tuple[int, ...]]] = deque()
        self._levels = dict.fromkeys(LEVELS, 0)
        self.reset()

    def reset(self) -> None:
        """Counts from zero again; memory still held stays counted."""
        self.fold()
        with _LOCK:
            self._counts = dict.fromkeys(TOTALS, 0)
            self._seconds = dict.fromkeys(SECONDS, 0.0)
            for level, peak in PEAKS.items():
                self._levels[peak] = self._levels[level]
            self._native = dict.fromkeys(NATIVE, 0)
            self._waits = dict.fromkeys(CAUSES, 0.0)
            self._first: dict[str, Any] | None = None
            self._latest: deque[dict[str, Any]] = deque(maxlen=ROWS - 1)
            self._counted = self._so_far()  # when the epoch before ended
            self._whole = False

    def epoch(self) -> None:
        """Counts an epoch that ended."""
        self.fold()
        with _LOCK:
            self._end_epoch()

    def _end_epoch(self) -> None:
        self._counts["epochs"] += 1
        row, self._counted, self._whole = self._row(), self._so_far(), False
        if self._first is None:
            self._first = row
        else:
            self._latest.append(row)

    def whole(self) -> None:
        """Marks the epoch finished at its last batch: some loops never ask for another."""
        self.fold()
        with _LOCK:
            self._whole = True

    def _row(self) -> dict[str, Any]:
        """Returns the counts since the previous epoch ended."""
        now, before = self._so_far(), self._counted
        waits = {cause: seconds - before["wait_seconds"][cause] for cause, seconds in now["wait_seconds"].items()}
        return {name: now[name] - before[name] for name in now if name != "wait_seconds"} | {"wait_seconds": waits}

    def _so_far(self) -> dict[str, Any]:
        """Returns the totals so far of everything that is reported per epoch."""
        nbytes = self._native["bytes_read"] + self._native["bytes_mapped"]
        counted = {"samples": int(self._counts["samples"]), "bytes": nbytes, "buffer_hits": self._native["buffer_hits"]}
        return counted | {"busy_seconds": self._seconds["busy_seconds"], "wait_seconds": dict(self._waits)}

    def skip(self, samples: int) -> None:
        """Counts samples that could not be read and were left out."""
        with _LOCK:
            self._counts["skipped"] += samples

    def batch(self, samples: int, nbytes: int, counts: Mapping[str, int]) -> None:
        """Counts a batch handed out: its samples and bytes, and the engine's counts (empty: libhdf5 read it)."""
        with _LOCK:
            self._count(samples, nbytes, counts)

    def _count(self, samples: int, nbytes: int, counts: Mapping[str, int]) -> None:
        if self._whole:
            self._end_epoch()
        totals, native = self._counts, self._native
        totals["batches"] += 1
        totals["samples"] += samples
        totals["batch_bytes"] += nbytes
        for name, value in counts.items():
            if value and name in native:
                native[name] += value
        totals["device_bytes"] += counts.get("device_bytes", 0)
        self._seconds["device_copy_seconds"] += counts.get("device_copy_ns", 0) / 1e9

    def fold(self) -> None:
        """Counts batches that were noted: the seconds before each, of waiting, transforming and collating; its size."""
        noted = self.noted
        if not noted:
            return
        with _LOCK:
            while noted:  # only under the lock are any taken away
                busy, waited, transforming, collating, samples, nbytes, names, counts = noted.popleft()
                self._seconds["busy_seconds"] += busy
                self._waits["transform"] += transforming
                self._waits["collate"] += collating
                named = dict(zip(names, counts, strict=True))
                self._count(samples, nbytes, named)
                self._split(waited, named)

    def handed_out(
        self, samples: int, nbytes: int, counts: Mapping[str, int], waited: float, transforming: float, collating: float
    ) -> None:
        """Counts `batch`, `held` and the waits of one batch at once; `waited` includes transform and collation."""
        transforming = min(waited, transforming)
        collating = min(waited - transforming, collating)
        with _LOCK:
            self._count(samples, nbytes, counts)
            self._levels["resident_bytes"] -= nbytes
            self._split(waited - transforming - collating, counts)
            self._waits["transform"] += transforming
            self._waits["collate"] += collating

    def waited(self, cause: str, seconds: float) -> None:
        """Counts `seconds` that the training waited for this cause."""
        with _LOCK:
            if cause not in self._waits:
                raise ValueError(f"cause={cause!r}: the training waits for one of {', '.join(CAUSES)}")
            self._waits[cause] += seconds

    def split(self, seconds: float, counts: Mapping[str, int]) -> None:
        """Divides the wait for a batch: other ranks, then storage and decoding in proportion to the threads' time.

        A batch that a run made (`made_by_run`) without reading came from the buffer. Of one that the Dataset's own
        Python made (`made_by_dataset`) no more is known.
        """
        with _LOCK:
            self._split(seconds, counts)

    def _split(self, seconds: float, counts: Mapping[str, int]) -> None:
        waits, cause, share = self._waits, "storage", 0.0
        if "made_by_dataset" in counts:
            waits["dataset"] += seconds
            return
        if "made_by_run" in counts and not counts.get("bytes_read", 0) + counts.get("bytes_mapped", 0):
            cause = "buffer"
        if decoding := counts.get("decode_ns", 0):
            share = decoding / (counts.get("read_ns", 0) + decoding)
        for name, other in OTHER_WAITS:
            if waiting := counts.get(name, 0):
                waits[other] += (there := min(seconds, waiting / 1e9))
                seconds -= there
        waits[cause] += seconds * (1 - share)
        waits["decode"] += seconds * share

    def busy(self, seconds: float) -> None:
        """Counts the `seconds` between handing out a batch and the request for the next."""
        with _LOCK:
            self._seconds["busy_seconds"] += seconds

    def held(self, delta_bytes: int) -> None:
        """Counts memory of batches that was allocated, or (negative) freed."""
        with _LOCK:
            self._change("resident_bytes", delta_bytes)

    def landed(self, copied_bytes: int, delta_bytes: int) -> None:
        """Counts bytes copied to the device, and the change in bytes that wait there for the training."""
        with _LOCK:
            self._counts["device_bytes"] += copied_bytes
            self._change("landed_bytes", delta_bytes)

    def _change(self, level: str, delta: int) -> None:
        now, peak = self._levels[level] + delta, PEAKS[level]
        self._levels[level] = now
        if now > self._levels[peak]:
            self._levels[peak] = now

    def kept(self, delta_samples: int, delta_bytes: int, hits: int) -> None:
        """Counts the change in samples and bytes kept on the device, and the uses of samples kept there."""
        with _LOCK:
            self._levels["device_resident_samples"] += delta_samples
            self._levels["device_resident_bytes"] += delta_bytes
            self._counts["device_hits"] += hits

    def device_took(self, copying: float, finishing: float) -> None:
        """Counts a batch's time by the device's clock: for copying it, and for decoding, casting and so on."""
        with _LOCK:
            self._seconds["device_copy_seconds"] += copying
            self._seconds["device_decode_seconds"] += finishing

    def as_dict(self) -> dict[str, Any]:
        """Returns all counters, consistent with one another, and the share of the time that the training waited."""
        self.fold()
        with _LOCK:
            waits, native, levels = dict(self._waits), dict(self._native), dict(self._levels)
            totals: dict[str, Any] = {**self._counts, **self._seconds}
            totals["epochs"] += self._whole
        del levels["landed_bytes"]
        for name in ("samples", "batch_bytes"):
            totals[name] = int(totals[name])
        counted = totals | {"bytes": native.pop("bytes_read") + native["bytes_mapped"]} | native | levels
        waited = sum(waits.values())
        passed = waited + counted["busy_seconds"]
        return counted | {"wait_seconds": waits, "wait_share": waited / passed if passed else 0.0}

    def by_epoch(self) -> list[tuple[int, dict[str, Any]]]:
        """Returns the counts of each epoch, numbered from 1; of many epochs, only the first and the latest."""
        self.fold()
        with _LOCK:
            rows = [] if self._first is None else [self._first, *self._latest]
            if self._whole:
                rows.append(self._row())
            begin = self._counts["epochs"] + self._whole + 1 - len(rows)
            return [(1 if not place else begin + place, row) for place, row in enumerate(rows)]

    def report(
        self,
        filters: Collection[int] = (),
        per_chunk: int = 1,
        memory: float = 0.0,
        buffer: str = "",
        counts: Mapping[str, int] | None = None,
        served: bool = False,
        foreseen: bool = False,
    ) -> Report:
        """Returns the counters as text: what was read, how long the training waited, why, and what would help.

        The arguments serve the advice: the HDF5 numbers of the data's filters, how many samples share a compressed
        chunk, the share of the data that the buffer holds, and what a buffer would gain where there is none. `counts`
        are the samples of each class or source. `served`: a service has made batches. `foreseen`: the order of the
        epochs to come is known.
        """
        from solar.loader.report import Report  # long, and of no use to a loop
        from solar.loader.report import report as in_words

        epochs = self.by_epoch()
        facts = (filters, per_chunk, memory, buffer, counts, served, foreseen)
        return Report.of(in_words(self.as_dict(), epochs, *facts), epochs)

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return type(self), ()
