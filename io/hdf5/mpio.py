"""Reads rows by libhdf5's parallel driver, in the process that started MPI.

Independent reads open the file for this rank alone, and run in a thread (guarded_reader.py). In collective reads all
ranks of MPI's world open the file and read together, at once and in the calling thread. So every rank makes them in the
order of its batches, and never while the program itself calls MPI collectively.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, ReadError
from solar.io.hdf5.guarded_reader import chunk_nbytes
from solar.io.system import lifecycle
from solar.io.system.identity import unchanged
from solar.values import By, Layout

Was = tuple[int, ...]  # the identity of a file
MPIO_FILES_KEPT = 16  # files kept open
LAST_WAIT = 1.0  # seconds that a read has to end when the program does


def by_mpio(layout: Layout, reader: By) -> Layout:
    """Returns the Layout for this reader. Raises PlanError, with advice, if it cannot read it."""
    if reader not in get_args(By):
        raise ValueError(f"reader={reader!r}: it is one of {', '.join(map(repr, get_args(By)))}")
    if reader == "auto" or layout.reader == "none":
        return layout
    asked = f"reader={reader!r} for {layout.paths[0]}: {layout.title}"
    if len(layout.dataset_file):
        raise PlanError(f"{asked}, which is {layout.storage}: libhdf5 reads no such dataset in parallel. Leave it out")
    check_mpi_process(asked, reader)
    if reader == "mpio-collective" and (len(layout.paths) > 1 or layout.per_file):
        raise PlanError(
            f"{asked} and {len(layout.paths) - 1} more files: all ranks would have to read from every file in turn. "
            'Give one file, or reader="mpio"'
        )
    return replace(layout, reader=reader, reason="asked for")


def check_mpi_process(asked: str, reader: By) -> None:
    import h5py  # built with MPI, this starts it: only for those who ask

    if not h5py.get_config().mpi:
        raise PlanError(
            f"{asked}: h5py {h5py.__version__} is built without MPI. Leave it out: what solar reads itself came as "
            "fast or faster wherever that was measured (docs/decisions/0013-mpio.md). Or build h5py over an HDF5 built "
            "with MPI: HDF5_MPI=ON CC=mpicc pip install --no-build-isolation --no-binary=h5py h5py"
        )
    from mpi4py import MPI  # h5py has imported it

    if reader == "mpio" and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PlanError(
            f"{asked} is read in a thread of its own, and MPI was started for fewer threads than MPI_THREAD_MULTIPLE: "
            "let mpi4py start it as it does by itself, or leave it out"
        )
    _Files.process = os.getpid()


class CollectiveRead:
    """Rows that all ranks of MPI's world read together, each its own or none. Making this object reads them."""

    def __init__(self, layout: Layout, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._count = len(rows)
        path, was = unchanged_for_all(layout), (int(layout.file_nbytes[0]), int(layout.file_mtime_ns[0]))
        read_into(path, layout.name_in(0), rows, out, chunk_nbytes(layout, 0), together=was)

    def poll(self, seconds: float) -> bool:
        """Returns True: the rows are here."""
        return True

    def waiting_for(self) -> str:
        """Returns an empty string: nothing is missing."""
        return ""

    def counts(self) -> dict[str, int]:
        """Returns what is known: libhdf5's reads are not counted."""
        return {"rows": self._count}


def unchanged_for_all(layout: Layout) -> str:
    """Returns the path of the file, if it is unchanged for all ranks of MPI's world. Raises ReadError on all of them if
    not.

    If one rank raised it alone, the others would wait for it in the collective read.
    """
    from mpi4py import MPI  # not where MPI is not asked for

    try:
        unchanged(layout, 0)
        said = ""
    except ReadError as error:
        said = str(error)
    for rank, text in enumerate(MPI.COMM_WORLD.allgather(said)):
        if text:
            raise ReadError(said or f"rank {rank} of {MPI.COMM_WORLD.Get_size()}: {text}")
    return layout.paths[0]


def read_into(
    path: str,
    dataset: str,
    rows: NDArray[np.int64] | None,
    out: NDArray[Any],
    chunk_nbytes: int = 0,
    *,
    together: Was | None = None,
) -> None:
    """Fills `out` with the rows of a dataset in the order asked, or with all of it: slow.read_into, by MPI.

    All ranks read `together` where they know what the file was. What libhdf5 needs for a chunk is its own here; it is
    not held to a limit.
    """
    where = f"{path}: {dataset}"
    if rows is None:
        read_collectively(path, dataset, None, out, together, where)
        return
    unique, inverse = np.unique(rows, return_inverse=True)
    ascending = len(unique) == len(rows) and bool(np.all(inverse[1:] > inverse[:-1]))
    values = out if ascending else np.empty((len(unique), *out.shape[1:]), out.dtype)
    read_collectively(path, dataset, unique, values, together, where)
    if not ascending:
        out[...] = values[inverse]


def read_collectively(
    path: str, name: str, rows: NDArray[np.int64] | None, out: NDArray[Any], together: Was | None, where: str
) -> None:
    """Reads rows of all ranks in one H5Dread, in ascending order."""
    _Files.check_process(where)
    try:
        with _Files.lock:
            opened = _Files.opened(path, together)
            _read_opened(opened[name.encode("utf-8", "surrogateescape")], rows, out, together is not None)
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise ReadError(f"{where}: libhdf5 cannot read it over MPI: {error}") from error


def _read_opened(dataset: Any, rows: NDArray[np.int64] | None, out: NDArray[Any], collective: bool) -> None:
    import h5py  # not where MPI is not asked for

    shape, dtype = dataset.shape, dataset.dtype
    if ((*(shape if rows is None else (len(rows), *shape[1:])), *dtype.shape), dtype.base) != (out.shape, out.dtype):
        raise ValueError(f"it holds {dtype} of shape {shape} now: the file changed")
    transfer = h5py.h5p.create(h5py.h5p.DATASET_XFER)
    if collective:
        transfer.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
    in_file, in_type = dataset.id.get_space(), h5py.h5t.py_create(dtype)
    if rows is None:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, in_type, transfer)
        return
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    runs = list(pairwise((0, *edges.tolist(), len(rows)) if len(rows) else ()))
    # A selection that is no block libhdf5 follows by element, where there are chunks: by blocks it takes half the time.
    at_once = collective or dataset.chunks is None
    for blocks in [runs] if at_once else [[run] for run in runs]:
        in_file.select_none()
        for first, last in blocks:
            begin = (int(rows[first]), *(0 for _ in shape[1:]))
            in_file.select_hyperslab(begin, (last - first, *shape[1:]), op=h5py.h5s.SELECT_OR)
        part = out[blocks[0][0] : blocks[-1][1]] if blocks else out
        in_memory = h5py.h5s.create_simple((len(part), *shape[1:]))
        if not part.size:
            in_memory.select_none()
        dataset.id.read(in_memory, in_file, part, in_type, transfer)


class _Files:
    """The files that this process has open over MPI, the most recently used at the end."""

    process = -1  # the process that started MPI
    lock = threading.Lock()
    ended = False
    kept: ClassVar[dict[tuple[str, bool], tuple[Was, Any]]] = {}

    @classmethod
    def check_process(cls, where: str) -> None:
        """Raises ReadError if MPI cannot be used in this process."""
        if cls.process != os.getpid():
            raise ReadError(
                f"{where}: asked to be read over MPI in a process that MPI was not started in, such as a worker of "
                "torch's DataLoader: use solar's, or num_workers=0"
            )
        if cls.ended:
            raise ReadError(f"{where}: asked to be read over MPI when the program had ended")

    @classmethod
    def opened(cls, path: str, together: Was | None) -> Any:
        """Returns the open file. A file that was replaced is opened again, by all ranks if they all noticed."""
        import h5py  # not where MPI is not asked for
        from mpi4py import MPI  # h5py has imported it

        key, collective = (path, together is not None), together is not None
        now = together
        if now is None:
            facts = Path(path).stat()
            now = facts.st_size, facts.st_mtime_ns, facts.st_ino
        was, file = cls.kept.pop(key, (now, None))
        if file is not None and was != now:
            file.close()
            file = None
        if file is None:
            if len(cls.kept) >= MPIO_FILES_KEPT:
                cls.kept.pop(next(iter(cls.kept)))[1].close()
            file = h5py.File(path, "r", driver="mpio", comm=MPI.COMM_WORLD if collective else MPI.COMM_SELF)
        cls.kept[key] = now, file
        return file

    @classmethod
    def end(cls) -> None:
        """Closes the files before MPI ends, which would abort the program, unless a read does not return."""
        if cls.lock.acquire(timeout=LAST_WAIT):
            cls.ended = True
            while cls.kept:
                cls.kept.popitem()[1][1].close()
            cls.lock.release()


lifecycle.at_exit(lifecycle.Ends.MPI_FILES, _Files.end)
