"""Windows: each is one line of numpy over h5py, batches are torch's to the bit, and reads are those of the plan."""

from __future__ import annotations

import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import LAYOUTS, ORDERS, counted, equal, least_of, loader_of, passes, plain_runs, run_of
from hypothesis import assume, given, settings
from kit import settle
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader
from windows_kit import anchors, cases, dataset_of, window, written

from solar import DataLoader, Field, H5Dataset, LayoutError, PlanError, PlanSampler, Windows, compress
from solar.planning import sweep
from solar.planning.regions import whole_region
from solar.planning.sweep import MappedUses, MemoryLimits, RetentionPolicy
from solar.planning.units import uniform
from solar.samples.row_windows import Listing, windows
from solar.values import Storage

EPOCHS = 3
FIELDS = {"past": Field("u", steps=range(-3, 1)), "next": Field("u", steps=(1, 3))}


@settings(max_examples=120, deadline=None)
@given(cases())
def test_a_window_is_the_rows_at_its_steps(case: dict[str, Any]) -> None:
    lengths, steps = case["lengths"], case["steps"]
    ends = np.cumsum(lengths)
    ids = (
        np.repeat(np.arange(len(lengths)) % 2, lengths) if 0 not in lengths else np.repeat(range(len(lengths)), lengths)
    )
    places = anchors(ends.tolist(), steps, case["every"], pad=case["pad"] is not None)
    assume(places)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        values = written(path, int(ends[-1]), LAYOUTS[case["layout"]], ends=ends, lengths=lengths, ids=ids)
        samples = Windows(case["every"], pad=case["pad"], **{case["told"]: case["told"]})
        fields = [Field("u", steps=one) for one in steps]
        data = H5Dataset(str(path), (*fields, "y"), samples=samples)
        assert len(data) == len(places)
        assert [int(sample[-1]) for sample in data] == places
        for index, place in enumerate(places):
            for got, one in zip(data[index], steps, strict=False):
                expected = window(values, place, one, ends.tolist())
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected)
        order = np.random.default_rng(0).integers(0, len(places), 20)
        for got, one in zip(data.read_batch(order), steps, strict=False):
            assert np.array_equal(got, np.stack([window(values, places[i], one, ends.tolist()) for i in order]))


def test_a_file_is_a_part_and_steps_alone_ask_for_windows(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(3)]
    rows = [written(path, n, {}) for path, n in zip(paths, (6, 2, 9), strict=True)]
    data = H5Dataset([str(path) for path in paths], Field("u", steps=range(4)))
    expected = [one[a : a + 4] for one in rows for a in range(len(one) - 3)]
    assert len(data) == len(expected) == 9
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(data, expected, strict=True))


def joined(tmp_path: Path) -> Any:
    """Two data sets of windows, of one of which every third is taken."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = (dataset_of(tmp_path / name, "chunks of four samples") for name in ("one", "two"))
    return ConcatDataset([one, Subset(two, list(range(0, len(two), 3)))])


CASES = [
    *(("chunks of four samples", order) for order in ORDERS),
    *((layout, order) for layout in [*LAYOUTS, "joined"] for order in ("shuffled", "by a generator", "weighted")),
]


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(("layout", "order"), sorted(set(CASES)), ids=lambda name: name)
def test_batches_are_torchs_and_counts_the_plans(layout: str, order: str, tmp_path: Path) -> None:
    dataset = joined(tmp_path) if layout == "joined" else dataset_of(tmp_path, layout)
    ours = order == "planned, exact"  # which torch's loader cannot cut
    torch.manual_seed(1)
    expected = passes((DataLoader if ours else TorchLoader)(dataset, **ORDERS[order](dataset)), EPOCHS)
    assert expected[0][0]["past"].is_contiguous()
    state = torch.get_rng_state()
    least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes))
    for nbytes in (0, least, least + 4_000, least + 60_000):
        torch.manual_seed(1)
        with loader_of(dataset, order, buffer=nbytes, epochs=EPOCHS) as loader:
            got = passes(loader, EPOCHS)
            assert equal(got, expected), nbytes
            assert got[0][0]["next"].is_contiguous()
            assert torch.equal(torch.get_rng_state(), state)
            if nbytes == 0:
                continue
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), nbytes
            assert counted(loader)[4] <= sum(part.pages * part.page for part in run_of(loader).parts)
            assert loader.stats()["peak_bytes"] <= nbytes


@pytest.mark.parametrize("layout", ["contiguous", "chunks of four samples", "tiles in a sample"])
def test_the_native_run_does_what_a_plain_one_does(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for native in (True, False):
        if not native:
            plain_runs(monkeypatch)
        dataset = dataset_of(tmp_path, layout)
        least = least_of(lambda nbytes: loader_of(dataset, "shuffled", buffer=nbytes))  # noqa: B023
        for nbytes in (least, least + 2_500, least + 60_000):
            torch.manual_seed(1)
            with loader_of(dataset, "shuffled", buffer=nbytes, epochs=2) as loader:
                found.append((passes(loader, 2), counted(loader)[:4]))
    for (batches, counts), (others, plain) in zip(found[:3], found[3:], strict=True):
        assert equal(batches, others)
        assert counts == plain


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_memory_for_all_each_byte_is_read_and_each_chunk_decoded_once(layout: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, layout, every=1)
    rows, chunks = dataset.reads[0].layout, dataset.reads[0].layout.chunk_nbytes
    terms = ORDERS["by a generator"](dataset) | {"buffer": "2MiB", "epochs": 4}
    with DataLoader(dataset, **terms, storage=Storage(0.0, 1e9)) as loader:  # which reads over no hole
        passes(loader, 4)
        counts, stats = run_of(loader).counts(), loader.stats()
    assert len(dataset.reads) == 2  # the past and the future are of one
    assert counts["reads"] <= 2 * 96
    assert counts["bytes"] <= int(chunks.sum()) + 96 * 8
    if rows.forms[0].filters:
        assert stats["bytes_decoded"] == len(chunks) * np.prod(rows.forms[0].chunk) * 4


def test_a_window_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "chunks of four samples")
    loader = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, seed=2), buffer="1MiB")
    iterator = iter(loader)
    seen = [next(iterator)["y"] for _ in range(3)]
    state = loader.state_dict()
    del iterator
    loader.close()
    left = []
    for rank in range(2):
        other = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 2, rank, seed=2, tail="exact"), exchange="off")
        other.load_state_dict(state)
        left += [batch["y"] for batch in other]
    assert sorted(torch.cat([*seen, *left]).tolist()) == [int(sample["y"]) for sample in dataset]


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"past": sample["past"] + rng.random(dtype="f4")}


def test_transforms_draw_by_the_sample_whoever_makes_it(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", 60, {})
    data = H5Dataset(str(tmp_path / "a.h5"), FIELDS | {"y": "y"}, transform=drawn, thread_safe=True)
    found = []
    for ranks, options in ((1, {}), (1, {"buffer": "1MiB"}), (3, {"num_workers": 2})):
        batches = [
            batch
            for rank in range(ranks)
            for batch in DataLoader(data, 4, sampler=PlanSampler(data, ranks, rank, seed=4, tail="exact"), **options)
        ]
        past, number = torch.cat([b["past"] for b in batches]), torch.cat([b["y"] for b in batches])
        found.append(past[number.argsort()])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_fields_convert_windows_as_numpy_does(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", 40, {"chunks": (4, 3, 5)})
    field = Field(
        "u", steps=range(-2, 2), select=(slice(1, 4), slice(None), slice(0, 2)), axes=(1, 0, 2), mean=3, std=2
    )
    data = H5Dataset(str(tmp_path / "a.h5"), {"a": field, "b": Field("u", steps=(0, 1), dtype="f8"), "c": "u"})
    for buffer in (0, "1MiB"):
        for batch in DataLoader(data, 5, buffer=buffer):
            at = [int(np.flatnonzero((values == c.numpy()).all((1, 2)))[0]) for c in batch["c"]]
            for a, b, place in zip(batch["a"], batch["b"], at, strict=True):
                expected = (values[place - 2 : place + 2][1:4, :, :2].transpose(1, 0, 2) - np.float32(3)) / np.float32(
                    2
                )
                assert np.array_equal(a.numpy(), expected)
                assert np.array_equal(b.numpy(), values[place : place + 2].astype("f8"))
    assert eval(repr(field)).steps == field.steps
    assert "steps=range(-2, 2)" in repr(field)


def test_our_codec_and_libhdf5_give_the_same_windows(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", 40, {"chunks": (4, 3, 5), "compression": "lzf"})
    compress(tmp_path / "a.h5", tmp_path / "b.h5", {"/u": "lossless"}, chunk_samples=4)
    settle(tmp_path / "b.h5")
    layout = h5py.VirtualLayout((40, 3, 5), "f4")
    for half in (slice(2), slice(2, 3)):  # sources side by side are libhdf5's
        layout[:, half] = h5py.VirtualSource(str(tmp_path / "a.h5"), "u", (40, 3, 5))[:, half]
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_virtual_dataset("u", layout)
    for name in "abc":
        data = H5Dataset(str(tmp_path / f"{name}.h5"), FIELDS)
        for batch, first in zip(DataLoader(data, 8), range(3, 37, 8), strict=True):
            for k in range(len(batch["past"])):
                assert np.array_equal(batch["past"][k], values[first + k - 3 : first + k + 1]), name
                assert np.array_equal(batch["next"][k], values[[first + k + 1, first + k + 3]]), name
    assert data.reads[0].layout.reader == "h5py"


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_windows_with_a_damaged_row_are_left_out(buffer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path, 40, {"chunks": (2, 3, 5), "fletcher32": True})
    with h5py.File(path) as file:
        at = file["u"].id.get_chunk_info(7).byte_offset  # rows 14 and 15
    with path.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
    settle(path)
    data = H5Dataset(str(path), FIELDS | {"y": "y"})
    with DataLoader(data, 4, buffer=buffer, on_error="skip") as loader:
        left = torch.cat([batch["y"] for batch in loader]).tolist()
        assert left == [a for a in range(3, 37) if not {14, 15} & {*range(a - 3, a + 1), a + 1, a + 3}]


WRONG = [
    ({"ends": [5, 4, 20]}, "end 1 is 4, after 5: ends ascend"),
    ({"ends": [5, 30]}, r"end 1 is 30, and /u has 20 rows: it ends before"),
    ({"ends": [-1, 20]}, "end 0 is -1, below 0"),
    ({"ends": [0, 8]}, "the last end is 8, and /u has 20 rows, so 12 are in no part"),
    ({"ends": np.array([20], "f4")}, "of float32; what tells the parts of a file are whole numbers"),
    ({"ends": [[20]]}, r"has shape \(1, 1\)"),
    ({"ends": np.array([2**64 - 1], "u8")}, "has 18446744073709551615, which no file has rows for"),
    ({"lengths": [5, -1, 16]}, "length 1 is -1, and /u has 20 rows"),
    ({"lengths": [2**62, 2**62, 2**62]}, "length 0 is 4611686018427387904"),
    ({"lengths": [5, 5]}, "its lengths add up to 10, and /u has 20 rows"),
    ({"ids": [1] * 19}, "has 19 ids, and /u has 20 rows"),
    ({"ends": [3, 8, 8, 14, 20]}, 
     r"windows reach over 7 rows \(steps -3 to 3\), and the longest of 5 parts told by /ends, number 3, has 6"),
    ({"ends": np.empty(0, "i8")}, "the last end is 0, and /u has 20 rows"),
]  # fmt: skip


@pytest.mark.parametrize(("told", "said"), WRONG, ids=lambda one: "" if isinstance(one, str) else str(one)[:40])
def test_what_makes_no_windows_is_said_with_file_dataset_and_number(
    told: dict[str, Any], said: str, tmp_path: Path
) -> None:
    [(word, values)] = told.items()
    written(tmp_path / "a.h5", 20, {}, **{word: values})
    with pytest.raises(LayoutError, match=f"^{re.escape(str(tmp_path))}/a.h5: /(u|{word}).*{said}"):
        H5Dataset(str(tmp_path / "a.h5"), Field("u", steps=range(-3, 4)), samples=Windows(**{word: f"/{word}"}))


def test_what_does_not_fit_windows_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path, 20, {}, one=3)
    with pytest.raises(LayoutError, match=r'and with samples="files" each file is one sample'):
        H5Dataset(str(path), Field("u", steps=(0, 1)), samples="files")
    with pytest.raises(LayoutError, match="a scalar has none"):
        H5Dataset(str(path), "one", samples=Windows())
    with pytest.raises(LayoutError, match="there is no"):
        H5Dataset(str(path), "u", samples=Windows(ends="endings"))
    for wrong in ({"every": 0}, {"pad": "wrap"}, {"ends": "a", "ids": "b"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Windows(**wrong)  # type: ignore[arg-type]
    for steps in ((), [0.5], (2**40,)):
        with pytest.raises((TypeError, ValueError), match="steps"):
            Field("u", steps=steps)  # type: ignore[arg-type]


def test_no_memory_is_taken_for_parts_that_no_rows_can_be_in(tmp_path: Path) -> None:
    written(path := tmp_path / "a.h5", 20, {})
    with h5py.File(path, "a") as file:
        file.create_dataset("lengths", (2**50,), "i4", chunks=(1024,))
    with pytest.raises(LayoutError, match=r"/lengths has 1,125,899,906,842,624 values, and /u has 20 rows"):
        H5Dataset(str(path), Field("u", steps=range(3)), samples=Windows(lengths="/lengths"))


def test_rows_at_places_alone_are_every_so_many(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", 20, {}, ends=[3, 3, 20])
    data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=Windows(4, ends="ends"))
    assert [sample.tolist() for sample in data] == [values[a].tolist() for a in (0, 3, 7, 11, 15, 19)]
    assert len(H5Dataset(str(tmp_path / "a.h5"), "u", samples=Windows(4, ends="ends", pad="edge"))) == 6
    with pytest.raises(IndexError, match=r"sample 6 of the windows of /u in .*, which has 6"):
        data[6]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("order", ["shuffled", "weighted", "odd batches"])
def test_pages_of_uses_make_the_same_plan(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(tmp_path, "chunks of four samples", every=1)
    least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes))
    found = []
    for page in (1 << 20, 100, 1):
        monkeypatch.setattr(sweep, "PAGE_USES", page)
        for nbytes in (least, least + 3_000, least + 60_000):
            torch.manual_seed(1)
            with loader_of(dataset, order, buffer=nbytes, epochs=EPOCHS) as loader:
                batches, planned = passes(loader, EPOCHS), loader._buffered.planned
                assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)
                found.append((batches, planned))
    for (batches, planned), (others, paged) in zip(3 * found[:3], found, strict=True):
        assert equal(batches, others)
        assert planned == paged


@pytest.mark.parametrize("lasting", [False, True])
def test_a_sweep_over_pages_is_that_over_their_epoch(lasting: bool) -> None:
    rng = np.random.default_rng(3)
    region = whole_region(uniform(200, 10, per_unit=4, stored=30))
    extents = windows(np.array([0, 90]), np.array([90, 200]), every=1, reach=(0, 5)).of_fields(((0, 1, 5),))
    orders = [rng.permutation(len(extents)).astype(np.int32) for _ in range(3)]
    starts = np.append(np.arange(0, 3 * len(extents), 21), 3 * len(extents))
    way, terms = RetentionPolicy(pinned=40, lasting=lasting, burst=30), MemoryLimits(1200, 25, 1)
    found = []
    for lists in (True, False):

        def uses(epoch: int, lists: bool = lists) -> Any:
            listing = Listing(extents, orders[epoch])
            return (listing[:] if lists else MappedUses(listing, lambda some: some)), starts

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "PAGE_USES", 50)
            found.append([*sweep.backwards(region, way, uses, range(3), terms, record=True)])
    for one, other in zip(*found, strict=True):
        assert one.counts == other.counts
        if one.record is not None and other.record is not None:
            assert all(map(np.array_equal, one.record, other.record))


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_are_pickled_and_made_by_torchs_workers(workers: int, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "chunks of four samples")
    with DataLoader(dataset, 8, buffer="1MiB") as loader:
        expected = list(loader)
    again = pickle.loads(pickle.dumps(dataset))  # after it was read, with all that this keeps
    assert again.extents["past"].digest == dataset.extents["past"].digest
    assert equal(list(TorchLoader(again, 8, num_workers=workers)), expected)


@pytest.mark.parametrize("options", [{}, {"resident": "1MiB"}, {"dtype": "float16"}, {"static": True}], ids=str)
def test_windows_land_on_a_device_as_rows_do(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "chunks of four samples")
    expected = list(DataLoader(dataset, 8, drop_last=True))
    for _ in range(2):
        with DataLoader(dataset, 8, drop_last=True, device="cpu", **options) as loader:
            for _epoch in range(2):
                for ours, theirs in zip(loader, expected, strict=True):
                    for name, values in theirs.items():
                        kind = torch.float16 if "dtype" in options and values.dtype == torch.float32 else values.dtype
                        assert torch.equal(ours[name], values.to(kind))
    with pytest.raises(PlanError, match="comes in windows, whose rows the host puts together"):
        next(iter(DataLoader(dataset, 8, device="cpu", decode="device")))


def test_ids_may_be_text_and_come_again(tmp_path: Path) -> None:
    ids = np.array(["a", "a", "b", "b", "b", "a", "a", "c"], "S4")
    for kind in (ids, ids.astype(h5py.string_dtype())):
        values = written(tmp_path / "a.h5", 8, {}, ids=kind)
        data = H5Dataset(str(tmp_path / "a.h5"), Field("u", steps=(0, 1)), samples=Windows(ids="ids"))
        assert [sample.tolist() for sample in data] == [values[a : a + 2].tolist() for a in (0, 2, 3, 5)]
