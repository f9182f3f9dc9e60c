"""Files to be compressed: all that HDF5 has, made on the fly; and runs that are ended on the way."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from ready_kit import python


def smooth(samples: int, *shape: int, seed: int = 0, dtype: str = "f4") -> NDArray[Any]:
    """Fields that compress well."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, *shape)).cumsum(-1).cumsum(-2).astype(dtype)


def all_of_hdf5(path: Path) -> None:
    """A file with samples, and with everything else that must be kept."""
    with h5py.File(path, "w", track_order=True, userblock_size=512) as file:
        fields = smooth(40, 32, 32)
        file["zeta"] = smooth(40, 16, 40, seed=1)
        file.create_dataset("fields", data=fields, chunks=(7, 32, 20), compression="gzip", maxshape=(None, 32, 32))
        file["fields"].attrs["unit"] = "mT"
        file["fields"].attrs["odd"] = np.array([(1, 2.5)], [("a", ">i2"), ("b", "<f8")])
        file["fields"].attrs["names"] = ["x", "ypsilon", "ζ"]
        file["fields"].attrs["nothing"] = h5py.Empty("f4")
        group = file.create_group("group", track_order=True)
        group.attrs["leads to"] = file["fields"].ref
        group.attrs["a part"] = file["fields"].regionref[3:5, :, 2]
        group["counts"] = np.random.default_rng(2).poisson(3, (40, 40, 40)).astype("u2")
        group["labels"] = np.arange(40)
        group["text"] = [f"sample {i}" for i in range(40)]
        group["lists"] = h5py.Empty("i4")
        lists = group.create_dataset("vlen", (4,), h5py.vlen_dtype("i4"))
        lists[2] = np.arange(5)
        group["references"] = np.array([file["fields"].ref, group.ref, h5py.Reference()], h5py.ref_dtype)
        early = file.create_group("early")
        file["type"] = np.dtype([("a", "<i4"), ("b", "S3")])
        early.create_dataset("typed", data=np.zeros(5, file["type"].dtype), dtype=file["type"])
        file.create_dataset("typed", data=np.zeros(3, file["type"].dtype), dtype=file["type"])
        file["alias"] = file["group/counts"]
        group["up"] = file["/"]
        file["soft"] = h5py.SoftLink("/group/counts")
        file["nowhere"] = h5py.SoftLink("/not/there")
        file["other"] = h5py.ExternalLink("other.h5", "/x")
        file.create_dataset("filled", shape=(40, 50, 50), dtype="f8", fillvalue=-7.5, chunks=(1, 50, 50))
        file["filled"][3:30] = smooth(27, 50, 50, seed=3, dtype="f8")
        file.create_dataset("unwritten", shape=(10**6, 1000, 1000), dtype="f4", chunks=(1, 100, 100))
        file["big_endian"] = smooth(40, 24, 24, seed=4, dtype=">f4")
        file.create_dataset("half", data=smooth(40, 40, 40, seed=5).astype("f2"), chunks=(5, 40, 40), compression=1)
        file["compact"] = np.arange(4, dtype="i8")
        file["x"] = np.linspace(0, 1, 32)
        file["fields"].dims[2].label = "x"
        file["x"].make_scale("the x axis")
        file["fields"].dims[2].attach_scale(file["x"])
        virtual = h5py.VirtualLayout((40, 32, 32), "f4")
        virtual[:] = h5py.VirtualSource(file["fields"])
        file.create_virtual_dataset("virtual", virtual)
    with path.open("r+b") as raw:
        raw.write(b"what other programs have before HDF5's own bytes")


def many_samples(path: Path, samples: int = 600) -> None:
    """A file that takes a while."""
    with h5py.File(path, "w") as file:
        file["x"] = np.tile(smooth(60, 64, 64), (samples // 60, 1, 1))
        file["label"] = np.arange(samples)


ENDING = """
import os, sys
from contextlib import contextmanager
import solar.cli.compress as command
from solar.cli import main
number, done, shown = int(sys.argv[1]), int(sys.argv[2]), command.shown

@contextmanager
def ending(quiet):
    with shown(quiet) as told:
        def end(progress):
            told(progress)
            if progress.doing == "encode" and progress.done >= done:
                os.kill(os.getpid(), number)
        yield end

command.shown = ending
sys.exit(main(sys.argv[3:]))
"""


def begun(number: signal.Signals, nbytes: int, *arguments: str | Path) -> subprocess.Popen[str]:
    """The command, which sends itself a signal when so many bytes of values are stored."""
    stops = number == signal.SIGSTOP  # which nothing can hand on
    line = [*python(fresh=stops), "-c", ENDING, str(int(number)), str(nbytes), *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(number: signal.Signals, nbytes: int, *arguments: str | Path) -> tuple[int, str]:
    """The exit code of such a command, and what it said."""
    with begun(number, nbytes, *arguments) as run:
        _, said = run.communicate(timeout=300)
        return run.returncode, said


def journals(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.journal"))
