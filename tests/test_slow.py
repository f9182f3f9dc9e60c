"""libhdf5 in a process of its own: same values, and its end is not ours."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import same

import solar
from solar.io.hdf5 import guarded_reader
from solar.io.system import child_end


def process_id() -> int:
    assert guarded_reader._child._process is not None
    return guarded_reader._child._process.pid


def test_every_kind_of_value_crosses_the_process_boundary_unchanged(zoo: str) -> None:
    with h5py.File(zoo) as file:
        for name in file:
            if name not in ("null", "reference"):
                theirs = file[name][...]
                ours = np.empty(file[name].shape, file[name].dtype)
                guarded_reader.read_into(zoo, name, None, ours)
                assert same(ours, theirs), name


def test_rows_come_in_the_order_asked_with_repeats(zoo: str) -> None:
    rows = np.array([7, 2, 2, 9, 8, 0])
    with h5py.File(zoo) as file:
        for name in ("contiguous", "text", "vlen", "struct", "deflate"):
            ours = np.empty((6, *file[name].shape[1:]), file[name].dtype)
            guarded_reader.read_into(zoo, name, rows, ours)
            assert same(ours, file[name][...][rows]), name


def test_what_is_large_is_asked_for_in_pieces(zoo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_reader, "ASKED_AT_ONCE", 300)
    with h5py.File(zoo) as file:
        theirs = file["contiguous"][...]
    ours = np.empty_like(theirs)
    guarded_reader.read_into(zoo, "contiguous", None, ours)
    assert same(ours, theirs)


def test_nested_objects_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "nested.h5"
    kind = np.dtype(
        [("a", ">i4"), ("text", h5py.string_dtype()), ("texts", h5py.string_dtype(), (3,)), ("m", "f4", (2, 2))]
    )
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3, 2), kind)
        file["x"][0, 1] = (5, "µ", ["a", "", "c"], np.ones((2, 2)))
        scalar = file.create_dataset("scalar", (), h5py.vlen_dtype("f8"))
        scalar[()] = np.arange(3.0)
    with h5py.File(path) as file:
        for name in file:
            assert same(solar.read(path, name), file[name][()]), name


def test_a_crash_is_a_read_error_that_names_file_and_dataset(zoo: str) -> None:
    solar.read(zoo, "text")
    with pytest.raises(solar.ReadError, match=r"zoo\.h5: /text: libhdf5 crashed .SIGSEGV."):
        for _ in range(1000):  # a process whose end is seen between two requests is replaced without a word
            for one in (signal.SIGSTOP, signal.SIGSEGV, signal.SIGCONT):
                os.kill(process_id(), one)
            for _ in range(10):  # until the kernel has delivered the signal
                solar.read(zoo, "text")


def test_after_a_crash_the_next_request_is_answered(zoo: str) -> None:
    before = solar.read(zoo, "text")
    os.kill(process_id(), signal.SIGKILL)
    guarded_reader._child._process.wait()  # type: ignore[union-attr]
    assert same(solar.read(zoo, "text"), before)


def test_a_process_that_hangs_is_given_up(zoo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solar.read(zoo, "text")
    monkeypatch.setattr(guarded_reader, "ANSWER_PATIENCE", 0.2)
    hung = process_id()
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(solar.ReadError, match="no sign of life"):
        solar.read(zoo, "text")
    monkeypatch.undo()
    assert not Path(f"/proc/{hung}").exists()
    solar.read(zoo, "text")


@pytest.mark.slow
def test_memory_beyond_what_the_request_justifies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(child_end.__file__).read_text()
    assert "SPARE = 1 << 30" in program
    less = tmp_path / "child_end.py"
    less.write_text(program.replace("SPARE = 1 << 30", "SPARE = 1 << 27"))
    path = tmp_path / "bomb.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2,), h5py.vlen_dtype(np.dtype("u1")))
        file["x"][0] = np.zeros(1 << 28, np.uint8)
        file["x"][1] = np.arange(3)
    guarded_reader._child.stop()
    monkeypatch.setattr(child_end, "__file__", str(less))
    with pytest.raises(solar.SolarError, match=r"bomb\.h5: /x: .*memory"):
        solar.read(path, "x")
    assert same(solar.read(path, "x", 1), np.arange(3, dtype=np.uint8))
    guarded_reader._child.stop()


def test_a_forked_process_has_a_process_of_its_own(zoo: str) -> None:
    theirs = solar.read(zoo, "text")
    before = process_id()
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = same(solar.read(zoo, "text"), theirs) and process_id() != before
        finally:
            guarded_reader._child.stop()
            os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process_id() == before
    assert same(solar.read(zoo, "text"), theirs)


def test_a_missing_filter_is_named_with_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "filtered.h5"
    with h5py.File(path, "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((10,))
        creation.set_filter(310, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((10,))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, creation)
        dataset.write_direct_chunk((0,), b"nonsense", 0)
    with pytest.raises(solar.LayoutError, match="filter 310"):
        solar.read(path, "x")


def test_where_no_thread_can_be_started_a_read_is_an_error_and_the_next_one_comes(
    zoo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = solar.H5Dataset(zoo, {"x": "vlen"})
    theirs = solar.read(zoo, "vlen", 1)
    monkeypatch.setattr(guarded_reader._Thread, "waiting", None)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        with pytest.raises(solar.ReadError, match="starts no thread"):
            data.start_batch([1])
    coming = data.start_batch([1])
    assert same(coming.arrived(60.0)[0][0], theirs)
