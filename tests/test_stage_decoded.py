"""A stage that keeps chunks decoded: the same bits, which only the first epoch decodes, whatever happens to it."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from faults_kit import injected
from kit import BACKENDS, engine, settle
from ready_kit import python
from stage_kit import (
    KINDS,
    LAYOUTS,
    SAMPLES,
    as_a_new_process,
    loader_of,
    own,
    same_batches,
    stage_files,
    taken,
    written,
)  # fmt: skip
from test_stage_faults import changed

from solar import CSR, CodecError, Crops, DataLoader, Field, H5Dataset, LayoutError, PlanError, Ragged, ReadError
from solar.buffer import buffer_size
from solar.cli import main
from solar.io.channels.frames import Refused
from solar.io.hdf5.layouts import inspect
from solar.io.reading import stage
from solar.io.reading.decoded_stage import decoded_chunks, decoded_layout, decoded_nbytes
from solar.service.served_data import description_of

BLOCK = stage.STAGE_BLOCK


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder of a local disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def _matrix(folder: Path, **options: Any) -> Any:
    path = folder / "cells.h5ad"
    if not path.exists():
        rng = np.random.default_rng(0)
        lengths = rng.integers(0, 300, 90)
        columns = np.concatenate([np.sort(rng.permutation(999)[:n]) for n in lengths])
        with h5py.File(path, "w") as file:
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [90, 999]})
            group["indptr"] = np.concatenate(([0], np.cumsum(lengths)))
            for name, values in (("data", rng.random(len(columns)).astype("f4")), ("indices", columns.astype("i4"))):
                group.create_dataset(name, data=values, chunks=(700,), compression="gzip")
        settle(path)
    return H5Dataset(str(path), {"x": CSR("X")}, **options)


def _files(folder: Path, **options: Any) -> Any:
    """Three files, the second of which has no filters, and the third swapped bytes."""
    paths = [folder / f"{part}.h5" for part in range(3)]
    for part, path in enumerate(paths):
        if not path.exists():
            values = np.random.default_rng(part).integers(0, 99, (50, 30, 31)).astype(">f4" if part == 2 else "<f4")
            with h5py.File(path, "w") as file:
                gzip = {} if part == 1 else {"compression": "gzip", "chunks": (7, 20, 31), "shuffle": part == 2}
                file.create_dataset("x", data=values.astype("f4"), **gzip)
            settle(path)
    return H5Dataset([str(path) for path in paths], {"x": "x"}, **options)


def _swapped(folder: Path, **options: Any) -> Any:
    path = folder / "swapped.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            values = np.random.default_rng(1).random((80, 9)).astype(">f8")
            one = file.create_dataset("x", (80, 9), ">f8", chunks=(6, 9), compression="gzip", fillvalue=7)
            one[:30], one[40:] = values[:30], values[40:]
            file["y"] = np.arange(80)
        settle(path)
    return H5Dataset(str(path), {"x": Field("x", steps=range(3)), "y": "y"}, **options)


DECODED: dict[str, Callable[..., Any]] = {
    **{name: KINDS[name] for name in ("gzip", "tiles", "crops", "ragged")},
    "matrix": _matrix,
    "files": _files,
    "swapped": _swapped,
}


def counted(loader: Any, before: dict[str, Any]) -> dict[str, int]:
    """What was read since a look at the counts."""
    now = loader.stats()
    more = {name: int(now[name] - before[name]) for name in ("bytes", "bytes_mapped", "stage_bytes", "stage_written")}
    return {"far": more["bytes"] - more["bytes_mapped"] - more["stage_bytes"], "written": more["stage_written"]}


def epochs_of(loader: Any, plain: Any, epochs: int = 3) -> list[dict[str, int]]:
    """Goes through both loaders, whose batches must be the same: what each epoch of the first read, and wrote."""
    found = []
    for epoch in range(epochs):
        before = loader.stats()
        for one in (loader, plain):
            one.set_epoch(epoch)
        for one, other in zip(loader, plain, strict=True):
            same_batches(one, other)
        found.append(counted(loader, before))
    return found


def all_of(data: Any, values: np.ndarray[Any, Any]) -> dict[str, int]:
    """What reading all samples reads, which must be these."""
    with DataLoader(data, 7, buffer=0) as loader:
        before = loader.stats()
        assert np.array_equal(np.concatenate([batch["x"].numpy() for batch in loader]), values)
        return counted(loader, before)


def kept_nbytes(data: Any) -> int:
    """Of all its chunks, decoded, in whole blocks."""
    layouts = {id(one): one for one in data.layouts.values()}
    layouts |= {id(one): one for rows in data.extents.values() for one in getattr(rows, "layouts", ())}
    return sum(decoded_nbytes(one.decoded.stored) for one in layouts.values() if one.decoded is not None)


def opened(path: Path, disk: Path, **options: Any) -> Any:
    return H5Dataset(str(path), {"x": "x"}, stage=disk, stage_as="decoded", **options)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("kind", DECODED)
@pytest.mark.parametrize("buffer", [0, "1MB", "20MB"])
@pytest.mark.parametrize("at_hand", [True, False])
def test_only_the_first_epoch_decodes(
    kind: str, buffer: Any, at_hand: bool, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_hand:  # as if the page cache had no room, or no buffer would be taken
        monkeypatch.setattr(buffer_size, "fit_page_cache", lambda layouts, ranks: False)
    plain, staged = DECODED[kind](tmp_path), DECODED[kind](tmp_path, stage=disk, stage_as="decoded")
    with loader_of(staged, buffer) as ours, loader_of(plain, buffer) as theirs:
        first, *later = epochs_of(ours, theirs)
        said = ours.report()
    assert kept_nbytes(staged) <= first["written"] <= 1.5 * kept_nbytes(staged)  # two threads may want one at once
    assert [one["written"] for one in later] == [0, 0]
    assert "stage in" not in said
    unfiltered = "x" in staged.layouts and kind in ("files", "gzip", "tiles", "swapped")
    assert unfiltered or [one["far"] for one in later] == [0, 0]
    as_a_new_process()
    again = DECODED[kind](tmp_path, stage=disk, stage_as="decoded")
    with loader_of(again, buffer) as ours, loader_of(plain, buffer) as theirs:
        assert [one["written"] for one in epochs_of(ours, theirs, 2)] == [0, 0]  # found, and used


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_cache", [None, False])
def test_every_way_of_reading_fills_it_and_finds_it(
    backend: str, page_cache: bool | None, tmp_path: Path, disk: Path
) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    data = opened(tmp_path / "a.h5", disk, page_cache=page_cache)
    with engine(2, backend):
        first, second, third = (all_of(data, values) for _ in range(3))
    assert first["written"] == kept_nbytes(data)
    assert second == third == {"far": 0, "written": 0}


def test_the_chunks_lie_one_after_another_in_whole_blocks(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "tiles")
    all_of(opened(tmp_path / "a.h5", disk), values)
    layout = inspect(tmp_path / "a.h5", "x")
    [path] = stage_files(disk)
    raw = np.fromfile(path, np.uint8)
    chunk = LAYOUTS["tiles"]["chunks"]
    nbytes, blocks = int(np.prod(chunk)) * 4, -(-int(np.prod(chunk)) * 4 // BLOCK) * BLOCK
    grid = tuple(-(-n // c) for n, c in zip(layout.shape, chunk, strict=True))
    for number in (0, 1, len(layout.chunk_offset) - 1):
        at = np.unravel_index(number, grid)
        whole = np.zeros(chunk, "f4")
        part = values[tuple(slice(a * c, (a + 1) * c) for a, c in zip(at, chunk, strict=True))]
        whole[tuple(map(slice, part.shape))] = part
        assert raw[number * blocks : number * blocks + nbytes].tobytes() == whole.tobytes()
        assert not raw[number * blocks + nbytes : (number + 1) * blocks].any()
    assert decoded_nbytes(layout) == len(layout.chunk_offset) * blocks


def test_datasets_and_forms_of_a_file_have_stages_of_their_own(tmp_path: Path, disk: Path) -> None:
    for name in ("x", "y"):
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file.create_dataset(name, data=np.full((40, 30), len(name + name)), chunks=(4, 30), compression="gzip")
    settle(tmp_path / "a.h5")
    path = str(tmp_path / "a.h5")
    H5Dataset(path, ("x", "y"), stage=disk, stage_as="decoded")[0]
    H5Dataset(path, "x", stage=disk)[0]
    assert len(stage_files(disk)) == 3
    H5Dataset(path, {"a": Field("x", steps=(0, 1)), "b": "y"}, stage=disk, stage_as="decoded")[0]
    assert len(stage_files(disk)) == 3
    assert main(["stage", path, "--to", str(disk), "--drop", "--quiet"]) == 0
    assert stage_files(disk) == []


# --- how much is taken ----


def test_what_has_no_room_as_a_whole_is_read_as_ever(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    data = opened(tmp_path / "a.h5", disk, stage_size=100_000)
    assert data.layouts["x"].decoded is None
    assert all_of(data, values)["written"] == 0
    with loader_of(data) as loader:
        list(loader)
        assert f"The stage in {disk} has room for 0 B of " in loader.report()
    assert taken(disk) <= 100_000


def test_files_are_kept_one_after_another_as_far_as_there_is_room(tmp_path: Path, disk: Path) -> None:
    paths = [tmp_path / f"{name}.h5" for name in "abc"]
    values = np.concatenate([written(path, "gzip", 60, seed) for seed, path in enumerate(paths)])
    each = decoded_nbytes(inspect(paths[0], "x"))
    data = H5Dataset([*map(str, paths)], {"x": "x"}, stage=disk, stage_as="decoded", stage_size=int(2.5 * each))
    kept = data.layouts["x"].decoded
    assert kept is not None
    assert kept.files.tolist() == [True, True, False]
    with engine(1, "pread"):
        first, second = all_of(data, values), all_of(data, values)
    assert first["written"] == 2 * each
    assert second["written"] == 0
    assert second["far"] >= int(inspect(paths[2], "x").stored_nbytes)
    assert taken(disk) <= 2.5 * each
    assert opened(paths[2], disk, stage_size=int(1.5 * each)).layouts["x"].decoded is None
    assert len(stage_files(disk)) == 1  # what was written to longest ago has gone


def test_the_disks_last_twentieth_and_what_it_refuses_cost_no_batch(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    data = opened(tmp_path / "a.h5", disk)
    with injected([("write", ".stage", 0, 2**64 - 1, 20, 2**64 - 1, errno.ENOSPC, 2**64 - 1, 0.0)]):
        first = all_of(data, values)
        second = all_of(data, values)
        with loader_of(data) as loader:
            list(loader)
            assert "the disk is full but for its last twentieth" in loader.report()
    assert 0 < first["written"] < kept_nbytes(data)
    assert second["written"] == 0
    assert second["far"] > 0
    as_a_new_process()
    assert all_of(opened(tmp_path / "a.h5", disk), values)["written"] >= kept_nbytes(data) - first["written"]
    assert all_of(opened(tmp_path / "a.h5", disk), values) == {"far": 0, "written": 0}


# --- what happens to it ----


def test_a_writer_that_is_killed_at_any_of_a_hundred_places_leaves_what_is_right(tmp_path: Path, disk: Path) -> None:
    """Each chunk takes two writes: its bytes, and their sums. The process ends by SIGKILL before one of them."""
    values = written(tmp_path / "a.h5", "gzip", 156)
    code = (
        "import os, signal, sys, warnings\n"
        "from solar import H5Dataset, _native\n"
        "warnings.simplefilter('ignore')\n"
        "path, places, most = sys.argv[1], sys.argv[2], 2**64 - 1\n"
        "H5Dataset(path, 'x')[0]\n"
        "for place in range(100):\n"
        "    folder = os.path.join(places, str(place))\n"
        "    os.mkdir(folder)\n"
        "    data = H5Dataset(path, 'x', stage=folder, stage_as='decoded')\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        _native._inject_faults([('write', '.stage', 0, most, place, most, 5, most, 0.0)])\n"
        "        from solar.io.reading.stage import became_of_tiers\n"
        "        for row in range(len(data)):\n"
        "            data[row]\n"
        "            stages = [one for tier in became_of_tiers.values() for _, one in tier.stages.values()]\n"
        "            if any(one.stopped for one in stages):\n"
        "                os.kill(os.getpid(), signal.SIGKILL)\n"
        "        os._exit(0)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL\n"
    )
    words = [*python(), "-c", code, str(tmp_path / "a.h5"), str(disk)]
    subprocess.run(words, timeout=300, check=True)
    whole = decoded_nbytes(inspect(tmp_path / "a.h5", "x"))
    with engine(1, "pread"):  # two threads may want one chunk at once
        for place in range(100):
            data = opened(tmp_path / "a.h5", disk / str(place))
            first = all_of(data, values)
            assert first["written"] == whole - place // 2 * (whole // 52)  # a chunk without its sums is not there
            assert all_of(data, values) == {"far": 0, "written": 0}


@pytest.mark.parametrize("when", [1, 4, 9])
def test_a_process_that_is_killed_amid_an_epoch_leaves_what_is_right(when: int, tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    code = (
        "import os, signal, sys\n"
        "from solar import DataLoader, H5Dataset\n"
        "data = H5Dataset(sys.argv[1], 'x', stage=sys.argv[2], stage_as='decoded')\n"
        "for number, _ in enumerate(DataLoader(data, 7, buffer=0)):\n"
        "    if number == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [*python(), "-c", code, str(tmp_path / "a.h5"), str(disk), str(when)]
    assert subprocess.run(words, timeout=300).returncode == -signal.SIGKILL
    data = opened(tmp_path / "a.h5", disk)
    assert all_of(data, values)["written"] < kept_nbytes(data)
    assert all_of(data, values) == {"far": 0, "written": 0}


def test_processes_that_fill_it_at_once_find_all_of_it(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "tiles")
    code = (
        "import sys\n"
        "from solar import DataLoader, H5Dataset\n"
        "data = H5Dataset(sys.argv[1], 'x', stage=sys.argv[2], stage_as='decoded')\n"
        "assert sum(len(batch) for batch in DataLoader(data, 7, shuffle=True, buffer=0)) == len(data)\n"
    )
    words = [*python(), "-c", code, str(tmp_path / "a.h5"), str(disk)]
    running = [subprocess.Popen(words) for _ in range(3)]
    assert [one.wait(300) for one in running] == [0, 0, 0]
    assert all_of(opened(tmp_path / "a.h5", disk), values) == {"far": 0, "written": 0}


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_and_a_pickled_data_set_go_on_with_it(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    data = opened(tmp_path / "a.h5", disk)
    all_of(data, values)
    assert all_of(pickle.loads(pickle.dumps(data)), values) == {"far": 0, "written": 0}
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if all_of(data, values) == {"far": 0, "written": 0} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_flipped_bit_is_noticed_and_its_chunk_is_decoded_again(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    all_of(opened(tmp_path / "a.h5", disk), values)
    as_a_new_process()
    [path] = stage_files(disk)
    changed(path, 5 * BLOCK + 17)
    data = opened(tmp_path / "a.h5", disk)
    first = all_of(data, values)
    assert first["far"] > 0
    all_of(data, values)
    assert all_of(data, values) == {"far": 0, "written": 0}
    with loader_of(data) as loader:
        list(loader)
        assert f"1 block of the stage in {disk} had changed" in loader.report()


@pytest.mark.parametrize("how", ["cut short", "removed", "another", "unreadable"])
def test_what_happens_to_it_amid_an_epoch_costs_no_batch(how: str, tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    all_of(opened(tmp_path / "a.h5", disk), values)
    as_a_new_process()
    data = opened(tmp_path / "a.h5", disk)
    [path] = stage_files(disk)
    got, faults = [], []
    if how == "unreadable":
        faults = [("read", ".stage", 0, 2**64 - 1, 20, 2**64 - 1, errno.EIO, 2**64 - 1, 0.0)]
    with injected(faults), DataLoader(data, 7, buffer=0) as loader:
        for number, batch in enumerate(loader):
            got.append(batch["x"].numpy().copy())
            if number == 2 and how == "cut short":
                os.truncate(path, 3 * BLOCK)
            elif number == 2 and how in ("removed", "another"):
                path.unlink()
                if how == "another":
                    path.write_bytes(b"of somebody else's")
    assert np.array_equal(np.concatenate(got), values)
    as_a_new_process()
    assert all_of(opened(tmp_path / "a.h5", disk), values) is not None


def test_a_file_that_was_replaced_is_staged_anew_and_the_old_bytes_go(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5", "gzip")
    data = opened(tmp_path / "a.h5", disk)
    data[0]
    [before] = stage_files(disk)
    values = written(tmp_path / "a.h5", "gzip", seed=9)
    with pytest.raises(ReadError, match="changed since it was inspected"), loader_of(data) as loader:
        next(iter(loader))
    now = opened(tmp_path / "a.h5", disk)
    assert all_of(now, values)["written"] > 0
    [after] = stage_files(disk)
    assert after != before


def test_a_damaged_chunk_is_the_error_that_it_is_without_a_stage(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5", "gzip")
    layout = inspect(tmp_path / "a.h5", "x")
    changed(tmp_path / "a.h5", int(layout.chunk_offset[11]) + 40, nbytes=9)
    settle(tmp_path / "a.h5")
    said = []
    for options in ({}, {"stage": disk, "stage_as": "decoded"}):
        data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, **options)
        with pytest.raises(CodecError) as caught, DataLoader(data, 5, buffer=0) as loader:
            list(loader)
        said.append(str(caught.value))
        with DataLoader(data, 5, buffer=0, on_error="skip") as loader:
            assert sum(len(batch["x"]) for batch in loader) == SAMPLES - 3
    assert said[0] == said[1]


# --- who uses it ----


def test_states_do_not_name_it_and_fit_loaders_without(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5", "gzip")
    states = []
    for data in (H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}), opened(tmp_path / "a.h5", disk)):
        with loader_of(data) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    assert states[0] == states[1]
    assert str(disk) not in json.dumps(states[1])


def test_a_service_leaves_it_to_the_job(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5", "gzip")
    from solar.samples.source import sample_source

    with pytest.raises(Refused, match="each job reads it by itself"):
        description_of(sample_source(opened(tmp_path / "a.h5", disk)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stage_as": "decoded"}, "without `stage`"),
        ({"stage": ".", "stage_as": "packed"}, "it is one of 'stored', 'decoded'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    written(tmp_path / "a.h5")
    with pytest.raises(PlanError, match=said):
        H5Dataset(str(tmp_path / "a.h5"), "x", **options)


def test_what_needs_no_decoding_is_as_it_was(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5", "chunks")
    layout = inspect(tmp_path / "a.h5", "x")
    tier = stage.tier_of(disk, None, "decoded")
    assert tier is not None
    assert decoded_layout(layout, tier) is layout
    assert decoded_chunks(layout, tier) is None
    assert decoded_nbytes(layout) == 0
    with h5py.File(tmp_path / "v.h5", "w") as file:
        text = file.create_dataset("v", (20,), h5py.vlen_dtype("f4"), chunks=(5,), compression="gzip")
        text[:] = [np.arange(n % 4, dtype="f4") for n in range(20)]
    settle(tmp_path / "v.h5")
    plain, staged = (
        H5Dataset(str(tmp_path / "v.h5"), {"x": Ragged("v")}, **more)
        for more in ({}, {"stage": disk, "stage_as": "decoded"})
    )
    assert all(np.array_equal(plain[i]["x"], staged[i]["x"]) for i in range(20))
    assert not own(disk).exists()


def test_the_command_fills_lists_and_empties_it(tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values, path = written(tmp_path / "a.h5", "gzip"), str(tmp_path / "a.h5")
    assert main(["stage", path, "x", "--to", str(disk), "--as", "decoded", "--quiet"]) == 0
    assert "of it read and decoded now" in capsys.readouterr().out
    assert all_of(opened(tmp_path / "a.h5", disk), values) == {"far": 0, "written": 0}
    assert main(["stage", path, "x", "--to", str(disk), "--as", "decoded", "--quiet"]) == 0
    assert "0 B of it read and decoded now" in capsys.readouterr().out
    assert main(["stage", path, "x", "--to", str(disk), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["stage", "--to", str(disk), "--list"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}  decoded  ")
    assert second.startswith(f"{path}  stored  ")
    assert last.startswith(f"{disk}: 2 stage files, ")
    written(tmp_path / "a.h5", "gzip", seed=3)
    assert main(["stage", "--to", str(disk), "--list"]) == 0
    assert capsys.readouterr().out.count("but the file has changed") == 2
    assert main(["stage", "--to", str(disk), "--drop"]) == 0
    assert stage_files(disk) == []
    shutil.rmtree(own(disk))
    assert main(["stage", "--to", str(disk), "--list"]) == 0
    assert "0 stage files, 0 B" in capsys.readouterr().out


def test_the_command_says_where_nothing_is_to_be_decoded_or_has_room(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a.h5")
    assert main(["stage", str(tmp_path / "a.h5"), "--to", str(disk), "--as", "decoded"]) == 1
    assert "nothing in local files is to be decoded" in capsys.readouterr().err
    written(tmp_path / "b.h5", "gzip")
    as_a_new_process()
    words = ["stage", str(tmp_path / "b.h5"), "x", "--to", str(disk), "--as", "decoded", "--size", "100k", "--quiet"]
    assert main(words) == 1
    assert "has room for 0 B of" in capsys.readouterr().err


def test_a_layout_that_fits_no_stage_is_refused(tmp_path: Path, disk: Path) -> None:
    from dataclasses import replace

    from solar.io.reading.engine import source_of

    written(tmp_path / "a.h5", "gzip")
    layout = opened(tmp_path / "a.h5", disk).layouts["x"]
    moved = layout.chunk_offset + np.uint64(BLOCK)
    for wrong in (replace(layout, chunk_offset=moved), replace(layout, forms=inspect(tmp_path / "a.h5", "x").forms)):
        with pytest.raises(LayoutError):
            source_of(wrong, 0, None)


def test_crops_are_cut_out_of_what_is_kept(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "tiles")
    data = opened(tmp_path / "a.h5", disk, samples=Crops((9, 17, 12), at="grid"))
    starts = [(0, 0, 0), (9, 0, 12)]
    assert np.array_equal(data[0]["x"], values[:9, :17, :12])
    assert len(data) > len(starts)
    assert np.array_equal(data[1]["x"], values[:9, :17, 12:24])


def test_chunks_of_a_file_that_is_not_kept_are_not_taken_for_those_of_one_that_is(tmp_path: Path, disk: Path) -> None:
    for number, name in enumerate("ab"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            values = np.arange(16**3, dtype="f4").reshape(16, 16, 16) + number * 10_000
            file.create_dataset("x", data=values, chunks=(8, 8, 8), compression="gzip")
    settle(tmp_path / "b.h5")
    os.utime(tmp_path / "a.h5", (time.time() + 60, time.time() + 60))  # was written just now
    paths, crops = [str(tmp_path / "a.h5"), str(tmp_path / "b.h5")], Crops((8, 8, 8), at="grid")
    plain = H5Dataset(paths, {"x": "x"}, samples=crops)
    data = H5Dataset(paths, {"x": "x"}, samples=crops, stage=disk, stage_as="decoded")
    assert data.layouts["x"].decoded.files.tolist() == [False, True]
    with engine(1, "pread"):
        for sample in (1, 8, 0, 1, 9):  # block 1 of the first file, and the first of the second, in turns
            as_a_new_process()
            assert np.array_equal(data[sample]["x"], plain[sample]["x"])
