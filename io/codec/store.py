"""compress: writes a compressed file, by threads, and by several processes.

    source --preparation--> Parts: absolute bounds, tables --encode, in threads--> chunks
                                                                                     |  in order, with a journal
    source --skeleton--> a file beside the target, of a name nobody can foresee <----+----> the target

The same command gives the same bytes with any number of threads, and whether or not it was ended on the way.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from solar.errors import LayoutError, PlanError, ReadError, SolarError, renamed_arguments
from solar.io.channels.control import Ranks
from solar.io.codec.chunk_values import Pieces
from solar.io.codec.codec import Codec, parse
from solar.io.codec.filters import filter_packages, registered
from solar.io.codec.preparation import (
    Prepared,
    Progress,
    ProgressCallback,
    codec_as_json,
    prepare,
    results_in_order,
    tasks_ahead,
)
from solar.io.codec.selection import REST, Codecs, Left, Part
from solar.io.codec.skeleton import H5_ERRORS, copy_structure
from solar.io.codec.unfinished import Leftover, Unfinished, leftover, leftovers
from solar.io.hdf5.opening import look, open_file_checked

BOUND_ATTRIBUTE = "solar_bound"  # the attribute of a compressed dataset with its bound
ENCODER = 5  # the encoder's version in a journal: another may give other chunks for the same values
SPARE_BYTES = 1.05  # times the estimated bytes must be free, so that nobody else's write fails for ours
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Stored:
    """The result of writing a compressed file."""

    parts: tuple[tuple[Part, int], ...]  # each with the bytes of its chunks
    left: tuple[Left, ...]
    lost: tuple[str, ...]  # what could not be kept, in words
    seconds: float
    nbytes: int  # of the file
    again: int  # bytes of values that an earlier run had encoded


@renamed_arguments(told="progress")
def compress(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    codec: Codec | str | Mapping[str | None, Codec | str | None],
    *,
    chunk_samples: int | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Stored:
    """Writes the file `target`: all of the file `source`, with its samples compressed.

    `codec` applies to every dataset that looks like samples ("abs=1e-3", "rel=1e-4,coder=pack", "lossless"). It may be
    a dict with a codec for each name: the name None means all others, the codec None means "leave it as it is". An
    absolute bound is in the unit of the values after scale_factor is applied ("abs=50,stored": of the numbers as they
    are stored). A relative bound is a share of the range of the whole dataset: the largest minus the smallest measured
    value. `target` gets the mode of `source`. `chunk_samples` is the number of samples in a chunk; by default one, or
    several small ones, or a part of a large one. After a run that was ended, the next call goes on from there. `force`
    overwrites `target` and starts again.

    >>> import h5py, numpy, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with h5py.File(folder + "/a.h5", "w") as file:
    ...     file["x"] = numpy.linspace(0, 1, 64 * 1024, dtype="f4").reshape(64, 32, 32)
    >>> compress(folder + "/a.h5", folder + "/b.h5", "abs=1e-3").nbytes < 64 * 1024
    True
    """
    options: dict[str, Any] = {"chunk_samples": chunk_samples, "threads": threads}
    return write_compressed(source, target, codec, None, force=force, progress=progress, **options)


class Others(Protocol):
    """Processes that encode some of the chunks."""

    def begin(self, head: dict[str, Any], there: list[tuple[int, int]], prepared: Prepared) -> int:
        """Sets them to work, but for chunks [begin, end) that are there already; the number of their first chunk."""

    def join(self) -> list[Path]:
        """Waits for them; the journals of what they did."""


def write_compressed(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    codec: Codec | str | Mapping[str | None, Codec | str | None],
    others: Others | None,
    *,
    chunk_samples: int | None,
    threads: int | None,
    force: bool,
    progress: ProgressCallback | None,
) -> Stored:
    """`compress` with the help of other processes."""
    path, out = Path(source), Path(os.path.realpath(target))
    codecs = codecs_by_name(codec)
    _check_paths(path, out, force)
    if chunk_samples is not None and chunk_samples < 1:
        raise ValueError(f"chunk_samples={chunk_samples}: at least one sample makes a chunk")
    threads = threads or len(os.sched_getaffinity(0))
    registered()  # so that the filter has its name in the file, whoever imported the plug-in before
    look(path)
    with ExitStack() as after:
        file = after.enter_context(open_file_checked(path))
        pool = ThreadPoolExecutor(threads, "solar-compress")
        after.callback(pool.shutdown, cancel_futures=True)
        begun, facts = time.monotonic(), file_facts(path)
        head = {"input": facts, "settings": _settings(codecs, chunk_samples), "first": 0}
        made = _MadeChunks(out, _before(out, head, force), others)
        after.callback(made.close)
        run = _Run(path, out, file, pool, threads, progress or no_progress, facts, made)
        if made.files:
            prepared = _prepared_before(made.files[0])
        else:
            options: dict[str, Any] = {"chunk_samples": chunk_samples, "pool": pool, "threads": threads}
            with _naming_files(path, out):
                prepared = prepare(str(path), file, codecs, progress=run.progress, **options)
        check_disk(out, prepared)
        return run.write(prepared, head | prepared.as_json(), force, begun)


def no_progress(progress: Progress) -> None:
    pass


# --- what is asked ----


def codecs_by_name(codec: Codec | str | Mapping[str | None, Codec | str | None]) -> Codecs:
    given = codec if isinstance(codec, Mapping) else {REST: codec}
    parsed = {name: parse(one) if isinstance(one, str) else one for name, one in given.items()}
    return {REST if name is REST else "/" + name.strip("/"): one for name, one in parsed.items()}


def _check_paths(path: Path, out: Path, force: bool) -> None:
    if not path.exists():
        raise ReadError(errno.ENOENT, "no such file", str(path))
    if out.exists() and out.samefile(path):
        raise PlanError(f"{out} is the file to be compressed itself: give the compressed one another name")
    check_target(out, force)


def check_target(out: Path, force: bool) -> None:
    """PlanError or ReadError if this file cannot be written, or not without `force`."""
    if not out.parent.is_dir():
        raise ReadError(errno.ENOENT, "no such folder to write to", str(out.parent))
    if out.exists() and not out.is_file():
        raise PlanError(f"{out} is no plain file: give the name of the file to be written")
    if out.exists() and not force:
        raise PlanError(f"{out} is there already: give another name, or --force to overwrite it")


def file_facts(path: Path) -> dict[str, Any]:
    """Facts that tell whether a file has been changed since."""
    facts = path.stat()
    return {"path": str(path.resolve()), "nbytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _settings(codecs: Codecs, chunk_samples: int | None) -> dict[str, Any]:
    said = {name or "": None if codec is None else codec_as_json(codec) for name, codec in codecs.items()}
    settings = {"encoder": ENCODER, "codecs": said, "chunk_samples": chunk_samples}
    return settings | filter_packages(codecs.values())  # on which chunks depend, too


def _before(out: Path, head: dict[str, Any], force: bool) -> list[Leftover]:
    """The leftovers of earlier runs of the same command."""
    found = leftovers(out)
    for one in [one for one in found if force or one.chunks == 0]:
        found.remove(one)
        one.discard()
    for one in found:
        other = [what for what in ("input", "settings") if one.head.get(what) != head[what]]
        if other:
            for each in found:
                each.close()
            lies = f"an unfinished {out.name} lies beside it ({one.path.name}), begun"
            theirs = one.head.get("settings")
            if other == ["settings"] and isinstance(theirs, dict) and theirs | {"encoder": ENCODER} == head["settings"]:
                raise PlanError(
                    f"{lies} by another version of solar, whose chunks are not those of this one: --force removes it "
                    "and begins anew, or go on with that version"
                )
            why = "of another file, or before it changed" if "input" in other else "with other settings"
            raise PlanError(
                f"{lies} {why}: give the same command to go on with that one, or --force to remove it and begin anew"
            )
    return found


def _prepared_before(one: Leftover) -> Prepared:
    try:
        return Prepared.of_json(one.head)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(
            f"{one.path}: its journal makes no sense ({error}): --force removes it and begins anew"
        ) from None


def check_disk(out: Path, prepared: Prepared) -> None:
    room = os.statvfs(out.parent)
    free, needed = room.f_bavail * room.f_frsize, int(prepared.expected * SPARE_BYTES)
    if free < needed:
        raise PlanError(
            f"{out.parent}: about {needed:,} bytes will be written, and {free:,} are free: make room or go elsewhere"
        )


# --- the work ----


class _MadeChunks:
    """Chunks that earlier runs, or other processes, have encoded, in files beside the target."""

    def __init__(self, out: Path, before: list[Leftover], others: Others | None) -> None:
        self.files = before
        self._out, self._others = out, others
        self._earlier = [*before]  # those of earlier runs
        self._theirs: int | None = None  # the first chunk that others encode
        self._number = 0  # of the next chunk, all datasets together
        self._written = 0  # chunks that the target has

    def begin(self, head: dict[str, Any], prepared: Prepared) -> None:
        """Has other processes, if there are any, encode their share of what is not there."""
        if self._others is not None:
            there = [(one.first, one.first + one.chunks) for one in self.files]
            self._theirs = self._others.begin(head, there, prepared)

    def take(self, count: int) -> tuple[list[bytes], bool] | None:
        """Returns the next chunks, and whether an earlier run made them; None unless all are there."""
        numbers = range(self._number, self._number + count)
        self._number += count
        if self._others is not None and self._theirs is not None and numbers.stop > self._theirs:
            self._theirs = None
            found_by = (leftover(self._out, journal) for journal in self._others.join())
            self.files += [one for one in found_by if one is not None]
        found, earlier = [], True
        for number in numbers:
            had = next(((chunk, one) for one in self.files if (chunk := one.take(number)) is not None), None)
            if had is None:
                return None
            found.append(had[0])
            earlier = earlier and had[1] in self._earlier
        return found, earlier

    def written(self, chunks: int) -> None:
        """Counts chunks that the target has. Files of which it has all are removed."""
        self._written += chunks
        if self._theirs is None and all(one.first + one.chunks <= self._written for one in self.files):
            self.discard()

    def discard(self) -> None:
        """Removes the files."""
        while self.files:
            self.files.pop().discard()

    def close(self) -> None:
        """Closes the files that are left. They stay for the next run."""
        for one in self.files:
            one.close()


@dataclass
class _Run:
    """The compression of one file."""

    path: Path
    out: Path
    file: Any
    pool: Executor
    threads: int
    progress: ProgressCallback
    facts: dict[str, Any]  # of the file, when it was opened
    made: _MadeChunks

    def __post_init__(self) -> None:
        self._stored: dict[str, int] = {}
        self._done = self._again = 0  # bytes of values that were encoded, and of those that an earlier run encoded

    def write(self, prepared: Prepared, head: dict[str, Any], force: bool, begun: float) -> Stored:
        """Writes the file and gives it its name."""
        self.made.begin(head, prepared)
        unfinished = Unfinished.begin(self.out, head)
        try:
            lost = self._write_file(unfinished, prepared)
            if file_facts(self.path) != self.facts:
                raise LayoutError(f"{self.path} changed while it was compressed: begin again when nobody writes to it")
            unfinished.publish(self.out, force, self.path)
        except (KeyboardInterrupt, SystemExit, ReadError):
            unfinished.leave()
            raise
        except BaseException:
            unfinished.discard()
            raise
        self.made.discard()
        parts = tuple((part, self._stored[part.name]) for part in prepared.parts)
        seconds, nbytes = time.monotonic() - begun, self.out.stat().st_size
        return Stored(parts, prepared.left, tuple(lost), seconds, nbytes, self._again)

    def _write_file(self, unfinished: Unfinished, prepared: Prepared) -> list[str]:
        plan = h5py.h5p.create(h5py.h5p.FILE_CREATE)
        plan.set_obj_track_times(False)  # the same command twice gives the same bytes
        plan.set_userblock(self.file.userblock_size)
        plan.set_sizes(*self.file.id.get_create_plist().get_sizes())
        root = self.file["/"].id.get_create_plist()
        plan.set_link_creation_order(root.get_link_creation_order())
        plan.set_attr_creation_order(root.get_attr_creation_order())
        made = h5py.File(h5py.h5f.create(os.fsencode(unfinished.path), h5py.h5f.ACC_TRUNC, plan))
        try:
            with _naming_files(self.path, self.out):
                lost = self._fill(made, unfinished, prepared)
                made.close()
                self._copy_userblock(unfinished.path)
        except BaseException:
            with suppress(OSError, RuntimeError):
                made.close()
            raise
        return lost

    def _fill(self, made: Any, unfinished: Unfinished, prepared: Prepared) -> list[str]:
        copied, to_copy = 0, sum(one.nbytes for one in prepared.left)

        def progress(nbytes: int) -> None:
            nonlocal copied
            copied += nbytes
            self.progress(Progress("copy", "", min(copied, to_copy), to_copy))

        lost = copy_structure(self.file, made, {part.name: part for part in prepared.parts}, progress)
        total = sum(part.nbytes for part in prepared.parts)
        for part in prepared.parts:
            made[part.name].attrs[BOUND_ATTRIBUTE] = np.bytes_(json.dumps(part.promise))
        for part in prepared.parts:
            self._write_part(part, made[part.name].id, unfinished, total)
        return lost

    def _write_part(self, part: Part, dataset: Any, unfinished: Unfinished, total: int) -> None:
        grid = part.grid
        self._stored[part.name] = 0
        for (first, _, again), chunks in results_in_order(self._begin(part), tasks_ahead(part, self.threads)):
            for i, chunk in enumerate(chunks):
                begin = grid.begin(first + i)
                dataset.write_direct_chunk(begin, chunk, part.mask_of(chunk))
                place = dataset.get_chunk_info_by_coord(begin).byte_offset if unfinished.placed else 0
                unfinished.record(chunk, place)
            unfinished.save()
            self.made.written(len(chunks))
            nbytes = sum(map(len, chunks))
            values = _nbytes_of(part, first, len(chunks))
            self._stored[part.name] += nbytes
            self._done += values
            self._again += values if again else 0
            self.progress(Progress("encode", part.name, self._done, total, sum(self._stored.values()), self._again))

    def _begin(self, part: Part) -> Iterator[tuple[tuple[int, int, bool], Future[Any]]]:
        """Yields the chunks of a part, some at a time: (first, how many, whether an earlier run had them)."""
        pieces = Pieces(str(self.path), self.file[part.name], part)
        for first, count in part.grid.tasks(part.stored_rows):
            ready = self.made.take(count)
            if ready is None:
                yield (first, count, False), self.pool.submit(pieces.encoded, first, count)
            else:
                done: Future[Any] = Future()
                done.set_result(ready[0])
                yield (first, count, ready[1]), done

    def _copy_userblock(self, path: Path) -> None:
        """Copies the user block, the bytes before HDF5's own."""
        if size := self.file.userblock_size:
            with self.path.open("rb") as here, path.open("r+b") as there:
                there.write(here.read(size))


def _nbytes_of(part: Part, first: int, count: int) -> int:
    """Returns the bytes of the values in some chunks, without what lies outside the dataset."""
    box = part.grid.box(first, count)
    return int(part.dtype.itemsize * math.prod(side.stop - side.start for side in box))


@contextmanager
def _naming_files(path: Path, out: Path) -> Iterator[None]:
    """Turns the errors of libhdf5 and of the system into ReadError."""
    try:
        yield
    except SolarError:
        raise
    except H5_ERRORS as error:
        text = str(error)  # libhdf5 has the system's number in its text only
        said = re.search(r"errno = (\d+)", text)
        code = int(said[1]) if said else (error.errno or 0) if isinstance(error, OSError) else 0
        if code == 0:
            raise LayoutError(
                f"{path} cannot be copied as it is: {text}; `solar inspect` shows what is wrong"
            ) from error
        advice = "free some room and " if code in FULL else ""
        why = f"cannot be written: {os.strerror(code)}; {advice}give the same command again, which goes on from here"
        raise ReadError(code, why, str(out)) from error


# A file compressed by several processes: each encodes a share of the chunks, the first one writes the file.
#
# libhdf5 lets only one process write a file, unless it was built with MPI, and then it takes no encoded chunks. So
# the other processes write their chunks to files beside the target, each with a journal like that of an unfinished
# file. The first process copies the chunks from there. If the job is killed, the next run takes them as leftovers.
# Until the file is done, these chunks take twice their space on disk.


@renamed_arguments(told="progress")
def compress_together(
    ranks: Ranks,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    codec: Codec | str | Mapping[str | None, Codec | str | None],
    *,
    chunk_samples: int | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Stored | None:
    """`solar.io.codec.store.compress` by all ranks together, with the same arguments. Rank 0 gets the result.

    The bytes are the same as those that a single process writes.
    """
    if ranks.rank == 0:
        options: dict[str, Any] = {"chunk_samples": chunk_samples, "threads": threads}
        stored = write_compressed(source, target, codec, _Others(ranks), force=force, progress=progress, **options)
        ranks.tell("done")
        return stored
    task = ranks.tell(None)
    try:
        made = encode_share(Path(source), Path(os.path.realpath(target)), task, ranks, threads)
        ranks.gather({"journals": [str(one) for one in made]})
    except (SolarError, OSError) as error:
        ranks.gather({"error": f"rank {ranks.rank} of {ranks.ranks}: {error}"})
    ranks.tell(None)
    return None


class _Others:
    """The other ranks, as rank 0 sees them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def begin(self, head: dict[str, Any], there: list[tuple[int, int]], prepared: Prepared) -> int:
        self._ranks.tell({"head": head, "there": there})
        mine = list(_tasks_of(prepared, 0, self._ranks.ranks))
        return mine[-1][1] + mine[-1][3] if mine else 0

    def join(self) -> list[Path]:
        said = self._ranks.gather({"journals": []})
        errors = [one["error"] for one in said if "error" in one]
        if errors:
            raise ReadError(f"{'; '.join(errors)}. The same command goes on from here")
        return [Path(journal) for one in said for journal in one["journals"]]


Task = tuple[Part, int, int, int]  # a dataset, the number of a chunk in all, and in it; how many


def _tasks_of(prepared: Prepared, rank: int, ranks: int) -> Iterator[Task]:
    """A rank's share of the tasks: consecutive ones, as many as each other rank has."""
    each = [-(-part.grid.chunks // part.grid.per_task(part.stored_rows)) for part in prepared.parts]
    begin, end = (sum(each) * one // ranks for one in (rank, rank + 1))
    at = before = 0
    for part, tasks in zip(prepared.parts, each, strict=True):
        if at < end and at + tasks > begin:
            for i, (first, count) in enumerate(part.grid.tasks(part.stored_rows)):
                if begin <= at + i < end:
                    yield part, before + first, first, count
        at += tasks
        before += part.grid.chunks


def encode_share(path: Path, out: Path, task: dict[str, Any], ranks: Ranks, threads: int | None) -> list[Path]:
    """Encodes the chunks of this rank's share that are not there yet; gives their journals."""
    prepared, head = Prepared.of_json(task["head"]), task["head"]
    if file_facts(path) | {"path": ""} != head["input"] | {"path": ""}:
        raise ReadError(f"{path} is another file here, or changed since rank 0 looked at it")
    missing = (one for one in _tasks_of(prepared, ranks.rank, ranks.ranks) if not _is_there(one, task["there"]))
    threads = threads or len(os.sched_getaffinity(0))
    made: list[Path] = []
    writing: Unfinished | None = None
    with open_file_checked(path) as file, ThreadPoolExecutor(threads, "solar-compress") as pool:
        ahead = min((tasks_ahead(part, threads) for part in prepared.parts), default=2)
        try:
            number = -1
            for (_, begin, _, count), chunks in results_in_order(begin_tasks(path, file, missing, pool), ahead):
                if writing is None or begin != number:
                    if writing is not None:
                        writing.leave()
                    writing = Unfinished.begin(out, head | {"first": begin}, ".part")
                    made.append(writing.journal)
                _append(writing, chunks)
                number = begin + count
        finally:
            pool.shutdown(cancel_futures=True)
            if writing is not None:
                writing.leave()
    return made


def _is_there(task: Task, there: list[tuple[int, int]]) -> bool:
    _, begin, _, count = task
    return any(first <= begin and begin + count <= end for first, end in there)


def begin_tasks(
    path: Path, file: Any, tasks: Iterator[Task], pool: ThreadPoolExecutor
) -> Iterator[tuple[Task, Future[Any]]]:
    pieces: tuple[str, Pieces] | None = None
    for task in tasks:
        part, _, first, count = task
        if pieces is None or pieces[0] != part.name:
            pieces = part.name, Pieces(str(path), file[part.name], part)
        yield task, pool.submit(pieces[1].encoded, first, count)


def _append(writing: Unfinished, chunks: list[bytes]) -> None:
    with writing.path.open("ab") as file:
        for chunk in chunks:
            writing.record(chunk, file.tell())
            file.write(chunk)
    writing.save()
