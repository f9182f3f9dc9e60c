"""A file compressed by several processes: each encodes a share of the chunks, the first one writes the file.

libhdf5 lets only one process write a file, unless it was built with MPI, and then it takes no encoded chunks. So the
other processes write their chunks to files beside the target, each with a journal like that of an unfinished file. The
first process copies the chunks from there. If the job is killed, the next run takes them as leftovers. Until the file
is done, these chunks take twice their space on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from solar.errors import ReadError, SolarError
from solar.io.compress.codec import Codec
from solar.io.compress.pieces import Pieces
from solar.io.compress.preparation import Prepared, Told, in_order, window
from solar.io.compress.selection import Part
from solar.io.compress.store import Stored, facts_of, written
from solar.io.compress.unfinished import Unfinished
from solar.io.libhdf5.opening import opened
from solar.io.ranks.gather import Ranks


def compress_together(
    ranks: Ranks,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    codec: Codec | str | Mapping[str | None, Codec | str | None],
    *,
    chunk_samples: int | None = None,
    threads: int | None = None,
    force: bool = False,
    told: Told | None = None,
) -> Stored | None:
    """`solar.io.compress.store.compress` by all ranks together, with the same arguments. Rank 0 gets the result.

    The bytes are the same as those that a single process writes.
    """
    if ranks.rank == 0:
        options: dict[str, Any] = {"chunk_samples": chunk_samples, "threads": threads}
        stored = written(source, target, codec, _Others(ranks), force=force, told=told, **options)
        ranks.tell("done")
        return stored
    task = ranks.tell(None)
    try:
        made = _share(Path(source), Path(os.path.realpath(target)), task, ranks, threads)
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


def _share(path: Path, out: Path, task: dict[str, Any], ranks: Ranks, threads: int | None) -> list[Path]:
    """Encodes the chunks of this rank's share that are not there yet; gives their journals."""
    prepared, head = Prepared.of_json(task["head"]), task["head"]
    if facts_of(path) | {"path": ""} != head["input"] | {"path": ""}:
        raise ReadError(f"{path} is another file here, or changed since rank 0 looked at it")
    missing = (one for one in _tasks_of(prepared, ranks.rank, ranks.ranks) if not _is_there(one, task["there"]))
    threads = threads or len(os.sched_getaffinity(0))
    made: list[Path] = []
    writing: Unfinished | None = None
    with opened(path) as file, ThreadPoolExecutor(threads, "solar-compress") as pool:
        ahead = min((window(part, threads) for part in prepared.parts), default=2)
        try:
            number = -1
            for (_, begin, _, count), chunks in in_order(_begun(path, file, missing, pool), ahead):
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


def _begun(
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
