"""The programs whose calls fail: each makes a loader over a small file, and takes an epoch of it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from far_kit import served

from solar import DataLoader, Field, H5Dataset, PlanSampler, ReadError, SolarError
from solar.arrays import Loader
from solar.cli import main as solar_command
from solar.io.channels.service_sockets import socket_of
from solar.io.system.waiting import start_thread
from solar.service.service import Service

from .ranks import Pair

SAMPLES, WIDTH, BATCH = 48, 512, 8
patience = 10.0  # seconds that a loader waits for a batch
# Calls by which a command asks for names, reads where data lie, and writes: its own thread does not return from these
OF_COMMANDS = frozenset(
    [
        *("stat", "lstat", "fstat", "fstatat", "stat64", "lstat64", "fstat64", "fstatat64", "statx", "open", "open64"),
        *("read", "pread", "write", "pwrite", "pwrite64", "ftruncate", "ftruncate64", "fsync", "fdatasync"),
        *("rename", "unlink", "mkdir", "flock"),
    ]
)


@dataclass(frozen=True)
class Scene:
    """`make` makes a loader, or what takes its place, and `epoch` gives what an epoch of it gave.

    `before` is done before calls are counted. `unlimited` are calls by which Python's own modules wait, without a limit
    in time, for a process of theirs. What is `pooled` may leave threads and connections of another library. A trial may
    take `limit` seconds.
    """

    name: str
    make: Callable[[], Any]
    epoch: Callable[[Any], list[Any]]
    before: Callable[[], None] = lambda: None
    unlimited: frozenset[str] = frozenset()
    pooled: bool = False
    limit: float = 40.0


def write(folder: Path) -> None:
    values = np.random.default_rng(7).integers(0, 4000, (SAMPLES, WIDTH)).astype("u2")
    with h5py.File(folder / "plain.h5", "w") as file:
        file["x"] = values
    with h5py.File(folder / "gzip.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(4, WIDTH), compression="gzip", shuffle=True)
        wide = np.tile(values, 48)
        file.create_dataset("wide", data=wide, chunks=(1, wide.shape[1]), compression="gzip", shuffle=True)
    write_zarr(folder / "store.zarr", values)


def write_zarr(store: Path, values: np.ndarray[Any, Any]) -> None:
    """An array of version 2 without a compressor, in chunks of four samples."""
    (store / "x").mkdir(parents=True)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    facts = '"compressor": null, "dtype": "<u2", "fill_value": 0, "filters": null, "order": "C", "zarr_format": 2'
    (store / "x" / ".zarray").write_text(f'{{"chunks": [4, {WIDTH}], "shape": [{SAMPLES}, {WIDTH}], {facts}}}')
    for number in range(SAMPLES // 4):
        values[4 * number : 4 * number + 4].tofile(store / "x" / f"{number}.0")


def doubled(sample: Any) -> Any:
    return sample["x"] * 2


class Own(torch.utils.data.Dataset[Any]):
    """A Dataset of somebody else, which reads by h5py."""

    def __init__(self, path: Path, name: str = "x") -> None:
        self.path, self.name, self.file = path, name, None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.file[self.name][at].astype("i4")


def batches(loader: Any) -> list[Any]:
    if isinstance(loader, Loader):
        loader.set_epoch(0)
    return [np.array(batch["x"] if isinstance(batch, dict) else batch) for batch in loader]


def twice(loader: Any) -> list[Any]:
    """Two epochs: the second is read by what was learned in the first."""
    return batches(loader) + batches(loader)


def complete(loader: Any) -> list[Any]:
    """The same, if no sample is left out."""
    found, left_out = batches(loader), loader.stats()["skipped"]
    if left_out:
        raise ReadError(f"{left_out} samples are left out")
    return found


def of_loader(data: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        made = data()
        sampler = PlanSampler(made, 1, 0, seed=3)
        return DataLoader(made, BATCH, sampler=sampler, timeout=patience, **{"buffer": 0, **options})

    return make


def resumed(make: Callable[[], Any]) -> Callable[[Any], list[Any]]:
    """The rest of an epoch that another loader goes on with after a batch."""

    def epoch(loader: Any) -> list[Any]:
        beginning = iter(loader)
        next(beginning)
        state = loader.state_dict()
        del beginning
        with make() as other:
            other.load_state_dict(state)
            return batches(other)

    return epoch


def compressed(folder: Path) -> list[Any]:
    """What `solar compress` makes of the file, read again."""
    into = folder / "compressed.h5"
    words = ["compress", "--lossless", "--force", str(folder / "plain.h5"), str(into)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said := io.StringIO()):
        try:
            code = solar_command(words)
        except SystemExit as ended:
            code = ended.code
    if code:
        raise SolarError(said.getvalue())
    return batches(DataLoader(H5Dataset(into, "x"), BATCH, timeout=patience))


def careless(path: Path) -> list[Any]:
    """A program that takes no notice of an error: what has to be found, when it is asked for by name."""
    found = np.zeros((SAMPLES, WIDTH), "u1")
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        found[:] = np.frombuffer(os.pread(fd, SAMPLES * WIDTH, 2048), "u1").reshape(SAMPLES, WIDTH)
        os.close(fd)
    return [found]


def careless_of_the_clock(path: Path) -> list[Any]:
    """A program that waits for nothing longer than ten minutes, by the time of day."""
    began = time.time()
    with h5py.File(path) as file:
        found = file["x"][:]
    return [found if 0 <= time.time() - began < 600 else found * 0]


@contextlib.contextmanager
def scenes(folder: Path) -> Iterator[list[Scene]]:
    """All of them, over files in this folder; for so long a service and a server run."""
    write(folder)
    plain, packed = folder / "plain.h5", folder / "gzip.h5"

    def of(path: Path, fields: Any = "x", **more: Any) -> Callable[[], Any]:
        return lambda: H5Dataset(str(path), fields, **more)

    def arrays() -> Any:
        data = H5Dataset(str(packed), {"x": "x"})
        return Loader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=3), buffer="1MiB", timeout=patience)

    def rank(number: int) -> Any:
        data = H5Dataset(str(packed), "x")
        sampler = PlanSampler(data, 2, number, seed=3)
        return DataLoader(data, BATCH // 2, sampler=sampler, buffer="1MiB", timeout=patience)

    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")  # where services are looked for
    (folder / "run").mkdir(mode=0o700)
    pair, to_find = Pair(folder, rank, batches), socket_of([str(packed)])
    windows = {"x": Field("/x", steps=range(3))}
    own = folder / "service" / "own.sock"
    named = own.with_name("s.sock")
    with services([named, to_find], packed), served(folder) as web:
        far = web.url(plain)
        makers = {
            "plain": of_loader(of(plain)),
            "buffer": of_loader(of(packed), buffer="1MiB"),
            "small buffer": of_loader(of(plain), buffer=32768),
            "windows": of_loader(of(packed, windows), buffer=80000),
            "zarr": of_loader(of(folder / "store.zarr")),
            "transform": of_loader(of(packed, {"x": "x"}, transform=doubled), buffer="1MiB"),
            "service": of_loader(of(packed), service=str(named)),
            "service that is found": of_loader(of(packed), service="auto"),
            "arrays": arrays,
        }
        special = {
            "skip": of_loader(of(packed), on_error="skip"),
            "processes": of_loader(of(plain, {"x": "x"}, transform=doubled), num_workers=2),
            "resumed": of_loader(of(packed), buffer="1MiB"),
            "far": of_loader(of(far)),
            "staged": of_loader(of(far, stage=folder / "stage")),
        }
        yield [
            *(Scene(name, make, batches) for name, make in makers.items()),
            Scene("skip", special["skip"], complete),
            Scene("resumed", special["resumed"], resumed(special["resumed"])),
            Scene("processes", special["processes"], batches, unlimited=frozenset(("write", "connect")), pooled=True),
            Scene("far", special["far"], batches, pooled=True),
            Scene("staged", special["staged"], batches, before=lambda: empty(folder / "stage"), pooled=True),
            Scene(
                "compress",
                lambda: folder,
                compressed,
                before=lambda: (folder / "compressed.h5").unlink(True),
                unlimited=OF_COMMANDS,
            ),
            Scene(
                "serving",
                lambda: WithService(packed, own),
                lambda made: batches(made.loader),
                before=lambda: own.unlink(True),
            ),
            Scene("ranks", pair.make, pair.epoch, before=pair.begin, pooled=True, limit=100.0),
            Scene("own", lambda: DataLoader(Own(packed), BATCH), twice),
            Scene("own planned", lambda: DataLoader(Own(packed, "wide"), BATCH, buffer="2MiB"), twice),
            Scene("careless", lambda: plain, careless),
            Scene("careless of the clock", lambda: plain, careless_of_the_clock),
        ]


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


class WithService:
    """A loader and the service that reads for it, in one process: what fails is met by both."""

    def __init__(self, path: Path, socket: Path) -> None:
        self.service = Service([str(path)], 1 << 20, socket)
        self._thread: threading.Thread | None = None
        self.loader: Any = None
        try:
            self._thread = start_thread("service", self.service.run)
            self.loader = of_loader(lambda: H5Dataset(str(path), "x"), service=str(socket))()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()
        self.service.stop()
        if self._thread is None:
            self.service.close()  # which `run` does otherwise
        else:
            self._thread.join(30)


@contextlib.contextmanager
def services(sockets: list[Path], path: Path) -> Iterator[None]:
    """Services of this file that listen there, each in a process of its own."""
    running = []
    for socket in sockets:
        socket.parent.mkdir(mode=0o700, exist_ok=True, parents=True)
        command = [sys.executable, "-m", "solar", "serve", str(path), "--memory", "1MiB", "--socket", str(socket)]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    try:
        until = time.monotonic() + 60
        while not all(one.exists() for one in sockets) and time.monotonic() < until:
            time.sleep(0.05)  # until they listen
        yield
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()
