"""Groups as samples: each is h5py's `file[group][name][()]`, for the groups in order of name."""

from __future__ import annotations

import gc
import pickle
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from groups_kit import cases, oracle, written
from hypothesis import given, settings
from kit import settle
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import (
    CSR,
    CodecError,
    DataLoader,
    Field,
    H5Dataset,
    LayoutError,
    PlanError,
    PlanSampler,
    Ragged,
    SolarError,
    Windows,
    _native,
)
from solar.io.hdf5 import groups as groups_of_files
from solar.samples.ragged_batch import RaggedBatch

FIELDS = {"x": "coords", "y": "energy"}
UNLIKE, ALIKE = [3, 0, 5, 1, 2, 2, 4, 1, 3, 2, 6, 2], [4] * 12


def same(got: Any, expected: Any) -> bool:
    """Whether two batches have the same values."""
    if isinstance(got, dict):
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in got)
    if isinstance(got, torch.Tensor) and got.is_nested:
        return len(got) == len(expected) and all(map(torch.equal, got.unbind(), expected.unbind()))
    return torch.equal(got, expected)


def all_same(got: Any, expected: Any) -> bool:
    return len(got) == len(expected) and all(map(same, got, expected))


@settings(max_examples=80, deadline=None)
@given(cases())
def test_a_sample_is_what_h5py_reads_of_a_group(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        written(path, **case)
        for samples in ("groups", "/molecules/*"):
            data = H5Dataset(path, {**FIELDS, "deep": "more/deep"}, samples=samples, cache=None)
            assert len(data) == len(case["rows"])
            expected = {key: oracle(path, name) for key, name in {**FIELDS, "deep": "more/deep"}.items()}
            for number, sample in enumerate(data):
                for key, values in expected.items():
                    assert sample[key].dtype == values[number].dtype.newbyteorder("=")
                    assert np.array_equal(sample[key], values[number])
            order = np.random.default_rng(0).integers(0, len(data), 20)
            batch = data.read_batch(order)["x"]
            values = batch.values if isinstance(batch, RaggedBatch) else batch
            assert np.array_equal(values.reshape(-1, 3), np.concatenate([expected["x"][i] for i in order]))


@pytest.mark.parametrize("rows", [UNLIKE, ALIKE], ids=["unlike", "alike"])
@pytest.mark.parametrize("stored", ["contiguous", "gzip"])
def test_batches_are_torchs_also_of_parts_and_of_several_files(rows: list[int], stored: str, tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        written(tmp_path / f"{name}.h5", [*rows[number:], *rows[:number]], stored)
    one = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups", transform=doubled)
    both = H5Dataset(str(tmp_path / "*.h5"), FIELDS, samples="groups")
    joined = ConcatDataset([H5Dataset(tmp_path / f"{name}.h5", FIELDS, samples="/molecules/*") for name in "ab"])
    for data in (one, both, Subset(both, range(20, 3, -2)), joined):
        torch.manual_seed(1)
        expected = list(TorchLoader(data, 5, shuffle=True))
        torch.manual_seed(1)
        assert all_same(list(DataLoader(data, 5, shuffle=True)), expected)
    values = [*oracle(tmp_path / "a.h5", "coords"), *oracle(tmp_path / "b.h5", "coords")]
    assert all(np.array_equal(sample["x"], value) for sample, value in zip(both, values, strict=True))


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] * 2, "y": sample["y"]}


@pytest.mark.parametrize("rows", [UNLIKE, ALIKE], ids=["unlike", "alike"])
def test_ranks_share_them_and_a_state_resumes(rows: list[int], tmp_path: Path) -> None:
    written(tmp_path / "a.h5", rows)
    data = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")

    def loader(ranks: int, rank: int) -> DataLoader:
        return DataLoader(data, 4 // ranks, sampler=PlanSampler(data, ranks, rank, seed=3, tail="exact"))

    one = loader(1, 0)
    begun = iter(one)
    taken = next(begun)["y"].tolist()
    state = pickle.loads(pickle.dumps(one.state_dict()))
    for rank in range(2):
        other = loader(2, rank)
        other.load_state_dict(state)
        taken += [value for batch in other for value in batch["y"].tolist()]
    assert sorted(taken) == list(range(12))


@pytest.mark.parametrize("stored", ["contiguous", "gzip", "own chunks"])
def test_a_buffer_holds_those_of_one_shape(stored: str, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [4] * 60, stored)
    data = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")
    torch.manual_seed(1)
    expected = [batch for _ in range(3) for batch in TorchLoader(data, 8, shuffle=True)]
    for buffer in ("24KiB", "1MiB"):
        torch.manual_seed(1)
        with DataLoader(data, 8, shuffle=True, buffer=buffer, epochs=3) as loader:
            assert all_same([batch for _ in range(3) for batch in loader], expected)
            stats = loader.stats()
    assert stats["buffer_hits"] >= 2 * 60  # of both fields: each group is read once


def test_a_buffer_of_rows_that_chunks_cut_is_refused_in_words(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", UNLIKE, "gzip")
    data = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")
    with pytest.raises(PlanError, match="has chunks across its rows"):
        next(iter(DataLoader(data, 4, buffer="1MiB")))
    assert len(list(DataLoader(data, 4))) == 3


def test_forms_of_a_batch_are_those_of_ragged(tmp_path: Path) -> None:
    for name, rows in (("unlike", [2, 1, 2]), ("alike", [2, 2, 2])):
        written(tmp_path / f"{name}.h5", rows)
        padded = H5Dataset(tmp_path / f"{name}.h5", Ragged("coords", batch="padded", length=4), samples="groups")
        ((values, mask),) = DataLoader(padded, 3)
        assert values.shape == (3, 4, 3) and mask.sum(dim=1).tolist() == rows
    field = Field("coords", dtype="float64", mean=1.0)
    half = H5Dataset(tmp_path / "alike.h5", field, samples="groups")
    assert np.array_equal(half[1], oracle(tmp_path / "alike.h5", "coords")[1].astype("f8") - 1)
    with pytest.raises(LayoutError, match="a Field does not convert such samples"):
        H5Dataset(tmp_path / "unlike.h5", field, samples="groups")


def test_patterns_choose_groups_and_names_lie_as_h5py_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("train/b1/m2", "train/b1/m10", "train/a1/m3", "test/b1/m1", "m0"):
            file[f"{name}/x"] = len(name)
            file[f"{name}/name"] = np.array(name.encode(), "S12")
    names = {
        "/train/*/*": ["train/a1/m3", "train/b1/m10", "train/b1/m2"],
        "/t*/b1/m1*": ["test/b1/m1", "train/b1/m10"],
        "/*": ["m0"],
        "/train/b1/m2": ["train/b1/m2"],
        "groups": ["m0", "test/b1/m1", "train/a1/m3", "train/b1/m10", "train/b1/m2"],
    }
    for samples, expected in names.items():
        if samples == "/*":  # test and train have none of it
            with pytest.raises(LayoutError, match=r"a\.h5: /test/x: there is no such dataset in this group"):
                H5Dataset(path, "x", samples=samples)
            continue
        data = H5Dataset(path, {"x": "x", "name": "name"}, samples=samples)
        assert [sample["name"].decode() for sample in data] == expected
    visited: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, one: visited.append(name) if "x" in getattr(one, "keys", list)() else None)
    assert visited == names["groups"]


# --- the cache ----


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose groups were gone through."""
    looked: list[str] = []
    look = _native.read_groups
    monkeypatch.setattr(_native, "read_groups", lambda path, *more: looked.append(path) or look(path, *more))
    monkeypatch.setattr(groups_of_files, "GROUPS_WORTH_KEEPING", 5)
    return looked


@pytest.mark.parametrize("rows", [UNLIKE, ALIKE], ids=["unlike", "alike"])
def test_groups_are_gone_through_once(rows: list[int], looks: list[str], tmp_path: Path) -> None:
    written(tmp_path / "a.h5", rows, "own chunks")
    first, second = (H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups") for _ in range(2))
    assert len(looks) == 1
    for name in FIELDS:
        assert first.layouts[name].digest == second.layouts[name].digest
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, second, strict=True))
    H5Dataset(tmp_path / "a.h5", FIELDS, samples="/molecules/*")
    H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups", cache=None)
    assert len(looks) == 3  # another pattern is another table
    written(tmp_path / "a.h5", [*rows, 1])
    assert len(H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")) == len(rows) + 1


def test_a_damaged_cache_is_made_anew(looks: list[str], tmp_path: Path) -> None:
    written(tmp_path / "a.h5", UNLIKE)
    expected = oracle(tmp_path / "a.h5", "coords")
    H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")
    (kept,) = (tmp_path / "cache" / "solar").glob("*.index")
    content = kept.read_bytes()
    for at in (*range(0, len(content), 97), -1):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        kept.write_bytes(damaged if at >= 0 else content[: len(content) // 2])
        data = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")
        assert all(np.array_equal(sample["x"], one) for sample, one in zip(data, expected, strict=True))


def test_a_group_has_no_object_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for i in range(3000):
            group = file.create_group(f"g{i}")
            group["x"], group["y"] = np.zeros(1 + i % 3), i
    gc.collect()
    before = len(gc.get_objects())
    data = H5Dataset(path, {"x": "x", "y": "y"}, samples="groups")
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    assert len(pickle.dumps(data)) < 3000 * 200


# --- what is refused, and damage ----


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ("coords", {"samples": "/nothing/*"}, "no groups whose names fit '/nothing/\\*'"),
        ("none", {}, "no groups that have none"),
        ("/coords", {}, "named from there on"),
        (Ragged("coords", ends="ends"), {}, "its length is its own"),
        (CSR("X"), {}, "a matrix is not"),
        (Field("coords", steps=(0, 1)), {}, "steps, axis, file, cf and rows"),
        ("coords", {"collective_open": True}, "leave collective_open= and reader= out"),
        ("coords", {"samples": "molecules"}, 'a pattern of groups such as "/runs/\\*"'),
        ("coords", {"samples": Windows}, r"Windows\(\.\.\.\) or Crops"),
        (Ragged("energy"), {}, "is a scalar"),
    ],
)
def test_what_groups_cannot_give_is_refused_in_words(
    fields: Any, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written(tmp_path / "a.h5", UNLIKE)
    with pytest.raises((LayoutError, ValueError), match=said):
        H5Dataset(tmp_path / "a.h5", fields, **({"samples": "groups"} | options))


def spoilt(change: Callable[[h5py.File], Any], path: Path) -> Path:
    written(path, UNLIKE)
    with h5py.File(path, "a") as file:
        change(file)
    settle(path)
    return path


def replaced(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replaced("molecules/m7/energy", None), "/molecules/m7/energy: there is no such dataset"),
        (replaced("molecules/m7/energy", "text"), "/molecules/m7/energy is object"),
        (replaced("molecules/m7/energy", 1), "/molecules/m7/energy is int64 of 0 axes"),
        (replaced("molecules/m7/energy", [1.0]), "/molecules/m7/energy: it has 1 axes, and /molecules/m0/energy has 0"),
        (replaced("molecules/m7/energy", h5py.Empty("f8")), "/molecules/m7/energy: its dataspace is null"),
        (replaced("molecules/m7/coords", np.zeros((2, 4), "f4")), r"coords has shape \(3, 3\).*\(2, 4\) in group 9"),
        (replaced("molecules/m7/energy", h5py.SoftLink("/version")), "energy: it is a link"),
        (replaced("molecules/m7", h5py.SoftLink("/molecules/m1")), "/molecules/m7: is a link"),
    ],
)
def test_a_group_unlike_the_others_is_named(change: Any, said: str, tmp_path: Path) -> None:
    path = spoilt(change, tmp_path / "a.h5")
    with pytest.raises(LayoutError, match=said):
        H5Dataset(path, FIELDS, samples="/molecules/*")


def test_a_chunk_that_cannot_be_decoded_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", UNLIKE, "gzip")
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["molecules/m8/coords"].id.get_chunk_info(0)
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", FIELDS, samples="groups")
    with pytest.raises(CodecError, match=r"a\.h5: \*/coords, row \d+, offset"):
        list(DataLoader(data, 4))
    with DataLoader(data, 4, on_error="skip") as loader:
        assert 8.0 not in [value for batch in loader for value in batch["y"].tolist()]


def test_groups_in_circles_end(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", ALIKE)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["molecules/m3/loop"] = file["molecules"]
        file["again"] = file["molecules/m3"]
    data = H5Dataset(tmp_path / "a.h5", "energy", samples="groups")
    assert sorted(data) == list(range(12))  # as h5py's visititems, each once


def test_damaged_bytes_end_in_an_error_or_in_groups(tmp_path: Path) -> None:
    draw = random.Random(4)
    for libver in ("earliest", "latest"):
        written(tmp_path / "a.h5", [2, 3, 1], "gzip", libver)
        whole = (tmp_path / "a.h5").read_bytes()
        failed = 0
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(draw.randint(1, 4)):
                damaged[draw.randrange(len(damaged))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
            (tmp_path / "b.h5").write_bytes(damaged)
            try:
                H5Dataset(tmp_path / "b.h5", FIELDS, samples="groups", cache=None).read_batch([0])
            except SolarError as error:
                failed += 1
                assert str(tmp_path / "b.h5") in str(error) or "coords" in str(error) or "energy" in str(error)
        assert failed > 20
