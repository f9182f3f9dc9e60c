"""The scenes of bench.buffer: data, where they lie, how much memory there is for them, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from bench import scene
from bench.scene import SHAPE
from bench.scenes import CODEC

RPC = 4 << 20  # bytes that one request of a parallel file system fetches at most
# What a storage is: seconds of a request, bytes and requests a second; and the workers that PyTorch tries on it.
STORAGES: dict[str, tuple[float, float, float]] = {
    "disks": (1e-3, 1e9, 500.0),
    "flash": (3e-4, 2e9, 20e3),
    "NVMe": (1e-4, 3e9, 100e3),
}
PEERS = ("torch", "windowed", "ram_copy", "page_cache", "pinned", "paper", "solar", "solar_known", "solar_unpacked")
OURS = ("solar", "solar_known")
NOISE: dict[str, Any] = {"noise": True}  # samples that a buffer cannot pack: what of ours holds for any data
UNPACKED = "solar_unpacked"  # solar_known that holds samples as they are
USUAL = ("torch", "windowed", *OURS)


@dataclass(frozen=True)
class Scene:
    """Data, where they lie, and how much of each reader is measured."""

    name: str
    title: str
    samples: int
    fractions: tuple[float, ...]  # memory, of the bytes of all samples
    storage: str = ""  # of STORAGES; "": the local disk, warm
    peers: tuple[str, ...] = USUAL
    workers: tuple[int, ...] = (0, 4)  # that torch tries
    part: int = 24  # batches of PyTorch's part of an epoch
    search: int = 6  # batches of a try
    epochs: int = 5
    options: dict[str, Any] = field(default_factory=dict)  # of bench.scene.Scene
    batch: int = 64
    shape: tuple[int, ...] = SHAPE
    ranks: int = 1
    dtype: str = "f4"
    weighted: bool = False  # a tenth of the samples is drawn ten times as often as the others

    @property
    def data(self) -> scene.Scene:
        """What is in the file."""
        facts: dict[str, Any] = {"batch": self.batch, "numbered": True, **self.options}
        return scene.Scene(self.name, self.title, self.samples, self.shape, self.dtype, **facts)

    @property
    def sample_nbytes(self) -> int:
        return self.data.sample_nbytes

    def peers_at(self, fraction: float) -> list[str]:
        """Who runs with this much memory. What torch does with contiguous data does not depend on it."""
        alike = fraction != self.fractions[0] and "chunk" not in self.options
        left = {"torch"} if alike else set()
        if fraction >= 1:
            left |= {"pinned", "paper", "page_cache"}
        else:
            left |= {"ram_copy"}
        if fraction != 0.25:  # each takes an epoch of single reads
            left |= {"paper", "page_cache"}
        return [peer for peer in self.peers if peer not in left]


SIZES: dict[str, dict[str, Any]] = {
    "64 KB": {"samples": 8192},
    "3 MB": {"samples": 256, "shape": (3, 512, 512), "batch": 8, "part": 12, "search": 3},
    "17 MB": {"samples": 64, "shape": (4, 128, 128, 64), "batch": 2, "part": 12, "search": 3},
}


def table() -> list[Scene]:
    """Three storages, three sizes of samples, memory for a quarter: where the gain is little, it shows."""
    found = []
    for storage, (size, facts) in ((storage, one) for storage in STORAGES for one in SIZES.items()):
        name = f"{storage}_{size}".replace(" ", "").lower()
        epochs = 3 if storage == "disks" else 5
        facts = facts | {"fractions": (0.25,), "epochs": epochs, "options": NOISE}
        found.append(Scene(name, f"{size}, {storage}", storage=storage, **facts))
    return found


def scenes(quick: bool) -> dict[str, Scene]:
    """By name; the quick ones are small, for a look."""
    fractions = (1.0, 0.5, 0.25, 0.1)
    on_disks = Scene("slowed", "64 KB, contiguous, disks", 8192, fractions, "disks", PEERS[:-1], options=NOISE)
    small = replace(on_disks, fractions=(0.25,), peers=USUAL)
    gzip = {"compression": "gzip"}
    found = (
        on_disks,
        *table(),
        replace(small, name="slowed_chunk64", title="64 KB, 64-sample chunks, disks", options=NOISE | {"chunk": 64}),
        replace(small, name="slowed_codec", title="64 KB, our codec (off by 0.4 at most), disks", fractions=(0.1,),
                options={"chunk": 1, "filters": CODEC}),
        replace(small, name="slowed_packed", title="64 KB, detector counts in float32, disks", fractions=(0.25, 0.1),
                options={}, peers=("torch", "windowed", *OURS, UNPACKED)),
        replace(small, name="slowed_packed_u2", title="64 KB, detector counts of 16 bits, disks", fractions=(0.1,),
                options={}, dtype="u2", shape=(128, 256), peers=("torch", "windowed", *OURS, UNPACKED)),
        replace(small, name="slowed_2_ranks", title="64 KB, contiguous, disks, 2 ranks", ranks=2,
                peers=("torch", "solar", "solar_known")),
        replace(small, name="slowed_weights", title="64 KB, a tenth ten times as often, disks", weighted=True,
                peers=("torch", "windowed", "page_cache", "solar_known")),
        Scene("auto_gzip", "64 KB, h5py's automatic chunks, gzip, warm", 8192, (1.0, 0.25), workers=(0, 2),
              options={"chunk": "auto", "filters": gzip}),
        Scene("chunk16_gzip", "64 KB, 16-sample chunks, gzip, warm", 8192, (1.0, 0.25), workers=(0, 2),
              options={"chunk": 16, "filters": gzip}),
    )  # fmt: skip
    if quick:
        found = tuple(replace(one, samples=max(one.samples // 2, 8 * one.batch), epochs=2, part=6, search=2)
                      for one in found)  # fmt: skip
    return {one.name: one for one in found}
