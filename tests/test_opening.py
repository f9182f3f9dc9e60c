"""Files that libhdf5 crashes on are refused in words, in every command that would go through them with h5py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import pytest
from kit import SHARED
from ready_kit import python
from store_kit import all_of_hdf5, smooth

from solar.errors import LayoutError
from solar.io.codec.store import compress
from solar.io.codec.verify import verify
from solar.io.hdf5 import opening, opening_child
from solar.io.hdf5.layouts import inspect

Make = Callable[..., str]
CRASHES = SHARED / "hdf5-corrupt" / "cve" / "cvefiles" / "cve-2024-32609.h5"


def test_all_that_hdf5_has_is_gone_through(tmp_path: Path) -> None:
    all_of_hdf5(tmp_path / "a.h5")
    opening.look(tmp_path / "a.h5")


def test_what_is_no_file_is_for_others_to_say(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(300))
    opening.look(tmp_path / "a.h5")
    opening.look(tmp_path / "none.h5")


def test_what_would_be_waited_for_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    for path in (tmp_path, tmp_path / "pipe.h5"):
        with pytest.raises(LayoutError, match="is no plain file"):
            compress(path, tmp_path / "b.h5", "lossless")


def test_a_file_that_is_cut_off_is_said_to_be_so_by_all(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file["x"] = smooth(8, 16, 16)
    whole, torn = str(tmp_path / "whole.h5"), str(tmp_path / "torn.h5")
    content = Path(whole).read_bytes()
    Path(torn).write_bytes(content[:-9])
    said = re.escape(f"{torn}: is truncated: it has {len(content) - 9} bytes of {len(content)}")
    for read in (inspect, verify, partial(verify, whole), lambda path: compress(path, tmp_path / "b.h5", "lossless")):
        with pytest.raises(LayoutError, match=said):
            read(torn)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
def test_lists_of_region_references_are_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", "165")  # memory that nobody set crashes h5py, which reads such attributes
    opening.look(SHARED / "hdf5-odd" / "hdf5/tools/test/h5repack/testfiles/h5repack_attr_refs.h5")


CHILDREN = {
    "crashed (SIGSEGV)": "import ctypes; ctypes.string_at(0)",
    "gave no sign of life for 0.5 s": "import time; time.sleep(60)",
    "needed more memory than its size justifies": "raise SystemExit(3)",
}


@pytest.mark.parametrize("what", CHILDREN)
def test_what_libhdf5_does_not_survive_is_refused_in_words(
    what: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make("a.h5", x=smooth(20, 40, 40))
    (tmp_path / "child.py").write_text(CHILDREN[what])
    monkeypatch.setattr(opening_child, "__file__", str(tmp_path / "child.py"))
    if "sign of life" in what:
        monkeypatch.setattr(opening, "OPENING_PATIENCE", 0.5)
    for refused in (
        lambda: compress(path, tmp_path / "b.h5", "lossless"),
        lambda: verify(path),
        lambda: verify(path, path),
    ):
        with pytest.raises(LayoutError) as raised:
            refused()
        assert f"{path}: libhdf5 {what} when it went through this file" in str(raised.value)
    assert not (tmp_path / "b.h5").exists()


def test_a_file_is_gone_through_once_until_it_changes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(make("a.h5", x=smooth(20, 40, 40)))
    opening.look(path)
    (tmp_path / "child.py").write_text(CHILDREN["crashed (SIGSEGV)"])
    monkeypatch.setattr(opening_child, "__file__", str(tmp_path / "child.py"))
    opening.look(path)
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    with pytest.raises(LayoutError, match="SIGSEGV"):
        opening.look(path)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which may crash."""
    code = "import sys; from solar.cli import main; sys.exit(main(sys.argv[1:]))"
    line = [*python(), "-c", code, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
@pytest.mark.parametrize("command", [["compress", "--lossless"], ["compress", "--advise"], ["verify"]], ids=str)
def test_a_file_that_libhdf5_crashes_on_is_one_line(command: list[str], tmp_path: Path) -> None:
    targets = [] if command[-1] == "--advise" or command == ["verify"] else [tmp_path / "b.h5"]
    done = run(*command, CRASHES, *targets)
    assert done.returncode == 1, done
    assert f"{CRASHES}: libhdf5 crashed (SIGSEGV)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.skipif(h5py.version.hdf5_version_tuple < (1, 14, 4), reason="older libhdf5 crashes when it copies one")
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
def test_damaged_files_end_in_words_or_in_a_file(tmp_path: Path) -> None:
    folder = SHARED / "hdf5-corrupt"
    for line in (folder / "expected.jsonl").read_text().splitlines()[::6]:
        path = folder / json.loads(line)["file"]
        done = run("compress", path, tmp_path / "b.h5", "--lossless", "--quiet", "--force")
        assert done.returncode in (0, 1), (path, done)
        assert "Traceback" not in done.stderr, (path, done.stderr)
        assert done.returncode == 0 or done.stderr.startswith("solar: "), (path, done.stderr)


def test_every_chunk_of_lists_is_gone_through_where_a_later_axis_is_unlimited(tmp_path: Path) -> None:
    """libhdf5 says that the only one begins at (0, 9), and its values would be decoded by whoever copies them."""
    with h5py.File(tmp_path / "a.h5", "w", libver="v110") as file:
        kind = h5py.vlen_dtype("i4")
        made = file.create_dataset("x", (4, 25), kind, chunks=(2, 3), maxshape=(5, None), compression="gzip")
        made[0, 3] = [1, 2, 3]
        read: list[tuple[int, ...]] = []

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(made.id, name)

            def read(self, memory: Any, space: Any, values: Any, kind: Any) -> None:
                made.id.read(memory, space, values, kind)
                read.append(space.get_select_bounds()[0])

        name = h5py.h5i.get_name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("h5py.h5i.get_name", lambda one: name(made.id))
            opening_child.look_at_values(Watched(), SimpleNamespace(send=lambda said: None))  # type: ignore[arg-type]
        assert (0, 3) in read
