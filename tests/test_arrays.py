"""solar.arrays: the batches of DataLoader as numpy arrays, bit for bit, in programs that never import torch."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import broken_file
from mpi_kit import under_mpi
from ragged_kit import KINDS, data_of

from solar import CodecError, Crops, DataLoader, Field, H5Dataset, PlanError, PlanSampler, ReadError, Windows, World
from solar.arrays import NOT_OF_ARRAYS, Loader
from solar.io.system.waiting import WaitTimeout
from solar.samples.pending import PendingBatch

ROWS = 1003  # of which a buffer of 60 KiB holds a part


@pytest.fixture
def path(tmp_path: Path) -> str:
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["x"] = rng.random((ROWS, 6, 4), "f4")
        file.create_dataset("z", data=rng.integers(0, 99, (ROWS, 5)), chunks=(7, 5), compression="gzip")
        file["y"] = np.arange(ROWS)
        file["name"] = [f"sample {number}" for number in range(ROWS)]
        file["volume"] = rng.random((24, 16, 16), "f4")
        file["gain"] = np.float32(2)
    return str(tmp_path / "scan.h5")


def scaled(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": sample["x"] * rng.random(), "y": (int(sample["y"]), "text"), "seen": sample["y"] > 500}


def drawn(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] + np.random.rand(), "y": sample["y"]}


DATA: dict[str, Callable[[str], H5Dataset]] = {
    "rows": lambda path: H5Dataset(path, {"x": "x", "y": "y"}),
    "a tuple": lambda path: H5Dataset(path, ("x", {"z": "z"})),
    "one field": lambda path: H5Dataset(path, "z"),
    "text": lambda path: H5Dataset(path, {"x": "x", "name": "name"}),
    "converted": lambda path: H5Dataset(path, (Field("z", dtype="float32", mean=3, std=2), Field("x", axes=(1, 0)))),
    "windows": lambda path: H5Dataset(path, {"x": Field("x", steps=[-1, 0, 2]), "y": "y"}),
    "every second window": lambda path: H5Dataset(path, Field("x", steps=[0, 1]), samples=Windows(every=2)),
    "boxes": lambda path: H5Dataset(path, "volume", samples=Crops((8, 8, 8), at="random", per=20, seed=3)),
    "a constant": lambda path: H5Dataset(path, {"x": "x", "gain": Field("gain", constant=True)}),
    "masked": lambda path: H5Dataset(path, {"x": "x", "y": "y"}, where=("y", lambda y: y % 3 > 0)),
    "a transform": lambda path: H5Dataset(path, {"x": "x", "y": "y"}, transform=scaled),
    "a transform that draws": lambda path: H5Dataset(path, {"x": "x", "y": "y"}, transform=drawn),
}


def alike(ours: Any, torchs: Any) -> None:
    """Checks that a batch has the values, the types and the structure of torch's."""
    if isinstance(ours, dict):
        assert list(ours) == list(torchs)
        for key, part in ours.items():
            alike(part, torchs[key])
    elif isinstance(ours, tuple):
        for part, other in zip(ours, torchs, strict=True):
            alike(part, other)
    elif isinstance(torchs, torch.Tensor):
        assert ours.dtype == torchs.numpy().dtype
        assert ours.shape == tuple(torchs.shape)
        assert ours.tobytes() == torchs.numpy().tobytes()
    else:
        assert list(ours) == list(torchs)


def torchs_batches(data: Any, size: int, epoch: int, ranks: int = 1, rank: int = 0, **options: Any) -> list[Any]:
    sampler = PlanSampler(data, ranks, rank, seed=5)
    with DataLoader(data, size, sampler=sampler, exchange="off", buffer=0, **options) as loader:
        loader.set_epoch(epoch)
        return list(loader)


@pytest.mark.every_case
@pytest.mark.parametrize("options", [{}, {"buffer": "60KiB"}, {"buffer": 0, "ahead": 1}], ids=str)
@pytest.mark.parametrize("kind", DATA)
def test_batches_are_those_of_dataloader_in_every_epoch(path: str, kind: str, options: dict[str, Any]) -> None:
    data = DATA[kind](path)
    if kind == "boxes" and "buffer" in options:
        options = options | {"buffer": "250KiB"}  # its batches take more
    with Loader(data, 8, shuffle=True, seed=5, **options) as loader:
        for epoch in range(3):  # each whole epoch moves on to the next
            ours = list(loader)
            assert len(ours) == len(loader)
            for mine, other in zip(ours, torchs_batches(data, 8, epoch), strict=True):
                alike(mine, other)
        assert loader.stats()["samples"] == 3 * len(data)
        assert loader.stats()["epochs"] == 3
    assert loader.stats()["resident_bytes"] == 0


@pytest.mark.every_case
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_unequal_length_come_as_the_arrays_that_torchs_are_made_of(kind: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path / "a.h5")
    for options in ({}, {"buffer": "80KiB"}):
        with Loader(data, 7, shuffle=True, seed=5, **options) as loader:
            for ours, torchs in zip(loader, torchs_batches(data, 7, 0), strict=True):
                alike(ours["y"], torchs["y"])
                x = torchs["x"]
                if kind == "jagged":
                    x = (x.values(), x.offsets())
                elif kind == "csr":
                    x = (x.values(), x.col_indices(), x.crow_indices().to(torch.int64))
                alike(ours["x"], tuple(x) if kind in ("flat", "padded") else x)


def test_ragged_samples_that_a_transform_made_are_put_together_too(tmp_path: Path) -> None:
    plain = data_of("flat", tmp_path / "a.h5")
    data = H5Dataset(plain.layouts["x"].paths[0], {"x": _ragged("flat")}, transform=lambda sample: sample)
    for ours, torchs in zip(Loader(data, 7), list(DataLoader(data, 7)), strict=True):
        alike(ours["x"], tuple(torchs["x"]))


def _ragged(batch: Any) -> Any:
    from solar import Ragged

    return Ragged("v", ends="ends", batch=batch)


def test_bfloat16_has_torchs_bits(path: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = H5Dataset(path, Field("x", dtype="bfloat16"))
    for ours, torchs in zip(Loader(data, 8), DataLoader(data, 8), strict=True):
        assert ours.dtype == ml_dtypes.bfloat16
        assert ours.view(np.int16).tobytes() == torchs.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_ranks_have_what_dataloader_gives_them(path: str, tail: Any) -> None:
    data = DATA["rows"](path)
    for rank in range(3):
        sampler = PlanSampler(data, 3, rank, seed=5, tail=tail)
        torchs = DataLoader(data, 4, sampler=PlanSampler(data, 3, rank, seed=5, tail=tail), exchange="off")
        for ours, other in zip(Loader(data, 4, sampler=sampler), torchs, strict=True):
            alike(ours, other)
        if tail == "pad":
            by_world = Loader(data, 4, shuffle=True, seed=5, world=World(rank, 3))
            for ours, other in zip(by_world, torchs, strict=True):
                alike(ours, other)


@pytest.mark.parametrize("options", [{}, {"buffer": "60KiB"}], ids=str)
def test_an_epoch_goes_on_at_other_ranks_and_in_either_loader(path: str, options: dict[str, Any]) -> None:
    data = DATA["rows"](path)
    loader = Loader(data, 8, shuffle=True, seed=5, **options)
    loader.set_epoch(4)
    begun = [batch["y"] for batch in islice(loader, 5)]
    state = json.loads(json.dumps(loader.state_dict()))
    whole = [batch["y"].numpy() for batch in torchs_batches(data, 8, 4)]
    assert np.array_equal(np.concatenate(begun), np.concatenate(whole[:5]))

    resumed = Loader(data, 8, shuffle=True, seed=5, **options)
    resumed.load_state_dict(state)
    assert np.array_equal(np.concatenate([batch["y"] for batch in resumed]), np.concatenate(whole[5:]))
    assert resumed.state_dict()["epoch"] == 5  # the next one, from its beginning
    assert len(list(resumed)) == len(resumed)

    torchs = DataLoader(data, 8, sampler=PlanSampler(data, 1, 0, seed=5))
    torchs.load_state_dict(state)
    assert np.array_equal(np.concatenate([batch["y"].numpy() for batch in torchs]), np.concatenate(whole[5:]))

    left = []
    for rank in range(3):
        part = Loader(data, 8, sampler=PlanSampler(data, 3, rank, seed=5, tail="exact"), **options)
        part.load_state_dict(state)
        left += [number for batch in part for number in batch["y"].tolist()]
    assert sorted(left) == sorted(np.concatenate(whole[5:]).tolist())


def test_a_loop_that_is_left_holds_nothing_and_the_epoch_can_be_begun_again(path: str) -> None:
    data = DATA["rows"](path)
    for options in ({}, {"buffer": "60KiB"}):
        loader = Loader(data, 8, shuffle=True, seed=5, **options)
        first = next(iter(loader))
        again = list(loader)
        alike(first["y"], torch.from_numpy(again[0]["y"]))
        assert len(again) == len(loader)
        loader.close()
        assert loader.stats()["resident_bytes"] == 0


def test_each_batch_has_memory_of_its_own(path: str) -> None:
    for options in ({}, {"buffer": "60KiB"}):
        with Loader(DATA["rows"](path), 8, **options) as loader:
            batches = list(loader)
            for batch in batches:
                batch["x"][:] = 0  # and may be written to
            assert not any(np.shares_memory(batches[0]["x"], batch["x"]) for batch in batches[1:])


def test_an_error_ends_the_epoch_and_a_state_names_the_batch_that_failed(tmp_path: Path) -> None:
    path = str(broken_file(tmp_path))
    loader, seen = Loader(H5Dataset(path, "x"), 4), []
    with pytest.raises(CodecError, match="sample 217"):
        seen.extend(int(batch[0, 0]) for batch in loader)
    assert seen == list(range(0, 216, 4))
    state = loader.state_dict()
    assert (state["batches"], state["samples"]) == (54, 216)
    assert loader.stats()["resident_bytes"] == 0
    again = Loader(H5Dataset(path, "x"), 4)
    again.load_state_dict(state)
    with pytest.raises(CodecError, match="sample 217"):
        next(iter(again))


def test_a_file_that_was_replaced_is_an_error(path: str) -> None:
    loader = Loader(DATA["rows"](path), 8)
    list(loader)
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.zeros((ROWS, 6, 4), "f4"), np.arange(ROWS)
    with pytest.raises(ReadError, match=r"changed|replaced"):
        list(loader)


def test_a_batch_that_does_not_come_in_time_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: PendingBatch, seconds: float | None = None) -> Any:
        assert seconds == 0.5
        raise WaitTimeout("3 of 4 requests are missing")

    monkeypatch.setattr(PendingBatch, "arrived", late)
    loader = Loader(H5Dataset(path, Field("z", dtype="float32")), 8, timeout=0.5, buffer=0)
    with pytest.raises(ReadError, match=r"batch 0 of .* did not come in 0\.5 s: 3 of 4"):
        next(iter(loader))


def test_samples_that_make_no_array_are_refused_in_words(path: str) -> None:
    data = H5Dataset(path, "x", transform=lambda x: x[: int(x[0, 0] * 6)])
    with pytest.raises(ValueError, match="do not make one array"):
        list(Loader(data, 16))


def test_the_example_of_the_loader_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tried = [doctest.DocTestRunner().run(one) for one in doctest.DocTestFinder().find(Loader, "Loader")]
    assert (sum(one.attempted for one in tried), sum(one.failed for one in tried)) == (6, 0)


def test_the_page_has_a_row_for_every_argument() -> None:
    page = (Path(__file__).parent.parent / "docs" / "arrays.md").read_text()
    rows = page.partition("| argument | means |")[2].partition("\n\n")[0].splitlines()
    listed = [name for row in rows[2:] for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert sorted(listed) == sorted(inspect.signature(Loader).parameters.keys() - {"others"})


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": [1, 2]}, "solar.PlanSampler"),
        ({"ahead": 0}, "at least one batch"),
        ({"timeout": -1}, "number of seconds"),
        ({"batch_size": 0}, "positive integer"),
        ({"buffer": "much"}, "buffer"),
        ({"epochs": 0}, "at least one"),
        ({"epochs": 2.5}, "epochs=2.5: it is a whole number"),
        ({"seed": "x"}, "seed='x': it is a whole number"),
        ({"ahead": "x"}, "ahead='x': it is a number of batches"),
        ({"timeout": None}, "timeout=None: it is a number of seconds"),
        ({"world": 3}, "world=3: it is a solar.World"),
        ({"shuffled": True}, "takes no shuffled=; did you mean shuffle="),
        ({"colour": True}, "solar.arrays.Loader takes no colour=$"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(path: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Loader(H5Dataset(path, "x"), **options)


@pytest.mark.every_case
@pytest.mark.parametrize("name", NOT_OF_ARRAYS)
def test_habits_of_others_are_told_what_takes_their_place(path: str, name: str) -> None:
    data = H5Dataset(path, "x")
    with pytest.raises(PlanError, match=re.escape(f"solar.arrays.Loader takes no {name}=4: {NOT_OF_ARRAYS[name]}")):
        Loader(data, 4, **{name: 4})
    for nothing in (None, False, 0):
        assert len([*Loader(data, 30, **{name: nothing})]) == -(-len(data) // 30)
    named = re.findall(r"\b(\w+)=", NOT_OF_ARRAYS[name].partition("solar.")[0])
    assert {*named} <= {*inspect.signature(Loader).parameters}


def test_the_last_batch_is_smaller_and_ranks_have_as_many_samples(path: str) -> None:
    data = H5Dataset(path, "x")
    count = len(data)
    batch = next(size for size in range(4, count) if count % size)
    ranks = next(ranks for ranks in range(3, count) if count % ranks)
    assert [len(one) for one in Loader(data, batch)] == [batch] * (count // batch) + [count % batch]
    assert [len(one) for one in Loader(data, batch, drop_last=True)] == [batch] * (count // batch)

    def seen(**more: Any) -> list[np.ndarray[Any, Any]]:
        world = [World(rank, ranks) for rank in range(ranks)]
        loaders = [Loader(data, count, world=one) for one in world] if not more else [
            Loader(data, count, sampler=PlanSampler(data, ranks, rank, False, **more)) for rank in range(ranks)
        ]  # fmt: skip
        return [batch for loader in loaders for batch in loader]

    padded, whole = seen(), data.read_batch(range(count))
    assert {len(one) for one in padded} == {-(-count // ranks)}
    assert all(np.array_equal(one, whole[np.arange(rank, rank + ranks * len(one), ranks) % count])
               for rank, one in enumerate(padded))  # fmt: skip
    assert {len(one) for one in seen(tail="drop")} == {count // ranks}
    assert sum(len(one) for one in seen(tail="exact")) == count


def test_what_needs_torch_says_so_without_it(path: str) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, solar
from solar import H5Dataset, PlanSampler
from solar.arrays import Loader
data = H5Dataset({path!r}, "x")
for name, more in (("DataLoader", "; solar.arrays.Loader needs none"), ("Mixture", "")):
    try:
        getattr(solar, name)
    except ModuleNotFoundError as error:
        assert str(error) == f"solar.{{name}} needs PyTorch, which is not installed: pip install torch{{more}}", error
    else:
        raise AssertionError(name)
try:
    from solar import DataLoader
except ImportError as error:
    assert "pip install torch" in str(error)
assert sum(map(len, Loader(data, 7, shuffle=True))) == len(data)
try:
    [*Loader(data, 7, shuffle=True, seed=-1)]
except solar.PlanError as error:
    assert "pip install torch, or give a seed from 0 on" in str(error)
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_sampler_has_its_own_seed_and_ranks_and_a_dataset_is_an_h5dataset(path: str) -> None:
    data = H5Dataset(path, "x")
    for more in ({"seed": 3}, {"shuffle": True}, {"world": World(0, 2)}):
        with pytest.raises(ValueError, match="belong to the sampler"):
            Loader(data, sampler=PlanSampler(data, 1, 0), **more)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list is not an H5Dataset"):
        Loader([1, 2, 3])
    part = torch.utils.data.Subset(data, [5, 3])
    assert [batch.shape for batch in Loader(part, 2)] == [(2, 6, 4)]


def test_other_libraries_take_the_arrays_without_a_copy(path: str) -> None:
    batch = next(iter(Loader(H5Dataset(path, "x"), 8)))
    there = torch.from_dlpack(batch)
    there[0, 0, 0] = 77
    assert batch[0, 0, 0] == 77


def test_jax_computes_while_the_next_batch_is_put_on_the_device(path: str) -> None:
    jax = pytest.importorskip("jax")

    def ahead(batches: Iterator[Any]) -> Iterator[Any]:
        put = None
        for batch in batches:
            before, put = put, jax.device_put(batch)
            if before is not None:
                yield before
        if put is not None:
            yield put

    loader = Loader(DATA["rows"](path), 8, shuffle=True, seed=5)
    step = jax.jit(lambda batch: batch["x"].sum(axis=(1, 2)) + batch["y"])
    ours = np.concatenate([np.asarray(step(batch)) for batch in ahead(iter(loader))])
    plain = [batch["x"].sum(axis=(1, 2)) + batch["y"] for batch in Loader(DATA["rows"](path), 8, shuffle=True, seed=5)]
    assert np.allclose(ours, np.concatenate(plain), atol=1e-4)
    taken = jax.numpy.from_dlpack(next(iter(Loader(H5Dataset(path, "x"), 8))))
    assert taken.shape == (8, 6, 4)


# --- without torch ----

PROGRAM = """
import hashlib, json, sys
from solar import Crops, Field, H5Dataset, PlanSampler, Ragged
from solar.arrays import Loader
path, ragged = sys.argv[1:]
data = {
    "rows": H5Dataset(path, {"x": "x", "y": "y"}),
    "converted": H5Dataset(path, (Field("z", dtype="float32", mean=3, std=2), Field("x", axes=(1, 0)))),
    "windows": H5Dataset(path, {"x": Field("x", steps=[-1, 0, 2]), "y": "y"}),
    "boxes": H5Dataset(path, "volume", samples=Crops((8, 8, 8), at="random", per=20, seed=3)),
    "ragged": H5Dataset(ragged, Ragged("v", ends="ends", batch="flat")),
    "rng": H5Dataset(path, {"x": "x"}, transform=lambda sample, rng: {"x": sample["x"] * rng.random()}),
}
def arrays(batch):
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else [batch]
    return [part.tobytes() for part in parts]
found = {}
for name, one in data.items():
    for buffer in (0, "250KiB" if name == "boxes" else "60KiB"):
        loader = Loader(one, 8, shuffle=True, seed=5, buffer=buffer)
        digest = hashlib.sha256()
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                for part in arrays(batch): digest.update(part)
        found[f"{name} {bool(buffer)}"] = digest.hexdigest()
loader = Loader(data["rows"], 8, sampler=PlanSampler(data["rows"], 2, 1, seed=3, labels="y", per_class="equal"))
next(iter(loader))
loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
left = len(list(loader))
loader.stats(), repr(loader), loader.close()
print(json.dumps({"torch": [name for name in sys.modules if name.partition(".")[0] == "torch"], "left": left,
                  "digests": found}))
"""


def test_whole_epochs_of_every_kind_import_no_torch_and_have_its_bits(path: str, tmp_path: Path) -> None:
    import hashlib

    ragged = data_of("flat", tmp_path / "ragged.h5").layouts["x"].paths[0]
    command = [sys.executable, "-c", PROGRAM, path, ragged]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torch"] == []
    assert found["left"] == -(-ROWS // 2 // 8) - 1
    ours = {"rows": DATA["rows"], "converted": DATA["converted"], "windows": DATA["windows"], "boxes": DATA["boxes"]}
    ours["ragged"] = lambda _: H5Dataset(ragged, _ragged("flat"))
    ours["rng"] = lambda path: H5Dataset(path, {"x": "x"}, transform=lambda s, rng: {"x": s["x"] * rng.random()})
    for name, make in ours.items():
        digest, data = hashlib.sha256(), make(path)
        for epoch in range(2):
            for batch in torchs_batches(data, 8, epoch):
                parts = (
                    batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
                )
                for part in parts:
                    digest.update(part.numpy().tobytes())
        assert {found["digests"][f"{name} {buffered}"] for buffered in (False, True)} == {digest.hexdigest()}, name


def test_datasets_and_samplers_are_torchs_as_soon_as_torch_is_imported(path: str) -> None:
    program = (
        "import pickle, sys\n"
        "from solar import H5Dataset, PlanBatchSampler, PlanSampler\n"
        "class Mine(H5Dataset):\n"
        "    def __getitem__(self, index): return super().__getitem__(index) + 1\n"
        "data, mine = H5Dataset(sys.argv[1], 'x'), Mine(sys.argv[1], 'x')\n"
        "sampler = PlanSampler(data, 1, 0, seed=3)\n"
        "steps = PlanBatchSampler(sampler, 4, False)\n"
        "order = list(sampler)\n"
        "kept = pickle.dumps((data, sampler, steps))\n"
        "finders = len(sys.meta_path)\n"
        "assert 'torch' not in sys.modules\n"
        "from torch.utils import data as torchs\n"
        "assert len(sys.meta_path) < finders or all(type(one).__name__ != 'TorchFinder' for one in sys.meta_path)\n"
        "data2, sampler2, steps2 = pickle.loads(kept)\n"
        "for one in (data, mine, data2): assert isinstance(one, torchs.Dataset)\n"
        "for one in (sampler, sampler2):\n"
        "    assert isinstance(one, torchs.Sampler) and isinstance(one, torchs.DistributedSampler)\n"
        "for one in (steps, steps2): assert isinstance(one, torchs.BatchSampler)\n"
        "assert H5Dataset.__mro__[1] is torchs.Dataset and issubclass(PlanSampler, torchs.Sampler)\n"
        "assert isinstance(data + mine, torchs.ConcatDataset)\n"
        "theirs = torchs.DistributedSampler(data, 1, 0, seed=3)\n"
        "assert order == list(theirs) == list(sampler) == list(sampler2)\n"
        "from solar import DataLoader\n"
        "batch = next(iter(DataLoader(data2, 4, sampler=sampler2)))\n"
        "assert next(iter(torchs.DataLoader(data, 4, sampler=theirs))).equal(batch)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_in_a_program_with_torch_they_are_torchs_from_the_beginning() -> None:
    assert H5Dataset.__mro__[1] is torch.utils.data.Dataset
    assert PlanSampler.__mro__[1] is torch.utils.data.DistributedSampler


def test_ranks_of_mpi_share_a_buffer_without_torch(path: str) -> None:
    program = (
        "import json, sys\n"
        "from mpi4py import MPI\n"
        "from solar import H5Dataset\n"
        "from solar.arrays import Loader\n"
        "loader = Loader(H5Dataset(sys.argv[1], {'x': 'x', 'y': 'y'}), 4, shuffle=True, seed=5, buffer='400KiB')\n"
        "numbers = [batch['y'].tolist() for batch in loader]\n"
        "read = loader.stats()['bytes']\n"
        "loader.close()\n"
        "print(json.dumps([numbers, read, 'torch' in sys.modules]))\n"
    )
    found = under_mpi(2, program, path, fresh=True)
    data = DATA["rows"](path)
    for rank, (numbers, _, with_torch) in enumerate(found):
        assert numbers == [batch["y"].tolist() for batch in torchs_batches(data, 4, 0, 2, rank)]
        assert not with_torch
    assert sum(read for _, read, _ in found) <= 1.5 * ROWS * (6 * 4 * 4 + 8)  # alone, each would read all of it
