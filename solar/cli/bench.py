"""Measures how fast solar and PyTorch with h5py read your file, and which training would wait for it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from solar.cli import argument_types, sample_arguments, words
from solar.cli.contest import Failed, Reader, RefusedFile
from solar.cli.contestant import WORKERS
from solar.cli.plan import fields_asked
from solar.cli.progress_bar import Become, doing, ended_in_order
from solar.errors import PlanError, ReadError
from solar.io.channels.progress import Phase
from solar.io.hdf5.paths import is_zarr
from solar.io.system import memory as machine
from solar.io.system.memory import read_once
from solar.io.system.quantities import count, duration, rate, rounded, size
from solar.samples.protocol import SampleMap, nbytes_in
from solar.values import Layout

DETAILS = """\
Both readers give the same shuffle in batches of B, each from a process of its own, in turns; whoever is not in turn is
stopped. PyTorch keeps the file open with h5py in each worker and is taken at its best, found by trials: each sample
straight into the batch, sample by sample or a sorted batch at a time (`__getitems__`); without a chunk cache, with
libhdf5's own, with one for the chunks of a batch, and with all the memory that solar's buffer may have; with 0, 1, 2 or
4 workers. The first batches of both are compared, value by value.
Samples may be of any kind. Each is read by h5py as an expert reads that kind: windows and boxes by slices, straight
into the batch, of steps with gaps also with the rows between; ragged samples by a slice between their ends, rows of a
matrix by one of its values and one of its columns, with the ends in memory, groups by reads of their datasets, each
batch in the order of the file. Where samples lie both sides know from one source; what is there each reads by itself.
A file that fits into half of the free memory is read once before: then both find it in the page cache. To know what
your storage gives, take a file larger than memory, or `solar probe` and `solar plan`. Nothing is computed in between;
`solar rehearse --compute` does. Where a batch takes seconds, fewer settings are tried and fewer rounds made, and it
says so: no setting is begun after 30 s (or ten times S), no round after 30 s (or fifteen times S).
Of a URL h5py reads by requests of its own, one for each read of libhdf5, as it does over fsspec without a cache.

keys of --json: version (1), file, datasets, samples, nbytes (of a sample, on average), batch, seconds (of a round),
  buffer, cached (read once before), compared (batches), readers ([{reader (solar or torch), setting (kind, workers,
  cache), tried, untried (settings that there was no time for), memory (bytes that PyTorch's caches may have),
  samples_per_second (of each round; fewer than five where time ran out), hits (samples found in solar's buffer),
  median, least, most, peak_bytes (of all its processes, file pages left aside)} or {reader, failed}]), ratio (of the
  medians, or null), step_seconds (a training with longer steps does not wait), verdict, cores, versions
"""

BENCH_ROUNDS = 5
MOST_WORKERS = 1024  # that PyTorch is asked to begin
TRYING = 30.0  # seconds after which no other setting is tried; or those of ten rounds, if that is more
LONGEST_ROUNDS = 30.0  # seconds after which no other round begins; or those of fifteen
LARGEST_READ = 16 << 30  # bytes that are read once before, at most
COMPARED_SECONDS = 2.0  # of reading, about
WAY_NAMES = {
    **{"items": "sample by sample", "sorted": "sorted batches", "straight": "straight into the batch"},
    "span": "with the rows between steps",
}
CACHE_NAMES = {"default": "", "none": ", no chunk cache", "batch": ", chunks of a batch cached", "all": ", large cache"}
LABELS = {"solar": "solar", "torch": "PyTorch + h5py"}
SPAN = partial(argument_types.span_argument, most=600.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="the fields of a sample; else those as long as the largest one")
    add("--batch-size", metavar="B", type=argument_types.count_argument, default=64, help="samples of a batch (64)")
    add("--seconds", metavar="S", type=SPAN, default=2.0, help=f"of each of {BENCH_ROUNDS} rounds, about (2)")
    add("--buffer", metavar="SIZE", help="memory for samples that wait for their turn, as DataLoader's buffer: 8GiB, 0")
    add("--workers", metavar="N", type=int, nargs="+", default=WORKERS, help="what PyTorch tries (0 1 2 4)")
    sample_arguments.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    asked = reader_of_arguments(arguments)
    if zarr := next((one.files[0] for one in asked.layouts.values() if is_zarr(one.files[0])), ""):
        raise PlanError(f"{zarr}: this compares with h5py, which reads no Zarr: see `solar rehearse`")
    holding = [*dict.fromkeys(path for one in asked.layouts.values() for path in one.paths)]
    far = any(one.far for one in asked.layouts.values())
    cached = not far and sum(map(os.path.getsize, holding)) <= min(LARGEST_READ, machine.free_nbytes() // 2)
    if cached:
        read_once(holding)
    with ended_in_order(), doing(arguments.json) as become:
        compared, readers = _contest(arguments, asked, become)
    answer = as_json(arguments, asked, cached, compared, readers)
    for line in [json.dumps(answer, indent=1)] if arguments.json else as_text(answer):
        print(line)
    return 0


# --- what is asked ----


class BenchReader(NamedTuple):
    """What samples are made of, how many there are, and how large one is on average."""

    layouts: dict[str, Layout]
    samples: int
    nbytes: int


def reader_of_arguments(arguments: argparse.Namespace) -> BenchReader:
    if arguments.beside:
        raise PlanError("--beside: what is compared reads one set of files; `solar rehearse` reads several")
    layouts, own = sample_arguments.sample_maps(
        arguments, {} if sample_arguments.unequal(arguments) else named_rows(arguments)
    )
    chosen = sample_arguments.masked_samples(arguments, layouts, own)
    every = [own.get(name) for name in layouts]
    check_tensors(arguments, layouts, every)
    if any(getattr(one, "varying", False) for one in every):
        raise PlanError(
            f"{arguments.file}: libhdf5 alone reads these arrays of variable length, and how long they are is not "
            "known before: `solar rehearse` reads them"
        )
    samples = next(iter(layouts.values())).samples if every[0] is None else len(every[0])
    samples = samples if chosen is None else len(chosen)
    if samples < 2 * arguments.batch_size:
        raise PlanError(
            f"{arguments.file} has {count(samples, 'sample')}: two batches of {arguments.batch_size} are needed "
            "at least; give a smaller --batch-size"
        )
    if min(arguments.workers) < 0:
        raise PlanError(f"--workers {min(arguments.workers)}: a number of processes cannot be below 0")
    if max(arguments.workers) > MOST_WORKERS:
        raise PlanError(f"--workers {max(arguments.workers)}: more than {MOST_WORKERS:,} processes are not tried")
    return BenchReader(layouts, samples, sum(map(field_nbytes, layouts.values(), every)))


def named_rows(arguments: argparse.Namespace) -> dict[str, Layout]:
    """Returns the named datasets; without names, those that torch has a tensor for."""
    layouts = fields_asked(arguments)
    if sample_arguments.named_datasets(arguments):
        return layouts
    layouts = {name: one for name, one in layouts.items() if words.is_number(one.dtype) and one.shape}
    if not layouts:
        raise PlanError(f"{arguments.file}: none of the fields of its samples holds numbers; name a DATASET")
    return layouts


def check_tensors(
    arguments: argparse.Namespace, layouts: Mapping[str, Layout], own: Sequence[SampleMap | None]
) -> None:
    for (name, layout), lies in zip(layouts.items(), own, strict=True):
        dtype = getattr(lies, "dtype", layout.dtype)
        if not words.is_number(dtype) or not layout.shape:
            raise PlanError(f"{arguments.file}: {name} holds {words.kind(dtype)}, and torch has no such numbers")


def field_nbytes(layout: Layout, own: SampleMap | None) -> int:
    """Returns the average bytes of a sample of a field."""
    return nbytes_in(own, layout)


# --- the contest ----


def _contest(arguments: argparse.Namespace, asked: BenchReader, become: Become) -> tuple[int, list[dict[str, Any]]]:
    """Runs the readers. Returns how many batches were compared, and the result of each reader."""
    layouts, paths = asked.layouts, [*next(iter(asked.layouts.values())).files]
    job = {"paths": paths, "names": [*layouts], "batch": arguments.batch_size, "buffer": arguments.buffer, "seed": 0}
    job["asked"] = {word: getattr(arguments, word) for word in sample_arguments.NO_KIND}
    job |= {"seconds": arguments.seconds, "workers": [*arguments.workers]}
    job |= {"trying": max(TRYING, 10 * arguments.seconds)}
    found: dict[str, dict[str, Any]] = {}
    readers: list[Reader] = []
    try:
        for name in LABELS:
            become(Phase(f"{LABELS[name]} gets ready" + (", and tries its settings" if name == "torch" else "")))
            found[name] = {"reader": name}
            reader = Reader({"reader": name, **job})
            readers.append(reader)
            try:
                found[name] |= reader.answer()
                reader.rest()
            except Failed as error:
                readers.remove(reader)
                reader.close()
                if name == "solar":
                    raise ReadError(f"{arguments.file}: solar cannot read it: {error}") from None
                found[name]["failed"] = words.error_text_of(error)
        compared = _compare_readers(arguments, readers, found)
        run_rounds(arguments.seconds, readers, found, become)
    except RefusedFile as error:
        raise ReadError(str(error)) from None
    except Failed as error:
        raise ReadError(
            f"{arguments.file}: a reader ended before it was done: {error}; `solar verify` tells damage"
        ) from None
    finally:
        for reader in readers:
            reader.close()
    return compared, [*found.values()]


def _compare_readers(arguments: argparse.Namespace, readers: list[Reader], found: dict[str, dict[str, Any]]) -> int:
    """Returns how many batches were equal. The memory that each reader takes meanwhile goes to `found`."""
    rates = [one.get("samples_per_second", 0.0) for one in found.get("torch", {}).get("tried", ())]
    batches = round(COMPARED_SECONDS * max(rates, default=0.0) / arguments.batch_size)
    batches, digests = max(2, min(batches, 64)), []
    for reader in readers:
        with reader.watched() as peak:
            digests.append(reader.ask(check=batches)["digests"])
        reader.rest()
        found[reader.name]["peak_bytes"] = peak[0]
    differing = [place for place, ones in enumerate(zip(*digests, strict=True)) if len(set(ones)) > 1]
    if differing:
        raise ReadError(
            f"{arguments.file}: batch {differing[0]} of solar is not that of h5py: `solar inspect` shows how the file "
            "is read; if it did not change meanwhile, this is a fault of solar's, please report it"
        )
    return len(digests[0]) if len(digests) > 1 else 0


def run_rounds(seconds: float, readers: list[Reader], found: dict[str, dict[str, Any]], become: Become) -> None:
    begin, turn = time.monotonic(), 0
    become(Phase("measuring", lambda: turn, BENCH_ROUNDS, "rounds"))
    for turn in range(BENCH_ROUNDS):
        if turn and time.monotonic() - begin > max(LONGEST_ROUNDS, 15 * seconds):
            break
        for reader in readers[:: 1 if turn % 2 else -1]:
            came = reader.ask(seconds=seconds)
            reader.rest()
            found[reader.name].setdefault("samples_per_second", []).append(came["samples"] / came["seconds"])
            found[reader.name]["hits"] = came["hits"]
    for reader in readers:
        rates = found[reader.name]["samples_per_second"]
        found[reader.name] |= {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}


# --- what is said ----


def as_json(
    arguments: argparse.Namespace,
    asked: BenchReader,
    cached: bool,
    compared: int,
    readers: list[dict[str, Any]],
) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    solar, torch = readers
    answer: dict[str, Any] = {
        "version": 1,
        "file": arguments.file,
        "datasets": [*asked.layouts],
        "samples": asked.samples,
        "nbytes": asked.nbytes,
        "batch": arguments.batch_size,
        "seconds": arguments.seconds,
        "buffer": arguments.buffer,
        "cached": cached,
        "compared": compared,
        "readers": readers,
        "ratio": solar["median"] / torch["median"] if "median" in torch else None,
        "step_seconds": arguments.batch_size / solar["median"],
    }
    return answer | {
        "verdict": " ".join(judge_bench(answer)),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in ("solar", "torch", "h5py", "numpy")},
    }


def as_text(answer: dict[str, Any]) -> Iterator[str]:
    """Yields the lines for people."""
    made = len(answer["readers"][0]["samples_per_second"])
    rounds = f"{count(made, 'round')} of {duration(answer['seconds'])}"
    samples = (
        f"{answer['samples']:,} samples of {size(answer['nbytes'])}, random batches of {answer['batch']}, {rounds}"
    )
    yield f"{words.printable(answer['file'])}: {samples}"
    yield ""
    yield f"{'':16}{'samples/s':>11}{'min–max':>19}{'MB/s':>9}{'memory':>11}"
    for one in answer["readers"]:
        if "failed" in one:
            yield f"{LABELS[one['reader']]:16}cannot read it: {words.printable(one['failed'])}"
            continue
        span = f"{rounded(one['least'])}–{rounded(one['most'])}"
        megabytes = one["median"] * answer["nbytes"] / 1e6
        row = f"{LABELS[one['reader']]:16}{rounded(one['median']):>11}{span:>19}{rounded(megabytes):>9}"
        yield f"{row}{size(one['peak_bytes']):>11}{setting_text(one['setting'])}"
    yield ""
    yield from _reasons_left_out(answer["readers"], made)
    yield from judge_bench(answer)


def _reasons_left_out(readers: list[dict[str, Any]], made: int) -> Iterator[str]:
    """Yields what there was no time for."""
    tried, untried = len(readers[1].get("tried", ())), readers[1].get("untried", 0)
    if untried:
        yield f"Batches take long: {tried} of {tried + untried} settings of PyTorch were tried; its best may be faster."
    if made < BENCH_ROUNDS:
        yield f"Batches take long: time for {count(made, 'round')} of {BENCH_ROUNDS}; --seconds gives more."


def judge_bench(answer: dict[str, Any]) -> Iterator[str]:
    """Yields what the result means for a training."""
    solar, torch = answer["readers"]
    where = "from the page cache" if answer["cached"] else "from its storage"
    if solar["hits"]:
        where = "from solar's buffer, once its first epoch is over"
    reads = rate(solar["median"] * answer["nbytes"])
    yield f"The file reads at {rounded(solar['median'])} samples/s ({reads}) {where}:"
    step = duration(answer["step_seconds"])
    yield f"training that takes more than {step} a step of {answer['batch']} samples will not wait for it."
    if answer["ratio"] is not None:
        step = duration(answer["batch"] / torch["median"])
        times = rounded(answer["ratio"])
        yield f"With PyTorch + h5py it waits if a step takes less than {step}; solar is {times} times as fast."
        yield f"The first {answer['compared']} batches of both were compared, and are the same."


def setting_text(setting: Mapping[str, Any]) -> str:
    if not setting:
        return ""
    return f"   {WAY_NAMES[setting['kind']]}, {count(setting['workers'], 'worker')}{CACHE_NAMES[setting['cache']]}"
