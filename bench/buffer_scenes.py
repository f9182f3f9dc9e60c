"""The scenes of bench.buffer: data, where they lie, how much memory there is for them, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from bench import scene
from bench.scene import SHAPE
from bench.scenes import CODEC

PEERS = ("torch", "pinned", "paper", "solar")
TWO = ("torch", "solar")
FRACTIONS = (1.0, 0.5, 0.25, 0.1)


@dataclass(frozen=True)
class Scene:
    """Data, where they lie, and how much of each reader is measured."""

    name: str
    title: str
    samples: int
    fractions: tuple[float, ...]  # memory, of the bytes of all samples
    slowed: bool
    peers: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]  # that torch tries
    part: int  # batches of a round of torch
    search: int  # batches of a try
    options: dict[str, Any] = field(default_factory=dict)  # of bench.scene.Scene
    batch: int = 64
    shape: tuple[int, ...] = SHAPE
    ranks: int = 1
    paper: tuple[float, ...] = ()  # the fractions at which the published SOLAR's policy runs, which takes whole epochs

    @property
    def data(self) -> scene.Scene:
        """What is in the file."""
        facts: dict[str, Any] = {"batch": self.batch, "numbered": True, **self.options}
        return scene.Scene(self.name, self.title, self.samples, self.shape, "f4", **facts)

    @property
    def sample_nbytes(self) -> int:
        return self.data.sample_nbytes

    def peers_at(self, fraction: float) -> list[str]:
        """Who runs with this much memory. What torch does with contiguous data does not depend on it."""
        alike = fraction != self.fractions[0] and "chunk" not in self.options
        left = {"torch"} if alike else set()
        if fraction not in self.paper:
            left.add("paper")
        if fraction >= 1:
            left.add("pinned")
        return [peer for peer in self.peers if peer not in left]


def ways(*pairs: tuple[str, int]) -> tuple[dict[str, Any], ...]:
    return tuple({"kind": kind, "workers": workers} for kind, workers in pairs)


ALL = ways(("items", 0), ("items", 4), ("sorted", 0), ("sorted", 4), ("sorted", 16))
SOME = ways(("items", 4), ("sorted", 0), ("sorted", 4))


def scenes(quick: bool) -> dict[str, Scene]:
    """By name; the quick ones are small."""
    most, part, search = (8192, 8, 4) if quick else (65536, 96, 32)
    tried = (("sorted", 0), ("sorted", 2)) if quick else (("items", 0), ("items", 2), ("sorted", 0), ("sorted", 2))
    slowed = Scene("slowed", "64 KB, contiguous, slowed", most, FRACTIONS, True, PEERS, SOME if quick else ALL, part,
                   search, paper=(0.5,) if quick else (0.5, 0.25))  # fmt: skip
    two = ways(("items", 4), ("sorted", 4)) if quick else SOME
    small = replace(slowed, fractions=(0.25,), peers=TWO, settings=two, paper=())
    large = replace(small, part=12 if quick else 16, search=8)
    auto_gzip = Scene(
        "auto_gzip", "64 KB, h5py's automatic chunks, gzip", most, (0.25,), False, TWO,
        ways(*tried), part=2 if quick else 6,
        search=1 if quick else 2, options={"chunk": "auto", "filters": {"compression": "gzip"}},
    )  # fmt: skip
    found = (
        slowed,
        replace(small, name="slowed_2_ranks", title="64 KB, contiguous, slowed, 2 ranks", ranks=2),
        replace(small, name="slowed_chunk64", title="64 KB, 64-sample chunks, slowed", options={"chunk": 64}),
        replace(small, name="slowed_codec", title="64 KB, our codec (off by 0.4 at most), slowed", fractions=(0.1,),
                options={"chunk": 1, "filters": CODEC}),
        replace(large, name="slowed_3m", title="3 MB, contiguous, slowed", samples=most // 32, shape=(3, 512, 512),
                batch=8),
        replace(large, name="slowed_17m", title="17 MB, contiguous, slowed", samples=96 if quick else 512,
                shape=(4, 128, 128, 64), batch=2),
        auto_gzip,
    )  # fmt: skip
    return {one.name: one for one in found}
