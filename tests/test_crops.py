"""Boxes of volumes and samples along any axis: each is one line of numpy over h5py, and batches are torch's."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from crops_kit import STORED, cases, check_resumed, cut, dataset_of, places, written
from hypothesis import given, settings
from kit import settle
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanError, PlanSampler, Windows, compress


def equal(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(one, other, strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_box_of_a_grid_is_that_of_numpy(case: dict[str, Any]) -> None:
    box, shape = case["box"], case["shape"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        values = written(path, shape, case["stored"], case["chunk"], dtype=case["dtype"])
        crops = Crops(box, overlap=case["overlap"])
        data = H5Dataset(str(path), "u", samples=crops, page_cache=case["page_cache"])
        expected = [cut(values, at, box) for at in places(shape[-len(box) :], box, case["overlap"])]
        assert len(data) == len(expected)
        order = np.random.default_rng(0).integers(0, len(expected), 20)
        assert np.array_equal(data.read_batch(order), np.stack([expected[i] for i in order]))
        for index in (0, len(expected) // 2, -1):
            assert np.array_equal(data[index], expected[index])


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_sample_along_an_axis_is_that_of_numpy(case: dict[str, Any]) -> None:
    axis = case["axis"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        values = written(path, case["shape"], case["stored"], case["chunk"], dtype=case["dtype"])
        data = H5Dataset(str(path), Field("u", axis=axis), page_cache=case["page_cache"])
        assert len(data) == values.shape[axis]
        order = np.random.default_rng(0).integers(0, len(data), 9)
        assert np.array_equal(data.read_batch(order), np.stack([values.take(i, axis) for i in order]))


def test_slices_of_several_files_beside_rows(tmp_path: Path) -> None:
    values = [written(tmp_path / f"{n}.h5", (5, 4, 7), "gzip", (2, 3, 3), y=np.arange(7) + n) for n in range(2)]
    files = [str(tmp_path / f"{n}.h5") for n in range(2)]
    stack = Field("u", axis=-1, axes=(1, 0), dtype="f8", mean=1)
    data = H5Dataset(files, {"y": "y", "slice": stack})
    assert len(data) == 14
    for batch, of in ((loader, torch.from_numpy) for loader in (DataLoader(data, 14), TorchLoader(data, 14))):
        [one] = batch
        expected = np.concatenate([np.moveaxis(one, -1, 0).transpose(0, 2, 1) for one in values]).astype("f8") - 1
        assert torch.equal(one["slice"], of(expected))
        assert one["y"].tolist() == [*range(7), *range(1, 8)]
    assert repr(stack) == "Field('u', axis=-1, axes=(1, 0), dtype='float64', mean=array(1))" or "axis=-1" in repr(stack)
    assert eval(repr(Field("u", axis=2))) == Field("u", axis=2) != Field("u", axis=1)


def test_volumes_are_rows_of_a_dataset(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", (6, 2, 7, 8), "gzip", (2, 1, 4, 4), label=np.arange(6), mask=np.eye(8)[None])
    data = H5Dataset(str(tmp_path / "a.h5"), ("u", "label"), samples=Crops((3, 4), volumes="rows"))
    expected = [
        (cut(volume, at, (3, 4)), row) for row, volume in enumerate(values) for at in places((7, 8), (3, 4), (0, 0))
    ]
    assert len(data) == len(expected)
    for (box, label), (theirs, row) in zip(data, expected, strict=True):
        assert np.array_equal(box, theirs)
        assert label == row


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("stored", STORED)
def test_batches_are_torchs_and_places_those_of_the_epoch(stored: str, tmp_path: Path) -> None:
    data = dataset_of(tmp_path, stored)
    one, two = Subset(data, list(range(0, 40, 3))), dataset_of(tmp_path / "two", stored, seed=6)
    for dataset in (data, one, ConcatDataset([one, two])):
        expected = []
        for epoch in range(2):
            data.set_epoch(epoch)
            two.set_epoch(epoch)
            sampler = PlanSampler(dataset, 1, 0, seed=3)
            sampler.set_epoch(epoch)
            expected.append([*TorchLoader(dataset, 6, sampler=sampler)])
        data.set_epoch(9)  # at which solar's loader does not look
        sampler = PlanSampler(dataset, 1, 0, seed=3)
        with DataLoader(dataset, 6, sampler=sampler) as loader:
            for epoch in range(2):
                loader.set_epoch(epoch)
                assert equal([*loader], expected[epoch])
    assert not equal(expected[0], expected[1])


def test_random_places_are_within_and_everywhere(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", (6, 5, 4), "contiguous")
    samples = Crops((4, 5, 2), at="random", per=300)
    data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=samples)
    found = data.extents.places.of(np.arange(300))
    assert {tuple(place) for place in found.tolist()} == {(0, 0, a, 0, c) for a in range(3) for c in range(3)}
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert ((counts - 300 / 9) ** 2 / (300 / 9)).sum() < 27  # of chi-square with 8 degrees: one seed in a thousand
    for box, (*_, a, b, c) in zip(data, found.tolist(), strict=True):
        assert np.array_equal(box, values[a : a + 4, b : b + 5, c : c + 2])
    again = H5Dataset(str(tmp_path / "a.h5"), "u", samples=Crops((4, 5, 2), at="random", per=300, seed=1))
    assert (again.extents.places.of(np.arange(300)) != found).any()


def test_an_epoch_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    check_resumed(dataset_of(tmp_path, "gzip"))


def test_boxes_about_centres(tmp_path: Path) -> None:
    for rows, centres in ((False, [[2, 3, 4], [5, 2, 2]]), (True, [[3, 2, 4], [0, 2, 2]])):
        shape = (4, 6, 7) if rows else (7, 6, 7)
        values = written(tmp_path / "a.h5", shape, "chunks", (3, 2, 5), at=np.array(centres, "i2"))
        box = (4, 5) if rows else (4, 3, 5)
        crops = Crops(box, at="at", volumes="rows" if rows else "files")
        data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=crops)
        for got, centre in zip(data, centres, strict=True):
            volume = values[centre[0]] if rows else values
            begin = [c - n // 2 for c, n in zip(centre[-len(box) :], box, strict=True)]
            assert np.array_equal(got, cut(volume, begin, box))


@pytest.mark.parametrize("share", [None, 0.3, 1.0])
def test_a_mask_says_which_boxes_of_a_grid_there_are(share: float | None, tmp_path: Path) -> None:
    for rows in (False, True):
        shape = (3, 8, 9) if rows else (8, 9)
        mask = np.random.default_rng(1).random(shape) < 0.2
        mask[..., :4, :5] = True
        values = written(tmp_path / "a.h5", shape, "chunks", (2, 4, 4)[-len(shape) :], mask=mask.astype("u1"))
        crops = Crops((3, 2), overlap=(1, 0), inside="mask", share=share, volumes="rows" if rows else "files")
        data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=crops)
        least = 1 if share is None else share * 6
        expected = [
            cut(volume, at, (3, 2))
            for volume, inside in zip(values if rows else [values], mask if rows else [mask], strict=True)
            for at in places((8, 9), (3, 2), (1, 0))
            if cut(inside, at, (3, 2)).sum() >= least
        ]
        assert 0 < len(expected) == len(data)
        assert np.array_equal(data.read_batch(range(len(data))), np.stack(expected))


def test_only_what_boxes_touch_is_read_and_each_chunk_decoded_once_a_batch(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", (32, 32, 32), "gzip", (8, 8, 8))
    data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=Crops((8, 8, 8)))
    pending = data.start_batch([63, 63, 62])  # boxes that are chunks, the last ones of the file
    pending.wait()
    assert pending.counts()["chunks_decoded"] == 2
    data = H5Dataset(str(tmp_path / "a.h5"), Field("u", axis=2), page_cache=False)
    pending = data.start_batch(range(24, 32))
    pending.wait()
    assert pending.counts()["chunks_decoded"] == 12  # the first 16 of the file were never written
    written(tmp_path / "b.h5", (64, 64, 64), "contiguous")
    data = H5Dataset(str(tmp_path / "b.h5"), "u", samples=Crops((4, 32, 64)), page_cache=True)
    pending = data.start_batch([1])
    pending.wait()
    counts = pending.counts()
    assert counts["bytes_read"] + counts["bytes_mapped"] == 4 * 32 * 64 * 4


def test_our_codec_gives_the_same_boxes(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", (20, 9, 10), "lzf and a checksum", (4, 9, 10))
    compress(tmp_path / "a.h5", tmp_path / "b.h5", {"/u": "lossless"}, chunk_samples=4)
    settle(tmp_path / "b.h5")
    data = H5Dataset(str(tmp_path / "b.h5"), "u", samples=Crops((6, 5, 4), overlap=2))
    for got, at in zip(data, places((20, 9, 10), (6, 5, 4), (2, 2, 2)), strict=True):
        assert np.array_equal(got, cut(values, at, (6, 5, 4)))


def check_decoded_in_part(data: H5Dataset, values: Any, every: list[Any], box: tuple[int, int, int]) -> None:
    """The only chunk is decoded in part for a first box; for more of them whole, and then it stays."""
    pending = data.start_batch([7])
    assert np.array_equal(pending.wait()[0], cut(values, every[7], box))
    assert pending.counts()["bytes_decoded"] < values.nbytes / 2
    for index in (len(every) - 1, 30):
        pending = data.start_batch([index])
        assert np.array_equal(pending.wait()[0], cut(values, every[index], box))
    assert pending.counts()["chunks_decoded"] == 0


def test_tiles_of_our_codec_are_decoded_alone_where_boxes_want_few(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", (40, 64, 64), "chunks", (8, 64, 64))
    compress(tmp_path / "a.h5", tmp_path / "b.h5", {"/u": "lossless"}, chunk_samples=40)
    settle(tmp_path / "b.h5")
    data = H5Dataset(str(tmp_path / "b.h5"), "u", samples=Crops((9, 8, 10), overlap=(0, 0, 4)))
    every = [*places((40, 64, 64), (9, 8, 10), (0, 0, 4))]
    check_decoded_in_part(data, values, every, (9, 8, 10))


@pytest.mark.parametrize("kind", ["blosc", "blosc2"])
def test_blocks_of_blosc_are_decoded_alone_where_boxes_want_few(tmp_path: Path, kind: str) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="writes blosc chunks")
    values = np.random.default_rng(5).integers(0, 99, (40, 128, 128)).astype("f4")
    filter_ = hdf5plugin.Blosc(cname="lz4") if kind == "blosc" else hdf5plugin.Blosc2(cname="lz4")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("u", data=values, chunks=values.shape, **filter_)
    settle(tmp_path / "b.h5")
    data = H5Dataset(str(tmp_path / "b.h5"), "u", samples=Crops((1, 8, 10)))
    every = [*places(values.shape, (1, 8, 10), (0, 0, 0))]
    check_decoded_in_part(data, values, every, (1, 8, 10))


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"image": sample["image"] + rng.random(dtype="f4")}


def test_transforms_and_workers_get_the_same_boxes(tmp_path: Path) -> None:
    data = dataset_of(tmp_path, "chunks")
    expected = [*DataLoader(data, 7)]
    assert equal([*DataLoader(pickle.loads(pickle.dumps(data)), 7, num_workers=2)], expected)
    assert equal([*TorchLoader(data, 7, num_workers=2)], expected)
    data.transform, data.thread_safe = drawn, True
    two = [*DataLoader(data, 7, sampler=PlanSampler(data, 1, 0, seed=4), num_workers=2)]
    assert equal([*DataLoader(data, 7, sampler=PlanSampler(data, 1, 0, seed=4))], two)


@pytest.mark.parametrize("options", [{}, {"resident": "1MiB"}, {"dtype": "float16"}], ids=str)
def test_boxes_land_on_a_device(options: dict[str, Any], tmp_path: Path) -> None:
    data = dataset_of(tmp_path, "gzip", at="grid", per=1)
    expected = [*DataLoader(data, 8)]
    with DataLoader(data, 8, device="cpu", **options) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, expected, strict=True):
                kind = torch.float16 if "dtype" in options else torch.float32
                assert torch.equal(ours["image"], theirs["image"].to(kind))
                assert torch.equal(ours["label"], theirs["label"])
    drawn_anew = dataset_of(tmp_path, "gzip")
    with pytest.raises(PlanError, match="each epoch has other samples"):
        next(iter(DataLoader(drawn_anew, 8, device="cpu", resident="1MiB")))


@pytest.mark.parametrize("stored", ["gzip", "lzf and a checksum"])
def test_boxes_with_a_damaged_chunk_are_left_out(stored: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path, (12, 12), stored, (4, 4), y=np.arange(9))
    with h5py.File(path) as file:
        info = next(i for i in map(file["u"].id.get_chunk_info, range(6)) if i.chunk_offset == (4, 8))
    with path.open("r+b") as opened:
        opened.seek(info.byte_offset)
        byte = opened.read(1)[0]
        opened.seek(info.byte_offset)
        opened.write(bytes([byte ^ 255]))
    settle(path)
    data = H5Dataset(str(path), "u", samples=Crops((4, 4)))
    with DataLoader(data, 2, on_error="skip") as loader:
        assert sum(len(batch) for batch in loader) == 8
    with pytest.raises(Exception, match=rf"a\.h5: /u, sample 5, offset {info.byte_offset}"):
        data[5]
    anew = H5Dataset(str(path), "u", samples=Crops((4, 4), at="random", per=60))
    with DataLoader(anew, 5, on_error="skip") as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            left = sum(len(batch) for batch in loader)
            place = anew.extents.places.of(np.arange(60) + 60 * epoch)[:, 2:]
            assert left == 60 - int(((place[:, 0] > 0) & (place[:, 0] < 8) & (place[:, 1] > 4)).sum())


def test_files_may_be_volumes_of_different_heights(tmp_path: Path) -> None:
    heights = (9, 4, 12)
    values = [written(tmp_path / f"{n}.h5", (n, 6, 5), "contiguous") for n in heights]
    files = [str(tmp_path / f"{n}.h5") for n in heights]
    data = H5Dataset(files, "u", samples=Crops((4, 6, 2), overlap=(2, 0, 0)))
    expected = [cut(one, at, (4, 6, 2)) for one in values for at in places(one.shape, (4, 6, 2), (2, 0, 0))]
    assert np.array_equal(data.read_batch(range(len(data))), np.stack(expected))
    whole = ConcatDataset([H5Dataset(file, "u", samples=Crops((4, 6, 2), overlap=(2, 0, 0))) for file in files])
    with DataLoader(whole, len(data), shuffle=False) as loader:
        [batch] = loader
        assert np.array_equal(batch.numpy(), np.stack(expected))
    with pytest.raises(
        LayoutError, match=r"4\.h5: /u has 4 rows, .*9\.h5: /u has 9, and a sample along axis 1 has all"
    ):
        H5Dataset(files, Field("u", axis=1))
    with pytest.raises(LayoutError, match=r"4\.h5: /u: boxes of shape \(5, 6, 2\) are larger than its volume"):
        H5Dataset(files, "u", samples=Crops((5, 6, 2)))


def test_each_file_is_unpacked_by_its_own_attributes(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{n}.h5") for n in range(2)]
    for number, file in enumerate(files):
        written(Path(file), (6, 2, 4, 5), "contiguous", t=np.arange(40, dtype="i2").reshape(2, 4, 5))
        with h5py.File(file, "a") as opened:
            opened["t"].attrs["scale_factor"] = np.float32(10.0 ** (number + 1))
        settle(Path(file))
    fields = {"u": "u", "t": Field("t", cf=True)}  # which have other axes before those of a box
    data = H5Dataset(files, fields, samples=Crops((2, 3, 2), overlap=(0, 2, 0)))
    every = [cut(np.arange(40).reshape(2, 4, 5), at, (2, 3, 2)) for at in places((2, 4, 5), (2, 3, 2), (0, 2, 0))]
    expected = np.stack([scale * box for scale in (10, 100) for box in every]).astype("f4")
    assert np.array_equal(data.read_batch(range(len(data)))["t"], expected)
    other = H5Dataset(files[::-1], fields, samples=Crops((2, 3, 2), overlap=(0, 2, 0)))
    [batch] = DataLoader(ConcatDataset([data, data]), 2 * len(data))
    assert np.array_equal(batch["t"].numpy(), np.concatenate([expected, expected]))
    assert not np.array_equal(other[0]["t"], data[0]["t"])


WRONG: list[tuple[Any, Any, str]] = [
    ("u", Crops((7, 2, 2)), r"/u: boxes of shape \(7, 2, 2\) are larger than its volume, which is \(6, 5, 4\): give"),
    (
        "u",
        Crops((2, 2, 2, 2)),
        r"/u has shape \(6, 5, 4\), and boxes have 4 axes: give boxes of fewer axes",
    ),
    ("one", Crops((2,)), "/one: boxes are cut out of volumes, and a scalar has no axes"),
    ("y", Crops((2,), volumes="rows"), r"/y has shape \(6,\): no box of 1 axes can be cut out of it"),
    (
        ("u", "small"),
        Crops((2, 2)),
        r"/small: its volume is \(5, 3\), that of /u is \(5, 4\): what is",
    ),
    (("u", "few"), Crops((2, 2), volumes="rows"), "/few has 2 rows, /u has 6: each volume needs one"),
    ("u", Crops((2, 2, 2), at="few"), r"/few has shape \(2, 5, 4\) of float32; what tells centres has 3 whole numbers"),
    (
        "u",
        Crops((2, 2, 2), at="far"),
        r"/far: centre 1 is \(1, 1, 4\), and a box of shape \(2, 2, 2\) about it",
    ),
    (
        "u",
        Crops((5, 4), at="far", volumes="rows"),
        r"/far: centre 1 is \(1, 1, 4\).*6 volumes of \(5, 4\): leave",
    ),
    ("u", Crops((2, 2), at="past", volumes="rows"), r"/past: centre 0 is \(6, 2, 2\)"),
    ("u", Crops((2, 2, 2), at="huge"), r"/huge: centre 0 is \(1, 1, 18446744073709551615\)"),
    ("u", Crops((2, 2, 2), at="none"), "/none has no centre"),
    ("u", Crops((2, 2, 2), at="lacking"), "there is no"),
    (
        "u",
        Crops((2, 2, 2), inside="small"),
        r"/small has shape \(6, 5, 3\), /u has \(6, 5, 4\): a mask says",
    ),
    (
        "u",
        Crops((2, 2, 2), inside="zeros"),
        r"/zeros: no box of shape \(2, 2, 2\) has 1 voxels of it",
    ),
    ("empty", Crops((2, 2), volumes="rows"), "/empty: it has no volume"),
    (Field("u", axis=3), "rows", r"/u has shape \(6, 5, 4\), and axis=3 was asked for: it has 3 axes"),
    (Field("u", axis=1), "files", 'axis=1 was asked for: with samples="files" each file is one sample'),
    ((Field("u", axis=1), "u"), "rows", "fields of one sample differ in length: /u has 5 samples, /u has 6"),
    (Field("empty", axis=1), "rows", r"/empty has shape \(0, 5, 4\): its samples would have no values"),
    (Field("u", axis=1), Crops((2, 2)), r"axis beside samples=Crops\(...\): a sample is either of them"),
    (Field("u", steps=(0, 1)), Crops((2, 2)), r"steps, or samples=Windows\(...\) beside samples=Crops"),
    (Field("u", axis=1), Windows(), r"steps, or samples=Windows\(...\) beside axis"),
    ("joined", Crops((2, 2, 2)), "/joined: only native code cuts boxes out of a dataset, and .*: write it anew"),
]


@pytest.mark.parametrize(("fields", "samples", "said"), WRONG, ids=lambda one: one if isinstance(one, str) else "")
def test_what_makes_no_boxes_is_said_with_file_dataset_and_number(
    fields: Any, samples: Any, said: str, tmp_path: Path
) -> None:
    more = {"one": 3, "y": np.arange(6), "small": np.ones((6, 5, 3)), "few": np.ones((2, 5, 4), "f4")}
    more |= {"far": [[3, 2, 2], [1, 1, 4]], "past": [[6, 2, 2]], "huge": np.array([[1, 1, 2**64 - 1]], "u8")}
    more |= {"none": np.empty((0, 3), "i8"), "zeros": np.zeros((6, 5, 4)), "empty": np.empty((0, 5, 4))}
    written(tmp_path / "a.h5", (6, 5, 4), "chunks", (2, 3, 4), **more)
    virtual = h5py.VirtualLayout((6, 5, 4), "f4")
    virtual[::2] = h5py.VirtualSource(str(tmp_path / "a.h5"), "u", (6, 5, 4))[::2]
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_virtual_dataset("joined", virtual)
    settle(tmp_path / "a.h5")
    with pytest.raises(LayoutError, match=said) as found:
        H5Dataset(str(tmp_path / "a.h5"), fields, samples=samples)
    assert str(tmp_path / "a.h5") in str(found.value)


def test_crops_and_axes_that_make_no_sense_are_refused() -> None:
    for wrong, word in (
        ({"shape": (0, 2)}, "shape"),
        ({"shape": ()}, "shape"),
        ({"overlap": 2}, "overlap"),
        ({"overlap": (1,)}, "overlap"),
        ({"per": 0, "at": "random"}, "per"),
        ({"per": 2}, "per"),
        ({"at": "random", "inside": "m"}, "inside"),
        ({"share": 0.5}, "share"),
        ({"share": 0, "inside": "m"}, "share"),
        ({"volumes": "datasets"}, "volumes"),
    ):
        with pytest.raises(ValueError, match=word):
            Crops(**({"shape": (2, 2)} | wrong))
    with pytest.raises(TypeError, match="axis is an integer"):
        Field("u", axis=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one after another"):
        Field("u", axis=1, steps=(0, 2))
    with pytest.raises(TypeError, match="at is"):
        Crops((2, 2), at=3)  # type: ignore[arg-type]
