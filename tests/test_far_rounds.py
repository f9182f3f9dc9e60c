"""How many round trips the first batch of a file of 100 GB takes, by the server's log; and its index, damaged."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from far_kit import Asked, Web, served
from kit import settle

from solar import DataLoader, H5Dataset, LayoutError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.remote import fetch

ROWS, ROW = 400_000, (256, 256)
BATCH = 4
QUIET = 0.15  # seconds in which nobody asks for more or is about to: all that can be asked for at once has been
LOOK = 0.01  # seconds from one look at that to the next
INDEXES: dict[str, Any] = {  # how the chunks' places are stored: the version of the format, and the axes without end
    "contiguous": ("latest", ()),
    "implicit": ("latest", ()),
    "extensible array": ("latest", (0,)),
    "B-tree": ("latest", (0, 2)),
    "old B-tree": ("earliest", ()),
}


class Rounds:
    """Holds what is asked for until no more comes, and then lets all of it go: a round trip, counted."""

    def __init__(self) -> None:
        self.made: list[int] = []  # requests of each
        self._changed = threading.Condition()
        self._held, self._latest, self._over = 0, 0.0, False

    def __call__(self, asked: Asked, before: int) -> bool:
        with self._changed:
            self._held, self._latest = self._held + 1, time.monotonic()
            own = len(self.made)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or len(self.made) > own)
        return False

    def go(self) -> None:
        """It is not quiet while a thread of this process, which asks, runs or waits for a processor."""
        own = str(threading.get_native_id())
        while not self._over:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self._over)
            time.sleep(LOOK)
            busy = computing(own)
            with self._changed:
                if busy:
                    self._latest = time.monotonic()
                elif self._held and time.monotonic() - self._latest >= QUIET:
                    self.made.append(self._held)
                    self._held = 0
                    self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


def computing(but: str) -> bool:
    """Whether a thread of this process runs or could, or waits for a disk, but for this one."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            if task.name != but and (task / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


@contextmanager
def rounds(web: Web) -> Iterator[Rounds]:
    web.fault = made = Rounds()
    thread = threading.Thread(target=made.go)
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join()


@pytest.fixture(autouse=True)
def _fetchers_that_know_no_server() -> None:
    """Of a server that answers soon, which those of another test may have met, fewer are asked at a time."""
    fetch._Fetchers.end()


def drawn() -> list[int]:
    """The rows of the first batch."""
    one_by_one = torch.utils.data.DataLoader(range(ROWS), BATCH, shuffle=True, generator=generator())  # type: ignore[arg-type, var-annotated]
    return next(iter(one_by_one)).tolist()  # type: ignore[no-any-return]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def sparse(path: Path, kind: str, rows: int) -> None:
    """100 GB that all have their place and of which no more is written than the rows of the first batch."""
    version, endless = INDEXES[kind]
    with h5py.File(path, "w", libver=version) as file:
        file.create_dataset("before", (1 << 20,), "f8")[0] = (
            1  # 8 MiB, so that no index is fetched with the file's beginning
        )
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if kind != "contiguous":
            how.set_chunk((rows, *ROW))
        shape = (ROWS, *ROW)
        space = h5py.h5s.create_simple(
            shape, tuple(h5py.h5s.UNLIMITED if axis in endless else shape[axis] for axis in range(3))
        )
        x = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, how))
        for row in drawn():
            x[row] = row
    settle(path)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("buffer", [0, "1GiB", None])
@pytest.mark.parametrize("kind", INDEXES)
def test_the_first_shuffled_batch_takes_at_most_ten(kind: str, buffer: Any, tmp_path: Path) -> None:
    sparse(tmp_path / "large.h5", kind, 64)
    assert (tmp_path / "large.h5").stat().st_size >= 100e9
    with served(tmp_path) as web, rounds(web) as made:
        data = H5Dataset(web.url("large.h5"), {"x": "x"}, cache=None)
        with DataLoader(data, BATCH, shuffle=True, generator=generator(), buffer=buffer) as loader:
            batch = next(iter(loader))
            count = len(made.made)
            made.end()
    assert [np.unique(one).tolist() for one in batch["x"].numpy()] == [[row] for row in drawn()]
    assert count <= 10, made.made


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", [kind for kind in INDEXES if kind != "contiguous"])
def test_an_index_is_asked_for_level_by_level(kind: str, tmp_path: Path) -> None:
    """12,500 chunks: some hundred pieces of an index, all over the file."""
    sparse(tmp_path / "large.h5", kind, 32)
    with served(tmp_path) as web, rounds(web) as made, pytest.MonkeyPatch.context() as patched:
        patched.setattr("solar.io.remote.fetch.MOST_IN_FLIGHT", 512)  # so that none waits for another
        patched.setattr("solar.io.remote.fetch.IN_FLIGHT", 512)
        H5Dataset(web.url("large.h5"), {"x": "x"}, cache=None)
        nbytes = sum(one.nbytes for one in web.data())
    assert len(made.made) <= 6, made.made
    assert nbytes < 4 << 20  # of data nothing is fetched along


def test_a_fixed_array_is_fetched_whole_and_no_data_along_with_it(tmp_path: Path) -> None:
    """400 KB of places, with 8 MiB of other data before and behind."""
    path = tmp_path / "large.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("before", (1 << 20,), "f8")[0] = 1
        x = file.create_dataset("x", (ROWS, *ROW), "f4", chunks=(8, *ROW))
        x[-1] = 1
        file.create_dataset("behind", (1 << 20,), "f8")[-1] = 1
    settle(path)
    with served(tmp_path) as web, rounds(web) as made:
        data = H5Dataset(web.url(path), {"x": "x"}, cache=None)
        nbytes = sum(one.nbytes for one in web.data())
        made.end()
        assert float(data[ROWS - 1]["x"].max()) == 1
    assert len(made.made) <= 6, made.made
    assert nbytes < 4 << 20, [(one.first, one.nbytes) for one in web.data()]


@pytest.mark.parametrize("kind", ["extensible array", "B-tree", "old B-tree"])
def test_a_damaged_index_says_what_it_says_of_the_file_here(kind: str, tmp_path: Path) -> None:
    """What is below a node is looked for before the node is visited: no damage is met in another way for that."""
    version, endless = INDEXES[kind]
    path, rows, draw = tmp_path / "small.h5", 3000, random.Random(7)
    with h5py.File(path, "w", libver=version) as file:
        most = tuple(None if axis in endless else size for axis, size in enumerate((rows, 1, 2)))
        x = file.create_dataset("x", (rows, 1, 2), "i4", chunks=(1, 1, 2), maxshape=most if endless else None)
        x[:] = np.arange(2 * rows).reshape(rows, 1, 2)
    sound = path.read_bytes()
    nodes = [at for at in range(len(sound)) if sound[at : at + 4] in (b"TREE", b"BTIN", b"BTLF", b"EASB", b"EADB")]
    said = []
    with served(tmp_path) as web:
        for number in range(40):
            damaged = bytearray(sound)
            at = min(draw.choice(nodes) + draw.randrange(draw.choice((100, 2000))), len(sound) - 1)
            damaged[at] = draw.choice((255, draw.randrange(256)))
            path = tmp_path / f"damaged{number}.h5"
            path.write_bytes(damaged)
            os.utime(path, (10**9, 10**9))
            said.append([places(where) for where in (str(path), web.url(path))])
    assert all(here == there for here, there in said), said
    assert any("chunk index" in here for here, _ in said)


def places(where: str) -> str:
    """The places of the chunks, or why there are none."""
    try:
        return str(H5Dataset(where, {"x": "x"}, cache=None).layouts["x"].chunk_offset.tolist())
    except LayoutError as error:
        return str(error).replace(where, "")
