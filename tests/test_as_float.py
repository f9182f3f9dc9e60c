"""The float32 view: what is decoded straight into float32 is what a cast of the decoded integers gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import same
from numpy.typing import NDArray

import solar
from solar import DataLoader, Field, H5Dataset, _native
from solar.errors import CodecError
from solar.filters import Bounded
from solar.io.codec.codec import Codec
from solar.io.reading.reader import Rows
from solar.samples.field_reader import as_float32, without_conversion
from solar.values import Filter

WHOLE = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


def some_values(dtype: str, seed: int) -> NDArray[Any]:
    """Five samples: counts, the ends of the type, one value alone, any bits, a walk on a lattice of threes."""
    rng, ends = np.random.default_rng(seed), np.iinfo(dtype)
    shape = (20, 24)
    walk = np.cumsum(rng.integers(-2, 3, 480)).reshape(shape) * 3 % 120
    edges = rng.choice(np.array([ends.min, ends.max, 0, 1], dtype), shape)
    spread = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    made = [rng.poisson(2, shape), edges, np.full(shape, ends.max), spread, walk]
    return np.stack([one.astype(dtype) for one in made])


def write(path: Path, values: NDArray[Any], chunk: tuple[int, ...], **more: Any) -> None:
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", (len(values) + 3, *values.shape[1:]), values.dtype, chunks=chunk, **more)
        stored[: len(values)] = values


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_decode_into_float32_as_a_cast_makes_them(dtype: str) -> None:
    values = some_values(dtype, 1)
    for coder in ("pack", "dense"):
        for codec in (Codec("lossless", coder=coder), Codec("abs", 2, coder)):
            for sample in (*values, values[:, :, :7], values.reshape(-1)):
                chunk = codec.encode(sample)
                stored = np.empty_like(sample, order="C")
                codec.decode(chunk, stored)
                for path in _native.codec_paths():
                    out = np.full(sample.shape, np.nan, np.float32)
                    _native.decode_into(chunk, out, codec.tables, path)
                    assert same(out, stored.astype(np.float32)), (coder, path)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "u8"])
def test_a_layout_is_read_as_float32_without_integers_between(tmp_path: Path, dtype: str) -> None:
    values = some_values(dtype, 2)
    fill = 7
    for number, chunk in enumerate([(1, 20, 24), (3, 20, 24), (1, 7, 24)]):
        path = tmp_path / f"{number}.h5"
        write(path, values, chunk, fillvalue=fill, **Bounded(lossless=True))
        wanted = np.concatenate([values, np.full((3, 20, 24), fill, dtype)]).astype(np.float32)
        layout, field = without_conversion(solar.inspect(path, "x"), Field("x", dtype="float32"))
        assert (layout.dtype, field) == (np.dtype(np.float32), None)
        rows = np.array([6, 0, 3, 3, 1, 4, 2, 7])
        assert same(Rows(layout, True).start(rows).wait(), wanted[rows])
        out = np.zeros((8, 20, 24), np.float32)
        assert Rows(layout, True).start(rows, out).wait() is out
        assert same(out, wanted[rows])


def test_only_float32_alone_of_our_codec_is_read_as_such(tmp_path: Path) -> None:
    values = some_values("i2", 3)
    for name, more in (("ours", Bounded(lossless=True)), ("gzip", {"compression": "gzip"}), ("plain", {})):
        write(tmp_path / f"{name}.h5", values, (1, 20, 24), **more)
    ours, *others = (solar.inspect(tmp_path / f"{name}.h5", "x") for name in ("ours", "gzip", "plain"))
    write(tmp_path / "real.h5", values.astype("f4"), (1, 20, 24), **Bounded(lossless=True))
    assert all(as_float32(layout) is None for layout in (*others, solar.inspect(tmp_path / "real.h5", "x")))
    asked = Field("x", dtype="float32")
    assert without_conversion(others[0], asked) == (others[0], asked)
    for field in (
        None,
        Field("x"),
        Field("x", dtype="f8"),
        Field("x", dtype="f4", mean=1),
        Field("x", select=slice(3)),
    ):
        assert without_conversion(ours, field) == (ours, field)


def test_a_chunk_of_another_type_is_an_error_and_not_other_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", some_values("i2", 4), (1, 20, 24), **Bounded(lossless=True))
    view = as_float32(solar.inspect(tmp_path / "a.h5", "x"))
    assert view is not None
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["x"].id.write_direct_chunk((1, 0, 0), Codec("lossless").encode(some_values("u2", 4)[0]))
        file["x"].id.write_direct_chunk((2, 0, 0), Codec("lossless").encode(some_values("i4", 4)[0]))
        file["x"].id.write_direct_chunk((3, 0, 0), Codec("lossless").encode(some_values("i2", 4)[0].astype("f4")))
    view = as_float32(solar.inspect(tmp_path / "a.h5", "x"))
    assert view is not None
    for row, word in ((1, "uint16 in a data set of int16"), (2, "int32 in a data set of int16"), (3, "whole numbers")):
        with pytest.raises(CodecError, match=word):
            Rows(view).start(np.array([row])).wait()
    untold = tuple(replace(form, filters=(Filter(form.filters[0].id, 0, ()),)) for form in view.forms)
    with pytest.raises(CodecError, match="is not told"):
        Rows(replace(view, forms=untold)).start(np.array([0])).wait()


def test_a_loader_reads_whole_numbers_straight_into_float32(tmp_path: Path) -> None:
    values = some_values("i2", 5)
    write(tmp_path / "ours.h5", values, (1, 20, 24), **Bounded(lossless=True))
    write(tmp_path / "plain.h5", values, (1, 20, 24))
    data, stored = (H5Dataset(tmp_path / "ours.h5", what) for what in (Field("x", dtype="float32"), "x"))
    decoded = []
    for one in (data, stored):
        with DataLoader(one, 3, buffer=0) as loader:
            batches = list(loader)
            decoded.append(loader.stats()["bytes_decoded"])
            rows = np.concatenate([batch.numpy() for batch in batches])
            assert same(rows, np.stack([one[i] for i in range(len(one))]))
            assert rows.dtype == (np.int16 if one is stored else np.float32)
            assert (rows[:5] == values).all()
    assert decoded[0] == 2 * decoded[1]  # float32, not the int16 they are
    # Beside a file of another kind, and from memory, they are cast as others are.
    both = torch.utils.data.ConcatDataset([data, H5Dataset(tmp_path / "plain.h5", Field("x", dtype="float32"))])
    for given in ({"buffer": 0}, {"buffer": 2**24}):
        with DataLoader(both, 4, sampler=[9, 0, 12, 3, 1, 2, 8, 11], **given) as loader:  # type: ignore[arg-type]
            for _epoch in range(2):
                found = torch.cat(list(loader)).numpy()
                assert same(found, np.stack([both[i] for i in (9, 0, 12, 3, 1, 2, 8, 11)]))
