"""Scenes in which a limit must hold, and what the system says of a process: its memory, threads and descriptors."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import limits_groups
import numpy as np

HERE = Path(__file__).parent
SAMPLES, SHAPE, BATCH = 1024, (64, 64), 32  # 16 KiB each, 16 MiB
NBYTES = SAMPLES * 4 * 64 * 64
FORMS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of a sample": {"chunks": (1, *SHAPE)},
    "chunks of many samples": {"chunks": (8, *SHAPE), "compression": "gzip", "compression_opts": 1},
    "h5py's own chunks": {"chunks": True, "compression": "gzip", "compression_opts": 1},
}
# Buffers; whether the file is in memory.
SCENES = [("least", True), ("25 %", True), ("25 %", False), ("all", True), ("all", False)]
FEW_SCENES = [SCENES[0], SCENES[-1]]  # of what differs in the sizes of samples and files alone
BESIDE = 8 << 20  # Python's own: plans, index arrays, and what the allocator keeps
BESIDE_COLD = 14 << 20  # the same where requests past the page cache come and go with memory of their own
BESIDE_RANK = 16 << 20  # the same of a rank, with what it needs to meet the others
KERNEL = 4 << 20  # what the system counts of a control group beside: page tables, stacks of threads, descriptors
FILES = 128  # of eight samples each


class Stored(NamedTuple):
    """The same numbers of bytes in a way of their own: where, in how many samples, how many of which are a batch."""

    paths: list[str]
    samples: int
    batch: int
    scenes: list[tuple[str, bool]]


def write_scenes(folder: Path) -> dict[str, Stored]:
    """A file of each form, one by `solar compress`, large samples, and many files: sample i begins with number i."""
    from solar import compress

    paths = {name: str(folder / f"{name}.h5") for name in FORMS}
    values = np.random.default_rng(0).integers(0, 60, (SAMPLES, *SHAPE)).astype("f4")
    values[:, 0, 0] = np.arange(SAMPLES)
    for name, options in FORMS.items():
        with h5py.File(paths[name], "w") as file:
            file.create_dataset("x", data=values, **options)
    paths["ours"] = str(folder / "ours.h5")
    compress(paths["contiguous"], paths["ours"], "lossless")
    stored = {name: Stored([path], SAMPLES, BATCH, SCENES) for name, path in paths.items()}
    stored["large samples"] = Stored([str(folder / "large.h5")], 16, 2, FEW_SCENES)
    with h5py.File(folder / "large.h5", "w") as file:
        large = values.reshape(16, 512, 512).copy()
        large[:, 0, 0] = np.arange(16)
        file["x"] = large
    (folder / "many").mkdir()
    stored["many files"] = Stored([str(folder / f"many/{i:03}.h5") for i in range(FILES)], SAMPLES, BATCH, FEW_SCENES)
    for path, part in zip(stored["many files"].paths, np.split(values, FILES), strict=True):
        with h5py.File(path, "w") as file:
            file["x"] = part
    an_hour_ago = time.time() - 3600
    for path in (path for one in stored.values() for path in one.paths):
        os.utime(path, (an_hour_ago, an_hour_ago))
    return stored


def forget(paths: list[str]) -> None:
    """The page cache lets go of these files."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def status(*names: str) -> list[int]:
    """Numbers of /proc/self/status: bytes where they are told in kB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << (10 if "kB" in lines[name] else 0) for name in names]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def forget_the_most() -> None:
    """From now on VmHWM is the most since now."""
    Path("/proc/self/clear_refs").write_text("5")


def nbytes_of(buffer: str, least: Callable[[], int]) -> int:
    """What is meant by a word of SCENES."""
    return {"least": least, "25 %": lambda: NBYTES // 4, "all": lambda: 2 * NBYTES}[buffer]()


def least_of(make: Callable[[int], Any]) -> int:
    """The least buffer that works, as the error of one that is too small says."""
    from solar import PlanError

    try:
        next(iter(make(1)))
    except PlanError as error:
        found = re.search(r"at least buffer=(\d+)", str(error))
        assert found is not None, error
        return int(found[1])
    raise AssertionError("a buffer of one byte worked")


def forked(work: Callable[[], Any]) -> tuple[int, int]:
    """Begins a process that has imported all that this one has, and where what `work` gives can be read, as JSON."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as out:
                json.dump(work(), out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    return process, reading


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What this gives in a process of its own, which has done nothing."""
    process, reading = forked(work)
    with os.fdopen(reading) as found:
        text = found.read()
    _, ended = os.waitpid(process, 0)
    assert ended == 0, f"{work} ended with {ended}"
    return json.loads(text)


# --- programs: python limits_kit.py NAME ARGUMENTS, each prints JSON ----


def said_by(name: str, *arguments: object, seconds: float = 300) -> Any:
    """What the program of this name prints."""
    command = [sys.executable, __file__, name, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def loader_of(path: str | list[str], page_cache: bool, buffer: int, batch: int = BATCH, **options: Any) -> Any:
    import torch

    from solar import DataLoader, H5Dataset

    if "sampler" not in options:
        options |= {"shuffle": True, "generator": torch.Generator().manual_seed(0)}
    dataset = H5Dataset(path, "x", page_cache=page_cache)
    return DataLoader(dataset, batch, buffer=buffer, **options)


def of_scene(stored: Stored, plain: list[str], buffer: str, warm: bool, group: Path | None) -> dict[str, Any]:
    """By how much an epoch and a half made the process grow, and what was asked for. A group may have no more."""

    def make(nbytes: int) -> Any:
        return loader_of(stored.paths, warm, nbytes, stored.batch, epochs=2)

    if not warm:
        forget(stored.paths)
    for _ in zip(range(4), loader_of(plain, False, 0), strict=False):  # what any loader needs is there from now on
        pass
    nbytes = nbytes_of(buffer, lambda: least_of(make))
    gc.collect()
    forget_the_most()
    [before] = status("VmRSS")
    if group is not None:
        limits_groups.enter(group, nbytes + (BESIDE if warm else BESIDE_COLD) + KERNEL)
    loader, rows = make(nbytes), []
    for batch in loader:
        rows += batch[:, 0, 0].tolist()
    assert sorted(rows) == [*range(stored.samples)]
    for _ in zip(range(stored.samples // stored.batch // 2), loader, strict=False):
        pass
    [most] = status("VmHWM")
    had = {"asked": nbytes, "counted": loader.stats()["peak_bytes"], "grown": most - before}
    return had | {"limited": group is not None}


def scenes(folder: str) -> None:
    import torch

    import solar.loader.loader  # noqa: F401 - before the forks

    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each thread of the engine needs memory to decode in
    all_stored, found = write_scenes(Path(folder)), {}
    plain = all_stored["contiguous"].paths
    for name, stored in all_stored.items():
        for buffer, warm in stored.scenes:
            scene = f"{name}, buffer {buffer}, {'warm' if warm else 'cold'}"
            with limits_groups.made() as group:
                found[scene] = in_a_fork(partial(of_scene, stored, plain, buffer, warm, group))
    print(json.dumps(found))


def ranks(path: str, buffer: str, group: str) -> None:
    """A rank of those that share this buffer, in this group: what it counted, when all have had two epochs."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler

    torch.set_num_threads(1)
    if "MASTER_PORT" in os.environ:
        torch.distributed.init_process_group("gloo")
        rank, size, meet = torch.distributed.get_rank(), torch.distributed.get_world_size(), torch.distributed.barrier
    else:
        from mpi4py import MPI

        rank, size, meet = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, MPI.COMM_WORLD.barrier
    for _ in zip(range(4), loader_of(path, True, 0, exchange="off"), strict=False):  # what any loader needs
        pass
    if group:
        limits_groups.enter(Path(group), int(buffer) + size * (BESIDE_RANK + KERNEL))
    meet()
    dataset = H5Dataset(path, "x", page_cache=True)
    sampler = PlanSampler(dataset, size, rank, seed=1)
    loader = DataLoader(dataset, BATCH // size, sampler=sampler, buffer=int(buffer), epochs=2)
    rows: list[int] = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            rows += batch[:, 0, 0].int().tolist()
    stats = loader.stats()
    meet()
    loader.close()
    print(json.dumps({"rows": len(rows), "peak": stats["peak_bytes"], "hits": stats["buffer_hits"]}))
    if "MASTER_PORT" in os.environ:
        torch.distributed.destroy_process_group()


def write_many(folder: Path, files: int, each: int) -> list[str]:
    """So many files of so many samples; sample i of them all is [i, -i]. One is written, the others are copies."""
    first = folder / "made.h5"
    with h5py.File(first, "w", libver="latest") as file:
        made = file.create_dataset("x", data=np.zeros((each, 2), "f4"))
        file.flush()
        begin = made.id.get_offset()
    stored = bytearray(first.read_bytes())
    first.unlink()
    paths = []
    for number in range(files):
        values = np.arange(number * each, (number + 1) * each, dtype="f4")
        stored[begin : begin + 8 * each] = np.stack([values, -values], axis=1).tobytes()
        paths.append(str(folder / f"{number:05}.h5"))
        Path(paths[-1]).write_bytes(stored)
    return paths


def many_files(folder: str, files: str, limit: str) -> None:
    """Epochs of many files with few descriptors: how many were open, at most and when all was over."""
    import torch

    from solar import DataLoader, H5Dataset
    from solar.io.reading.engine import Engine

    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    paths = write_many(Path(folder), int(files), 3)
    torch.set_num_threads(1)
    before, most = descriptors(), 0
    dataset = H5Dataset(paths, "x", cache=None)
    for buffer in (0, "1MiB"):
        with DataLoader(dataset, 500, shuffle=True, generator=torch.Generator(), buffer=buffer) as loader:
            rows = []
            for batch in loader:
                assert torch.equal(batch[:, 0], -batch[:, 1])
                rows += batch[:, 0].tolist()
                most = max(most, descriptors())
        assert sorted(rows) == [*range(len(dataset))]
    Engine.stop()
    print(json.dumps({"before": before, "most": most, "after": descriptors()}))


def many_samples(folder: str, samples: str) -> None:
    """What it takes to know, shuffle and plan a data set of many small samples, none of which is stored."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler

    path = str(Path(folder) / "many.h5")
    with h5py.File(path, "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((int(samples), 2))
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, made)
    os.utime(path, (time.time() - 3600,) * 2)
    torch.set_num_threads(1)
    for _ in loader_of(path, False, 0, sampler=range(2 * BATCH)):
        pass
    told: dict[str, Any] = {}
    for buffer in (0, int(samples) * 2):  # of 8 bytes each: a quarter
        forget_the_most()
        [before] = status("VmRSS")
        begin = time.perf_counter()
        dataset = H5Dataset(path, "x", page_cache=False)
        sampler = PlanSampler(dataset, seed=1)
        with DataLoader(dataset, 4096, sampler=sampler, buffer=buffer, epochs=3) as loader:
            for step, batch in enumerate(loader):
                assert not batch.any()
                if step == 3:
                    break
            [most] = status("VmHWM")
        told[str(buffer)] = {"seconds": time.perf_counter() - begin, "grown": most - before}
    print(json.dumps(told))


def many_epochs(folder: str, epochs: str) -> None:
    """Epochs of a tiny data set, by one loader and by a new one each time: what the process has, again and again."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler

    path = str(Path(folder) / "tiny.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(24, dtype="f4").reshape(12, 2)
    os.utime(path, (time.time() - 3600,) * 2)
    torch.set_num_threads(1)
    dataset = H5Dataset(path, "x")
    loaders = [DataLoader(dataset, 5, sampler=PlanSampler(dataset), buffer=buffer) for buffer in (0, "1MiB")]
    told = []
    for epoch in range(int(epochs)):
        fresh = [DataLoader(dataset, 5, shuffle=True, buffer=(0, "1MiB")[epoch % 2])] if epoch % 10 == 0 else []
        for loader in loaders + fresh:
            loader.set_epoch(epoch)
            assert sorted(x for batch in loader for x in batch[:, 0].tolist()) == [*range(0, 24, 2)]
        if epoch % (int(epochs) // 20) == 0:
            gc.collect()
            nbytes, threads = status("RssAnon", "Threads")
            told.append([nbytes, threads, descriptors(), len(gc.get_objects())])
    print(json.dumps(told))


PROGRAMS: dict[str, Callable[..., None]] = {
    "scenes": scenes,
    "many files": many_files,
    "many samples": many_samples,
    "many epochs": many_epochs,
    "ranks": ranks,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
