"""What a loader has done, and for what the training waited: Stats counts, report says it in words."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

CAUSES = ("storage", "decode", "transform", "exchange", "device copy", "collate", "dataset", "start")
HARDLY = 0.02  # share of the time below which waiting is not worth a word of advice
IDLE = 0.05  # share of the time below which nothing was computed between the batches
NATIVE = (  # summed over batches
    "requests", "retries", "bypassed", "bytes_read", "bytes_mapped", "bytes_decoded", "buffer_hits", "exchanged_bytes",
)  # fmt: skip

# One for all Stats: it is held for less than a microsecond. Reentrant, for `held` is called when memory is let go, and
# the garbage collector may do that in the midst of anything. Taken around fork, so that no child inherits it locked.
_LOCK = threading.RLock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class Stats:
    """A loader's counters since it was made or since `reset`. Any thread may count and read.

    Copied or pickled, it begins at zero: the copy's reads are its own.

    >>> stats = Stats()
    >>> stats.batch(64, 4 << 20, {"requests": 8, "bytes_read": 4 << 20})
    >>> stats.waited("storage", 0.5)
    >>> stats.busy(1.5)
    >>> stats.as_dict()["wait_share"]
    0.25
    """

    def __init__(self) -> None:
        self._resident = self._landed = self._kept_samples = self._kept_nbytes = 0
        self.reset()

    def reset(self) -> None:
        """Counts from zero again; memory still held stays counted."""
        with _LOCK:
            self._epochs = self._batches = self._samples = self._batch_nbytes = self._skipped = 0
            self._busy = 0.0
            self._peak = self._resident
            self._landed_nbytes, self._landed_peak, self._kept_hits = 0, self._landed, 0
            self._copying = self._finishing = 0.0
            self._native = dict.fromkeys(NATIVE, 0)
            self._waits = dict.fromkeys(CAUSES, 0.0)

    def epoch(self) -> None:
        """An epoch came to its end."""
        with _LOCK:
            self._epochs += 1

    def skip(self, samples: int) -> None:
        """So many samples could not be read, and were left out."""
        with _LOCK:
            self._skipped += samples

    def batch(self, samples: int, nbytes: int, counts: Mapping[str, int]) -> None:
        """A batch was handed out: what it holds, and the engine's counts of reading it (empty: libhdf5 read it)."""
        with _LOCK:
            self._batches += 1
            self._samples += samples
            self._batch_nbytes += nbytes
            for name in NATIVE:
                self._native[name] += counts.get(name, 0)

    def handed_out(
        self, samples: int, nbytes: int, counts: Mapping[str, int], waited: float, transforming: float, collating: float
    ) -> None:
        """`batch`, `held` and the waits of one batch at once; `waited` is in all, with transform and collation."""
        transforming = min(waited, transforming)
        collating = min(waited - transforming, collating)
        with _LOCK:  # which may be taken again
            self.batch(samples, nbytes, counts)
            self.held(-nbytes)
            self.split(waited - transforming - collating, counts)
            self._waits["transform"] += transforming
            self._waits["collate"] += collating

    def waited(self, cause: str, seconds: float) -> None:
        """The training stood still for `seconds`."""
        with _LOCK:
            if cause not in self._waits:
                raise ValueError(f"cause={cause!r}: the training waits for one of {', '.join(CAUSES)}")
            self._waits[cause] += seconds

    def split(self, seconds: float, counts: Mapping[str, int]) -> None:
        """The training waited for a batch: for other ranks, storage, and decoding (by what threads spent)."""
        reading, decoding = counts.get("read_ns", 0), counts.get("decode_ns", 0)
        share = decoding / (reading + decoding) if decoding else 0.0
        exchanging = min(seconds, counts.get("exchange_wait_ns", 0) / 1e9)
        seconds -= exchanging
        with _LOCK:
            self._waits["exchange"] += exchanging
            self._waits["storage"] += seconds * (1 - share)
            self._waits["decode"] += seconds * share

    def busy(self, seconds: float) -> None:
        """The training had its batch for `seconds` before it asked for the next."""
        with _LOCK:
            self._busy += seconds

    def held(self, delta_bytes: int) -> None:
        """Memory of batches was taken, or (negative) let go."""
        with _LOCK:
            self._resident += delta_bytes
            self._peak = max(self._peak, self._resident)

    def landed(self, copied_bytes: int, delta_bytes: int) -> None:
        """Bytes were sent to the device, and more (or, negative, fewer) of a batch's wait there for the loop."""
        with _LOCK:
            self._landed_nbytes += copied_bytes
            self._landed += delta_bytes
            self._landed_peak = max(self._landed_peak, self._landed)

    def kept(self, delta_samples: int, delta_bytes: int, hits: int) -> None:
        """More (or, negative, fewer) samples stay on the device, in more memory; and so many that did were used."""
        with _LOCK:
            self._kept_samples += delta_samples
            self._kept_nbytes += delta_bytes
            self._kept_hits += hits

    def device_took(self, copying: float, finishing: float) -> None:
        """What a batch took on the device, by its own clock: to be copied there, and to be decoded, cast and so on."""
        with _LOCK:
            self._copying += copying
            self._finishing += finishing

    def as_dict(self) -> dict[str, Any]:
        """All counters, consistent with one another, and the share of the time that the training waited."""
        with _LOCK:
            waits, native = dict(self._waits), dict(self._native)
            counted = {
                "epochs": self._epochs, "batches": self._batches, "samples": int(self._samples),
                "skipped": self._skipped,
                "batch_bytes": int(self._batch_nbytes), "bytes": native.pop("bytes_read") + native["bytes_mapped"],
                **native, "resident_bytes": self._resident, "peak_bytes": self._peak, "busy_seconds": self._busy,
                "device_bytes": self._landed_nbytes, "device_peak_bytes": self._landed_peak,
                "device_hits": self._kept_hits, "device_resident_samples": self._kept_samples,
                "device_resident_bytes": self._kept_nbytes,
                "device_copy_seconds": self._copying, "device_decode_seconds": self._finishing,
            }  # fmt: skip
        waited = sum(waits.values())
        passed = waited + counted["busy_seconds"]
        return counted | {"wait_seconds": waits, "wait_share": waited / passed if passed else 0.0}

    def report(self) -> str:
        """The counters in words: what was read, how long the training waited and for what, what would help."""
        return report(self.as_dict())

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return type(self), ()


# --- in words ----


def report(totals: Mapping[str, Any]) -> str:
    """What Stats.as_dict gives, in words."""
    waited = sum(totals["wait_seconds"].values())
    if not totals["batches"]:
        return "No batch has been handed out." + (f" {_waiting(totals, waited)}" if waited else "")
    return "\n".join(line for line in (_amounts(totals), *_times(totals, waited)) if line)


def _amounts(totals: Mapping[str, Any]) -> str:
    epochs = _count(totals["epochs"], "epoch") if totals["epochs"] else "Not one whole epoch yet"
    batches, samples = _count(totals["batches"], "batch", "batches"), _count(totals["samples"], "sample")
    text = f"{epochs}: {batches}, {samples}"
    text += f", {_size(totals['batch_bytes'])} of data." if totals["batch_bytes"] else "."
    read = totals["bytes"] - totals["bytes_mapped"]
    parts = (
        (totals["requests"], f"{_size(read)} read in {_count(totals['requests'], 'request')}"),
        (totals["bytes_mapped"], f"{_size(totals['bytes_mapped'])} copied from the page cache"),
        (totals["buffer_hits"], f"{_count(totals['buffer_hits'], 'sample')} found in the buffer"),
        (totals["bytes_decoded"], f"{_size(totals['bytes_decoded'])} decoded"),
        (totals["exchanged_bytes"], f"{_size(totals['exchanged_bytes'])} had from ranks of other nodes"),
    )
    if sources := ", ".join(said for amount, said in parts if amount):
        text += f"\nFor this: {sources}."
    if totals["retries"]:
        text += f"\nThe storage failed {_count(totals['retries'], 'time')}, and was asked again with success."
    if totals["skipped"]:
        text += f"\nLeft out, for it could not be read: {_count(totals['skipped'], 'sample')}."
    if totals["peak_bytes"]:
        text += f"\nMemory for batches: {_size(totals['resident_bytes'])} now, {_size(totals['peak_bytes'])} at most."
    return text


def _times(totals: Mapping[str, Any], waited: float) -> list[str]:
    passed = waited + totals["busy_seconds"]
    if passed < 1e-9:  # no clock says so little
        return []
    times = f"({_time(waited)} of {_time(passed)})"
    if totals["wait_share"] < HARDLY:
        return [f"Your training hardly waited for data: {_percent(totals['wait_share'])} of the time {times}."]
    if totals["busy_seconds"] < IDLE * passed:
        rate = totals["samples"] / passed
        speed = f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.1f}"
        first = (
            f"Next to nothing was done between the batches: this is the loader's own speed, {speed} samples a second."
        )
        return [first, _waiting(totals, waited), _advice(totals, waited)]
    share = f"Your training waited for data {_percent(totals['wait_share'])} of the time {times}: "
    return [share + _causes(totals, waited) + ".", _advice(totals, waited)]


def _waiting(totals: Mapping[str, Any], waited: float) -> str:
    return f"{_time(waited)} of waiting: {_causes(totals, waited)}."


def _causes(totals: Mapping[str, Any], waited: float) -> str:
    """The causes in falling order; those below a hundredth of the waiting are left out."""
    sorted_waits = sorted(totals["wait_seconds"].items(), key=lambda pair: -pair[1])
    return ", ".join(f"{_time(seconds)} {FOR[cause]}" for cause, seconds in sorted_waits if seconds >= waited / 100)


def _advice(totals: Mapping[str, Any], waited: float) -> str:
    cause = max(CAUSES, key=lambda cause: totals["wait_seconds"][cause])
    seconds = totals["wait_seconds"][cause]
    part = "All" if seconds > 0.99 * waited else "Most" if seconds > waited / 2 else "The largest part"
    return f"{part} of it is {cause}: {ADVICE[cause](totals)}"


def _of_storage(totals: Mapping[str, Any]) -> str:
    requests, bypassed, nbytes, mapped = (totals[key] for key in ("requests", "bypassed", "bytes", "bytes_mapped"))
    if not nbytes:
        return (
            "no bytes were counted. Either libhdf5 reads these files, in one process (`solar inspect FILE` says why), "
            "or nothing is stored in them."
        )
    if mapped > 0.9 * nbytes:
        said = (
            f"{_percent(mapped / nbytes)} of the bytes were in the page cache already, so faster storage would not "
            "help. They are copied by one thread for each CPU core the process may use: more cores would."
        )
    elif bypassed > requests / 2:
        said = (
            f"{bypassed:,} of {_count(requests, 'request')} went past the page cache, which has no room for the files "
            "(or page_cache=False was asked for). More memory or faster storage would help."
        )
    else:
        passed = sum(totals["wait_seconds"].values()) + totals["busy_seconds"]
        rate, request = _size(nbytes / passed), _size((nbytes - mapped) / max(1, requests))
        said = (
            f"the files were read at {rate}/s, {request} a request. "
            "If the storage can do more, read further ahead (`ahead`); if not, it is the limit."
        )
        if not totals["epochs"]:
            said += " This is the first epoch: what stays in the page cache need not be read again in the next."
    return said + _amplified(totals, "bytes", "read")


def _of_decoding(totals: Mapping[str, Any]) -> str:
    return (
        "it runs on one thread for each CPU core the process may use (32 at most). More cores would help, or a codec "
        "that decodes faster: LZ4 or Zstandard in place of gzip." + _amplified(totals, "bytes_decoded", "decoded")
    )


def _amplified(totals: Mapping[str, Any], key: str, done: str) -> str:
    """Whether much more was read or decoded than was asked for."""
    if not totals["batch_bytes"] or (times := totals[key] / totals["batch_bytes"]) < 2:
        return ""
    return (
        f" For each byte of the batches {times:.1f} bytes were {done}, for chunks come whole: files whose chunks hold "
        "fewer samples would need less."
    )


FOR = {
    "storage": "for storage",
    "decode": "for decoding",
    "transform": "for transforms, casts and normalising",
    "exchange": "for samples from other ranks",
    "device copy": "for the copy to the device",
    "collate": "for collating",
    "dataset": "for the dataset",
    "start": "for threads and processes to start",
}
ADVICE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "storage": _of_storage,
    "decode": _of_decoding,
    "transform": lambda _: (
        "run it beside the training, in threads (H5Dataset(..., thread_safe=True), if it may run in several at once) "
        "or in processes (num_workers); with more of them, if it does already."
    ),
    "exchange": lambda _: "the rank that reads slowest, or the network, sets the pace; compare the ranks' reports.",
    "device copy": lambda _: (
        "hand over fewer bytes (Field's select and dtype), and give the loader device= if it is a GPU."
    ),
    "collate": lambda _: "leave collate_fn to the default where you can: then batches are read into their place.",
    "dataset": lambda _: (
        "its own Python makes the samples, and torch's engine calls it. More num_workers may help; a solar.H5Dataset "
        "in its place, or beneath its Subset or ConcatDataset, would be read by the native engine."
    ),
    "start": lambda _: "persistent_workers=True starts the processes of a transform once instead of every epoch.",
}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _size(nbytes: float) -> str:
    """4.7 GiB, 512 bytes."""
    if nbytes < 1024:
        return _count(round(nbytes), "byte")
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        nbytes /= 1024
        if nbytes < 1023.5 or unit == "TiB":
            break
    return f"{nbytes:.1f} {unit}" if nbytes < 9.95 else f"{nbytes:,.0f} {unit}"


def _time(seconds: float) -> str:
    """130 s, 4.1 s, 0.83 s, 35 ms, 3.2 h."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0005 else "less than 1 ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2f} s"
    return f"{seconds:,.0f} s" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or not percent else f"{percent:.1f} %"
