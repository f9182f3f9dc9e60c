"""Decodes the chunks of decode_kit.py with the kernels in Triton's interpreter: one file in a folder for each name.

The rows of each batch end where memory ends: what is read behind them ends this process.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import torch
from decode_kit import LITTLE_SCRATCH, case_of, rows_of
from numpy.typing import NDArray

from solar.device.kernels import launch


def at_the_end_of_memory(rows: NDArray[np.uint8]) -> torch.Tensor:
    """The same rows, with a page behind them that cannot be touched."""
    page = mmap.PAGESIZE
    whole = -(-rows.nbytes // page) * page
    memory = mmap.mmap(-1, whole + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + whole), ctypes.c_size_t(page), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    held = np.frombuffer(memory, np.uint8, rows.nbytes, whole - rows.nbytes).reshape(rows.shape)
    held[...] = rows
    return torch.from_numpy(held)  # which keeps the memory


def main(folder: Path, names: list[str]) -> None:
    launch.LAUNCH_SCRATCH = LITTLE_SCRATCH
    for name in names:
        case = case_of(name)
        np.save(folder / "coming.npy", case.made(*rows_of(case.chunks), at_the_end_of_memory))
        (folder / "coming.npy").rename(folder / f"{name}.npy")
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
