"""The same epoch, to the last bit: a table of all that must not change it, each against h5py read sample by sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("torch")

import mpi_kit
import torch
from kit import engine, settle, uring_works
from torch.utils.data import BatchSampler

from solar import DataLoader, H5Dataset, PlanSampler, compress
from solar.cli.digest import Digest

SAMPLES, STEP, STOP, SEED = 640, 16, 9, 5
PROGRAM = Path(__file__).with_name("digest_program.py")
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zipped": {"chunks": (5, 3, 64), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "sparse chunks": {"chunks": (1, 6, 64), "compression": "lzf"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same samples, stored in different ways."""
    folder = tmp_path_factory.mktemp("digest")
    values = np.random.default_rng(1).integers(0, 99, (SAMPLES, 6, 64)).astype("f4")
    values[40:50] = 0
    paths = {name: str(folder / f"{name}.h5") for name in (*FORMS, "ours", "virtual")}
    for name, options in FORMS.items():
        with h5py.File(paths[name], "w") as file:
            made = file.create_dataset("x", values.shape, "f4", **options)
            made[:40], made[50:] = values[:40], values[50:]
            file["label"] = np.arange(SAMPLES)
        settle(paths[name])
    compress(paths["plain"], paths["ours"], "lossless")
    with h5py.File(paths["virtual"], "w") as file:
        layout = h5py.VirtualLayout(values.shape, "f4")
        layout[:] = h5py.VirtualSource(paths["plain"], "x", values.shape)
        file.create_virtual_dataset("x", layout)
        file["label"] = np.arange(SAMPLES)
    settle(paths["virtual"])
    return paths


def digest_of(batches: Any) -> str:
    digest = Digest()
    for batch in batches:
        digest.add([batch])
    found: str = digest.found()["digest"]
    return found


def by_h5py(path: str, skip: int = 0) -> str:
    """What the epoch is, read by h5py alone, without its first steps."""
    batches = []
    with h5py.File(path) as file:
        x, labels = file["x"], file["label"]
        order = BatchSampler(PlanSampler(range(SAMPLES), 1, 0, seed=SEED), STEP, False)
        for rows in [*order][skip:]:
            values = torch.from_numpy(np.stack([x[row] for row in rows]))
            batches.append({"x": values, "label": torch.tensor([int(labels[row]) for row in rows])})
    return digest_of(batches)


@pytest.fixture(scope="module")
def wanted(files: dict[str, str]) -> str:
    return by_h5py(files["plain"])


def loader_of(path: str, loading: dict[str, Any] | None = None, **reading: Any) -> Any:
    data = H5Dataset(path, {"x": "x", "label": "label"}, **reading)
    sampler = PlanSampler(data, 1, 0, seed=SEED)
    return DataLoader(data, STEP, sampler=sampler, **{"buffer": 0, **(loading or {})})


def epoch(path: str, loading: dict[str, Any] | None = None, **reading: Any) -> str:
    loader = loader_of(path, loading, **reading)
    try:
        return digest_of(loader)
    finally:
        loader.close()


def restarted(path: str, stops: int, buffer: Any) -> str:
    """By loaders each of which gives a few steps and leaves its state, as JSON, to the next."""
    digest, state = Digest(), None
    while True:
        loader = loader_of(path, {"buffer": buffer})
        if state is not None:
            loader.load_state_dict(json.loads(state))
        steps = 0
        for batch in loader:
            digest.add([batch])
            steps += 1
            if steps == stops:
                break
        state = json.dumps(loader.state_dict())
        loader.close()
        if steps < stops:
            found: str = digest.found()["digest"]
            return found


def unchanged(sample: Any) -> Any:
    """A transform."""
    return sample


WAYS: dict[str, Callable[[str], str]] = {
    "as it comes": epoch,
    "a small buffer": lambda path: epoch(path, {"buffer": "400kB"}),
    "a buffer for all": lambda path: epoch(path, {"buffer": "4MiB", "epochs": 2}),
    "past the page cache": lambda path: epoch(path, page_cache=False),
    "past the page cache, into a buffer": lambda path: epoch(path, {"buffer": "400kB"}, page_cache=False),
    "through the page cache, mapped": lambda path: epoch(path, page_cache=True),
    "many batches ahead": lambda path: epoch(path, {"ahead": 9}),
    "samples that can be skipped": lambda path: epoch(path, {"on_error": "skip"}),
    "through a transform in threads": lambda path: epoch(
        path, {"num_workers": 2}, transform=unchanged, thread_safe=True
    ),
    "left and resumed again and again": lambda path: restarted(path, 3, 0),
    "left and resumed, with a buffer": lambda path: restarted(path, 9, "400kB"),
}
ENGINES = [(1, "pread"), (5, "pread"), *([(3, "uring")] if uring_works() else [])]


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("form", [*FORMS, "ours", "virtual"])
@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_is_the_same_however_it_is_stored_and_read(
    way: str, form: str, files: dict[str, str], wanted: str
) -> None:
    assert WAYS[way](files[form]) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "backend"), ENGINES)
def test_an_epoch_is_the_same_by_any_number_of_threads_and_any_way_to_read(
    threads: int, backend: str, files: dict[str, str], wanted: str
) -> None:
    with engine(threads, backend):
        found = {
            (form, cached): epoch(path, page_cache=cached) for form, path in files.items() for cached in (None, False)
        }
    assert set(found.values()) == {wanted}


@pytest.mark.slow
def test_one_two_and_four_ranks_make_the_same_epoch_and_go_on_with_each_others(
    files: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    state, rest = tmp_path / "state.json", by_h5py(files["plain"], STOP)
    first = loader_of(files["zipped"], {"buffer": "400kB"})
    for _ in zip(range(STOP), first, strict=False):
        pass
    state.write_text(json.dumps(first.state_dict()))
    first.close()
    for ranks in (2, 4):
        [found] = mpi_kit.under_mpi(ranks, PROGRAM, files["zipped"], state, STEP, STOP)
        assert found.pop("the rest") == rest
        assert len(found) >= 3
        assert set(found.values()) == {wanted}, found
    last = loader_of(files["ours"])
    last.load_state_dict(json.loads(state.read_text()))
    assert digest_of(last) == rest
    last.close()
