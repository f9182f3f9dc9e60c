"""on_error="skip": batches without the samples that cannot be read, in every way that batches are made."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from torch.utils.data import ConcatDataset, Subset

from solar import CodecError, DataLoader, H5Dataset, PlanError, PlanSampler, ReadError, _native, compress
from solar.io.codec.codec import Codec
from solar.io.reading.reader import Rows

SAMPLES, BATCH = 24, 4
FOR_EVER = 2**64 - 1
BAD = (5, 8, 9, 10, 11, 17)  # 8 to 11 are a batch
LEFT = [row for row in range(SAMPLES) if row not in BAD]


def spoil(path: Path, dataset: str, rows: tuple[int, ...]) -> None:
    """Turns a bit of each of these samples' chunks, whose checksums then are wrong."""
    with h5py.File(path) as file:
        offsets = [file[dataset].id.get_chunk_info(row).byte_offset for row in rows]
    with path.open("r+b") as opened:
        for offset in offsets:
            opened.seek(offset)
            byte = opened.read(1)[0]
            opened.seek(offset)
            opened.write(bytes([byte ^ 1]))


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "spoilt.h5"
    with h5py.File(path, "w") as file:
        values = np.repeat(np.arange(SAMPLES, dtype="f4")[:, None], 3, axis=1)
        file.create_dataset("x", data=values, chunks=(1, 3), fletcher32=True)
        file.create_dataset("y", data=np.arange(SAMPLES))
    spoil(path, "x", BAD)
    settle(path)
    return str(path)


def add_one(sample: Any) -> Any:
    return {"x": sample["x"] + 1, "y": sample["y"]}


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["y"].tolist() for batch in batches]


WAYS: dict[str, dict[str, Any]] = {
    "as read": {},
    "from the buffer": {"buffer": "1MiB"},
    "transformed here": {"transform": add_one},
    "transformed in threads": {"transform": add_one, "thread_safe": True},
    "transformed in processes": {"transform": add_one, "num_workers": 1, "multiprocessing_context": "fork"},
}


@pytest.fixture(params=WAYS)
def loader(request: pytest.FixtureRequest, path: str) -> Iterator[Any]:
    options = {"buffer": 0} | WAYS[request.param]
    of_data = {name: options.pop(name) for name in ("transform", "thread_safe") if name in options}
    data = H5Dataset(path, {"x": "x", "y": "y"}, **of_data)
    with DataLoader(data, BATCH, on_error="skip", **options) as made:
        yield made


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_come_without_the_samples_that_cannot_be_read(loader: Any, caplog: pytest.LogCaptureFixture) -> None:
    added = loader.dataset.transform is not None
    with caplog.at_level(logging.WARNING, "solar"):
        resident = set()
        for epoch in (1, 2):
            batches = list(loader)
            resident.add(loader.stats()["resident_bytes"])
            assert rows_of(batches) == [[0, 1, 2, 3], [4, 6, 7], [12, 13, 14, 15], [16, 18, 19], [20, 21, 22, 23]]
            assert all(torch.equal(batch["x"][:, 0], batch["y"] + added) for batch in batches)
            assert (loader.stats()["skipped"], loader.stats()["samples"]) == (epoch * len(BAD), epoch * len(LEFT))
    assert len(resident) == 1  # the buffer's, or nothing
    said = [one.getMessage() for one in caplog.records]
    assert [text.split(" is left out: ")[0].split()[-1] for text in said] == [*map(str, BAD)] * 2
    assert all("spoilt.h5: /x, sample " in text and "checksum" in text for text in said)


def test_without_it_the_batch_is_an_error_and_those_after_it_come(path: str) -> None:
    iterator = iter(DataLoader(H5Dataset(path, {"x": "x", "y": "y"}), BATCH, buffer=0))
    next(iterator)
    for _ in range(2):
        with pytest.raises(CodecError, match="checksum"):
            next(iterator)
    assert next(iterator)["y"].tolist() == [12, 13, 14, 15]


def test_a_sample_is_called_by_its_index_in_whatever_dataset_is_given(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = H5Dataset(path, {"x": "x", "y": "y"})
    parts = ConcatDataset([data, Subset(data, [0, 17, 2])])
    found = rows_of(DataLoader(parts, 9, on_error="skip", buffer=0))
    assert [row for batch in found for row in batch] == [*LEFT, 0, 2]
    assert "sample 25 is left out" in caplog.text


def test_without_batches_a_sample_that_cannot_be_read_is_left_out(path: str) -> None:
    loader = DataLoader(H5Dataset(path, {"x": "x", "y": "y"}), batch_size=None, on_error="skip", buffer=0)
    assert [int(sample["y"]) for sample in loader] == LEFT


def test_a_state_counts_batches_that_were_left_out(path: str) -> None:
    data = H5Dataset(path, {"x": "x", "y": "y"})
    options: dict[str, Any] = {"on_error": "skip", "buffer": 0}
    loader = DataLoader(data, BATCH, sampler=PlanSampler(data, shuffle=False), **options)
    iterator = iter(loader)
    for _ in range(3):  # the third is left out, and the fourth comes in its place
        last = next(iterator)
    other = DataLoader(data, BATCH, sampler=PlanSampler(data, shuffle=False), **options)
    other.load_state_dict(loader.state_dict())
    assert last["y"].tolist() == [12, 13, 14, 15]
    assert rows_of(other) == rows_of(iterator) == [[16, 18, 19], [20, 21, 22, 23]]


def test_an_epoch_of_which_nothing_can_be_read_is_an_error(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 2, sampler=[*BAD], on_error="skip", buffer=0)
    with pytest.raises(ReadError, match=r"not one sample could be read: .*spoilt\.h5"):
        list(loader)


def test_where_ranks_count_on_each_other_no_batch_is_left_out(path: str) -> None:
    data = H5Dataset(path, {"x": "x", "y": "y"})
    sampler = PlanSampler(data, 2, 0, shuffle=False)  # 0, 2, 4, ...
    with pytest.raises(PlanError, match="exchange='off'"):
        next(iter(DataLoader(data, 2, sampler=sampler, on_error="skip")))
    iterator = iter(DataLoader(data, 2, sampler=sampler, on_error="skip", exchange="off"))
    assert rows_of(next(iterator) for _ in range(2)) == [[0, 2], [4, 6]]
    with pytest.raises(ReadError, match="the other ranks would wait for ever"):
        next(iterator)
    assert rows_of(iterator) == [[12, 14], [16, 18], [20, 22]]


def test_what_is_wrong_with_a_transform_is_raised(path: str) -> None:
    def broken(sample: Any) -> Any:
        raise ReadError("its own")

    with pytest.raises(ReadError, match="its own"):
        next(iter(DataLoader(H5Dataset(path, "x", transform=broken), BATCH, on_error="skip", buffer=0)))


def test_a_word_that_it_cannot_be_and_a_dataset_that_torch_reads_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="on_error='ignore': it is 'raise' or 'skip'"):
        DataLoader(H5Dataset(path, "x"), on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="is not an H5Dataset"):
        iter(DataLoader(range(5), on_error="skip"))  # type: ignore[arg-type]


@pytest.fixture
def hole(path: str) -> Iterator[Any]:
    """hole(code): reads of the bytes of sample 10 of y, which lie between others, fail so."""
    with h5py.File(path, "r+") as file:
        file.create_dataset("z", data=np.arange(64 * 1024, dtype="f4").reshape(64, 1024), chunks=(1, 1024))
        chunk = file["z"].id.get_chunk_info(10)
    settle(Path(path))
    begin, end = chunk.byte_offset, chunk.byte_offset + chunk.size
    yield lambda code: _native._inject_faults(  # type: ignore[attr-defined]
        [(call, Path(path).name, begin, end, 0, FOR_EVER, code, FOR_EVER, 0.0) for call in ("read", "ring")]
    )
    _native._inject_faults([])  # type: ignore[attr-defined]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_bytes_that_nobody_asked_for_may_be_unreadable(path: str, hole: Any, on_error: Any) -> None:
    others = [row for row in range(16) if row != 10]
    data = H5Dataset(path, "z")
    hole(errno.ENXIO)
    batches = list(DataLoader(data, 8, sampler=others, on_error=on_error))
    assert [batch[:, 0].tolist() for batch in batches] == [
        [1024.0 * row for row in rows] for rows in (others[:8], others[8:])
    ]


def test_a_batch_is_made_again_around_what_cannot_be_read(path: str, hole: Any) -> None:
    data = H5Dataset(path, "z")
    hole(errno.ENXIO)
    assert [len(batch) for batch in DataLoader(data, 8, sampler=range(16), on_error="skip")] == [8, 7]


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_a_chunk_of_many_samples_that_does_not_decode_is_looked_at_once(
    buffer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, looked = tmp_path / "spoilt.h5", []
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(192.0).reshape(64, 3), chunks=(16, 3), fletcher32=True)
        file.create_dataset("y", data=np.arange(64))
    spoil(path, "x", (2,))  # the third chunk: samples 32 to 47
    settle(path)
    data, start = H5Dataset(path, {"x": "x", "y": "y"}), Rows.start

    def counted(self: Rows, rows: Any, *args: Any) -> Any:
        if len(rows) == 1 and self.layout.name == "/x":
            looked.append(rows[0] // 16)
        return start(self, rows, *args)

    monkeypatch.setattr(Rows, "start", counted)
    every = [sample for four in zip(*np.arange(64).reshape(4, 16), strict=True) for sample in (*four, four[0])]
    with DataLoader(data, 10, sampler=every, on_error="skip", buffer=buffer) as loader:
        batches = list(loader)  # each of the eight has samples of all four chunks, one or two more than once
        assert loader.stats()["skipped"] == 16
    assert rows_of(batches) == [[row for row in every[i : i + 10] if row // 16 != 2] for i in range(0, 80, 10)]
    assert sorted(looked) == [0, 1, 2, 3]
    said = [one.getMessage() for one in caplog.records if "is left out" in one.getMessage()]
    assert sorted(int(text.split(" is left")[0].split()[-1]) for text in said) == [*range(32, 48)]
    assert all(len(set(re.findall(r"sample (\d+)", text))) == 1 for text in said)  # none names another of its chunk


def test_what_goes_bad_beside_a_chunk_that_is_known_to_be_is_left_out_too(tmp_path: Path) -> None:
    path = tmp_path / "spoilt.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(192.0).reshape(64, 3), chunks=(16, 3), fletcher32=True)
        chunk = file["x"].id.get_chunk_info(3)
    spoil(path, "x", (2,))
    settle(path)
    begin, end = chunk.byte_offset, chunk.byte_offset + chunk.size
    batches = iter(DataLoader(H5Dataset(path, "x"), 4, sampler=[0, 16, 32, 48] * 20, on_error="skip", buffer=0))
    assert next(batches)[:, 0].tolist() == [0, 48, 144]
    _native._inject_faults(  # type: ignore[attr-defined]
        [(call, path.name, begin, end, 0, FOR_EVER, errno.EREMOTEIO, FOR_EVER, 0.0) for call in ("read", "ring")]
    )
    try:
        assert [batch[:, 0].tolist() for batch in batches][-1] == [0, 48]
    finally:
        _native._inject_faults([])  # type: ignore[attr-defined]


class Failing:
    """A sampler that cannot go on after some samples."""

    def __iter__(self) -> Iterator[int]:
        yield from (0, 1, 2, 3)
        raise ReadError("the list of samples is gone")

    def __len__(self) -> int:
        return 8


def test_an_error_of_the_sampler_is_raised(path: str) -> None:
    batches = iter(DataLoader(H5Dataset(path, "y"), BATCH, sampler=Failing(), on_error="skip"))
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(ReadError, match="the list of samples is gone"):
        next(batches)


def test_a_file_that_is_gone_amid_an_epoch_is_no_broken_sample(tmp_path: Path) -> None:
    path = tmp_path / "gone.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((400, 256), "f4")
    settle(path)
    batches = iter(DataLoader(H5Dataset(str(path), "x"), 20, on_error="skip"))
    next(batches)
    path.write_bytes(b"")
    with pytest.raises(ReadError, match=r"100 samples one after the other could not be read: .*gone\.h5"):
        list(batches)


def test_many_samples_may_be_unreadable_if_they_are_far_apart(tmp_path: Path) -> None:
    path = tmp_path / "holes.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(400, dtype="f4").reshape(400, 1), chunks=(1, 1))
        offsets = [file["x"].id.get_chunk_info(row).byte_offset for row in range(1, 400, 2)]
    settle(path)
    data = H5Dataset(str(path), "x")
    _native._inject_faults(  # type: ignore[attr-defined]
        [
            (call, path.name, at, at + 4, 0, FOR_EVER, errno.ENXIO, FOR_EVER, 0.0)
            for call in ("read", "ring")
            for at in offsets
        ]
    )
    try:
        loader = DataLoader(data, 1, on_error="skip")
        assert [batch.item() for batch in loader] == list(range(0, 400, 2))
        assert loader.stats()["skipped"] == 200
    finally:
        _native._inject_faults([])  # type: ignore[attr-defined]


def test_samples_that_only_decoding_on_the_device_finds_bad_are_left_out_there_too(tmp_path: Path) -> None:
    """Chunks with coding tables of another file: whole, with checksums that are right, and of no use here."""
    values = np.random.default_rng(0).normal(size=(SAMPLES + 100, 32, 32)).astype("f4")
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"], file["y"] = values[:SAMPLES], np.arange(SAMPLES)
    path = str(tmp_path / "small.h5")
    compress(tmp_path / "plain.h5", path, {"x": "abs=1e-2"}, chunk_samples=1)
    other = Codec("abs", 1e-2, coder="dense").trained(list(3 * values[SAMPLES:]))
    with h5py.File(path, "r+") as file:
        for row in BAD:
            file["x"].id.write_direct_chunk((row, 0, 0), bytes(other.encode(3 * values[row])))
    settle(Path(path))
    data, options = H5Dataset(path, {"x": "x", "y": "y"}), {"device": "cpu", "decode": "device", "buffer": 0}
    with DataLoader(data, BATCH, on_error="skip", **options) as loader:
        for epoch in (1, 2):
            found = list(loader)
            assert [row for batch in found for row in batch["y"].tolist()] == LEFT
            assert all(np.abs(batch["x"].numpy() - values[batch["y"].numpy()]).max() <= 0.0101 for batch in found)
            assert loader.stats()["skipped"] == epoch * len(BAD)
    with DataLoader(data, BATCH, **options) as loader, pytest.raises(CodecError, match="coding tables"):
        list(loader)
