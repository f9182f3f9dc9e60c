"""Storage that does not answer: a wait with a limit says for which bytes, and the program ends all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import BACKENDS

# Loaded before libc: reads of $FILE do not return while $GATE is there, nor does io_uring take or bring any.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int stalled(int descriptor) {
  struct stat ours, theirs;
  return access(getenv("GATE"), F_OK) == 0 && fstat(descriptor, &ours) == 0 && stat(getenv("FILE"), &theirs) == 0 &&
         ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

#define READ(name, offset_type)                                                            \
  ssize_t name(int descriptor, void *to, size_t count, offset_type offset) {               \
    ssize_t (*next)(int, void *, size_t, offset_type) = dlsym(RTLD_NEXT, #name);           \
    while (stalled(descriptor)) usleep(1000);                                              \
    return next(descriptor, to, count, offset);                                            \
  }
#define READ_PARTS(name, offset_type)                                                      \
  ssize_t name(int descriptor, const struct iovec *to, int count, offset_type offset) {    \
    ssize_t (*next)(int, const struct iovec *, int, offset_type) = dlsym(RTLD_NEXT, #name);\
    while (stalled(descriptor)) usleep(1000);                                              \
    return next(descriptor, to, count, offset);                                            \
  }
#define READ_FLAGS(name, offset_type)                                                      \
  ssize_t name(int descriptor, const struct iovec *to, int count, offset_type offset, int flags) { \
    ssize_t (*next)(int, const struct iovec *, int, offset_type, int) = dlsym(RTLD_NEXT, #name);   \
    while (stalled(descriptor)) {                                                          \
      if (flags & RWF_NOWAIT) {                                                            \
        errno = EAGAIN;                                                                    \
        return -1;                                                                         \
      }                                                                                    \
      usleep(1000);                                                                        \
    }                                                                                      \
    return next(descriptor, to, count, offset, flags);                                     \
  }
READ(pread, off_t)
READ(pread64, off64_t)
READ_PARTS(preadv, off_t)
READ_PARTS(preadv64, off64_t)
READ_FLAGS(preadv2, off_t)
READ_FLAGS(preadv64v2, off64_t)

long syscall(long number, ...) {
  long (*next)(long, ...) = dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(arguments, long);
  va_end(arguments);
  while (number == 426 && access(getenv("GATE"), F_OK) == 0) usleep(1000); /* io_uring_enter */
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""

BEGIN = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
import numpy as np
from solar import _native
from solar.io.reading.engine import Engine
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
gate = Path(os.environ["GATE"])
Engine.reader = _native.Reader(2, 8, 0, {backend!r})
rows = Rows(inspect(os.environ["FILE"], "x"), page_cache=False)  # or it would be copied from memory
wanted = rows.start(np.array([17, 3])).wait().copy()
gate.touch()
pending = rows.start(np.array([17, 3]))
others = [rows.start(np.arange(20)) for _ in range(5)]
while "sample 3," not in pending.work.waiting_for():  # a thread has begun to read it
    pass
try:
    pending.wait(0.2)
except TimeoutError as error:
    print(error)
"""

RELEASED = """
del others
gate.unlink()
assert (pending.wait() == wanted).all() and pending.counts["rows"] == 2
"""

LOADED = """
import os, sys, traceback
sys.path[:0] = {path!r}
from pathlib import Path
from solar import DataLoader, H5Dataset
dataset = H5Dataset(os.environ["FILE"], "x", page_cache=False)
dataset[0]
loader = DataLoader(dataset, batch_size=5, timeout=1)
Path(os.environ["GATE"]).touch()
try:
    next(iter(loader))
except Exception:
    print(traceback.format_exc())
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that stalls reads."""
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("other libraries are preloaded (a sanitizer's), and would miss their own reads")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to make a library that stalls reads")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "stall.c").write_text(SHIM)
    library = folder / "stall.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "stall.c"), "-ldl"], check=True)
    return library


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as made:
        made["x"] = np.random.default_rng(1).random((20, 50), np.float32)
    return path


def run(code: str, file: Path, shim: Path) -> str:
    """What the program prints. It ends well, without a word of complaint, before long."""
    environment = dict(os.environ, LD_PRELOAD=str(shim), FILE=str(file), GATE=str(file.parent / "gate"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def where(file: Path, sample: int) -> str:
    with h5py.File(file) as opened:
        offset = opened["x"].id.get_offset() + sample * 200
    return f"{file}: /x, sample {sample}, offset {offset}"


@pytest.mark.slow(but=["pread"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stalled_read_is_named_and_the_program_ends_while_it_is_stalled(file: Path, shim: Path, backend: str) -> None:
    said = run(BEGIN.format(path=sys.path, backend=backend), file, shim)
    assert said == f"no values after 0.2 s: still waiting for {where(file, 3)}\n"


@pytest.mark.slow(but=["pread"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_that_was_stalled_comes_whole(file: Path, shim: Path, backend: str) -> None:
    assert where(file, 3) in run(BEGIN.format(path=sys.path, backend=backend) + RELEASED, file, shim)


def test_the_loaders_time_limit_names_file_dataset_sample_and_offset(file: Path, shim: Path) -> None:
    pytest.importorskip("torch")
    assert where(file, 0) in run(LOADED.format(path=sys.path), file, shim)


STOPPED = """
import os, signal, sys
sys.path[:0] = {path!r}
import numpy as np
from solar.io.hdf5 import guarded_reader
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
rows = Rows(inspect({file!r}, "text"))
assert list(rows.start(np.array([2])).wait()) == [b"sample 2"]
os.kill(guarded_reader._child._process.pid, signal.SIGSTOP)
pending = [rows.start(np.array([2, 0])) for _ in range(3)]
try:
    pending[0].wait(0.2)
except TimeoutError as error:
    print(error)
    print(guarded_reader._child._process.pid)
"""


def test_a_stalled_libhdf5_is_named_and_ends_with_the_program(tmp_path: Path) -> None:
    path = tmp_path / "text.h5"
    with h5py.File(path, "w") as made:
        made["text"] = [f"sample {i}" for i in range(10)]
    code = STOPPED.format(path=sys.path, file=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said, pid = done.stdout.splitlines()
    assert said == f"no values after 0.2 s: still waiting for {path}: /text, through libhdf5's process"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
