"""Grain's pipelines over H5Datasets: its contracts for sources, its order, its checkpoints, its workers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar import Field, H5Dataset, PlanError, Ragged

pytest.importorskip("grain")

import grain

from solar.integrations.grain import Source, batches

SAMPLES = 50


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((SAMPLES, 3, 2), "f4")
        file["y"] = np.arange(SAMPLES)
        file["name"] = [f"sample {number}" for number in range(SAMPLES)]
        file["v"], file["ends"] = np.arange(60.0), np.cumsum([0, 1, 2, 3] * 10)
    return str(tmp_path / "a.h5")


@pytest.fixture
def data(path: str) -> H5Dataset:
    return H5Dataset(path, {"x": "x", "y": "y"})


def test_a_source_keeps_grains_contract(data: H5Dataset, path: str) -> None:
    source = Source(data)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == SAMPLES
    sample = source[np.int64(7)]
    assert sample["x"].tobytes() == data[7]["x"].tobytes()
    assert int(sample["y"]) == 7
    for one, index in zip(source._getitems([5, 3, 5]), (5, 3, 5), strict=True):
        assert int(one["y"]) == index
        assert one["x"].tobytes() == data[index]["x"].tobytes()
    copied = pickle.loads(pickle.dumps(source))
    assert repr(copied) == repr(source)  # Grain compares it with that of a checkpoint
    assert int(copied[11]["y"]) == 11
    with pytest.raises(IndexError):
        source[SAMPLES]
    with h5py.File(path, "r+") as file:
        file.create_dataset("w", data=np.arange(SAMPLES), chunks=(5,))
    assert repr(Source(H5Dataset(path, "w"))) != repr(Source(H5Dataset(path, "y")))


def test_text_and_samples_of_unequal_length_are_samples_too(path: str) -> None:
    source = Source(H5Dataset(path, "name"))
    assert source[3] == H5Dataset(path, "name")[3]
    ragged = H5Dataset(path, {"v": Ragged("v", ends="ends", batch="flat")})
    assert np.asarray(Source(ragged)[3]["v"]).tolist() == [3.0, 4.0, 5.0]
    first = batches(ragged, 4)[0]
    assert [part.tolist() for part in first["v"]] == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 3, 6]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_grains_own_pipeline(data: H5Dataset, shuffle: bool) -> None:
    for drop in (False, True):
        plain = grain.MapDataset.source(Source(data))
        plain = plain.shuffle(seed=4) if shuffle else plain
        theirs = list(plain.batch(8, drop_remainder=drop))
        ours = list(batches(data, 8, shuffle=shuffle, seed=4, drop_remainder=drop))
        assert len(ours) == len(theirs) == (6 if drop else 7)
        for one, other in zip(ours, theirs, strict=True):
            assert one["x"].tobytes() == other["x"].tobytes()
            assert one["y"].tolist() == other["y"].tolist()


def test_a_batch_is_read_with_one_call(data: H5Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    start = H5Dataset.start_batch
    monkeypatch.setattr(
        H5Dataset, "start_batch", lambda self, numbers: asked.append(len(numbers)) or start(self, numbers)
    )
    list(batches(data, 8, shuffle=True))
    assert sorted(asked) == [2] + [8] * 6  # in the order of Grain's threads


def test_an_iterator_goes_on_from_its_checkpoint(data: H5Dataset) -> None:
    made = batches(data, 8, shuffle=True, seed=4).repeat(2).to_iter_dataset(grain.ReadOptions(num_threads=2))
    whole = [batch["y"].tolist() for batch in made]
    iterator = iter(made)
    for _ in range(3):
        next(iterator)
    state, again = iterator.get_state(), iter(made)
    again.set_state(state)
    assert [batch["y"].tolist() for batch in again] == whole[3:]


PROGRAM = """
import sys, grain
from absl import flags
from solar import H5Dataset
from solar.integrations.grain import Source, batches

def main():
    flags.FLAGS.mark_as_parsed()  # which absl.app.run does
    data = H5Dataset(sys.argv[1], {"x": "x", "y": "y"})
    made = batches(data, 8, shuffle=True, seed=4).to_iter_dataset()
    two = made.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert sorted(number for batch in two for number in batch["y"].tolist()) == list(range(len(data)))
    plan = grain.samplers.IndexSampler(len(data), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(data_source=Source(data), sampler=plan, worker_count=2)
    assert sorted(int(sample["y"]) for sample in loader) == list(range(len(data)))
    assert "torch" not in sys.modules

if __name__ == "__main__":
    main()
"""


def test_workers_read_it_and_no_torch_is_imported(path: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_a_source_cannot_keep_is_refused(path: str) -> None:
    with pytest.raises(PlanError, match=r"\.map\(transform\)"):
        Source(H5Dataset(path, "x", transform=lambda x: x))
    with pytest.raises(TypeError, match="list is not an H5Dataset"):
        Source([1, 2])  # type: ignore[arg-type]

    class Mine(H5Dataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) + 1

    with pytest.raises(TypeError, match="makes its samples itself"):
        Source(Mine(path, "x"))


def test_fields_are_converted(path: str) -> None:
    data = H5Dataset(path, Field("x", mean=1, std=2))
    assert batches(data, 4)[0].tobytes() == data.read_batch(range(4)).tobytes()
