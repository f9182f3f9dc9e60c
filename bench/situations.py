"""Situations: what people run, the best that anybody gets without solar, and solar, by the records of several benches.

README, the first page and their picture show the same ones, so a figure there is one of a record. Rates are those of
the epochs after the first; the seconds to the first batch stand beside them where a record has them, counted from the
first import of the program.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from bench import buffer_tables, records, shapes_tables, tables
from bench.tables import Record, pace, rate, table

H5PY = "PyTorch + h5py"
OVER_FSSPEC = "h5py over fsspec", "h5py over fsspec, blocks kept", "h5py over fsspec, 16 workers"
STUDY = 8  # trainings that read the same data
MADE = "First batch: seconds from the making of the loader on, without imports."


class Reading(NamedTuple):
    """What one reader reached."""

    label: str
    rate: float  # samples a second
    first: float | None  # seconds to the first batch, if they were recorded
    record: Record


class Situation(NamedTuple):
    title: str
    people: Reading
    expert: Reading
    solar: Reading
    note: str = ""


def reading(record: Record, label: str = "", seconds: str = "") -> Reading:
    """Of a record of `bench` or `bench.buffer`. Of a part of a run the seconds leave out imports, so there are none."""
    first = None if buffer_tables.is_part(record) or not seconds else float(record[seconds])
    return Reading(label or record["label"], pace(record), first, record)


def of_rates(name: str, title: str) -> Situation:
    """Files in the page cache, with the default arguments."""
    found = tables.by_scene(records.quoted("rates"))[name]
    readers = found["torch_h5py"], tables.others(found)[0], found["solar_loader"]
    return Situation(title, *(reading(one, seconds="start") for one in readers))


def of_buffer(name: str, share: float, title: str = "") -> Situation:
    """Memory for a share of the data; PyTorch and h5py with the same memory for their caches."""
    _, made, found = buffer_tables.contests(records.quoted("buffer"))[name, share]
    best = buffer_tables.best_other(found)
    assert best is not None, f"{name}: PyTorch was measured"
    readers = found["torch"], best, found["solar"]
    return Situation(title or made, *(reading(one, seconds="first") for one in readers))


def of_shapes(name: str, variant: int, title: str) -> Situation:
    """Samples of other shapes in the page cache, each reader with the memory that it likes."""
    found = [one for one in records.quoted("shapes") if (one["scene"], one.get("variant")) == (name, variant)]
    found = [one for one in tables.newest(found, "peer", "share") if "later" in one]
    ours = next(one for one in found if one["peer"] == "solar" and one["share"] is None)
    others = sorted(shapes_tables.others(found), key=lambda one: -one["later"])
    h5py = next(one for one in others if one["peer"] == "h5py")
    readers = (Reading(one["label"], one["later"], one.get("begun"), one) for one in (h5py, others[0], ours))
    return Situation(title, *readers, note=MADE)


def of_far(delay: float, who: str, title: str) -> Situation:
    """A server of objects that answers so many milliseconds later."""
    found = tables.newest(records.read(records.RESULTS / "far.jsonl"), "delay_ms", "who")
    there = [one for one in found if one["delay_ms"] == delay and one.get("later")]
    others = sorted((one for one in there if "solar" not in one["who"]), key=lambda one: -one["later"])
    people = next(one for one in others if one["who"] in OVER_FSSPEC)
    ours = next(one for one in there if one["who"] == who)
    readers = (Reading(one["who"], one["later"], one.get("begun"), one) for one in (people, others[0], ours))
    return Situation(title, *readers, note=MADE)


def of_trainings(way: str, title: str) -> Situation:
    """Eight trainings on the slowed mount, whole runs of two epochs."""
    found = tables.newest(records.quoted("serve"), "gzip", "local", "jobs", "way")
    there = {one["way"]: one for one in found if one["jobs"] == STUDY and not (one["gzip"] or one["local"])}
    labels = {"torch": H5PY, "alone": "solar without a service", way: tables.SERVED[way]}
    note = (
        "Whole runs of two epochs, all trainings together. PyTorch + h5py has one page cache of the same memory, which "
        "has no room for workers. " + MADE
    )
    readers = (
        Reading(label, found["rate"], statistics.median(found["first"]), found)
        for label, found in ((label, there[one]) for one, label in labels.items())
    )
    return Situation(title, *readers, note)


def of_readme() -> list[Situation]:
    """Those of README. The last one is a tie."""
    return [
        of_buffer("slowed", 0.25, "64 KB samples on disks, memory for a quarter"),
        of_buffer("slowed_packed", 0.25, "Photon counts on disks, memory for a quarter (solar packs them)"),
        of_buffer("auto_gzip", 0.25, "Gzip in h5py's automatic chunks, memory for a quarter"),
        of_far(20, "solar, a quarter", "Object store that answers after 20 ms, memory for a quarter"),
        of_trainings("study", "Eight trainings of one search, on disks, memory for a quarter"),
        of_shapes("rows_million", 0, "A million sparse rows (AnnData) in the page cache"),
        of_buffer("disks_17mb", 0.25, "17 MB samples on disks, memory for a quarter"),
        of_rates("chunk1_deflate", "Gzip in chunks of a sample, in the page cache, memory for all decoded"),
    ]


DRAWN = (0, 2, 3, 4, 7)  # of these


def times(ours: float, other: float) -> str:
    """At least two figures: 1.3, 12, 189."""
    ratio = ours / other
    return f"{ratio:.1f} ×" if ratio < 9.95 else f"{ratio:.0f} ×"


def begun(seconds: float | None) -> str:
    """Seconds to the first batch: two figures below 1, a dash where they were not measured."""
    return "–" if seconds is None else f"{seconds:.1f}" if seconds >= 0.95 else f"{seconds:.2g}"


def compared(found: Iterable[Situation], note: bool = True) -> str:
    """A row for each situation; and below what was measured where, and when."""
    found = [*found]
    notes = dict.fromkeys(one.note for one in found if one.note)
    marks = {note: f" <sup>{number}</sup>" for number, note in enumerate(notes, 1)}
    rows = []
    for one in found:
        first = " · ".join(map(begun, (each.first for each in one[1:4])))
        best = f"{rate(one.expert.rate)} ({one.expert.label})"
        gained = (times(one.solar.rate, other.rate) for other in (one.people, one.expert))
        named = one.title + marks.get(one.note, "")
        rows.append((named, rate(one.people.rate), best, rate(one.solar.rate), *gained, first))
    head = f"data|{H5PY}, workers:|best without solar:|solar:|× {H5PY}:|× best:|first batch, s:"
    said = [about(found), *(f"{mark.strip()} {text}" for text, mark in marks.items())] if note else []
    return tables.parted(table(head, rows), *map(filled, said))


def brief(found: Iterable[Situation]) -> str:
    """The same for a paper: rates and ratios, and below what they are."""
    found, rows = [*found], []
    for one in found:
        gained = (times(one.solar.rate, other.rate) for other in (one.people, one.expert))
        rows.append((one.title, *(rate(reading.rate) for reading in one[1:4]), *gained))
    said = "Samples a second over the epochs after the first; the disks and the object store are emulated."
    noted = [f"{one.title}: {note}" for one in found if (note := one.note.replace(MADE, "").strip())]
    return tables.parted(table(f"data|{H5PY}:|best without:|solar:|×:|× best:", rows), *map(filled, [said, *noted]))


def filled(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def about(found: Iterable[Situation]) -> str:
    """When and where these were measured, and of which epochs."""
    used = [each.record for one in found for each in one[1:4]]
    days = sorted({one["made"][:10] for one in used})
    when = f"from {days[0]} to {days[-1]}" if len(days) > 1 else f"on {days[0]}"
    on = sorted({machine(one) for one in used if "machine" in one})
    runs = [one["ends"][-1] for one in used if one.get("bench") == "buffer" and not buffer_tables.is_part(one)]
    single = " Each reader ran once." if all(len(one.get("rates", ())) < 2 for one in used) else ""
    return (
        f"Samples a second over the epochs after the first. Measured {when} on {'; '.join(on)}. "
        "The disks are emulated: 1 ms, 1 GB/s, 500 requests a second. First batch: seconds from the first import on, "
        "in the order of the three readers; a dash where only a part of a run was timed. Where memory is limited, "
        f"whole runs took {min(runs):.0f} to {max(runs):.0f} s; of longer ones a part was timed.{single}"
    )


def machine(record: Record) -> str:
    facts = record["machine"]
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['file_system']}"


def no_gain() -> str:
    """Where solar does not help: three lines, each with its figures."""
    plain, copied = (of_rates(name, "") for name in ("contiguous_64k", "auto_gzip"))
    large, trained = of_rates("cold_17m", ""), tables.newest(records.quoted("utilisation"), "scene", "peer")
    used = {one["peer"]: one["median"] for one in trained if one["scene"] == "cosmoflow, warm"}
    lines = (
        f"**The data fit into memory.** Contiguous samples in the page cache: {plain.expert.label} reaches "
        f"{rate(plain.expert.rate)} samples/s, solar {rate(plain.solar.rate)}. A copy of a gzip file, decoded into RAM "
        f"beforehand, gives {rate(copied.expert.rate)}, solar {rate(copied.solar.rate)}.",
        f"**Samples have many megabytes, and each is read once.** Bandwidth decides: of 17 MB each "
        f"{large.expert.label} reads {rate(large.expert.rate)} a second from a disk, solar {rate(large.solar.rate)}.",
        "**A step takes longer than reading its batch.** Then nothing waits, whichever loader you have. Emulated "
        f"CosmoFlow with its data in the page cache computes {used['torch']:.0%} of the time with PyTorch, "
        f"{used['solar']:.0%} with solar.",
    )
    return "\n".join(textwrap.fill(f"- {one}", 118, subsequent_indent="  ") for one in lines)
