"""Boxes in a buffer: it changes no batch, and what it reads and decodes is what the plan counts."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import run_kit
import torch
from buffer_kit import DISK, ORDERS, counted, equal, generator, least_of, loader_of, passes, plain_runs, run_of
from crops_kit import STORED, cases, check_resumed, dataset_of, written
from hypothesis import assume, given, settings
from kit import engine, settle
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import Crops, DataLoader, Field, H5Dataset, PlanError, PlanSampler, compress
from solar.io.reading.engine import Engine
from solar.samples.pending import leaves
from solar.values import Storage

BUFFERED = ("sequential", "shuffled", "by a generator", "with replacement", "odd batches", "planned", "a list")
EPOCHS = 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contiguous data is cut into blocks of so few bytes that small volumes have several."""
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 300)


def data_of(kind: str, folder: Path, stored: str) -> Any:
    """Volumes of two files, with boxes or slices of each kind."""
    if kind in ("random", "grid", "inside"):
        given = {"random": {}, "grid": {"at": "grid", "per": 1, "overlap": (2, 1, 0)}}
        given["inside"] = given["grid"] | {"inside": "label", "share": 0.82}
        return dataset_of(folder, stored, **given[kind])
    folder.mkdir(exist_ok=True)
    for number in range(2):
        centres = np.random.default_rng(number).integers(3, 6, (15, 4))
        more = {"at": centres % [5, 9, 9, 9] if kind == "centres" else centres, "y": np.arange(11) + number}
        written(folder / f"{number}.h5", (5, 8, 9, 11), stored, (2, 3, 4, 5), dtype=">i2", **more)
    files = [str(folder / f"{number}.h5") for number in range(2)]
    if kind == "centres":
        return H5Dataset(files, {"image": "u"}, samples=Crops((4, 3, 5), at="at", volumes="rows"))
    return H5Dataset(files, {"image": Field("u", axis=-1), "y": "y"})


KINDS = ("random", "grid", "inside", "centres", "slices")


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", STORED)
def test_a_buffer_changes_no_batch_and_counts_are_the_plans(kind: str, stored: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path, stored)
    for order in BUFFERED if kind == "random" else ("shuffled", "planned"):
        torch.manual_seed(1)
        expected = passes(DataLoader(data, **ORDERS[order](data), buffer=0), EPOCHS)
        least = least_of(lambda nbytes: loader_of(data, order, buffer=nbytes))  # noqa: B023
        for nbytes in (least, least + 4_000, least + 90_000):
            torch.manual_seed(1)
            with loader_of(data, order, buffer=nbytes, epochs=EPOCHS) as loader:
                assert equal(passes(loader, EPOCHS), expected), (order, nbytes)
                planned = loader._buffered.planned
                assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), (order, nbytes)
                assert loader.stats()["peak_bytes"] <= nbytes


def test_batches_are_torchs(tmp_path: Path) -> None:
    data = data_of("random", tmp_path, "gzip")
    theirs = TorchLoader(data, 7, shuffle=True, generator=generator(3))
    with DataLoader(data, 7, shuffle=True, generator=generator(3), buffer="1MiB", storage=DISK, epochs=3) as loader:
        for epoch in range(3):
            data.set_epoch(epoch)
            assert equal([*loader], [*theirs])


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", ["random", "slices"])
def test_the_native_run_does_what_a_plain_one_does(
    kind: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, written_once = [], data_of(kind, tmp_path, stored)  # libhdf5 leaves anything behind the ends of volumes
    for native in (True, False):
        if not native:
            plain_runs(monkeypatch)
        data = pickle.loads(pickle.dumps(written_once))  # with readers of its own
        least = least_of(lambda nbytes: loader_of(data, "shuffled", buffer=nbytes))  # noqa: B023
        for nbytes in (least, least + 6_000, least + 90_000):
            torch.manual_seed(1)
            with loader_of(data, "shuffled", buffer=nbytes, epochs=2) as loader:
                found.append((passes(loader, 2), counted(loader)[:4]))
    for (batches, counts), (others, plain) in zip(found[:3], found[3:], strict=True):
        assert equal(batches, others)
        assert counts == plain


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_boxes_come_of_blocks_as_they_do_of_files(case: dict[str, Any]) -> None:
    assume(case["dtype"] != "S3")  # of which torch makes no batch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        written(path, case["shape"], case["stored"], case["chunk"], dtype=case["dtype"])
        crops = (
            Crops(case["box"], at="random", per=9) if case["axis"] % 2 else Crops(case["box"], "grid", case["overlap"])
        )
        for fields, samples in (("u", crops), (Field("u", axis=case["axis"]), "rows")):
            data = H5Dataset(str(path), (fields,), samples=samples, page_cache=case["page_cache"])
            torch.manual_seed(1)
            expected = passes(DataLoader(data, 4, shuffle=True, buffer=0), 2)
            torch.manual_seed(1)
            with DataLoader(data, 4, shuffle=True, buffer="1MiB", storage=DISK) as loader:
                assert equal(passes(loader, 2), expected)
                planned = loader._buffered.planned
                assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)


def stored_of(data: H5Dataset) -> list[Any]:
    """The blocks of each field."""
    return [one.rows.read_as for one in data.opened()]


@pytest.mark.parametrize("stored", [*STORED, "our codec"])
def test_with_memory_for_all_each_byte_is_read_and_each_chunk_decoded_once(stored: str, tmp_path: Path) -> None:
    crops = Crops((6, 5, 4), at="random", per=200)
    written(tmp_path / "a.h5", (20, 9, 10), "chunks" if stored == "our codec" else stored, (4, 9, 10))
    path = tmp_path / "a.h5"
    if stored == "our codec":
        path = tmp_path / "b.h5"
        compress(tmp_path / "a.h5", path, {"/u": "lossless"}, chunk_samples=4)
        settle(path)
    data = H5Dataset(str(path), {"u": "u"}, samples=crops)
    with (
        engine(2, "auto"),
        DataLoader(data, 8, shuffle=True, buffer="4MiB", epochs=4, generator=generator(1),
                   storage=Storage(0.0, 1e9)) as loader,  # which reads over no hole
    ):  # fmt: skip
        before = Engine.get().stats()
        passes(loader, 4)
        counts, stats = run_of(loader).counts(), loader.stats()
        read = {name: value - before[name] for name, value in Engine.get().stats().items()}
    [blocks] = stored_of(data)
    assert counts["bytes"] == int(blocks.chunk_nbytes.sum())
    assert counts["reads"] == blocks.samples
    assert read["bytes_read"] == counts["bytes"]
    encoded = blocks.forms[0].filters
    chunks = len(blocks.chunk_nbytes) if encoded else 0
    assert read["chunks_decoded"] == chunks
    assert stats["bytes_decoded"] == chunks * blocks.sample_nbytes


def test_a_step_reads_a_block_once_however_many_boxes_want_it(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", (16, 16, 16), "gzip", (8, 8, 8))
    data = H5Dataset(str(tmp_path / "a.h5"), {"u": "u"}, samples=Crops((6, 6, 6), at="random", per=64))
    least = least_of(lambda nbytes: DataLoader(data, 64, buffer=nbytes))
    with DataLoader(data, 64, buffer=least, storage=DISK, epochs=2) as loader:
        passes(loader, 2)
        assert run_of(loader).parts[0].direct
        assert loader.stats()["bytes_decoded"] == 2 * 4 * 8**3 * 4  # half of the chunks were never written


@pytest.mark.parametrize("kind", ["random", "slices"])
@pytest.mark.parametrize("stored", ["contiguous", "gzip"])
def test_data_sets_stored_differently_are_joined_in_one_buffer(kind: str, stored: str, tmp_path: Path) -> None:
    parts = [data_of(kind, tmp_path / name, one) for name, one in (("a", stored), ("b", "chunks"))]
    data = ConcatDataset([Subset(parts[1], list(range(0, len(parts[1]), 3))), parts[0]])
    torch.manual_seed(1)
    expected = passes(DataLoader(data, 7, shuffle=True, buffer=0), 2)
    least = least_of(lambda nbytes: loader_of(data, "shuffled", buffer=nbytes))
    for nbytes in (least, least + 90_000):
        torch.manual_seed(1)
        with DataLoader(data, 7, shuffle=True, buffer=nbytes, storage=DISK, epochs=2) as loader:
            assert equal(passes(loader, 2), expected)
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)
            assert loader.stats()["peak_bytes"] <= nbytes


def test_epochs_that_are_set_anew_have_their_own_places(tmp_path: Path) -> None:
    data = data_of("random", tmp_path, "gzip")
    plain = DataLoader(data, 8, buffer=0)
    with DataLoader(data, 8, buffer="1MiB", storage=DISK, epochs=9) as loader:
        for epoch in (0, 1, 2, 7, 7, 3, 5, 7):
            plain.set_epoch(epoch)
            loader.set_epoch(epoch)
            assert equal([*loader], [*plain]), epoch
        both = [iter(loader), iter(plain)]
        assert equal(*[[next(one) for _ in range(2)] for one in both])
        del both  # amid an epoch
        loader.set_epoch(8)
        plain.set_epoch(8)
        assert equal([*loader], [*plain])


def test_it_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    check_resumed(data_of("random", tmp_path, "gzip"), buffer="1MiB", storage=DISK)


def test_boxes_with_a_damaged_chunk_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path, (12, 12), "gzip", (4, 4), y=np.arange(9))
    with h5py.File(path) as file:
        info = next(i for i in map(file["u"].id.get_chunk_info, range(6)) if i.chunk_offset == (4, 8))
    with path.open("r+b") as opened:
        opened.seek(info.byte_offset)
        opened.write(bytes(info.size))
    settle(path)
    data = H5Dataset(str(path), "u", samples=Crops((4, 4), at="random", per=60))
    with pytest.raises(Exception, match=rf"a\.h5: /u, sample \d+, offset {info.byte_offset}"):
        list(DataLoader(data, 5, buffer="1MiB", storage=DISK))
    for nbytes in ("1MiB", least_of(lambda nbytes: DataLoader(data, 5, buffer=nbytes))):
        with DataLoader(data, 5, on_error="skip", buffer=nbytes, storage=DISK) as loader:
            for epoch in range(2):
                loader.set_epoch(epoch)
                left = sum(len(batch) for batch in loader)
                place = data.extents.places.of(np.arange(60) + 60 * epoch)[:, 2:]
                assert left == 60 - int(((place[:, 0] > 0) & (place[:, 0] < 8) & (place[:, 1] > 4)).sum())


@pytest.fixture
def no_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are worth a buffer, too."""
    monkeypatch.setattr("solar.buffer.buffer_size.LEAST_EPOCH_SECONDS", 0.0)


def decoded_in(data: Any, **terms: Any) -> tuple[bool, list[Any], int]:
    """Whether there was a buffer in two shuffled epochs; what came; and the bytes that were decoded."""
    with DataLoader(data, 8, sampler=PlanSampler(data, 1, 0, seed=2), **terms) as loader:
        came = passes(loader, 2)
        return loader._buffered.running is not None, came, loader.stats()["bytes_decoded"]


@pytest.mark.usefixtures("no_least")
@pytest.mark.parametrize("kind", ["random", "grid", "slices"])
def test_where_memory_holds_all_that_is_encoded_nobody_need_ask(kind: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path, "gzip")
    taken, came, decoded = decoded_in(data)
    asked, expected, least = decoded_in(data, buffer="2MiB")
    without, plain, _ = decoded_in(data, buffer=0)
    assert (taken, asked, without) == (True, True, False)
    assert equal(came, expected)
    assert equal(came, plain)
    assert decoded == least


@pytest.mark.usefixtures("no_least")
def test_none_is_taken_unasked_where_nothing_is_encoded_where_memory_is_short_or_little_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not decoded_in(data_of("random", tmp_path / "plain", "contiguous"))[0]
    data = data_of("random", tmp_path / "gzip", "gzip")
    assert not decoded_in(dataset_of(tmp_path / "few", "gzip", per=1), epochs=1)[0]
    nbytes = sum(layout.nbytes for layout in leaves(data.layouts))
    monkeypatch.setattr("solar.io.system.memory.free_nbytes", lambda: 4 * nbytes)
    assert not decoded_in(data)[0]


@pytest.mark.parametrize("balance", ["equal", "uneven"])
def test_ranks_do_not_divide_them_by_where_they_lie(
    balance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of("random", tmp_path, "gzip")
    monkeypatch.setattr("solar.buffer.buffer_memory.those_of", lambda *_: run_kit)
    monkeypatch.setattr(run_kit, "ranks", 2, raising=False)
    sampler: Any = PlanSampler(data, 2, 0)
    with pytest.raises(PlanError, match=f"has boxes, which are not divided among ranks .*balance='{balance}'; leave"):
        next(iter(DataLoader(data, 8, buffer="1MiB", sampler=sampler, balance=balance)))
