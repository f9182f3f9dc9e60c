"""reader="gds": samples go from files to the device by kvikio, and batches are those that the host would have read.

There is no GPUDirect Storage here: kvikio is one that pretends (kvikio_kit.py), and so is the device (device_kit.py).
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from device_kit import Eager, Lazy, all_same, loaders, pretend
from kit import settle
from kvikio_kit import Kvikio, kvikio
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from solar import DataLoader, Field, H5Dataset, compress
from solar.errors import PlanError, ReadError
from solar.io import gds as gds_module

_ = kvikio  # a fixture
SAMPLES, SHAPE = 37, (5, 3)  # 15 values: few samples begin at a multiple of anything


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gds")
    for number in range(3):
        rng = np.random.default_rng(number)
        with h5py.File(made / f"{number}.h5", "w", libver="latest") as file:
            for name, chunks in {"plain": None, "single": (1, *SHAPE), "several": (4, *SHAPE)}.items():
                file.create_dataset(name, data=rng.random((SAMPLES, *SHAPE)).astype("f4"), chunks=chunks)
            file["counts"] = rng.integers(0, 9, (SAMPLES, *SHAPE)).astype("u2")
            file["flags"] = rng.random(SAMPLES) < 0.5
            file["complex"] = rng.random((SAMPLES, 3)).astype("c8")
            file["turned"] = rng.random((SAMPLES, 2)).astype(">f4")
            file["text"] = [f"sample {i}" for i in range(SAMPLES)]
            file.create_dataset("packed", data=rng.random((SAMPLES, *SHAPE)), chunks=(1, *SHAPE), compression="gzip")
            file.create_dataset("across", data=rng.random((SAMPLES, *SHAPE)), chunks=(2, 5, 2))
            gaps = file.create_dataset("gaps", (SAMPLES, *SHAPE), "f4", chunks=(1, *SHAPE))
            gaps[3] = 1
            file.create_dataset("unwritten", (SAMPLES, *SHAPE), "f4")
        settle(made / f"{number}.h5")
    return made


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Eager]:
    return pretend(monkeypatch, Eager)


def pair(dataset: Any, *given: Any, **options: Any) -> tuple[Any, DataLoader[Any]]:
    host, there = loaders(dataset, *given, reader="gds", **options)
    return host, there


FIELDS = {
    "plain": "plain",
    "chunked": ("single", ["several", "counts"]),
    "normalised": Field("counts", mean=2, std=0.3),
    "cut": Field("plain", select=slice(1, 4, 2), axes=(1, 0)),
    "flags": "flags",
    "complex": "complex",
    "by the host": {"turned": "turned", "packed": "packed", "across": "across", "text": "text"},
    "to the host's bits": Field("plain", dtype="int32"),
}
OPTIONS: list[dict[str, Any]] = [{}, {"batch_size": None}, {"static": True}, {"num_workers": 2}, {"ahead": 1}]


@pytest.mark.filterwarnings("ignore:In future, it will be an error:DeprecationWarning")  # torch 2.4's own, of np.bool_
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_that_the_host_reads(
    options: dict[str, Any], folder: Path, device: list[Eager], kvikio: Kvikio
) -> None:
    given = {"batch_size": 5, "shuffle": True} | options
    host, there = pair(H5Dataset(str(folder / "0.h5"), FIELDS), **given)
    for _epoch in range(2):
        assert all_same(host, there)
    assert kvikio.unwaited == 0 and set(kvikio.opened) == {str(folder / "0.h5")}


def test_samples_of_many_files_come_from_theirs(
    folder: Path, device: list[Eager], kvikio: Kvikio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gds_module, "KEPT", 2)
    parts = [H5Dataset([str(folder / f"{i}.h5") for i in (2, 0)], ("plain", "several")),
             H5Dataset(str(folder / "1.h5"), ("plain", "several"))]  # fmt: skip
    whole = ConcatDataset([Subset(parts[0], range(60, 5, -1)), parts[1], Subset(parts[1], [3, 3, 3])])
    assert all_same(*pair(whole, 7, True))
    assert len(kvikio.opened) - len(kvikio.closed) == 2 * 2  # of each of the two fields
    files = H5Dataset(str(folder), "plain", samples="files")
    host, there = pair(files, 2)
    assert all_same(host, there)
    there.close()
    assert len(kvikio.opened) - len(kvikio.closed) == 2 * 2
    assert kvikio.asked[-1][2] == SAMPLES * 15 * 4  # a sample is the whole data set of a file


def test_neighbours_are_read_in_one_request_and_counted(folder: Path, device: list[Eager], kvikio: Kvikio) -> None:
    _, there = pair(H5Dataset(str(folder / "0.h5"), "plain"), 10)
    list(there)
    assert [nbytes for _, _, nbytes in kvikio.asked] == [600, 600, 600, 420]
    stats = there.stats()
    assert (stats["requests"], stats["bytes"], stats["device_bytes"]) == (4, 2220, 2220)
    kvikio.asked.clear()
    _, there = pair(H5Dataset(str(folder / "0.h5"), "several"), sampler=[5, 4, 6, 7, 8, 20], batch_size=6)
    list(there)
    assert sorted(nbytes for _, _, nbytes in kvikio.asked) in ([60, 60, 60, 180], [60, 60, 240])  # 8 may lie behind 7
    assert kvikio.asked == sorted(kvikio.asked)


def test_reads_that_fall_short_are_continued(folder: Path, device: list[Eager], kvikio: Kvikio) -> None:
    kvikio.most = 7
    assert all_same(*pair(H5Dataset(str(folder / "0.h5"), ("plain", "complex")), 10, True))
    assert len(kvikio.asked) > SAMPLES * 60 // 7 and kvikio.unwaited == 0


@pytest.mark.parametrize("what", ["open", "pread", "get"])
@pytest.mark.parametrize("kind", [RuntimeError, OSError])
def test_what_fails_names_file_dataset_sample_and_offset_and_the_next_batch_comes(
    what: str, kind: type[Exception], folder: Path, device: list[Eager], kvikio: Kvikio
) -> None:
    path = str(folder / "0.h5")
    dataset = H5Dataset(path, ("plain", "flags"))
    offset = int(dataset.layouts[0].chunk_offset[0]) + 10 * 60

    def fail(now: str, file: str, at: int) -> None:
        if now == what and (now == "open" or at == offset) and not failed:
            failed.append(at)
            raise kind("cuFile error: 5011")

    failed: list[int] = []
    kvikio.fail = fail
    _, there = pair(dataset, 10, ahead=1)
    iterator = iter(there)
    first = 0 if what == "open" else 10
    want = rf"0\.h5: /?plain, sample {first}, offset {offset - 600 + 60 * first}: cuFile error: 5011 \(reader='gds'"
    before = [] if what == "open" else [next(iterator)]
    with pytest.raises(ReadError, match=want):
        next(iterator)
    assert len(before) + len(list(iterator)) == 3 and kvikio.unwaited == 0


def test_a_file_that_ends_too_early_or_has_changed_is_an_error_with_a_name(
    folder: Path, tmp_path: Path, device: list[Eager], kvikio: Kvikio
) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes((folder / "0.h5").read_bytes())
    settle(path)
    _, there = pair(H5Dataset(str(path), "plain"), 5)
    iterator = iter(there)
    facts = path.stat()
    list(zip(iterator, range(1), strict=False))
    os.truncate(path, int(there.dataset.layouts.chunk_offset[0]) + 20 * 60 + 7)  # type: ignore[attr-defined]
    with pytest.raises(ReadError, match=r"sample 20, offset \d+: the file ends 293 bytes too early"):
        list(iterator)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(ReadError, match=r"changed since it was inspected: size \d+ -> \d+; make the H5Dataset again"):
        next(iter(DataLoader(there.dataset, 5, device="cpu", reader="gds")))
    path.unlink()
    with pytest.raises(ReadError, match="there is no such file any more") as raised:
        next(iter(DataLoader(there.dataset, 5, device="cpu", reader="gds")))
    assert raised.value.errno == 2


def test_a_file_that_changed_before_it_is_opened_is_named_with_the_sample(
    folder: Path, tmp_path: Path, device: list[Eager], kvikio: Kvikio
) -> None:
    paths = [tmp_path / name for name in ("0.h5", "1.h5")]
    for act, said in ((os.utime, "changed since it was inspected: mod"), (os.unlink, "there is no such file any more")):
        for path in paths:
            path.write_bytes((folder / path.name).read_bytes())
            settle(path)
        _, there = pair(H5Dataset([str(path) for path in paths], "plain"), 5, ahead=1)
        iterator = iter(there)
        next(iterator)
        act(paths[1])
        with pytest.raises(ReadError, match=rf"1\.h5: {said}.*\(/?plain, sample {SAMPLES}\)"):
            list(iterator)


def test_memory_is_not_written_to_before_the_stream_that_it_was_taken_for_is_done_with_it(
    folder: Path, kvikio: Kvikio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stream of copies was asked for earlier may still use the memory."""
    made = pretend(monkeypatch, Lazy)
    _, there = pair(H5Dataset(str(folder / "0.h5"), ("turned", "plain")), 10)
    behind: list[int] = []
    kvikio.fail = lambda what, path, offset: behind.append(made[0].begun - made[0].done)
    list(there)
    assert behind and not any(behind)


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("packed", {}, PlanError, r"packed is stored through filters \[1\], which are undone on the host"),
    ("turned", {}, PlanError, "is of >f4, not of numbers in this machine's byte order"),
    ("across", {}, PlanError, r"has chunks of \(2, 5, 2\), in which no sample of \(5, 3\) is whole"),
    ("gaps", {}, PlanError, "never written"),
    ("unwritten", {}, PlanError, "never written"),
    ("text", {}, PlanError, "text is"),
    (Field("plain", dtype="int32"), {}, PlanError, "does not make to the same bits"),
    ("plain", {"buffer": "1MiB"}, PlanError, "but buffer= needs the samples on the host"),
    ("plain", {"resident": 1000}, PlanError, "but resident= needs"),
    ("plain", {"decode": "device"}, PlanError, "but decode='device', which checks chunks there, needs"),
    ("plain", {"on_error": "skip"}, PlanError, "but on_error='skip' needs"),
    ("plain", {"collate_fn": list}, PlanError, "but your transform or collate_fn needs"),
    ("plain", {"reader": "cufile"}, ValueError, "reader='cufile': a loader's is one of 'auto', 'gds'"),
    ("plain", {"device": None}, ValueError, "reader= is for batches on a device"),
    ("plain", {"device": "meta"}, PlanError, "reads to CUDA devices, and 'meta' is none"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "options", "error", "said"), WRONG, ids=lambda one: str(one)[:30])
def test_what_cannot_be_read_so_is_said(
    fields: Any, options: dict[str, Any], error: type[Exception], said: str,
    folder: Path, device: list[Eager], kvikio: Kvikio,
) -> None:  # fmt: skip
    given = {"device": "cpu", "reader": "gds"} | options
    with pytest.raises(error, match=said):
        iter(DataLoader(H5Dataset(str(folder / "0.h5"), fields), 5, **given))
    assert not kvikio.asked


def test_our_codecs_chunks_are_decoded_as_without(
    folder: Path, tmp_path: Path, device: list[Eager], kvikio: Kvikio
) -> None:
    compress(folder / "0.h5", tmp_path / "c.h5", {"plain": "abs=1e-3"}, chunk_samples=1)
    assert all_same(*pair(H5Dataset(str(tmp_path / "c.h5"), ("plain", "counts")), 5, True))
    with pytest.raises(PlanError, match="reader='gds' is for an H5Dataset, and TensorDataset"):
        iter(DataLoader(TensorDataset(torch.arange(3)), device="cpu", reader="gds"))


@pytest.mark.skipif(importlib.util.find_spec("kvikio") is not None, reason="kvikio is installed")
def test_without_kvikio_it_says_what_to_install(folder: Path, device: list[Eager]) -> None:
    with pytest.raises(PlanError, match=r"plain needs kvikio, which is not installed: pip install kvikio-cu12"):
        iter(DataLoader(H5Dataset(str(folder / "0.h5"), "plain"), 5, device="cpu", reader="gds"))


def test_a_kvikio_that_cannot_be_imported_is_an_error_with_the_reason(
    folder: Path, tmp_path: Path, device: list[Eager], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvikio.py").write_text("raise ImportError('libkvikio.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match=r"kvikio cannot be imported \(libkvikio\.so: cannot open"):
        iter(DataLoader(H5Dataset(str(folder / "0.h5"), "plain"), 5, device="cpu", reader="gds"))
