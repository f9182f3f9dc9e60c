"""`solar compress --advise`: what bounds and coders would gain, tried on chunks from all over the file."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from solar.cli import argument_types, words
from solar.cli.compare import scratch_of
from solar.cli.plan import fits_page_cache, stored_storage
from solar.cli.planned import describe_storage
from solar.cli.progress_bar import nearby
from solar.errors import LayoutError, PlanError
from solar.io.codec.codec import Codec
from solar.io.codec.preparation import CodecTrial, compressible, settings, try_codecs
from solar.io.codec.selection import COMPRESSED, REST, Part, select
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.opening import look, open_file_checked
from solar.io.reading.run import scratch_nbytes
from solar.io.system import quantities
from solar.io.system.cores import reading_threads
from solar.planning.budget import BufferTooSmall, SampleBytes, divide_memory, needs
from solar.planning.job import LOADERS_PACE, predicted
from solar.planning.torch_shuffles import distributed
from solar.planning.units import Units, of_layout, uniform
from solar.values import Outcome, Storage

EPOCHS_FORESEEN = 3


@dataclass(frozen=True)
class Gain:
    """The plan of a loader for a dataset of this many bytes."""

    share: float  # of it that the memory has room for
    outcome: Outcome


@dataclass(frozen=True)
class Advice:
    """The trials of one dataset."""

    part: Part
    trials: list[tuple[CodecTrial, Gain | None]]
    now: Gain | None  # as it is stored


class Fields(NamedTuple):
    """Everything that is tried, as the fields of a sample."""

    nbytes: int
    samples: list[SampleBytes]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("before it is done")
    group.add_argument("--advise", action="store_true", help="tries bounds and coders on some chunks; writes nothing")
    group.add_argument(
        "--memory", metavar="SIZE", type=argument_types.size_argument, help="for samples: what an epoch would cost"
    )
    group.add_argument(
        "--batch-size", metavar="B", type=argument_types.count_argument, default=64, help="samples a step (64)"
    )


def run(arguments: argparse.Namespace, codecs: Mapping[str | None, Codec | None]) -> int:
    with nearby(arguments.source, arguments.quiet or arguments.json) as path:
        return _advise(path, arguments, codecs)


def _advise(path: str, arguments: argparse.Namespace, codecs: Mapping[str | None, Codec | None]) -> int:
    storage, source = stored_storage(arguments.source)
    look(Path(path))
    with open_file_checked(Path(path)) as file:
        named = [name for name, codec in codecs.items() if name is not REST and codec is not None]
        found = []
        for name in compressible(file, named):
            asked = list(settings(codecs.get(name, codecs.get(REST))))
            chosen = codecs.get(name) is not None
            found.append(try_codecs(path, file, name, asked, arguments.chunk_samples, named=chosen))
        left = [] if found else select(file, {REST: Codec("lossless")})[1]
    if any(one.reason == COMPRESSED for one in left):
        raise LayoutError(f"{path}: solar compressed its samples already: give --advise the original file")
    if not found:
        raise LayoutError(f"{path}: it has no samples to be compressed; `solar inspect {path}` shows what it has")
    samples = [SampleBytes(part.nbytes // part.shape[0]) for part, _ in found]
    fields = Fields(sum(part.nbytes for part, _ in found), samples)
    advised = [advise(path, part, trials, arguments, storage, fields) for part, trials in found]
    if arguments.json:
        print(json.dumps(as_json(arguments.source, advised, arguments, storage), indent=1))
    else:
        for line in as_text(advised, arguments, storage, source):
            print(line)
    return 0


def advise(
    path: str, part: Part, trials: list[CodecTrial], arguments: argparse.Namespace, storage: Storage, fields: Fields
) -> Advice:
    """Returns the trials of a dataset and what each gains. Its values are one of the fields that share the memory."""
    if arguments.memory is None:
        return Advice(part, [(trial, None) for trial in trials], None)
    rows, samples = part.chunk[0], part.shape[0]
    sample, share = part.nbytes // samples, part.nbytes / fields.nbytes
    gains: list[tuple[CodecTrial, Gain | None]] = []
    for trial in trials:
        units = uniform(samples, sample, per_unit=rows, stored=max(1, math.ceil(sample * rows / trial.ratio)))
        gains.append((trial, _gain(units, scratch_of(units), arguments, storage, share, fields.samples)))
    layout = inspect(path, part.name, cache=None)
    now = _gain(of_layout(layout), scratch_nbytes(layout), arguments, storage, share, fields.samples)
    return Advice(part, gains, now)


def _gain(
    units: Units,
    scratch: int,
    arguments: argparse.Namespace,
    storage: Storage,
    share: float,
    samples: list[SampleBytes],
) -> Gain:
    """Returns the plan of a loader with this buffer for a field with such a share of the memory."""
    memory, batch = arguments.memory, arguments.batch_size
    if memory:
        taken = needs(samples, LOADERS_PACE, batch, scratch=scratch, threads=reading_threads())
        try:
            memory = divide_memory(memory, batch, [taken]).parts
        except BufferTooSmall as error:
            raise PlanError(
                f"--memory {memory}: the batches alone take {error.least:,} bytes in the loader; give more"
            ) from None
    memory = int(memory * share)
    shuffled = distributed(units.samples)
    found = predicted(shuffled, units, storage, batch=batch, memory=memory, epochs=EPOCHS_FORESEEN)
    return Gain(min(1.0, memory / max(1, units.total_nbytes)), found)


# --- what is said ----


def as_json(path: str, found: list[Advice], arguments: argparse.Namespace, storage: Storage) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS of compress."""
    numbers = {"latency": storage.latency, "bandwidth": storage.bandwidth, "iops": storage.iops}
    return {
        "version": 1,
        "file": path,
        "memory": arguments.memory,
        "batch": arguments.batch_size,
        "storage": numbers,
        "datasets": [
            {
                "name": one.part.name,
                "samples": one.part.shape[0],
                "sample_nbytes": one.part.nbytes // one.part.shape[0],
                "stored_nbytes": one.part.stored_nbytes,
                "why": one.part.why,
                "unit": _unit_name(one),
                "now": _gain_as_json(one.now),
                "trials": [_trial_as_json(trial) | _gain_as_json(gain) for trial, gain in one.trials],
            }
            for one in found
        ],
    }


def _unit_name(one: Advice) -> str:
    names = [trial.codec.unit_name(one.part.unit) for trial, _ in one.trials]
    return max(names)  # of what is lossless it is empty


def _trial_as_json(trial: CodecTrial) -> dict[str, Any]:
    psnr = None if math.isinf(trial.psnr) else trial.psnr
    said = {"setting": codec_text(trial.codec), "coder": trial.codec.coder, "bound": trial.bound, "ratio": trial.ratio}
    return said | {"encode": trial.encode, "decode": trial.decode, "largest_error": trial.largest, "psnr": psnr}


def _gain_as_json(gain: Gain | None) -> dict[str, Any]:
    if gain is None:
        return {}
    return {"memory_share": gain.share, "scans": gain.outcome.scans, "seconds": gain.outcome.seconds}


def codec_text(codec: Codec) -> str:
    stored = ",stored" if codec.stored else ""
    return codec.kind if codec.kind == "lossless" else f"{codec.kind}={codec.bound:g}{stored}"


def as_text(found: list[Advice], arguments: argparse.Namespace, storage: Storage, source: str) -> Iterator[str]:
    """Yields the lines for people."""
    for one in found:
        part = one.part
        yield (
            f"{words.printable(part.name)}  {words.times(part.shape)} {part.dtype.name}, "
            f"{quantities.size(part.nbytes)}, stored in {quantities.size(part.stored_nbytes)}"
        )
        yield from trial_table(one)
        if of := _unit_name(one):
            yield f"  bound and off by: of the {of}"
        if part.why:
            name = words.printable(part.name[1:])
            yield f"  only lossless is tried, for {part.why}; --field {name}:rel=E tries a bound"
        if _fits(one):
            yield "  It fits into this memory as it is stored: only the first epoch reads it, whatever the bound."
        yield ""
    yield "Bounds of rel= are of the range of the chunks tried. Rates are of one thread, in bytes of values."
    if arguments.memory is None:
        yield "--memory SIZE shows what an epoch would cost with so much memory for samples."
        return
    among = f", divided among {len(found)} datasets by their values" if len(found) > 1 else ""
    asked = f"batches of {arguments.batch_size} and {quantities.size(arguments.memory)} of memory{among}"
    modelled = describe_storage(storage, source)
    yield f"{modelled}: reading in the second and later epochs, with {asked}. Decoding comes on top."
    yield f"storage: {words.printable(source)}"
    if fits_page_cache(sum(one.part.stored_nbytes for one in found)):
        yield "As they are stored, these data fit into this machine's page cache: here only the first epoch would wait."


def _fits(one: Advice) -> bool:
    """Returns whether memory has room for the dataset as stored, so that no bound makes an epoch cheaper to read."""
    return one.now is not None and one.now.share >= 1


def trial_table(one: Advice) -> Iterator[str]:
    costed = one.now is not None and not _fits(one)
    head = ["", "coder", "bound", "ratio", "encode", "decode", "off by", "PSNR"]
    rows = [head + (["in memory", "scans", "reading"] if costed else [])]
    if one.now and costed:
        rows.append(["as it is", *[""] * 7, *_gain_in_words(one.now)])
    for trial, gain in one.trials:
        rows.append(
            [
                codec_text(trial.codec),
                trial.codec.coder,
                f"{trial.bound:.3g}" if trial.bound else "",
                f"{trial.ratio:.1f}",
                f"{trial.encode / 1e9:.2f} GB/s",
                f"{trial.decode / 1e9:.1f} GB/s",
                f"{trial.largest:.3g}" if trial.largest else "nothing",
                "" if math.isinf(trial.psnr) else f"{trial.psnr:.1f} dB",
                *(_gain_in_words(gain) if gain and costed else []),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, coder, *facts in rows:
        columns = (fact.rjust(width) for fact, width in zip(facts, widths[2:], strict=True))
        yield "  ".join(["  " + first.ljust(widths[0]), coder.ljust(widths[1]), *columns]).rstrip()


def _gain_in_words(gain: Gain) -> list[str]:
    seconds = gain.outcome.seconds
    reading = quantities.duration(seconds) if seconds else "nothing"
    return [f"{gain.share:.0%}", quantities.rounded(gain.outcome.scans), reading]
