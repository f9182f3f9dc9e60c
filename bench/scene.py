"""Scene: one data set, how it is stored, and the cache state it is read in; makes it and tells its digests.

The samples are photon counts as a diffraction camera gives them: mostly zeros and small integers in f4 or i2, so that
the filters meet what they meet in practice; or these with noise. All samples differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

FIELD = "x"
SHAPE, NBYTES = (128, 128), 128 * 128 * 4  # of a sample of 64 KB
BLOCK_NBYTES = 512 * NBYTES  # that are written at a time: of 64 KB as many samples as h5py's automatic chunks span
PATTERNS = 256  # different patterns; the rest are these, shifted


@dataclass(frozen=True)
class Scene:
    name: str
    title: str
    samples: int
    shape: tuple[int, ...]
    dtype: str
    batch: int = 64
    chunk: int | Literal["auto"] | None = None  # samples per chunk; None: contiguous
    filters: dict[str, Any] = field(
        default_factory=dict
    )  # of create_dataset; or plugin=, of hdf5plugin or ours, and its options=
    files: int = 1
    sources: int = 0  # files of which the dataset of the one file is a view; 0: it has its own bytes
    listed: bool = False  # the list of these files is read in place of the view
    cache: Literal["warm", "cold"] = "warm"
    peers: Literal["hdf5", "all"] = "hdf5"  # "hdf5": only those that read this file as it is
    epochs: int = 20  # of a whole run
    numbered: bool = False  # each sample has its number in its first value
    noise: bool = False  # beside the counts, a part of 1 that no codec makes smaller: buffers hold samples as they are

    def small(self) -> Scene:
        """An eighth of the samples, for a look."""
        files = max(1, self.files // 8)
        return replace(self, samples=self.samples // 8, files=files, epochs=min(2, self.epochs))

    @property
    def sample_nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def paths(self, folder: Path) -> list[Path]:
        if self.listed:
            return [folder / f"source{number}.h5" for number in range(self.sources)]
        if self.files == 1:
            return [folder / "data.h5"]
        return [folder / "data" / f"{number:06d}.h5" for number in range(self.files)]

    def orders(self, seed: int, epochs: int = 1) -> NDArray[np.int64]:
        """Whole random batches of `epochs` epochs: [batch, place]."""
        rng = np.random.default_rng(seed)
        whole = self.samples // self.batch * self.batch
        return np.concatenate([rng.permutation(self.samples)[:whole] for _ in range(epochs)]).reshape(-1, self.batch)


def make(scene: Scene, folder: Path) -> None:
    """Writes the file or files, then digests.npy from what h5py reads back."""
    patterns = photon_counts(scene)
    if scene.files > 1:
        make_many(scene, folder, patterns)
    elif scene.sources:
        make_virtual(scene, folder, patterns)
    else:
        with h5py.File(folder / "data.h5", "w") as file:
            chunks = True if scene.chunk == "auto" else scene.chunk and (scene.chunk, *scene.shape)
            data = file.create_dataset(
                FIELD, (scene.samples, *scene.shape), scene.dtype, chunks=chunks, **hdf5_filters(scene)
            )
            step = max(1, BLOCK_NBYTES // scene.sample_nbytes)  # whole chunks in every layout
            for first in range(0, scene.samples, step):
                last = min(first + step, scene.samples)
                block = np.stack([sample_of(patterns, i) for i in range(first, last)])
                if scene.noise:
                    block += np.random.default_rng([7, first]).random(block.shape, np.float32)
                if scene.numbered:
                    block.reshape(len(block), -1)[:, 0] = np.arange(first, last)  # exact below 2^24
                data[first:last] = block
    digests = np.concatenate([digests_of(block) for block in blocks(scene, folder)])
    if len(np.unique(digests)) != scene.samples:
        raise ValueError(f"{scene.name}: samples are not all different")
    np.save(folder / "digests.npy", digests)


def make_many(scene: Scene, folder: Path, patterns: NDArray[Any]) -> None:
    (folder / "data").mkdir()
    for number, path in enumerate(scene.paths(folder)):
        with h5py.File(path, "w") as file:
            file[FIELD] = sample_of(patterns, number)


def make_virtual(scene: Scene, folder: Path, patterns: NDArray[Any]) -> None:
    each = scene.samples // scene.sources
    view = h5py.VirtualLayout((scene.samples, *scene.shape), scene.dtype)
    for number in range(scene.sources):
        first = number * each
        rows = np.stack([sample_of(patterns, i) for i in range(first, first + each)])
        with h5py.File(folder / f"source{number}.h5", "w") as file:
            file[FIELD] = rows
        view[first : first + each] = h5py.VirtualSource(f"source{number}.h5", FIELD, rows.shape)
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_virtual_dataset(FIELD, view)


def hdf5_filters(scene: Scene) -> dict[str, Any]:
    if "plugin" not in scene.filters:
        return scene.filters
    if scene.filters["plugin"] == "solar":
        from solar import filters  # only where a scene needs it: it tells libhdf5 of our filter

        return dict(filters.Bounded(**scene.filters["options"]))
    import hdf5plugin  # only where a scene needs it: it registers its filters on import

    return dict(getattr(hdf5plugin, scene.filters["plugin"])(**scene.filters.get("options", {})))


def photon_counts(scene: Scene) -> NDArray[Any]:
    """A few patterns: speckles under a falling envelope, with counting noise."""
    rng = np.random.default_rng(7)
    count = min(PATTERNS, scene.samples, 64 * 2**20 // scene.sample_nbytes or 1)
    height, width = scene.shape[-2:]
    y, x = np.mgrid[:height, :width]
    radius = np.hypot(y - height / 2, x - width / 2) / (height / 2)
    envelope = 400.0 * np.exp(-9 * radius) + 0.02
    patterns = np.empty((count, *scene.shape), scene.dtype)
    for pattern in patterns.reshape(-1, height, width):
        speckle = rng.exponential(1.0, (height // 4, width // 4)).repeat(4, 0).repeat(4, 1)
        pattern[:] = rng.poisson(envelope * speckle)
    return patterns


def sample_of(patterns: NDArray[Any], sample: int) -> NDArray[Any]:
    return np.roll(patterns[sample % len(patterns)], sample // len(patterns), axis=-1)


def blocks(scene: Scene, folder: Path) -> Iterator[NDArray[Any]]:
    """All samples in order, in blocks of whole chunks, as h5py reads them: what other formats are made of."""
    if "plugin" in scene.filters:
        hdf5_filters(scene)
    if scene.files > 1:
        for path in scene.paths(folder):
            with h5py.File(path) as file:
                yield np.asarray(file[FIELD])[None]
        return
    step = max(1, min(512, 256 * 2**20 // scene.sample_nbytes))
    with h5py.File(folder / "data.h5") as file:
        for first in range(0, scene.samples, step):
            yield file[FIELD][first : first + step]


def digest(sample: NDArray[Any]) -> np.uint64:
    sample = np.ascontiguousarray(sample)
    return np.frombuffer(hashlib.blake2b(sample.data, digest_size=8).digest(), np.uint64)[0]


def digests_of(batch: Any) -> NDArray[np.uint64]:
    """What names the content of each sample."""
    return np.array([digest(sample) for sample in np.asarray(batch)])


class Check:
    """Sees that batches are the reference's samples: by their numbers, which costs nothing, or by all their bytes."""

    def __init__(self, folder: Path, shape: Sequence[int] = SHAPE) -> None:
        self.shape = tuple(shape)
        self.digests = np.load(folder / "digests.npy")

    def numbers(self, batch: Any, samples: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Which samples they are. ValueError: not those that were wanted, or, where nobody says which, one twice."""
        first = np.rint(np.asarray(batch).reshape(len(batch), -1)[:, 0])  # our codec may be off by less than a half
        found = first.astype(np.int64)
        wanted = found if samples is None else samples
        if tuple(batch.shape) != (len(wanted), *self.shape) or not np.array_equal(found, wanted):
            raise ValueError(f"a batch of {tuple(batch.shape)} is not of samples {wanted[:4]}...")
        twice = samples is None and len(np.unique(found)) != len(found)
        if twice or found.min() < 0 or found.max() >= len(self.digests):
            raise ValueError(f"a batch has a sample twice, or one that there is not: {found[:4]}...")
        return found

    def bytes(self, batch: Any, samples: NDArray[np.int64]) -> None:
        if not np.array_equal(digests_of(batch), self.digests[samples]):
            raise ValueError(f"returned other samples than the reference: not {samples[:4]}...")
