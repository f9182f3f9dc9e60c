"""Filters that take their process with them: what reads values names file, dataset and chunk, and lives."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import same
from store_kit import smooth

from solar import read
from solar.errors import LayoutError, ReadError
from solar.io.codec import grid
from solar.io.codec.store import compress
from solar.io.codec.verify import Checked, Verified, verify
from solar.io.hdf5 import guarded_reader

FATAL = 299  # of the numbers that HDF5 leaves to tests
PLUGIN = """
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
  int version, id;
  unsigned encoder, decoder;
  const char *name;
  void *can_apply, *set_local;
  size_t (*filter)(unsigned, size_t, const unsigned *, size_t, size_t *, void **);
} Class;
static size_t filter(unsigned flags, size_t n, const unsigned *values, size_t nbytes, size_t *room, void **bytes) {
  if (memcmp(*bytes, "FATAL", 5) == 0) abort();
  return nbytes;
}
static const Class made = {1, 299, 1, 1, "fatal", NULL, NULL, filter};
int H5PLget_plugin_type(void) { return 0; }
const void *H5PLget_plugin_info(void) { return &made; }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the plug-in")
    made = tmp_path_factory.mktemp("plugins")
    (made / "fatal.c").write_text(PLUGIN)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made / "libfatal.so", made / "fatal.c"], check=True)
    return made


@pytest.fixture(autouse=True)
def found_by_children(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that begin from now on find the plug-in; libhdf5 in this one has looked already."""
    monkeypatch.setenv("HDF5_PLUGIN_PATH", str(folder))
    guarded_reader._child.stop()
    yield
    guarded_reader._child.stop()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    values = smooth(20, 32, 40)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fine"] = values
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((2, 32, 20))
        plan.set_filter(FATAL, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plan)
        for begin in np.ndindex(10, 1, 2):
            at = tuple(int(i * n) for i, n in zip(begin, (2, 32, 20), strict=True))
            chunk = values[at[0] : at[0] + 2, :, at[2] : at[2] + 20].tobytes()
            dataset.write_direct_chunk(at, b"FATAL" + chunk[5:] if at == (6, 0, 20) else chunk)
    return tmp_path / "a.h5"


NAMED = r"a\.h5: /x: libhdf5 crashed \(SIGABRT\) .* \(the chunk from \[6, 0, 20\]\): `solar verify .*:keep"


@pytest.mark.parametrize("largest", [16 << 20, 2000])  # whole samples, and parts of them
def test_a_filter_that_crashes_is_an_error_that_names_the_chunk(
    largest: int, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "LARGEST_CHUNK", largest)
    with pytest.raises(ReadError, match=NAMED):
        compress(damaged, tmp_path / "b.h5", {"x": "lossless"})
    assert [path.name for path in tmp_path.glob("*.h5")] == ["a.h5"]


@pytest.mark.slow
def test_what_nobody_named_is_copied_with_the_damage_and_the_rest_compressed(damaged: Path, tmp_path: Path) -> None:
    stored = compress(damaged, tmp_path / "b.h5", "lossless")
    assert [part.name for part, _ in stored.parts] == ["/fine"]
    assert "libhdf5 crashed (SIGABRT)" in stored.left[0].reason
    assert same(read(tmp_path / "b.h5", "fine"), read(damaged, "fine"))
    found = verify(damaged, tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds


def test_verify_lists_the_chunks_that_crash(damaged: Path) -> None:
    found = verify(damaged)
    assert isinstance(found, Checked)
    assert [(one.name, one.sample, one.chunk) for one in found.bad] == [("/x", 6, 7)]
    assert "libhdf5 crashed (SIGABRT)" in found.bad[0].why


def test_lists_behind_a_filter_that_crashes_are_refused_before_they_are_copied(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((4,))
        plan.set_filter(FATAL, h5py.h5z.FLAG_OPTIONAL, ())
        kind = h5py.h5t.py_create(h5py.vlen_dtype("i4"), logical=True)
        dataset = h5py.h5d.create(file.id, b"lists", kind, h5py.h5s.create_simple((4,)), plan)
        dataset.write_direct_chunk((0,), b"FATAL".ljust(64, b"\0"))
    with pytest.raises(
        LayoutError, match=r"crashed \(SIGABRT\) when it went through the values of /lists in this file"
    ):
        compress(tmp_path / "a.h5", tmp_path / "b.h5", "lossless")
