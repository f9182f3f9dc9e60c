"""decode="device": what is read, buffered and copied is the chunk of each sample, and it is decoded where it lands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from device_kit import SAMPLES, all_same, loaders, pretended, same, write
from kit import settle
from store_kit import smooth
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from solar import DataLoader, Field, H5Dataset, _native, compress, inspect
from solar.buffer import buffer_size as sizing
from solar.errors import CodecError, PlanError
from solar.io.reading.encoded import KEPT_ENCODED, ROW_ALIGNMENT, SLACK, encoded_views
from solar.io.reading.reader import Rows

_ = pretended  # a fixture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("encoded")
    write(made)
    with h5py.File(made / "a.h5") as whole, h5py.File(made / "b.h5", "w") as file:
        file["y"] = np.arange(SAMPLES)
        chunks = [stored(whole, i) for i in range(SAMPLES)]
        _alike(whole, file, {i: chunk for i, chunk in enumerate(sorted(chunks, key=len)[:20])})
    settle(made / "b.h5")
    return made


def stored(file: h5py.File, sample: int) -> bytes:
    chunk: bytes = file["x"].id.read_direct_chunk((sample, 0, 0))[1]
    return chunk


def _alike(whole: h5py.File, file: h5py.File, chunks: dict[int, bytes]) -> None:
    """A data set like one of another file, with these chunks."""
    one = whole["x"].id
    space = h5py.h5s.create_simple((max(chunks) + 1, *whole["x"].shape[1:]))
    made = h5py.h5d.create(file.id, b"x", one.get_type(), space, one.get_create_plist())
    for sample, chunk in chunks.items():
        made.write_direct_chunk((sample, 0, 0), chunk)


def test_a_row_of_the_view_is_the_chunk_as_it_is_stored_and_zeros(folder: Path) -> None:
    layouts = [inspect(folder / name, "x") for name in ("a.h5", "b.h5")]
    views = encoded_views(layouts)
    assert isinstance(views, list)
    largest = max(int(layout.chunk_nbytes.max()) for layout in layouts)
    for view, name in zip(views, ("a.h5", "b.h5"), strict=True):
        [stride] = view.layout.sample_shape
        assert stride % ROW_ALIGNMENT == 0 and largest + SLACK <= stride < largest + SLACK + ROW_ALIGNMENT
        with h5py.File(folder / name) as file:
            chunks = [stored(file, i) for i in range(view.layout.samples)]
        rows = Rows(view.layout).start(np.arange(len(chunks))[::-1].copy()).wait()
        assert [bytes(row) for row in rows[::-1]] == [chunk.ljust(stride, b"\0") for chunk in chunks]  # tables 0
        assert (view.shape, view.dtype) == ((24, 40), np.dtype("f4"))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"buffer": "1MiB"},
    {"batch_size": None},
    {"dtype": "float16"},
    {"static": True},
    {"num_workers": 2},
]


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_decoded_on_the_device_are_those_decoded_on_the_host(
    pretended: str, options: dict[str, Any], folder: Path
) -> None:
    moved = Field("counts", select=(slice(4, None, -2), slice(None), slice(1, 4)), axes=(2, 0, 1))
    fields = {
        "x": "x",
        "counts": ("counts", moved, Field("counts", select=slice(5, 5))),
        "normalised": Field("counts", mean=3, std=np.linspace(1, 2, 5)),
        "half": Field("x", dtype="float16", std=7),
        "y": ["y", "text"],
    }
    given = {"batch_size": 6, "shuffle": True} | options
    dtype = given.pop("dtype", None)
    host, there = loaders(H5Dataset(str(folder / "a.h5"), fields), decode="device", **given)
    assert all_same(host, there)
    if dtype is not None:
        _, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, decode="device", dtype=dtype)
        host = DataLoader(H5Dataset(str(folder / "a.h5"), "x"), 6)
        assert all_same((batch.to(torch.float16) for batch in host), there)


@pytest.mark.parametrize("buffer", ["1MiB", None])
def test_a_buffer_of_chunks_says_that_they_stay_encoded(
    buffer: Any, pretended: str, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "WORTH_A_BUFFER", 0.0)
    monkeypatch.setattr(sizing, "LEAST_EPOCH_SECONDS", 0.0)
    _, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, decode="device", buffer=buffer, shuffle=True)
    with caplog.at_level("INFO", "solar"), there:
        next(iter(there))
    said = "\n".join(one.getMessage() for one in caplog.records if "buffer" in one.getMessage())
    assert said
    assert "decoded" not in said
    assert "kept" not in said or "kept encoded" in said or "kept as stored" in said


def test_fewer_bytes_cross_and_a_buffer_holds_more(pretended: str, folder: Path) -> None:
    host, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, decode="device", buffer="1MiB")
    assert all_same(host, there)
    assert there.stats()["batch_bytes"] < host.stats()["batch_bytes"] / 2
    if pretended != "none":
        assert 0 < there.stats()["device_bytes"] < host.stats()["batch_bytes"] / 2


def test_each_chunk_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reading, which fails with the sample's name; then one more only to see where tables are that it names."""
    checked: list[int] = []

    def counting(rows: Any, *given: Any) -> Any:
        checked.append(len(rows))
        return _native.check_chunks(rows, *given)

    native = SimpleNamespace(**{**vars(_native), "check_chunks": counting})
    monkeypatch.setattr("solar.device.kernels.heads._native", native)
    for options in ({}, {"buffer": "1MiB"}, {"resident": "1MB"}):
        checked.clear()
        loader = DataLoader(H5Dataset(str(folder / "a.h5"), "x"), 6, device="cpu", decode="device", **options)  # type: ignore[arg-type]
        for _epoch in range(2):
            assert len(list(loader)) == 7
        assert checked in ([], [1])
        assert loader.stats()["bytes_decoded"] > 0 or "buffer" in options  # whose run counts what it loaded


def test_parts_of_several_files_have_rows_of_one_length(folder: Path) -> None:
    parts = [H5Dataset(str(folder / name), {"x": "x"}) for name in ("a.h5", "b.h5")]
    whole = ConcatDataset([Subset(parts[0], range(20)), parts[1]])
    host, there = loaders(whole, 9, True, decode="device")
    assert all_same(host, there)


@pytest.mark.slow(every=2)
def test_files_with_coding_tables_of_their_own_are_decoded_by_those(
    pretended: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (7, 8):
        write(tmp_path, f"{seed}.h5", seed=seed, rough=seed - 7.0)
    dataset = H5Dataset([str(folder / "a.h5"), *map(str, sorted(tmp_path.glob("[78].h5")))], {"x": "x", "n": "counts"})
    views = encoded_views([dataset.layouts["x"]])
    assert isinstance(views, list) and len(views[0].tables) == 3
    host, there = loaders(dataset, 9, True, decode="device")
    assert all_same(host, there)
    monkeypatch.setattr("solar.io.reading.encoded.MOST_TABLES", 2)
    with pytest.raises(PlanError, match="3 different coding tables in its files, more than 2"):
        iter(DataLoader(dataset, 9, device="cpu", decode="device"))


def test_what_is_not_one_chunk_of_ours_to_a_sample_is_decoded_on_the_host(folder: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["x"] = smooth(20, 24, 40)
    compress(tmp_path / "raw.h5", tmp_path / "several.h5", "abs=1e-3", chunk_samples=4)
    with h5py.File(tmp_path / "gaps.h5", "w") as file, h5py.File(folder / "a.h5") as whole:
        _alike(whole, file, {3: stored(whole, 3)})
    why = {
        folder / "raw-a.h5": "not stored by solar's codec",
        tmp_path / "several.h5": r"chunks of \(4, 24, 40\), not one of \(1, 24, 40\)",
        tmp_path / "gaps.h5": "never written",
    }
    for path, said in why.items():
        settle(path)
        with pytest.raises(PlanError, match=said):
            iter(DataLoader(H5Dataset(str(path), "x"), 2, device="cpu", decode="device"))
    with pytest.raises(PlanError, match="TensorDataset is not an H5Dataset"):
        iter(DataLoader(TensorDataset(torch.arange(3)), device="cpu", decode="device"))


def test_a_field_that_a_device_would_round_otherwise_is_decoded_on_the_host(folder: Path) -> None:
    fields = {"x": "x", "integers": Field("x", dtype="int32")}
    host, there = loaders(H5Dataset(str(folder / "a.h5"), fields), 6, decode="device")
    assert all_same(host, there)


def test_chunks_of_other_numbers_than_the_data_sets_are_refused(folder: Path) -> None:
    [view] = encoded_views([inspect(folder / "a.h5", "x")])  # type: ignore[misc]
    [kept] = view.layout.forms[0].filters
    with h5py.File(folder / "a.h5") as file:
        chunk = stored(file, 0)
    stride = view.layout.sample_shape[0]
    number, low, high, _which = kept.values

    def row(values: list[int], nbytes: int = stride, given: bytes = chunk) -> bytes:
        return _native.decode([(KEPT_ENCODED, 0, values)], 1, nbytes, 0, given)

    assert row([number, low, high, 3]) == chunk.ljust(stride - 4, b"\0") + b"\3\0\0\0"
    for values, nbytes, given, said in (
        ([7, low, high, 0], stride, chunk, "numbers of another type"),
        ([number, low // 2, high, 0], stride, chunk, "holds more than"),
        ([number, low, 1, 0], stride, chunk, "are expected"),
        ([number, low, high], stride, chunk, "not told what its chunks hold"),
        ([number, low, high, 0], len(chunk) + 3, chunk, "more than the"),
        ([number, low, high, 0], stride, chunk[:-1], "cut short"),
        ([number, low, high, 0], stride, chunk[:100] + b"?" + chunk[101:], "checksum"),
    ):
        with pytest.raises(CodecError, match=said):
            row(values, nbytes, given)


def test_no_file_can_ask_for_its_chunks_as_they_are_stored() -> None:
    assert "has no native decoder" in _native.unsupported([(KEPT_ENCODED, 0, [1, 4, 0])], 1)


def test_same_tells_batches_apart() -> None:
    assert not same({"x": torch.zeros(2)}, {"x": torch.ones(2)})
    assert not same([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)])
