"""Samples of unequal length in a buffer: it changes no batch, and what it reads is what the plan counts."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import DISK, ORDERS, counted, equal, least_of, loader_of, passes
from hypothesis import assume, given, settings
from ragged_kit import ACROSS, KINDS, LAYOUTS, cases, data_of, matrix, plainly, sparse, written
from torch.utils.data import ConcatDataset, Subset

from solar import CSR, DataLoader, H5Dataset, PlanError, PlanSampler, Ragged, ReadError
from solar.values import Storage


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.samples.row_blocks.HELD_NBYTES", 32)


BUFFERED = ("sequential", "shuffled", "by a generator", "with replacement", "odd batches", "planned", "a list")


@pytest.mark.slow(every=11)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip"])
@pytest.mark.parametrize("order", BUFFERED)
def test_a_buffer_changes_no_batch_and_counts_are_the_plans(
    kind: str, layout: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    data = data_of(kind, tmp_path / "a.h5", layout)
    torch.manual_seed(1)
    expected = passes(DataLoader(data, **ORDERS[order](data), buffer=0), 3)
    least = least_of(lambda nbytes: loader_of(data, order, buffer=nbytes))
    for nbytes in (least, least + 1_000, least + 60_000):
        torch.manual_seed(1)
        with loader_of(data, order, buffer=nbytes, epochs=3) as loader:
            assert equal(plainly(passes(loader, 3)), plainly(expected)), nbytes
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), nbytes
            assert loader.stats()["peak_bytes"] <= nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_with_memory_for_all_each_chunk_is_decoded_once(kind: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path / "a.h5", "gzip")
    layouts = data.extents["x"].layouts
    terms = ORDERS["by a generator"](data) | {"buffer": "2MiB", "epochs": 4}
    with DataLoader(data, **terms, storage=Storage(0.0, 1e9)) as loader:
        passes(loader, 4)
        stats = loader.stats()
    each = [len(one.chunk_nbytes) * np.prod(one.forms[0].chunk) * one.dtype.itemsize for one in layouts]
    assert stats["bytes_decoded"] == sum(each)


@pytest.mark.parametrize("layout", ["gzip", "contiguous"])
def test_where_memory_holds_all_that_is_encoded_nobody_need_ask(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.buffer.buffer_size.LEAST_EPOCH_SECONDS", 0.0)
    data = data_of(KINDS[0], tmp_path / "a.h5", layout)
    terms = ORDERS["by a generator"](data)
    with DataLoader(data, **terms) as loader:
        came = passes(loader, 2)
        assert (loader._buffered.running is not None) == (layout == "gzip")
    with DataLoader(data, **ORDERS["by a generator"](data), buffer=0) as without:
        assert equal(plainly(came), plainly(passes(without, 2)))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_samples_come_of_blocks_as_they_do_of_rows(case: dict[str, Any]) -> None:
    assume(case["layout"] not in ACROSS and sum(case["lengths"]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        paths = [Path(folder) / name for name in ("a.h5", "b.h5")]
        for path in paths:
            written(path, case["lengths"], case["layout"], case["dtype"], case["row"])
        field = Ragged("v", batch="flat", **{case["told"]: case["told"]})
        data = H5Dataset([str(path) for path in paths], (field, "y"))
        torch.manual_seed(1)
        expected = passes(DataLoader(data, 3, shuffle=True, buffer=0), 2)
        torch.manual_seed(1)
        with DataLoader(data, 3, shuffle=True, buffer="1MiB", storage=DISK) as loader:
            assert equal(plainly(passes(loader, 2)), plainly(expected))
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)


def test_it_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    data = data_of("flat", tmp_path / "a.h5")
    loader = DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=2), buffer="1MiB")
    iterator = iter(loader)
    seen = [next(iterator)["y"] for _ in range(3)]
    state = loader.state_dict()
    del iterator
    loader.close()
    left = []
    for rank in range(2):
        sampler = PlanSampler(data, 2, rank, seed=2, tail="exact")
        with DataLoader(data, 4, sampler=sampler, exchange="off", buffer="1MiB") as other:
            other.load_state_dict(state)
            left += [batch["y"] for batch in other]
    assert sorted(torch.cat([*seen, *left]).tolist()) == list(range(30))


def test_a_transform_gets_the_samples(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [2, 0, 3, 1, 4, 0, 7, 2], "gzip")
    field = Ragged("v", ends="ends", batch="flat")
    data = H5Dataset(str(tmp_path / "a.h5"), field, transform=np.sort, thread_safe=True)
    found = [list(DataLoader(data, 3, buffer=buffer, num_workers=2)) for buffer in (0, "1MiB")]
    assert equal(plainly(found[0]), plainly(found[1]))


def test_a_damaged_column_is_left_out(tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", np.eye(6, 5, dtype="f4"), indices=np.array([0, 1, 9, 3, 4], "i4"))
    data = H5Dataset(str(tmp_path / "a.h5"), CSR("X"))
    with pytest.raises(ReadError, match=r"a.h5: X, sample 2: column 9"):
        list(DataLoader(data, 3, buffer="1MiB"))
    assert [len(batch) for batch in DataLoader(data, 3, buffer="1MiB", on_error="skip")] == [2, 3]


def test_what_chunks_cut_in_two_has_none(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [2, 0, 3], "tiles", row=(2,))
    with pytest.raises(PlanError, match=r"has chunks across its rows.*Leave buffer= away"):
        next(iter(DataLoader(H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends")), buffer="1MiB")))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_data_sets_are_joined_in_one_buffer(
    kind: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    parts = [data_of(kind, tmp_path / name, layout) for name in ("a.h5", "b.h5")]
    data = ConcatDataset([Subset(parts[1], list(range(0, 30, 3))), parts[0]])
    torch.manual_seed(1)
    expected = passes(DataLoader(data, 7, shuffle=True, buffer=0), 2)
    least = least_of(lambda nbytes: loader_of(data, "shuffled", buffer=nbytes))
    for nbytes in (least, least + 60_000):
        torch.manual_seed(1)
        with DataLoader(data, 7, shuffle=True, buffer=nbytes, storage=DISK, epochs=2) as loader:
            assert equal(plainly(passes(loader, 2)), plainly(expected))
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)
            assert loader.stats()["peak_bytes"] <= nbytes
    other = data_of(kind, tmp_path / "c.h5", "shuffled, checked")
    monkeypatch.setattr("solar.samples.row_blocks.HELD_NBYTES", 1 << 10)
    data = ConcatDataset([data_of(kind, tmp_path / "d.h5", "gzip"), other])
    with pytest.raises(PlanError, match="differ from data set to data set"):
        list(DataLoader(data, buffer="1MiB"))


def test_blocks_are_as_long_as_suits_the_samples(tmp_path: Path) -> None:
    """What samples have part in is little more than the samples; and there are not many more parts than samples."""
    lengths = np.random.default_rng(0).integers(100, 300, 200).tolist()
    for layout, chunks in (("contiguous", None), ("gzip", 4096)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(LAYOUTS["gzip"], "chunks", chunks)
            written(tmp_path / f"{layout}.h5", lengths, layout)
        data = H5Dataset(str(tmp_path / f"{layout}.h5"), Ragged("v", ends="ends"))
        (blocks,) = data.extents.blocks
        assert 2 <= blocks.counts.mean() <= 10
        assert blocks.counts.sum() * blocks.per < 1.5 * sum(lengths)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("order", ["shuffled", "by a generator", "with replacement", "a list"])
@pytest.mark.parametrize("kind", ["ragged", "several files", "csr", "longer than chunks"])
def test_chunks_that_no_number_divides_are_cut_all_the_same(kind: str, order: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 300, 36).tolist()
    lengths[3:6] = [0, 0, 997]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAYOUTS["gzip"], "chunks", 211 if kind == "longer than chunks" else 997)
        for number in range(2 if kind == "several files" else 1):
            if kind == "csr":
                matrix(tmp_path / "0.h5", sparse(36, 600), "gzip")
            else:
                written(tmp_path / f"{number}.h5", lengths[number:], "gzip", dtype=">i4")
    field: Any = CSR("X") if kind == "csr" else Ragged("v", ends="ends", batch="flat")
    data = H5Dataset(str(tmp_path / "*.h5"), {"x": field, "y": "y"})
    blocks = data.extents["x"].blocks[0]
    assert bool(blocks.chunk) == (kind != "longer than chunks")
    torch.manual_seed(1)
    expected = passes(DataLoader(data, **ORDERS[order](data), buffer=0), 3)
    least = least_of(lambda nbytes: loader_of(data, order, buffer=nbytes))
    for nbytes in (least, least + 8_000, least + 600_000):
        torch.manual_seed(1)
        with loader_of(data, order, buffer=nbytes, epochs=3) as loader:
            assert equal(plainly(passes(loader, 3)), plainly(expected)), nbytes
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), nbytes
            assert loader.stats()["peak_bytes"] <= nbytes


def test_a_damaged_column_is_an_error_of_its_batch_alone_also_from_a_buffer(tmp_path: Path) -> None:
    dense = np.eye(40, dtype="f4")
    matrix(tmp_path / "a.h5", dense, indices=np.where(np.arange(40) == 21, 77, np.arange(40)).astype("i4"))
    data = H5Dataset(str(tmp_path / "a.h5"), CSR("X"))
    with DataLoader(data, 2, buffer="2MiB") as loader:
        for _ in range(2):
            came, batches = list[Any](), iter(loader)
            while True:
                try:
                    came.append(next(batches).to_dense().numpy())
                except ReadError as error:
                    came.append(str(error))
                except StopIteration:
                    break
            assert "X, sample 21: column 77" in came[10]
            for number, batch in enumerate(came):
                assert number == 10 or np.array_equal(batch, dense[2 * number : 2 * number + 2])


def test_parts_with_other_samples_have_one_batch(tmp_path: Path) -> None:
    """Samples of two data sets in the order of the batch, whose rows go to one memory."""
    lengths = ([3, 0, 5, 2, 7, 1], [4, 4, 0, 9, 1, 2])
    parts = []
    for number, own in enumerate(lengths):
        (tmp_path / str(number)).mkdir()
        with h5py.File(tmp_path / str(number) / "a.h5", "w") as file:
            file.create_dataset("v", data=100.0 * number + np.arange(sum(own)), chunks=(4,), compression="gzip")
            file["ends"] = np.cumsum(own)
        parts.append(H5Dataset(str(tmp_path / str(number) / "a.h5"), Ragged("v", ends="ends", batch="flat")))
    data = ConcatDataset(parts)
    order = [7, 0, 11, 4, 1, 9, 2, 8, 3, 6, 5, 10]
    wanted = [parts[at // 6][at % 6] for at in order]
    with DataLoader(data, 4, sampler=order, buffer="2MiB") as loader:
        for _ in range(3):
            values, offsets = zip(*loader, strict=True)
            found = [
                own[b:e].numpy() for own, at in zip(values, offsets, strict=True) for b, e in pairwise(at.tolist())
            ]
            assert all(map(np.array_equal, found, wanted))
