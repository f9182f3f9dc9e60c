"""Samples that are cut of what a service holds: boxes, those of unequal length, and rows of sparse matrices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crops_kit import written as volumes
from far_kit import served
from kit import settle
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged
from serve_kit import PATIENT, check, epochs_of, serving, together
from torch.utils.data import ConcatDataset, Subset

from solar import CSR, Crops, DataLoader, Field, H5Dataset, PlanSampler, Ragged
from solar.cli import main

SAMPLES = 300


def lengths_of(seed: int = 0) -> list[int]:
    """Of samples of unequal length; a stretch of them has no rows."""
    found = np.random.default_rng(seed).integers(0, 60, SAMPLES)
    found[100:140] = 0
    return found.tolist()


def of_lengths(told: str, layout: str, *beside: str, **more: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        path = folder / f"{told}-{layout}.h5"
        if not path.exists():
            ragged(path, [max(n, told == "ids") for n in lengths_of()], layout, row=(16,))
        given = Ragged("v", **{told: told}, **more)
        return H5Dataset(path, {"v": given, **{name: name for name in beside}} if beside else given)

    return make


def of_matrix(layout: str, dense: bool) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        path = folder / f"matrix-{layout}.h5"
        if not path.exists():
            matrix(path, sparse(SAMPLES, 200), layout)
        return H5Dataset(path, {"x": CSR("X", dense=dense), "y": "y"})

    return make


def of_volumes(stored: str, **more: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        path = folder / f"volumes-{stored}.h5"
        if not path.exists():
            volumes(path, (40, 30, 28), stored, (7, 8, 9), w=np.arange(40 * 30 * 28, dtype=">i2").reshape(40, 30, 28))
        return H5Dataset(path, {"u": "u", "w": "w"}, samples=Crops((6, 5, 11), **more))

    return make


def joined(*makers: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: ConcatDataset([make(folder) for make in makers])


def varying(folder: Path) -> Any:
    path = folder / "varying.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            made = file.create_dataset("v", (SAMPLES,), h5py.vlen_dtype("f4"))
            for number, length in enumerate(lengths_of()):
                made[number] = np.arange(number, number + length)
    return H5Dataset(path, Ragged("v"))


def of_groups(**more: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        path, draw = folder / "groups.h5", np.random.default_rng(0)
        if not path.exists():
            with h5py.File(path, "w") as file:
                for number, length in enumerate(lengths_of()):
                    group = file.create_group(f"m{number:03}")
                    group["hits"], group["energy"] = draw.random((length + 1, 3)), draw.random((8,))
            settle(path)
        return H5Dataset(path, {"hits": "hits", "energy": "energy"}, **more)

    return make


KINDS: dict[str, Callable[[Path], Any]] = {
    "by ends": of_lengths("ends", "contiguous"),
    "by ids, gzip": of_lengths("ids", "gzip"),
    "flat, beside others": of_lengths("lengths", "gzip", "y", batch="flat"),
    "padded": of_lengths("indptr", "shuffled, checked", "y", batch="padded"),
    "two of unequal length": joined(of_lengths("ends", "gzip", "y"), of_lengths("lengths", "gzip", "y")),
    "a part of them": lambda folder: Subset(of_lengths("ends", "gzip", "y")(folder), list(range(3, SAMPLES, 2))),
    "variable length": varying,
    "a matrix": of_matrix("contiguous", dense=False),
    "a matrix with its zeros, gzip": of_matrix("gzip", dense=True),
    "groups": of_groups(samples="groups"),
    "groups by their names": of_groups(samples="/m1*"),
    "boxes": of_volumes("contiguous", overlap=1),
    "boxes, gzip": of_volumes("gzip", overlap=(0, 0, 7)),
    "boxes that are drawn": of_volumes("lzf and a checksum", at="random", per=300, seed=3),
    "boxes of two": joined(of_volumes("gzip", overlap=(0, 0, 7)), of_volumes("gzip", overlap=(0, 0, 7))),
    "slices": lambda folder: _slices(of_volumes("gzip")(folder)),
}


def _slices(data: H5Dataset) -> H5Dataset:
    return H5Dataset(data.layouts["u"].paths[0], Field("u", axis=1))


@pytest.mark.slow(every=9)
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_have_the_batches_that_they_would_have_alone(kind: str, tmp_path: Path) -> None:
    data = [KINDS[kind](tmp_path) for _ in range(3)]
    files = [*tmp_path.glob("*.h5")]
    with serving(*files, where=tmp_path, slack=PATIENT, memory=512 << 20) as service:
        found = together(data, str(service.path))
        assert service.status()["jobs"] == []
    check(data, found)
    assert all(counts["alone"] == 1 for _, counts in found.values())  # its first batch, while it joins


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", ["flat, beside others", "a matrix", "boxes, gzip"])
def test_they_are_read_once_for_all(kind: str, tmp_path: Path) -> None:
    """Three have little more read than one has: they do not begin in one instant, and who comes changes the plan."""
    read, handed = [], []
    for jobs in (1, 3):
        data = [KINDS[kind](tmp_path) for _ in range(jobs)]
        with serving(*tmp_path.glob("*.h5"), where=tmp_path, slack=PATIENT, memory=512 << 20) as service:
            check(data, together(data, str(service.path)))
            told = service.status()
            read.append(told["read_bytes"])
            handed.append(told["handed_bytes"])
    assert read[1] < 2 * read[0] and handed[1] > 2 * handed[0]


@pytest.mark.slow
def test_a_job_whose_later_batches_are_larger_joins_again(tmp_path: Path) -> None:
    """Batches are told with some room; of samples in order of their length those of the end have ten times as much."""
    path = tmp_path / "grows.h5"
    ragged(path, [1 + 3 * n for n in range(SAMPLES)], "gzip", row=(16,))
    data = H5Dataset(path, Ragged("v", ends="ends"))
    halves = [list(range(150)), list(range(150, 300))]
    sampler = PlanSampler(data, order=lambda epoch: halves[epoch])
    seen = []
    for service in (None, serving(path, where=tmp_path, slack=PATIENT, memory=64 << 20)):
        with service or nullcontext() as running:
            at = None if running is None else str(running.path)
            with DataLoader(data, 10, sampler=sampler, service=at, buffer=0, epochs=2) as loader:
                seen.append(epochs_of(loader))
                if at is not None:
                    counts = loader._buffered.running.counts()  # the first batch, and mostly the first that is larger
                    assert counts["served"] + counts["alone"] == 30 and 1 <= counts["alone"] <= 2
    assert seen[0] == seen[1]


def test_files_by_url_are_served(tmp_path: Path) -> None:
    """Three fetch by it less than half of what they fetch by themselves."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
    ragged(tmp_path / "v.h5", lengths_of(), "gzip", row=(16,))
    where = tmp_path / "socket"
    where.mkdir()
    with served(tmp_path) as web:
        url = web.url("v.h5")
        data = [H5Dataset(url, {"v": Ragged("v", ends="ends"), "y": "y"}) for _ in range(3)]
        sent = [len(web.sent)]
        with serving(url, where=where, memory=64 << 20) as service:
            found = together(data, str(service.path))
            sent.append(len(web.sent))
            assert service.status()["read_bytes"] > 0
        check(data, found)
        by_it, alone = (sum(one.nbytes for one in web.sent[part]) for part in (slice(*sent), slice(sent[1], None)))
    assert 0 < by_it < alone / 2
    assert all(counts["alone"] < 5 for _, counts in found.values())  # while the service opens it, and they join


def test_a_service_of_urls_does_not_go_on_in_the_background_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
    with served(tmp_path) as web:
        assert main(["serve", web.url("v.h5"), "--memory", "64MiB", "--background"]) == 1
    assert "leaves behind what fetches URLs" in capsys.readouterr().err
