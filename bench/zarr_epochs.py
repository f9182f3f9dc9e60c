"""Shuffled epochs of a Zarr array: solar beside PyTorch's DataLoader over zarr-python and zarrs, in turns.

    python -m bench.zarr_epochs [--samples N] [--rounds N] [--folder DIR]

A line of samples a second for each way in which the array is stored: medians of rounds. All loaders run in this
process, without workers, and the page cache has the data. Needs zarr; zarrs is left out where it is not installed.
annbatch, which reads sparse rows of cells, is beside solar in bench.shapes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from solar import DataLoader, H5Dataset

SIDE, BATCH = 64, 64
ZARRS = "zarrs.ZarrsCodecPipeline"


class ByZarr(torch.utils.data.Dataset[Any]):
    """Samples as zarr-python gives them, of a whole batch at once."""

    def __init__(self, path: Path, pipeline: str | None = None) -> None:
        import zarr

        with zarr.config.set({"codec_pipeline.path": pipeline} if pipeline else {}):
            self.array: Any = zarr.open_array(str(path), mode="r")

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [*torch.from_numpy(self.array.oindex[np.sort(indices)])]

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.array[index])


def made_stores(folder: Path, samples: int) -> dict[str, Path]:
    """The stores, by what is said of them."""
    import zarr

    values = np.random.default_rng(1).integers(0, 100, (samples, SIDE, SIDE)).astype("f4")
    row, codecs = (1, SIDE, SIDE), zarr.codecs
    ways: dict[str, dict[str, Any]] = {
        "a sample in a chunk, not compressed": {"chunks": row, "compressors": None},
        "a sample in a chunk, zstd": {"chunks": row, "compressors": codecs.ZstdCodec()},
        "256 chunks of a sample in a shard, zstd": {"chunks": row, "shards": (256, SIDE, SIDE)},
        "16 samples in a chunk, Blosc with lz4": {
            "chunks": (16, SIDE, SIDE),
            "compressors": codecs.BloscCodec(cname="lz4"),
        },
    }
    found = {}
    for number, (name, how) in enumerate(ways.items()):
        found[name] = folder / f"{number}.zarr"
        zarr.create_array(str(found[name]), data=values, **how)
    return found


def seconds_of(loader: Any) -> float:
    """The time of an epoch."""
    begin = time.perf_counter()
    seen = sum(len(batch) for batch in loader)
    assert seen == len(loader.dataset)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    pipelines = {"zarr-python": None} | ({"zarrs": ZARRS} if find_spec("zarrs") else {})
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        for stored, path in made_stores(Path(name), asked.samples).items():
            loaders = {
                of: torch.utils.data.DataLoader(ByZarr(path, pipeline), batch_size=BATCH, shuffle=True)
                for of, pipeline in pipelines.items()
            } | {
                "solar, no buffer": DataLoader(H5Dataset(path, "/"), batch_size=BATCH, shuffle=True, buffer=0),
                "solar": DataLoader(H5Dataset(path, "/"), batch_size=BATCH, shuffle=True),
            }
            for loader in loaders.values():
                seconds_of(loader)  # the page cache has it, and solar's buffer what it holds
            turns = [{of: seconds_of(loader) for of, loader in loaders.items()} for _ in range(asked.rounds)]
            rates = [f"{of} {asked.samples / median(turn[of] for turn in turns):,.0f}" for of in loaders]
            print(f"{stored}: {', '.join(rates)} samples a second")


if __name__ == "__main__":
    main()
