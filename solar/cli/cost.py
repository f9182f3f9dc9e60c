"""What reading one sample at random costs, and what to do about it. Pure functions of a Layout."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import dataclass

from solar.io.codec.codec import ENCODED_TYPES, FILTER
from solar.io.reading.decoded_stage import decoded_nbytes
from solar.io.system.quantities import count, size
from solar.values import Form, Layout

LEAST_SAMPLE = 256  # bytes that are worth a chunk of their own
SMALL_DATASET = 1 << 20  # bytes; a dataset below this is not worth advice
QUICK_CHUNK = 64 << 10  # bytes of a chunk of ours, that holds several small samples on purpose
KNOWN_STORAGES = ("compact", "contiguous", "chunked", "mixed")  # ways of storing whose costs are known
FEW_BYTES = 4096  # a request for less costs as much as one for this

VIRTUAL_IS_SLOW = "Of a virtual dataset that was 2.4 to 3.3 times as slow as torch with h5py, where it was measured."


@dataclass(frozen=True)
class Cost:
    """The cost of one sample, read by itself."""

    samples_per_chunk: int  # that share one chunk; 1 when not chunked
    chunks_per_sample: int  # that one sample touches
    reads: int  # requests to the file system, before neighbours are joined
    read_nbytes: int  # bytes of one such request, about
    decoded_nbytes: int  # bytes that come out of the filters; 0 without filters
    waste: float  # bytes read or decoded for one byte of the sample, at least 1


def commonest(layout: Layout) -> Form:
    """Returns how most of the files store this dataset."""
    return layout.forms[int(layout.part_form[0]) if len(layout.forms) == 1 else most_common(layout.part_form.tolist())]


def most_common(numbers: list[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]


def cost(layout: Layout) -> Cost | None:
    """Returns the cost of a sample; None if it is unknown."""
    known = layout.reader == "direct" or layout.storage in KNOWN_STORAGES
    if not layout.forms or not known or not layout.sample_nbytes:
        return None
    form = commonest(layout)
    if form.chunk[0] == 0 or not layout.shape:
        return Cost(1, 1, 1, layout.sample_nbytes, 0, 1.0)
    shared = min(form.chunk[0], max(1, layout.samples))
    touched = math.prod(-(-length // chunk) for length, chunk in zip(layout.sample_shape, form.chunk[1:], strict=True))
    chunk_nbytes = math.prod(form.chunk) * layout.dtype.itemsize
    if not form.filters:
        piece = -(-layout.sample_nbytes // touched)
        return Cost(shared, touched, touched, piece, 0, 1.0)
    stored = layout.stored_nbytes // len(layout.chunk_nbytes) if len(layout.chunk_nbytes) else chunk_nbytes
    return Cost(shared, touched, touched, stored, touched * chunk_nbytes, touched * chunk_nbytes / layout.sample_nbytes)


def costs_in_words(layout: Layout) -> str:
    """Describes the cost of a sample in one or two sentences."""
    if layout.reader == "none":
        return f"Cannot be read: {layout.reason}."
    one = cost(layout)
    slower = "Read through libhdf5 in one process, which is often slower than PyTorch with h5py"
    through = f"{slower}: {layout.reason}." if layout.reader == "h5py" else ""
    if through and layout.storage == "virtual":
        through += f" {VIRTUAL_IS_SLOW}"
    if one is None:
        return through
    return f"{through} {_direct_words(layout, one)}".strip()


def _direct_words(layout: Layout, one: Cost) -> str:
    if not one.decoded_nbytes:
        if one.reads == 1:
            return f"One read of {size(one.read_nbytes)} per sample."
        return f"One sample touches {count(one.chunks_per_sample, 'chunk')}, about {size(one.read_nbytes)} in each."
    decoded = size(one.decoded_nbytes)
    if one.samples_per_chunk > 1:
        chunks = "" if one.chunks_per_sample == 1 else f" and each touches {one.chunks_per_sample:,} of them"
        return (
            f"{one.samples_per_chunk:,} samples share a chunk{chunks}: reading one decodes {decoded} "
            f"for {size(layout.sample_nbytes)} of values."
        )
    if one.chunks_per_sample > 1:
        return f"Reading one sample decodes {count(one.chunks_per_sample, 'chunk')}, {decoded}."
    return f"Reading one sample decodes its one chunk, {decoded}, nothing else."


def advice(layout: Layout) -> str:
    """Returns what to do about the cost, commands in lines of their own; empty when there is little to gain."""
    if layout.storage == "virtual" and layout.reader == "h5py" and layout.nbytes >= SMALL_DATASET:
        return (
            "If its sources hold samples themselves, give the list of their files in place of this one: they are read "
            "natively, many times as fast."
        )
    one = cost(layout)
    if one is None or layout.reader != "direct" or layout.nbytes < SMALL_DATASET or layout.samples < 2:
        return ""
    if layout.sample_nbytes < LEAST_SAMPLE:  # such as the values of a sparse matrix: a chunk for each would fill a disk
        return ""
    if one.waste >= 2 and not (is_compressed(layout) and one.decoded_nbytes <= QUICK_CHUNK):
        epoch = size(one.decoded_nbytes * layout.samples)
        return (
            f"Read one by one in random order, an epoch decodes {epoch}: {one.waste:.0f} times the dataset. A batch "
            "decodes each of its chunks once, so larger batches help. So does memory in which samples wait for their "
            f'turn: DataLoader(..., buffer="25%").{_kept_decoded(layout)} Or store one sample in a chunk, every bit as '
            "it is:\n" + _rewrite(layout)
        )
    if one.reads > 1 and one.read_nbytes < FEW_BYTES:
        return f"Such small reads cost more than their bytes. Store one sample in a chunk:\n{_rewrite(layout)}"
    return ""


def _kept_decoded(layout: Layout) -> str:
    """Describes what a stage that keeps chunks decoded takes; nothing if none of them can be kept."""
    if not (nbytes := decoded_nbytes(layout)):
        return ""
    return f' Or keep them decoded on a local disk, {size(nbytes)}: H5Dataset(..., stage=DIR, stage_as="decoded").'


def _rewrite(layout: Layout) -> str:
    """Returns commands that rewrite the file: ours for numbers of a single file, and HDF5's own."""
    chunk = "x".join(map(str, (1, *layout.sample_shape)))
    repack = f"h5repack -l {shlex.quote(f'{layout.name}:CHUNK={chunk}')} OLD NEW"
    if is_compressed(layout):
        return f"solar compress ORIGINAL NEW --chunk-samples 1 --field {shlex.quote(f'{layout.name[1:]}:...')}"
    if layout.dtype.kind not in "iuf" or layout.dtype.str[1:] not in ENCODED_TYPES:
        return repack
    field = shlex.quote(f"{layout.name[1:]}:lossless")
    return f"solar compress OLD NEW --chunk-samples 1 --field {field}\n{repack}"


def is_compressed(layout: Layout) -> bool:
    """Returns whether solar compressed it."""
    return any(one.id == FILTER for form in layout.forms for one in form.filters)
