"""A buffer for samples that lie anywhere, each by itself: groups of unequal length, arrays of variable length."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import groups_kit
import h5py
import numpy as np
import pytest
import torch
from buffer_kit import DISK, ORDERS, counted, equal, least_of, loader_of, passes
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import settle
from ragged_kit import plainly
from test_varying import written as written_varying
from torch.utils.data import ConcatDataset
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, PlanError, PlanSampler, Ragged, ReadError
from solar.samples.row_blocks import blocks_of
from solar.values import Storage

UNLIKE = [3, 0, 5, 1, 2, 2, 4, 1, 3, 2, 6, 2, 0, 9, 17, 1, 1, 40, 2, 3]
KINDS = ("contiguous", "chunks", "own chunks", "several files", "varying", "varying, gzip")
BUFFERED = ("sequential", "shuffled", "by a generator", "with replacement", "odd batches", "planned", "a list")


def small_blocks(monkeypatch: pytest.MonkeyPatch, nbytes: int = 40) -> None:
    monkeypatch.setattr("solar.samples.row_blocks.HELD_NBYTES", nbytes)


def data_of(kind: str, folder: Path) -> H5Dataset:
    if kind.startswith("varying"):
        written_varying(folder / "a.h5", UNLIKE, kind.partition(", ")[2] or "contiguous")
        return H5Dataset(str(folder / "a.h5"), {"x": Ragged("v", batch="flat"), "y": "y"})
    for number, name in enumerate("ab" if kind == "several files" else "a"):
        stored = "contiguous" if kind == "several files" else kind
        groups_kit.written(folder / f"{name}.h5", [*UNLIKE[number:], *UNLIKE[:number]], stored)
    return H5Dataset(str(folder / "*.h5"), {"x": "coords", "y": "energy"}, samples="groups")


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", BUFFERED)
def test_a_buffer_changes_no_batch_and_counts_are_the_plans(
    kind: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    data = data_of(kind, tmp_path)
    torch.manual_seed(1)
    expected = passes(DataLoader(data, **ORDERS[order](data), buffer=0), 3)
    least = least_of(lambda nbytes: loader_of(data, order, buffer=nbytes))
    for nbytes in (least, least + 400, least + 60_000):
        torch.manual_seed(1)
        with loader_of(data, order, buffer=nbytes, epochs=3) as loader:
            assert equal(plainly(passes(loader, 3)), plainly(expected)), nbytes
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), nbytes
            assert loader.stats()["peak_bytes"] <= nbytes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=14).filter(lambda rows: len({*rows}) > 1),
    st.sampled_from(["contiguous", "chunks", "own chunks"]),
    st.sampled_from(["earliest", "latest"]),
    st.sampled_from(["f4", ">f8", "u1"]),
    st.sampled_from([24, 100, 16 << 10]),
)
def test_any_groups_come_of_blocks_as_torch_has_them(
    rows: list[int], stored: str, libver: str, dtype: str, held: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, held)
        groups_kit.written(Path(folder) / "a.h5", rows, stored, libver, dtype=dtype)
        field = Ragged("coords", batch="flat")
        data = H5Dataset(str(Path(folder) / "a.h5"), {"x": field, "y": "energy"}, samples="groups", cache=None)
        torch.manual_seed(1)
        expected = passes(TorchLoader(data, 3, shuffle=True), 2)
        torch.manual_seed(1)
        with DataLoader(data, 3, shuffle=True, buffer="1MiB", storage=DISK) as loader:
            assert equal(plainly(passes(loader, 2)), plainly(expected))
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 8), st.sampled_from([8, 64, 700]))
def test_blocks_cover_each_sample_once_and_stay_in_the_file(lengths: list[int], size: int, held: int) -> None:
    """The bytes that blocks have of each sample, looked up one by one in a file without HDF5 in it."""
    if len(lengths) < 2 or not any(lengths):
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, held)
        path = Path(folder) / "a.h5"
        samples = written_varying(path, lengths, of=f"u{1 << size % 4}")
        columns = H5Dataset(str(path), Ragged("v")).extents
        assert not columns.varying
        content = path.read_bytes()
        (blocks,) = columns.blocks
        layout = blocks.layout
        nbytes = blocks.per * columns.layouts[0].sample_nbytes
        assert (layout.chunk_nbytes == nbytes).all()
        assert (layout.chunk_offset + layout.chunk_nbytes <= len(content)).all()
        indices = layout.chunk_index if len(layout.chunk_index) else range(len(layout.chunk_offset))
        block_of = {int(index): int(offset) for index, offset in zip(indices, layout.chunk_offset, strict=True)}
        for number, expected in enumerate(samples):
            used, _ = blocks.uses(np.array([number]), np.array([0, 1]))
            first, count, other, more, place = blocks.corners_of(np.array([number]), 0)[0].tolist()
            rows = [row for begin, n in ((first, count), (other, more)) for row in range(begin, begin + n)]
            assert [*dict.fromkeys(row // blocks.per for row in rows)] == used.tolist()
            assert place == 0
            item = expected.dtype.itemsize
            at = [block_of[row // blocks.per] + row % blocks.per * item for row in rows]
            found = b"".join(content[one : one + item] for one in at)
            assert found == expected.tobytes()


def test_with_memory_for_all_each_byte_is_read_once_and_each_chunk_decoded_once(tmp_path: Path) -> None:
    for kind in ("contiguous", "own chunks"):
        (tmp_path / kind).mkdir()
        data = data_of(kind, tmp_path / kind)
        terms = ORDERS["by a generator"](data) | {"buffer": "2MiB", "epochs": 4}
        with DataLoader(data, **terms, storage=Storage(0.0, 1e9)) as loader:
            passes(loader, 4)
            stats = loader.stats()
        coords = sum(UNLIKE) * 12
        energies = 8 * len(UNLIKE)
        if kind == "contiguous":
            blocks = sum(len(one.layout.chunk_offset) * one.per * 12 for one in data.extents["x"].blocks)
            assert coords <= stats["batch_bytes"] and stats["bytes"] <= blocks + energies
        else:
            assert stats["bytes_decoded"] == coords


def test_blocks_take_little_more_than_the_samples(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(9, 30, 400).tolist()
    groups_kit.written(tmp_path / "a.h5", rows)
    data = H5Dataset(str(tmp_path / "a.h5"), "coords", samples="groups")
    (blocks,) = data.extents.blocks
    assert len(blocks.layout.part_file) == 1  # not one for each group
    assert blocks.layout.nbytes <= 1.4 * sum(rows) * 12
    assert len(blocks) == 400 and blocks.layout.samples < sum(rows) / 3


def test_groups_of_two_data_sets_share_a_buffer_where_their_blocks_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("a", [5, 7, 6, 9]), ("b", [6, 6, 8]), ("c", [600, 1, 500])):
        groups_kit.written(tmp_path / f"{name}.h5", rows)
    one, two, three = (H5Dataset(tmp_path / f"{name}.h5", {"x": "coords"}, samples="groups") for name in "abc")
    data = ConcatDataset([one, two])
    torch.manual_seed(1)
    expected = list(TorchLoader(data, 3, shuffle=True))
    torch.manual_seed(1)
    with DataLoader(data, 3, shuffle=True, buffer="1MiB", storage=DISK) as loader:
        assert equal(plainly(list(loader)), plainly(expected))
    with pytest.raises(PlanError, match="differ from data set to data set"):
        list(DataLoader(ConcatDataset([one, three]), buffer="1MiB"))


def test_it_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    data = data_of("contiguous", tmp_path)
    loader = DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=2), buffer="1MiB")
    iterator = iter(loader)
    seen = [next(iterator)["y"] for _ in range(3)]
    state = loader.state_dict()
    del iterator
    loader.close()
    for rank in range(2):
        sampler = PlanSampler(data, 2, rank, seed=2, tail="exact")
        with DataLoader(data, 4, sampler=sampler, exchange="off", buffer="1MiB") as other:
            other.load_state_dict(state)
            seen += [batch["y"] for batch in other]
    assert sorted(torch.cat(seen).tolist()) == list(range(len(UNLIKE)))


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    data = data_of("contiguous", tmp_path)
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.truncate(int(data.layouts["x"].chunk_offset.max()) + 4)
    with pytest.raises(ReadError, match=r"a\.h5"):
        list(DataLoader(data, 4, buffer="1MiB"))


def test_what_was_never_written_is_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, n in enumerate((3, 2, 5, 4)):
            made = file.create_dataset(f"m{number}/x", (n,), "f4", fillvalue=7)
            if number != 2:
                made[...] = number
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", Ragged("x", batch="flat"), samples="groups")
    ((values, offsets),) = DataLoader(data, 4, buffer="1MiB")
    assert values.tolist() == [0.0] * 3 + [1.0] * 2 + [7.0] * 5 + [3.0] * 4
    assert offsets.tolist() == [0, 3, 5, 10, 14]


def test_one_long_group_among_short_ones_does_not_make_blocks_of_a_row(tmp_path: Path) -> None:
    groups_kit.written(tmp_path / "a.h5", [1, *[700] * 20])
    (layout,) = H5Dataset(tmp_path / "a.h5", "coords", samples="groups").extents.layouts
    blocks: Any = blocks_of(layout, layout.part_first[:-1], np.diff(layout.part_first))
    assert blocks.per > 16
