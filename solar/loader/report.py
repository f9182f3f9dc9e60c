"""Turns the counters of a loader into text, and into a picture for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from solar import _native
from solar.io.system.quantities import count, duration, rate, size

WIDTH, HEIGHT, LEFT = 640, 14, 60  # of the picture, of a bar, of the number before it
COMPUTED = "#8aa88f"
PALETTE = ("#c8553d", "#e0a458", "#5b8e9f", "#7a6f9b", "#b07aa1", "#9c755f", "#d4a6c8", "#4e6e81")  # of waiting


class Report(str):
    """The text of a report. A notebook shows it with a picture.

    >>> epochs = [(1, {"busy_seconds": 3.0, "wait_seconds": {"storage": 1.0}})]
    >>> report = Report.of("One epoch.", epochs)
    >>> print(report)
    One epoch.
    >>> "<svg" in report._repr_html_()
    True
    """

    epochs: Sequence[tuple[int, Mapping[str, Any]]] = ()

    @classmethod
    def of(cls, text: str, epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> Report:
        """Makes a report of the text, with what each epoch took."""
        made = cls(text)
        made.epochs = [one for one in epochs if _passes_line(one[1]) > 0]
        return made

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        return f"<div>{_picture(self.epochs)}<pre>{escape(self)}</pre></div>"


def _passes_line(epoch: Mapping[str, Any]) -> float:
    return float(epoch["busy_seconds"] + sum(epoch["wait_seconds"].values()))


def _picture(epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    if not epochs:
        return ""
    causes = list(dict.fromkeys(cause for _, one in epochs for cause, waited in one["wait_seconds"].items() if waited))
    colours = {"computing": COMPUTED, **{cause: PALETTE[at % len(PALETTE)] for at, cause in enumerate(causes)}}
    scale = (WIDTH - LEFT) / max(_passes_line(one) for _, one in epochs)
    lines = []
    for row, (number, one) in enumerate(epochs):
        top, left = row * (HEIGHT + 4), float(LEFT)
        lines.append(f'<text x="{LEFT - 6}" y="{top + HEIGHT - 3}" text-anchor="end">{number}</text>')
        for name, took in (("computing", one["busy_seconds"]), *one["wait_seconds"].items()):
            if took > 0:
                title = escape(
                    f"epoch {number}: {duration(took)} {'of ' if name == 'computing' else 'waiting for '}{name}"
                )
                lines.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{took * scale:.1f}" height="{HEIGHT}" '
                    f'fill="{colours[name]}"><title>{title}</title></rect>'
                )
                left += took * scale
    bottom, place = len(epochs) * (HEIGHT + 4) + HEIGHT, LEFT
    for name, colour in colours.items():
        lines.append(f'<rect x="{place}" y="{bottom - 9}" width="9" height="9" fill="{colour}"/>')
        lines.append(f'<text x="{place + 13}" y="{bottom}">{escape(name)}</text>')
        place += 25 + 7 * len(name)
    return (
        f'<svg role="img" aria-label="What the time of each epoch went to" width="{WIDTH}" height="{bottom + 6}" '
        f'viewBox="0 0 {WIDTH} {bottom + 6}" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{''.join(lines)}</svg>"
    )


HARDLY_WAITED = 0.05  # share of the time below which waiting is not worth a word of advice
DECODED_AGAIN = 1.5  # times that chunks were decoded
MOMENT = 1.0  # seconds of waiting in all below which it is not worth one either
SOURCES_LISTED = 12
IDLE_SHARE = 0.05  # share of the time below which nothing was computed between the batches


def report(
    totals: Mapping[str, Any],
    epochs: Sequence[tuple[int, Mapping[str, Any]]] = (),
    filters: Collection[int] = (),
    per_chunk: int = 1,
    memory: float = 0.0,
    buffer: str = "",
    counts: Mapping[str, int] | None = None,
    served: bool = False,
    foreseen: bool = False,
) -> str:
    """Returns the text of a report, from the counters of Stats.as_dict and Stats.by_epoch and facts about the data.

    `filters` are the HDF5 numbers of the data's filters. Up to `per_chunk` samples share a compressed chunk. The buffer
    holds the share `memory` of the data (0: there is no buffer).

    `counts` are the samples of each class or source that all ranks have had of the newest epoch.

    `buffer` says what a buffer would gain where there is none, or the one there is if it knew the epochs to come.
    `served`: a service has made batches. `foreseen`: the order of the epochs to come is known.

    >>> from solar.loader.stats import Stats
    >>> report(Stats().as_dict())
    'No batch has been handed out.'
    """
    waited = sum(totals["wait_seconds"].values())
    if not totals["batches"]:
        return "No batch has been handed out." + (f" {waiting_line(totals, waited)}" if waited else "")
    facts = {**totals, "filters": frozenset(filters), "per_chunk": per_chunk, "memory": memory, "served": served}
    facts["foreseen"] = foreseen
    facts["with_buffer"] = f" {buffer}" if buffer else ""
    said = (_amounts(facts), _by_source(counts or {}), *epoch_table(epochs, served), *_times(facts, waited))
    return "\n".join(line for line in said if line)


def _amounts(totals: Mapping[str, Any]) -> str:
    epochs = count(totals["epochs"], "epoch") if totals["epochs"] else "Not one whole epoch yet"
    batches, samples = count(totals["batches"], "batch", "batches"), count(totals["samples"], "sample")
    text = f"{epochs}: {batches}, {samples}"
    text += f", {size(totals['batch_bytes'])} of data." if totals["batch_bytes"] else "."
    read = totals["bytes"] - totals["bytes_mapped"]
    parts = (
        (totals["requests"], f"{size(read)} read in {count(totals['requests'], 'request')}"),
        (totals["stage_bytes"], f"{size(totals['stage_bytes'])} of it from the stage"),
        (totals["stage_written"], f"{size(totals['stage_written'])} written to the stage"),
        (totals["bytes_mapped"], f"{size(totals['bytes_mapped'])} copied from the page cache"),
        (totals["buffer_hits"], f"{count(totals['buffer_hits'], 'field')} of samples found in the buffer"),
        (totals["bytes_decoded"], f"{size(totals['bytes_decoded'])} decoded"),
        (totals["exchanged_bytes"], f"{size(totals['exchanged_bytes'])} had from ranks of other nodes"),
    )
    if sources := ", ".join(said for amount, said in parts if amount):
        text += f"\nFor this: {sources}."
    if totals["retries"]:
        text += f"\nReading failed {count(totals['retries'], 'time')}, and succeeded when it was tried again."
    if totals["skipped"]:
        text += f"\nLeft out, because it could not be read: {count(totals['skipped'], 'sample')}."
    if totals["peak_bytes"]:
        text += f"\nMemory for batches: {size(totals['resident_bytes'])} now, {size(totals['peak_bytes'])} at most."
    return text


def _by_source(counts: Mapping[str, int]) -> str:
    """Describes how often each class or source came; of many, only the most frequent."""
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda one: -one[1])
    more = f", and {count(len(most) - SOURCES_LISTED, 'other')}" if len(most) > SOURCES_LISTED else ""
    listed = ", ".join(f"{number:,} of {name}" for name, number in most[:SOURCES_LISTED])
    return f"Of the newest epoch, on all ranks: {listed}{more}."


def epoch_table(epochs: Sequence[tuple[int, Mapping[str, Any]]], served: bool) -> list[str]:
    """Returns a row for each epoch with samples, the first and the latest; no table for a single epoch."""
    epochs = [one for one in epochs if one[1]["samples"]]
    if len(epochs) < 2:
        return []
    rows = [("epoch", "time", "samples/s", "waited", "most for", "read", "from the buffer")]
    for number, one in epochs:
        waited = sum(one["wait_seconds"].values())
        passed = waited + one["busy_seconds"]
        most = max(one["wait_seconds"], key=lambda cause: one["wait_seconds"][cause]) if waited else ""
        most = "service" if served and most == "buffer" else most
        samples = f"{one['samples'] / passed:,.0f}" if passed else ""
        share = percent_text(waited / passed) if passed else ""
        rows.append(
            (str(number), time_text(passed), samples, share, most, size(one["bytes"]), f"{one['buffer_hits']:,}")
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if epochs[1][0] > 2:
        lines.insert(2, "...")
    return lines


def _times(totals: Mapping[str, Any], waited: float) -> list[str]:
    passed = waited + totals["busy_seconds"]
    if passed < 1e-9:  # no clock says so little
        return []
    times = f"({time_text(waited)} of {time_text(passed)})"
    if totals["wait_share"] < HARDLY_WAITED:
        share = percent_text(totals["wait_share"])
        return [f"Your training hardly waited for data: {share} of the time {times}. There is nothing to gain."]
    if totals["busy_seconds"] < IDLE_SHARE * passed:
        samples = totals["samples"] / passed
        speed = f"{samples:,.0f}" if samples >= 99.5 else f"{samples:.1f}"
        first = (
            f"Next to nothing was done between the batches: this is the loader's own speed, {speed} samples a second."
        )
        return [first, waiting_line(totals, waited), advice_line(totals, waited)]
    share = f"Your training waited for data {percent_text(totals['wait_share'])} of the time {times}: "
    return [share + _causes(totals, waited) + ".", advice_line(totals, waited)]


def waiting_line(totals: Mapping[str, Any], waited: float) -> str:
    return f"{time_text(waited)} of waiting: {_causes(totals, waited)}."


def _causes(totals: Mapping[str, Any], waited: float) -> str:
    """Returns the causes of waiting, the largest first, leaving out those below a hundredth of it."""
    sorted_waits = sorted(totals["wait_seconds"].items(), key=lambda pair: -pair[1])
    words = FOR | {"buffer": "for the service, or to copy its batches"} if totals.get("served") else FOR
    return ", ".join(
        f"{time_text(seconds)} {words[cause]}" for cause, seconds in sorted_waits if seconds >= waited / 100
    )


def advice_line(totals: Mapping[str, Any], waited: float) -> str:
    if waited < MOMENT:
        return f"In all that is less than {time_text(MOMENT)}: nothing to gain yet."
    cause = max(totals["wait_seconds"], key=lambda cause: totals["wait_seconds"][cause])
    seconds = totals["wait_seconds"][cause]
    part = "All" if seconds > 0.99 * waited else "Most" if seconds > waited / 2 else "The largest part"
    return f"{part} of it is {cause}: {ADVICE[cause](totals)}"


def _of_storage(totals: Mapping[str, Any]) -> str:
    requests, bypassed, nbytes, mapped = (totals[key] for key in ("requests", "bypassed", "bytes", "bytes_mapped"))
    if not nbytes:
        return (
            "no bytes were counted. Either libhdf5 reads these files in one process, which is often slower than "
            "PyTorch with h5py (`solar inspect FILE` says why), or nothing is stored in them."
        )
    if mapped > 0.9 * nbytes:
        said = (
            f"{percent_text(mapped / nbytes)} of the bytes were in the page cache already, so faster storage would not "
            "help. They are copied by one thread for each CPU core the process may use: more cores would."
        )
    elif bypassed > requests / 2:
        said = (
            f"{bypassed:,} of {count(requests, 'request')} went past the page cache, which has no room for the files "
            "(or page_cache=False was asked for). More memory or faster storage would help."
        )
    else:
        passed = sum(totals["wait_seconds"].values()) + totals["busy_seconds"]
        request = size((nbytes - mapped) / max(1, requests))
        said = (
            f"the files were read at {rate(nbytes / passed)}, {request} a request. "
            "If the storage can do more, read further ahead (`ahead`); if not, it is the limit."
        )
        if not totals["epochs"]:
            said += " This is the first epoch: what stays in the page cache need not be read again in the next."
    return f"{said}{_read_again(totals)}{totals['with_buffer']}"


def _of_decoding(totals: Mapping[str, Any]) -> str:
    faster = next((said for number, said in FASTER.items() if number in totals["filters"]), "")
    said = "it runs on one thread for each CPU core the process may use (32 at most). More cores would help"
    said += (f", or {faster}" if faster else "") + "." + _decoding_line(totals)
    return f"{said}{totals['with_buffer']}"


def buffer_reason(totals: Mapping[str, Any]) -> str:
    if totals["served"]:
        return (
            "a service makes these batches. `solar serve --status` says what it reads and who waits for whom: for more "
            "memory, faster storage, or another training."
        )
    return (
        "these batches were in memory already, and no larger buffer or faster storage would help. They are copied out "
        "of it by one thread for each CPU core the process may use: more cores would, or fewer bytes (Field's select)."
    )


def _read_again(totals: Mapping[str, Any]) -> str:
    """Explains why much more was read than was used, if it was; else returns an empty string."""
    times = _times_over(totals, "bytes")
    if times < 2:
        return ""
    if totals["memory"]:
        only = (
            f", because memory held only {percent_text(totals['memory'])} of the data" if totals["memory"] < 1 else ""
        )
        return f" The plan read each sample {rounded_times(times)} times{only}."
    if totals["per_chunk"] > 1:
        return f" Each sample cost {rounded_times(times)} times its size in reading, {shared_chunks(totals)}"
    return (
        f" Each sample cost {rounded_times(times)} times its size in reading, because reads come in whole "
        "pages and go on over small gaps, or because Field's select takes a part of it."
    )


def _decoding_line(totals: Mapping[str, Any]) -> str:
    """Explains why much more was decompressed than was used, if it was; else returns an empty string."""
    times = _times_over(totals, "bytes_decoded")
    if times < 2:
        return ""
    why = shared_chunks(totals) if totals["per_chunk"] > 1 else "because Field's select takes a part of it."
    return f" Each sample cost {rounded_times(times)} times its size in decompression, {why}"


def stage_advice(totals: Mapping[str, Any], decoded_nbytes: Callable[[], int]) -> str:
    """Returns what a stage that keeps chunks decoded would gain and take, if decoding them again is waited for."""
    waits = totals["wait_seconds"]
    waited = sum(waits.values())
    if not totals["batches"] or totals["wait_share"] < HARDLY_WAITED or waited < MOMENT or waits["decode"] < waited / 2:
        return ""
    nbytes = decoded_nbytes()
    if not nbytes or totals["bytes_decoded"] < DECODED_AGAIN * nbytes:
        return ""
    return (
        f"Each chunk was decoded {rounded_times(totals['bytes_decoded'] / nbytes)} times. Kept decoded on a local disk "
        f'they take {size(nbytes)}, and are decoded once: H5Dataset(..., stage=DIR, stage_as="decoded").'
    )


def shared_chunks(totals: Mapping[str, Any]) -> str:
    return (
        f"because {totals['per_chunk']:,} samples share a chunk: files whose chunks hold fewer samples would need less."
    )


def _times_over(totals: Mapping[str, Any], key: str) -> float:
    return float(totals[key] / totals["batch_bytes"]) if totals["batch_bytes"] else 0.0


def rounded_times(times: float) -> str:
    return f"{times:.1f}" if times < 9.95 else f"{times:,.0f}"


# Faster filters to advise, by the number of the filter in use. For others we know nothing much faster.
FASTER = {
    307: "a codec that decodes faster: LZ4 or Zstandard in place of bzip2",
    1: "a codec that decodes faster: `solar compress`, LZ4 or Zstandard in place of gzip",
    4: "a codec that decodes faster: `solar compress`, LZ4 or Zstandard in place of szip",
    _native.codec_filter(): "samples that are encoded to be decoded fastest: `solar compress --coder pack`",
}
FOR = {
    "storage": "for storage",
    "buffer": "for batches to be put together from the buffer",
    "plan": "for the buffer to be planned and made",
    "decode": "for decoding",
    "transform": "for transforms, casts and normalising",
    "exchange": "for other ranks",
    "device copy": "for the copy to the device",
    "collate": "for collating",
    "dataset": "for the dataset",
    "start": "for threads and processes to start",
}
ADVICE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "storage": _of_storage,
    "decode": _of_decoding,
    "buffer": buffer_reason,
    "plan": lambda totals: (
        "its memory is allocated once, and the next epoch is planned while one runs."
        if totals["foreseen"]
        else "its memory is allocated once. With a `generator` or a PlanSampler the next epoch is planned while one "
        "runs."
    ),
    "transform": lambda _: (
        "run a transform in threads (H5Dataset(..., thread_safe=True), if several may run it at once) or in processes "
        "(num_workers), or in more of them. What a Field casts and normalises runs in native threads: more cores would "
        "help, or a GPU (device=)."
    ),
    "exchange": lambda _: (
        "the slowest rank sets the pace, by its own steps or by what it reads, or the network between nodes does: "
        "compare the ranks' reports; a larger `ahead` or buffer is of no use here."
    ),
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


def time_text(seconds: float) -> str:
    """Returns seconds as text: "130 s", "4.1 s", "0.83 s", "35 ms", "3.2 h"."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0005 else "less than 1 ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2f} s"
    return f"{seconds:,.0f} s" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def percent_text(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or not percent else f"{percent:.1f} %"
