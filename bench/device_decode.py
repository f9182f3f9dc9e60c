"""Rates of decoding on a CUDA device beside those of copying: python -m bench.device_decode [--passes 50]

(--device cpu runs the native decoder on the host, to see that the command works.)

A batch of 64 MB of float32, decoded: 1024 frames of 128 x 128, or 16 fields of 100 x 100 x 100, each one chunk. The
device's bits are compared with the host's before anything is timed. Times are by events around eight batches in a row,
shortest and median of one; GB/s are of decoded float32, and of the copies of what they copy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench import machine, tables
from bench.codec_fields import gaussian_field
from solar import _native
from solar.device.kernels import Decoder
from solar.io.codec.codec import Codec

SHAPES = {"frames": (1024, 128, 128), "fields": (16, 100, 100, 100)}
DISTINCT = 8  # samples that are made and encoded; the batch repeats them
BOUND = 1e-3  # of the range
IN_A_ROW = 8  # batches that are begun one after the other in a pass


@dataclass(frozen=True)
class Row:
    """How long one batch took."""

    what: str
    coder: str
    predictor: str
    out: str
    ratio: float  # of decoded to stored
    nbytes: int  # that the rate is of
    seconds: float  # the shortest pass
    median_seconds: float

    @property
    def gbs(self) -> float:
        return self.nbytes / self.seconds / 1e9


DEVICE = "cuda"


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def timed(work: Callable[[], Any], passes: int) -> tuple[float, float]:
    """The shortest and the median of several passes: of IN_A_ROW each, so that the device waits for no launch."""
    for _ in range(3):
        work()
    taken = []
    if DEVICE == "cpu":
        for _ in range(passes):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
        return min(taken), statistics.median(taken)
    for _ in range(passes):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(IN_A_ROW):
            work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3 / IN_A_ROW)
    return min(taken), statistics.median(taken)


def rows_of(chunks: list[bytes]) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Chunks in pinned memory, a row each."""
    stride = -(-max(map(len, chunks)) // 16) * 16
    rows = pinned(torch.zeros(len(chunks), stride, dtype=torch.uint8))
    for row, chunk in zip(rows.numpy(), chunks, strict=True):
        row[: len(chunk)] = np.frombuffer(chunk, np.uint8)
    return rows, np.array([len(chunk) for chunk in chunks])


def compare(got: torch.Tensor, chunks: list[bytes], tables: bytes, out: torch.dtype) -> None:
    """Ends the bench if the device's bits are not those of the host's decoder."""
    if out == torch.bfloat16:
        return  # the tests compare these
    want = np.empty(got.shape, torch.empty(0, dtype=out).numpy().dtype)
    _native.decode_many(chunks, want, tables)
    if not np.array_equal(got.cpu().numpy().view(np.uint8), want.view(np.uint8)):
        raise SystemExit("the device's bits are not the host's")


def decoding(name: str, samples: int, passes: int) -> Iterator[Row]:
    shape = SHAPES[name][1:]
    fields = [gaussian_field(shape, -11 / 3, 0.5, seed) for seed in range(DISTINCT)]
    bound = BOUND * max(float(field.max() - field.min()) for field in fields)
    tables = Codec("abs", bound, "dense").trained(fields).tables
    for coder in ("pack", "dense"):
        for predictor in ("xyz" if len(shape) == 3 else "xy", "interpolation"):
            codec = Codec("abs", bound, coder, predictor, tables)
            made = [codec.encode(field) for field in fields]
            chunks = [made[i % DISTINCT] for i in range(samples)]
            for out in (torch.float32, torch.bfloat16):
                yield of_chunks(name, coder, predictor, shape, chunks, tables, out, passes)


def of_chunks(
    name: str, coder: str, predictor: str, shape: tuple[int, ...], chunks: list[bytes], tables: bytes,
    out: torch.dtype, passes: int,
) -> Row:  # fmt: skip
    device = torch.device("cuda", torch.cuda.current_device()) if DEVICE == "cuda" else torch.device("cpu")
    decoder = Decoder(torch.float32, shape, tables, device, out)
    rows, lengths = rows_of(chunks)
    heads = decoder.inspect(rows.numpy(), lengths)
    there, batch = rows.to(device), torch.empty(len(chunks), *shape, dtype=out, device=device)
    decoder.decode(there, lengths, heads, batch)
    compare(batch, chunks, tables, out)
    shortest, median = timed(lambda: decoder.decode(there, lengths, heads, batch), passes)
    nbytes = 4 * batch.numel()
    return Row(name, coder, predictor, str(out)[6:], nbytes / int(lengths.sum()), nbytes, shortest, median)


def copying(nbytes: int, passes: int) -> Iterator[Row]:
    """Copies of as many bytes: on the device, and to it from pinned memory."""
    here = pinned(torch.empty(nbytes, dtype=torch.uint8))
    first, second = torch.empty_like(here, device=DEVICE), torch.empty_like(here, device=DEVICE)
    ways = {"copy on the device": lambda: second.copy_(first), "copy to the device": lambda: first.copy_(here, True)}
    for what, copy in ways.items():
        yield Row(what, "", "", "", 1.0, nbytes, *timed(copy, passes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=50)
    parser.add_argument("--share", type=float, default=1.0, help="of the 64 MB")
    parser.add_argument("--json", type=Path, help="append all rows to this file, a line each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    global DEVICE
    DEVICE = asked.device
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("bench.device_decode: skipped, torch finds no CUDA device here")
        return
    place = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU"
    print(f"{place}, torch {torch.__version__}; {machine.cpu_name()}, {os.cpu_count()} cores\n")
    print(tables.heading("what|coder|predictor|out|ratio:|GB/s:|median µs:"))
    rows = list(copying(int(asked.share * (64 << 20)), asked.passes))
    for name, (samples, *_) in SHAPES.items():
        rows += decoding(name, max(1, int(asked.share * samples)), asked.passes)
    for row in rows:
        rates = f"{row.ratio:.1f}", f"{row.gbs:.0f}", f"{1e6 * row.median_seconds:.0f}"
        print(tables.row((row.what, row.coder, row.predictor, row.out, *rates)))
    if asked.json:
        with asked.json.open("a") as file:
            for row in rows:
                facts = asdict(row) | {"gigabytes_a_second": row.gbs, "device": place, "torch": torch.__version__}
                print(json.dumps(facts), file=file)


if __name__ == "__main__":
    main()
