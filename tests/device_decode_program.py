"""Decodes the batches that test_device_decode.py left in a folder with the kernels, in Triton's interpreter.

The rows of each batch end where memory ends, and its array lies between guards: what is read behind the rows ends this
process, and what is written beside the array is seen.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solar.gpu.kernels import Decoder, launch

GUARD = 4096
launch.LAUNCH_SCRATCH = 300_000  # so that some batches go in parts


def at_the_end_of_memory(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], mmap.mmap]:
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
    return held, memory


def decoded(case: dict[str, Any], rows: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    dtype, out_dtype = getattr(torch, case["dtype"]), getattr(torch, case["out"])
    decoder = Decoder(dtype, tuple(case["shape"]), bytes.fromhex(case["tables"]), torch.device("cpu"), out_dtype)
    heads = decoder.inspect(rows, lengths)
    held, memory = at_the_end_of_memory(rows)
    for at, value in case["flips"]:  # of what inspect could not see
        held[0, at] ^= value
    nbytes = len(rows) * int(np.prod(case["shape"])) * out_dtype.itemsize
    whole = torch.full((nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8)
    out = whole[GUARD : GUARD + nbytes].view(out_dtype).view(len(rows), *case["shape"])
    decoder.decode(torch.from_numpy(held), lengths, heads, out)
    del held, memory
    guards = torch.cat([whole[:GUARD], whole[GUARD + nbytes :]])
    assert bool((guards == 0xA5).all()), f"{case['name']}: written beside the array"
    return whole[GUARD : GUARD + nbytes].numpy()


def main(folder: Path) -> None:
    for case in json.loads((folder / "cases.json").read_text()):
        with np.load(folder / f"{case['name']}.npz") as saved:
            got = decoded(case, saved["rows"], saved["lengths"])
        np.save(folder / "coming.npy", got)
        (folder / "coming.npy").rename(folder / f"{case['name']}.npy")
        print(case["name"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
