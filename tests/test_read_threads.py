"""Where io_uring is forbidden, as in Docker by default, threads wait for the storage, one for each request."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

# Refuses the three calls of io_uring, as Docker's rules do: load the call's number; if it is one of them, EPERM.
FORBIDDEN = """
import ctypes, struct
rules = [(0x20, 0, 0, 0), (0x35, 0, 2, 425), (0x25, 1, 0, 427), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program)):
    print("no seccomp:", ctypes.get_errno())
    raise SystemExit
"""
READ = """
import sys, threading, time
from pathlib import Path
import numpy as np
from faults_kit import fault, injected
from solar import DataLoader, H5Dataset
from solar.io.reading.engine import Engine

def waiting():
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")].count("solar-wait\\n")

found = []
with DataLoader(H5Dataset(sys.argv[1], "x"), 128, sampler=range(0, 512, 2), buffer=0) as loader:
    thread = threading.Thread(target=lambda: found.extend(batch.numpy() for batch in loader))
    with injected([fault("read", delay=3600.0)]):
        thread.start()
        end = time.monotonic() + 30
        while waiting() < 64 and time.monotonic() < end:
            time.sleep(0.01)
    thread.join(60)
assert not thread.is_alive()
np.save(sys.argv[2], np.concatenate(found))
print(Engine.get().backend, waiting())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 256, (512, 64 << 10), "u1")
    return tmp_path / "a.h5"


def said(code: str, *words: str) -> str:
    command, here = [sys.executable, "-c", code, *words], Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_where_io_uring_is_forbidden_as_many_reads_are_under_way(path: Path, tmp_path: Path) -> None:
    found = said(FORBIDDEN + READ, str(path), str(tmp_path / "found.npy"))
    if found.startswith("no seccomp"):
        pytest.skip(found.strip())
    assert found.split() == ["pread", "64"]
    with h5py.File(path) as file:
        assert np.array_equal(np.load(tmp_path / "found.npy"), file["x"][::2])


ALONE = """
import os, resource, sys
from pathlib import Path
import numpy as np
from faults_kit import fault, injected
from solar import _native
from test_native_reader import source_of

source = source_of(Path(sys.argv[1]), "x")
reader = _native.Reader(2, 64, 0, "pread")
os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
out = np.empty((100, 64 << 10), "u1")
with injected([fault("read", delay=0.001)]):  # as if nothing were in the page cache
    assert reader.wait(reader.submit(source, np.arange(0, 200, 2), out), 60) is not None
np.save(sys.stdout.buffer, out)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit of root's threads is not held")
def test_where_no_thread_can_be_begun_reads_wait_for_each_other(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # others may not enter pytest's
        Path(folder).chmod(0o755)
        there = Path(shutil.copy(path, folder))
        there.chmod(0o644)
        done = subprocess.run([sys.executable, "-c", ALONE, str(there)], cwd=Path(__file__).parent, capture_output=True,
                              timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    with h5py.File(path) as file:
        assert np.array_equal(np.load(io.BytesIO(done.stdout)), file["x"][0:200:2])
