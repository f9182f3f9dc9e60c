"""verify: checks a compressed file against its original, or that every chunk can be decoded.

h5py reads the original; if that has filters, which may crash, in a separate process. Our decoders decode the compressed
file chunk by chunk, and libhdf5 reads it, too, if the plug-in is installed. judge.py compares, without the encoder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, SolarError, renamed_arguments
from solar.io.codec.chunk_values import Restored, by_libhdf5
from solar.io.codec.codec import OUR_FILTER
from solar.io.codec.diff import differences
from solar.io.codec.filters import readable, registered
from solar.io.codec.grid import Grid, slabs, stored_values
from solar.io.codec.judge import Judged, Meaning, float_below, judged, meaning_of
from solar.io.codec.preparation import Progress, ProgressCallback, results_in_order
from solar.io.codec.selection import datasets_of, has_our_chunks
from solar.io.codec.skeleton import H5_ERRORS
from solar.io.codec.store import BOUND_ATTRIBUTE
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.opening import look, open_file_checked
from solar.io.reading.reader import Rows
from solar.values import Layout

TASKS_A_THREAD = 2  # tasks for each thread
READ_AT_ONCE = 16 << 20  # bytes read at a time


@dataclass(frozen=True)
class BadChunk:
    """A chunk that cannot be decoded, or a dataset or group that cannot be read at all (chunk -1)."""

    name: str
    chunk: int
    offset: int
    nbytes: int
    sample: int  # the first sample in it
    why: str


@dataclass(frozen=True)
class Checked:
    """The result of reading every chunk of a file."""

    chunks: int
    nbytes: int  # as stored
    bad: tuple[BadChunk, ...]

    @property
    def holds(self) -> bool:
        """Whether every chunk could be decoded."""
        return not self.bad


def check_chunks(path: str, pool: Executor, threads: int, progress: ProgressCallback) -> Checked:
    """Reads every chunk of a file."""
    look(Path(path))
    with open_file_checked(Path(path)) as file:
        broken: dict[str, str] = {}
        names = list(datasets_of(file, broken))
        bad = [BadChunk(name, -1, 0, 0, 0, why) for name, why in broken.items()]
        layouts = []
        for name in names:
            try:
                layouts.append(inspect(path, name, cache=None))
            except SolarError as error:  # a null dataspace, say, or a type that only libhdf5 knows
                bad += [replace(one, why=str(error)) for one in _read_through(file, name)]
        everything = sum(layout.stored_nbytes for layout in layouts)
        chunks = done = 0
        with Path(path).open("rb") as raw:
            for layout in layouts:
                work = begin_checks(layout, raw.fileno(), file, pool)
                for (count, nbytes), found in results_in_order(work, TASKS_A_THREAD * threads):
                    chunks, done = chunks + count, done + nbytes
                    bad += found
                    progress(Progress("check", layout.name, done, everything))
    return Checked(chunks, everything, tuple(bad))


def begin_checks(
    layout: Layout, descriptor: int, file: Any, pool: Executor
) -> Iterator[tuple[tuple[int, int], Future[list[BadChunk]]]]:
    if layout.reader == "none" or not layout.shape or layout.storage != "chunked":
        yield (0, layout.stored_nbytes), pool.submit(_read_through, file, layout.name)
        return
    each = 256
    for begin in range(0, len(layout.chunk_offset), each):
        some = range(begin, min(begin + each, len(layout.chunk_offset)))
        work = _decode_some if layout.reader == "direct" else _read_some
        nbytes = int(layout.chunk_nbytes[some.start : some.stop].sum())
        yield (len(some), nbytes), pool.submit(work, layout, descriptor, file, some)


def _read_through(file: Any, name: str) -> list[BadChunk]:
    """Reads a dataset without known chunks completely, by libhdf5."""
    try:
        dataset = file[name]
        if dataset.shape is not None and dataset.id.get_storage_size():
            for begin, count in slabs(dataset.shape, dataset.id.get_type().get_size(), READ_AT_ONCE):
                stored_values(dataset.id, begin, count)
    except H5_ERRORS as error:
        return [BadChunk(name, -1, 0, 0, 0, str(error))]
    return []


def _decode_some(layout: Layout, descriptor: int, file: Any, some: range) -> list[BadChunk]:
    form = layout.forms[0]
    filters = [(one.id, one.flags, list(one.values)) for one in form.filters]
    nbytes = math.prod(form.chunk) * layout.dtype.itemsize
    bad = []
    for i in some:
        offset, length = int(layout.chunk_offset[i]), int(layout.chunk_nbytes[i])
        try:
            stored = os.pread(descriptor, length, offset)
            if len(stored) != length:
                raise LayoutError(f"the file ends {length - len(stored):,} bytes before the chunk does")
            _native.decode(filters, layout.dtype.itemsize, nbytes, int(layout.chunk_mask[i]), stored)
        except SolarError as error:
            bad.append(_bad(layout, i, str(error)))
    return bad


def _read_some(layout: Layout, descriptor: int, file: Any, some: range) -> list[BadChunk]:
    dataset, bad = file[layout.name], []
    for i in some:
        try:
            by_libhdf5(dataset, _grid(layout).box(chunk_number(layout, i)))
        except SolarError as error:
            bad.append(_bad(layout, i, str(error)))
    return bad


def _bad(layout: Layout, i: int, why: str) -> BadChunk:
    number = chunk_number(layout, i)
    sample = _grid(layout).begin(number)[0]
    return BadChunk(layout.name, number, int(layout.chunk_offset[i]), int(layout.chunk_nbytes[i]), sample, why)


def _grid(layout: Layout) -> Grid:
    return Grid(layout.shape, layout.forms[0].chunk, layout.dtype.itemsize)


def chunk_number(layout: Layout, i: int) -> int:
    return int(layout.chunk_index[i]) if len(layout.chunk_index) else i


VERIFIED = "solar_verified"  # the attribute with what was found
MEANINGS = ("missing", "moved", "made", "crossed")  # counts of values with a special meaning, and of changes to it


@dataclass(frozen=True)
class Kept:
    """How well a compressed dataset reproduces its original."""

    name: str
    kind: str  # "abs", "rel" or "lossless"
    bound: float  # as a number; 0: bit for bit
    values: int
    beyond: int  # values whose error exceeds the bound
    first: tuple[int, ...]  # the place of the first wrong value; empty if there is none
    largest: float  # difference
    psnr: float  # of the range, in dB; infinite where nothing differs
    missing: int = 0  # values that mean "nothing was measured"
    moved: int = 0  # missing values that changed
    made: int = 0  # measured values that became missing ones
    crossed: int = 0  # values that crossed a limit of what is valid
    unit: str = ""  # of bound and largest, where the data is packed: "unpacked values" or "stored numbers"

    @property
    def holds(self) -> bool:
        """Whether every value is within the bound, and none changed its meaning."""
        return not (self.beyond or self.moved or self.made or self.crossed)


@dataclass(frozen=True)
class Verified:
    """The result of comparing two files."""

    fields: tuple[Kept, ...]
    differences: tuple[str, ...]  # in anything else
    by: tuple[str, ...]  # the programs that read the compressed file

    @property
    def holds(self) -> bool:
        """Whether every bound holds, and nothing else differs."""
        return not self.differences and all(field.holds for field in self.fields)


@renamed_arguments(told="progress")
def verify(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
) -> Verified | Checked:
    """Compares `target` with `source`, each value within its bound; with one file, checks that every chunk decodes.

    >>> import h5py, numpy, tempfile, solar.io.codec.store
    >>> folder = tempfile.mkdtemp()
    >>> with h5py.File(folder + "/a.h5", "w") as file:
    ...     file["x"] = numpy.linspace(0, 1, 64 * 1024, dtype="f4").reshape(64, 32, 32)
    >>> _ = solar.io.codec.store.compress(folder + "/a.h5", folder + "/b.h5", "abs=1e-3")
    >>> verify(folder + "/a.h5", folder + "/b.h5").holds
    True
    """
    threads = threads or len(os.sched_getaffinity(0))
    progress = progress or (lambda progress: None)
    with ThreadPoolExecutor(threads, "solar-verify") as pool:
        try:
            if target is None:
                return check_chunks(str(source), pool, threads, progress)
            look(Path(source))
            look(Path(target))
            with open_file_checked(Path(source)) as here, open_file_checked(Path(target)) as there:
                return _compare(here, there, pool, threads, progress)
        except SolarError:
            raise
        except H5_ERRORS as error:
            why = f"one of them is damaged: {error}; `solar verify FILE` says of each by itself what cannot be read"
            raise LayoutError(f"{source} and {target} cannot be compared: {why}") from error
        finally:
            pool.shutdown(cancel_futures=True)


# --- two files ----


def _compare(here: Any, there: Any, pool: Executor, threads: int, progress: ProgressCallback) -> Verified:
    compressed = {name: dataset for name, dataset in datasets_of(there).items() if _is_compressed(dataset)}
    found = list(differences(here, there, set(compressed)))
    originals, fields = datasets_of(here), []
    by: set[str] = set()
    everything = sum(one.size * one.dtype.itemsize for one in compressed.values())
    done = 0
    for name, restored in compressed.items():
        original = originals.get(name)
        if original is None or original.shape != restored.shape:
            found.append(f"{name}: the original has no such dataset, or one of another shape")
            continue
        if original.dtype.newbyteorder("=") != restored.dtype.newbyteorder("="):
            found.append(f"{name}: its values were not compared: those of the original are of another type")
            continue
        said = read_promise(restored, original)
        reader = Restored(restored, said.ours)
        plug_in = readable(reader.filters)
        by |= {"solar"} if reader.direct else {"libhdf5"}
        by |= {"libhdf5"} if plug_in else set()
        parts = []
        for part in _compare_dataset(original, reader, plug_in, said, pool, threads):
            parts.append(part)
            done += part.values * restored.dtype.itemsize
            progress(Progress("verify", name, done, everything))
        rounded, said = said.bound, said.within(parts)
        if said.bound < rounded or (said.bound > rounded and any(part.found.beyond for part in parts)):
            parts = list(_compare_dataset(original, reader, plug_in, said, pool, threads))
        fields.append(_together(name, said, parts))
        if other := next((part.other for part in parts if part.other), ""):
            found.append(f"{name}: {other}")
    return Verified(tuple(fields), tuple(found), tuple(sorted(by, reverse=True)) or ("solar",))


def _is_compressed(dataset: Any) -> bool:
    try:
        return BOUND_ATTRIBUTE in dataset.attrs
    except H5_ERRORS:  # attributes that nobody can read
        return False


@dataclass(frozen=True)
class _Piece:
    """The result of comparing a few chunks."""

    values: int
    first: tuple[int, ...]  # of all that are not as they should be; empty if there are none
    found: Judged
    other: str  # how libhdf5 reads them, if not as our decoder does


def _compare_dataset(
    original: Any, reader: Restored, plug_in: bool, said: _Said, pool: Executor, threads: int
) -> Iterator[_Piece]:
    restored = reader.dataset
    rows = original.chunks[0] if original.chunks else 1
    values_of = _values_of(original)

    def one(first: int, count: int) -> _Piece:
        box = reader.grid.box(first, count)
        wanted = np.ascontiguousarray(values_of(box), restored.dtype)
        got = reader.values(first, count)
        other = _read_otherwise(restored, box, got) if plug_in and reader.direct else ""
        found = judged(wanted, got, said.bound, said.meaning)
        place = np.unravel_index(found.first, wanted.shape) if found.first >= 0 else ()
        where = tuple(int(side.start + i) for side, i in zip(box, place, strict=bool(place)))
        return _Piece(wanted.size, where, found, other)

    def begun() -> Iterator[tuple[None, Future[_Piece]]]:
        for task in reader.grid.tasks(rows):
            yield None, pool.submit(one, *task)

    for _, piece in results_in_order(begun(), TASKS_A_THREAD * threads):
        yield piece


def _read_otherwise(restored: Any, box: Any, got: NDArray[Any]) -> str:
    """Returns how libhdf5 reads a box, if not as our decoder did; else empty."""
    try:
        alike = by_libhdf5(restored, box).tobytes() == got.tobytes()
    except SolarError as error:
        return f"our decoder reads it, and libhdf5 does not: {error}"
    return "" if alike else "libhdf5 reads other values than our decoder"


def _values_of(original: Any) -> Callable[[Any], NDArray[Any]]:
    """A function that reads a box by libhdf5; by the Reader if the original needs our plug-in and libhdf5 lacks it."""
    if not has_our_chunks(original) or registered():
        return lambda box: by_libhdf5(original, box)
    rows = Rows(inspect(original.file.filename, original.name, cache=None), native_order=True)
    return lambda box: rows.start(np.arange(box[0].start, box[0].stop)).wait()[(slice(None), *box[1:])]


def _together(name: str, said: _Said, pieces: list[_Piece]) -> Kept:
    found = [one.found for one in pieces]
    values, squares = sum(one.values for one in pieces), sum(one.squares for one in found)
    span = float_below(_range_of(pieces))
    psnr = 20 * math.log10(span / math.sqrt(squares / values)) if 0 < squares < math.inf and span > 0 else math.inf
    return Kept(
        name=name,
        kind=said.kind,
        bound=float_below(said.bound * said.unit),
        values=values,
        beyond=sum(one.beyond for one in found),
        first=next((one.first for one in pieces if one.first), ()),
        largest=float_below(max((one.largest for one in found), default=Fraction(0)) * said.unit),
        psnr=psnr,
        **{name: sum(getattr(one, name) for one in found) for name in MEANINGS},
        unit=said.unit_name,
    )


def _range_of(pieces: list[_Piece]) -> Fraction:
    """Returns the largest minus the smallest measured number of all."""
    least = min((one.found.least for one in pieces), default=math.inf)
    most = max((one.found.most for one in pieces), default=-math.inf)
    return Fraction(most) - Fraction(least) if least <= most else Fraction(0)


@dataclass(frozen=True)
class _Said:
    """The promise that a compressed dataset states, and what its original says of its values."""

    kind: str
    bound: Fraction  # of the stored numbers
    share: Fraction | None  # of the range, where the bound is relative
    unit: Fraction  # how far apart values are whose stored numbers are one apart, in the unit of the bound
    unit_name: str
    meaning: Meaning
    ours: bool  # whether the chunks are of our filter

    def within(self, pieces: list[_Piece]) -> _Said:
        """Returns the same with its share of the range, as this turned out to be, in place of the bound stated."""
        return self if self.share is None else replace(self, bound=self.share * _range_of(pieces))


def read_promise(dataset: Any, original: Any) -> _Said:
    """Reads the promise from the attribute of a compressed dataset."""
    meaning = meaning_of(original)
    try:
        said: dict[str, Any] = json.loads(dataset.attrs[BOUND_ATTRIBUTE])
        bound, kind = Fraction(float(said["bound"])), str(said["kind"])
        asked = Fraction(float(said["asked"])) if "asked" in said else None
        # Versions that named no unit took absolute bounds for those of the stored numbers.
        of_stored = kind == "lossless" or meaning.scale is None or (kind == "abs" and said.get("unit") != "unpacked")
        unit = Fraction(1) if of_stored else abs(meaning.scale or Fraction(1))
        if kind == "abs" and asked is not None:
            bound = asked / unit
        if bound < 0:
            raise ValueError(bound)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:  # whatever JSON can hold
        raise LayoutError(
            f"{dataset.file.filename}: {dataset.name}: its attribute {BOUND_ATTRIBUTE} makes no sense"
        ) from error
    packed = meaning.scale != 1 and kind != "lossless"
    name = "" if not packed else "stored numbers" if of_stored else "unpacked values"
    ours = said.get("filter", OUR_FILTER) == OUR_FILTER
    return _Said(kind, bound, asked if kind == "rel" else None, unit, name, meaning, ours)


def store_result(target: str | os.PathLike[str], found: Verified, when: str) -> None:
    """Writes the result into the compressed file: attributes of the root and of each compressed dataset."""
    with h5py.File(target, "r+") as file:
        said: dict[str, Any] = {"when": when, "holds": found.holds, "differences": len(found.differences)}
        set_verified(file, said | {"read_by": found.by})
        for field in found.fields:
            facts: dict[str, Any] = {"bound": field.bound, "largest_error": field.largest, "beyond": field.beyond}
            facts |= {"unit": field.unit} if field.unit else {}
            facts |= {name: getattr(field, name) for name in MEANINGS}
            set_verified(file[field.name], {"when": when, "holds": field.holds, **facts})


def set_verified(thing: Any, said: dict[str, Any]) -> None:
    thing.attrs[VERIFIED] = np.bytes_(json.dumps(said))
