"""Samples of every type that h5py reads natively, in every form of a batch; numpy and h5py are the oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from ragged_kit import plainly
from torch.utils.data import ConcatDataset, default_collate

from solar import CSR, Crops, DataLoader, Field, H5Dataset, LayoutError, Mixture, PlanSampler, Ragged, read

KINDS = ["?", "u1", "<u2", ">u4", "<u8", "i1", ">i2", "i4", ">i8", "<f2", ">f4", "f8", "<c8", ">c16"]
LENGTHS = [2, 0, 5, 1, 3]
FORMS = ("jagged", "flat", "padded")
WAYS = ("ends", "lengths", "indptr", "ids", "variable length", "groups")
BUFFERS: list[dict[str, Any]] = [{"buffer": 0}, {"buffer": "2MiB"}]


def samples_of(kind: str, row: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    values = np.random.default_rng(1).integers(0, 200, (sum(LENGTHS), *row)).astype(kind)
    return np.split(values, np.cumsum(LENGTHS)[:-1])


def made(path: Path, way: str, kind: str, form: Any) -> tuple[H5Dataset, list[np.ndarray[Any, Any]]]:
    """A file whose samples are told in this way, and what they are. A run of ids has a row, at least."""
    samples = samples_of(kind, () if way == "variable length" else (2,))
    samples = [one for one in samples if len(one) or way != "ids"]
    lengths = [len(one) for one in samples]
    with h5py.File(path, "w") as file:
        if way == "variable length":
            every = file.create_dataset("v", (len(samples),), h5py.vlen_dtype(np.dtype(kind)))
            for number, one in enumerate(samples):
                every[number] = one
        elif way == "groups":
            for number, one in enumerate(samples):
                file[f"g{number}/v"] = one
        else:
            file["v"] = np.concatenate(samples)
            ends = np.cumsum(lengths)
            told = {"ends": ends, "lengths": lengths, "indptr": [0, *ends], "ids": np.repeat(range(len(ends)), lengths)}
            file[way] = told[way]
    settle(path)
    if way == "groups":
        return H5Dataset(path, Ragged("v", batch=form), samples="groups"), samples
    told_by = {} if way == "variable length" else {way: way}
    return H5Dataset(path, Ragged("v", batch=form, **told_by)), samples


def slowly(samples: list[np.ndarray[Any, Any]], form: str) -> list[torch.Tensor]:
    """What a batch is made of, sample by sample."""
    native = [one.astype(one.dtype.newbyteorder("=")) for one in samples]
    if form != "padded":
        ends = np.cumsum([0, *map(len, native)])
        return [torch.from_numpy(np.concatenate(native)), torch.from_numpy(ends)]
    longest = max(map(len, native))
    padded = np.zeros((len(native), longest, *native[0].shape[1:]), native[0].dtype)
    there = np.zeros((len(native), longest), bool)
    for number, one in enumerate(native):
        for place, values in enumerate(one):
            padded[number, place], there[number, place] = values, True
    return [torch.from_numpy(padded), torch.from_numpy(there)]


@pytest.mark.slow(every=6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_samples_of_every_type_come_in_every_form(kind: str, way: str, tmp_path: Path) -> None:
    for number, form in enumerate(FORMS):
        data, samples = made(tmp_path / f"{number}.h5", way, kind, form)
        expected = slowly(samples, form)
        for terms in BUFFERS:
            (batch,) = DataLoader(data, len(samples), **terms)
            for got, wanted in zip(plainly(batch), expected, strict=True):
                assert got.dtype == wanted.dtype and torch.equal(got, wanted)
        (batch,) = torch.utils.data.DataLoader(data, len(samples))  # which collates sample by sample
        assert all(map(torch.equal, plainly(batch), expected))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_every_type_come_sparse_and_dense(kind: str, tmp_path: Path) -> None:
    whole = np.zeros((3, 4), kind)
    whole[0, 1], whole[2, 0], whole[2, 3] = 1, 1, 7
    rows, columns = np.nonzero(whole)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("X")
        group["data"], group["indices"], group["indptr"] = whole[rows, columns], columns, [0, 1, 1, 3]
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", whole.shape
    settle(tmp_path / "a.h5")
    native = whole.astype(whole.dtype.newbyteorder("="))
    for terms in BUFFERS:
        (batch,) = DataLoader(H5Dataset(tmp_path / "a.h5", CSR("X")), 3, **terms)
        assert np.array_equal(batch.values().numpy(), native[rows, columns])
        assert batch.col_indices().tolist() == columns.tolist() and batch.crow_indices().tolist() == [0, 1, 1, 3]
        (batch,) = DataLoader(H5Dataset(tmp_path / "a.h5", CSR("X", dense=True)), 3, **terms)
        assert torch.equal(batch, torch.from_numpy(native))


LARGE = np.array([0, 1, 2**63, 2**64 - 1], "<u8")


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A file of uint64 numbers, one for each sample, beside rows of others."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["big"], file["rows"] = LARGE, LARGE.astype(">u8"), LARGE[:, None]
        file["x"] = np.arange(8, dtype="f4").reshape(4, 2)
    settle(tmp_path / "a.h5")
    return str(tmp_path / "a.h5")


@pytest.mark.parametrize("terms", [*BUFFERS, {"num_workers": 1}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize("fields", ["u", "big", {"x": "x", "y": "u"}, Field("u", dtype="uint64")], ids=str)
def test_scalars_of_uint64_are_refused_in_words_that_help(fields: Any, terms: dict[str, Any], large: str) -> None:
    with pytest.raises(TypeError):
        default_collate([LARGE[0]])  # torch's own, which says "an integer is required"
    with pytest.raises(TypeError, match=r"no tensor of numpy's uint64 scalars.*dtype=\"int64\"") as error:
        next(iter(DataLoader(H5Dataset(large, fields), **{"batch_size": 2, **terms})))
    assert ("['y']" in str(error.value)) == isinstance(fields, dict)


def test_what_the_words_about_uint64_advise_works(large: str) -> None:
    (cast,) = DataLoader(H5Dataset(large, Field("u", dtype="int64")), 4)
    assert torch.equal(cast, torch.from_numpy(LARGE.astype("i8")))
    (numbers,) = DataLoader(H5Dataset(large, "u", transform=lambda one: int(one) % 2**63), 4)
    assert numbers.tolist() == [int(one) % 2**63 for one in LARGE]
    (rows,) = DataLoader(H5Dataset(large, "rows"), 4)
    assert torch.equal(rows, torch.from_numpy(LARGE[:, None]))
    with pytest.raises(TypeError, match="uint64 scalars"):
        next(iter(DataLoader(H5Dataset(large, "u", transform=lambda one: one), 4)))


def with_unused_bits(path: Path, values: np.ndarray[Any, Any]) -> None:
    """A file of int32 whose numbers have 20 bits, which h5py reads."""
    base = h5py.h5t.NATIVE_INT32.copy()
    base.set_precision(20)
    with h5py.File(path, "w") as file:
        made = h5py.h5d.create(file.id, b"x", base, h5py.h5s.create_simple(values.shape))
        h5py.Dataset(made)[...] = values
    settle(path)


def test_who_reads_a_source_makes_no_difference_to_a_mixture(tmp_path: Path) -> None:
    first, second = np.arange(20, dtype="i4").reshape(10, 2), np.arange(100, 120, dtype="i4").reshape(10, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = first
    settle(tmp_path / "a.h5")
    with_unused_bits(tmp_path / "b.h5", second)
    one, two = (H5Dataset(tmp_path / name, "x") for name in ("a.h5", "b.h5"))
    assert (one.layouts.reader, two.layouts.reader) == ("direct", "h5py")
    every = np.concatenate((first, second))
    for pair, values in (((one, two), every), ((two, one), np.concatenate((second, first)))):
        mixture = Mixture({"a": (pair[0], 0.5), "b": (pair[1], 0.5)})
        order = PlanSampler(mixture, seed=3)
        came = torch.cat(list(DataLoader(mixture, 4, sampler=order)))
        assert torch.equal(came, torch.from_numpy(values[list(PlanSampler(mixture, seed=3))]))
        joined = torch.cat(list(DataLoader(ConcatDataset(pair), 3)))
        assert torch.equal(joined, torch.from_numpy(values))


@pytest.mark.parametrize("kind", ["<u2", ">u2", ">i4", "<f4", ">f4", ">f8", ">i8"])
def test_arrays_of_variable_length_are_in_native_order_without_ragged(kind: str, tmp_path: Path) -> None:
    expected = [np.arange(1, n + 1, dtype=kind) for n in (3, 1, 2)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        held = h5py.vlen_dtype(np.dtype(kind))
        plain, both = file.create_dataset("v", (3,), held), file.create_dataset("c", (3,), [("a", held), ("b", ">f8")])
        for number, one in enumerate(expected):
            plain[number], both[number] = one, (one, 0.5)
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", ("v", "c"))
    for number, one in enumerate(expected):
        assert data[number][0].tolist() == one.tolist() == data[number][1]["a"].tolist()
        assert data[number][1]["b"] == 0.5
    assert [one.tolist() for one in read(tmp_path / "a.h5", "v")] == [one.tolist() for one in expected]
    ragged = H5Dataset(tmp_path / "a.h5", Ragged("v"))
    assert [one.tolist() for one in ragged] == [one.tolist() for one in expected]


def test_files_with_automatic_chunks_of_their_own_are_joined(tmp_path: Path) -> None:
    whole = [np.random.default_rng(n).random((n, 48, 56)).astype("f4") for n in (40, 120, 33)]
    parts = []
    for number, one in enumerate(whole):
        with h5py.File(tmp_path / f"v{number}.h5", "w") as file:
            file.create_dataset("v", data=one, compression="gzip")
        settle(tmp_path / f"v{number}.h5")
        parts.append(H5Dataset(tmp_path / f"v{number}.h5", "v", samples=Crops((16, 24, 28))))
    with pytest.raises(LayoutError, match="join these by ConcatDataset"):
        H5Dataset(str(tmp_path / "*.h5"), "v", samples=Crops((16, 24, 28), volumes="files"))
    expected = [
        one[z : z + 16, y : y + 24, x : x + 28]
        for one in whole
        for z in sorted({*range(0, len(one) - 16, 16), len(one) - 16})
        for y in (0, 24)
        for x in (0, 28)
    ]
    for terms in BUFFERS:
        came = torch.cat(list(DataLoader(ConcatDataset(parts), 5, **terms)))
        assert torch.equal(came, torch.from_numpy(np.array(expected)))
