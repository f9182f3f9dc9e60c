"""The process that runs libhdf5 and filter plug-ins can read and answer, and do nothing else."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest

from solar import DataLoader, H5Dataset, read
from solar.io.hdf5 import guarded_reader
from solar.io.system import confinement

FILTER = 32_768 - 77
# A plug-in whose filter tries what a stranger's might, and returns how each attempt ended: 0, or the error.
PLUGIN = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <pthread.h>
#include <unistd.h>

typedef struct {
    int version, id;
    unsigned encodes, decodes;
    const char *name;
    void *can_apply, *set_local, *filter;
} Class;

static int ended(long result) { return result < 0 ? errno : 0; }
static void *nothing(void *it) { return it; }

static size_t attempt(unsigned flags, size_t n, const unsigned values[], size_t bytes, size_t *room, void **data) {
    if (!(flags & 0x100)) return bytes;
    int *out = calloc(32, sizeof(int)), at = 0;
    const char *victim = getenv("VICTIM"), *fresh = getenv("FRESH");
    char *program[] = {"/bin/true", NULL};
    struct rlimit limit = {0, 0};
    pthread_t thread;
    int descriptor = open(victim, O_RDONLY);
    out[at++] = descriptor < 0 ? errno : 0;                        /* reading is allowed */
    out[at++] = pthread_create(&thread, NULL, nothing, NULL) ? 99 : (pthread_join(thread, NULL), 0); /* and threads */
    out[at++] = ended(open(victim, O_WRONLY));
    out[at++] = ended(open(victim, O_RDWR | O_TRUNC));
    out[at++] = ended(open(fresh, O_WRONLY | O_CREAT, 0600));
    out[at++] = ended(openat(AT_FDCWD, "/dev/shm", O_TMPFILE | O_RDWR, 0600));
    out[at++] = ended(unlink(victim));
    out[at++] = ended(rename(victim, fresh));
    out[at++] = ended(truncate(victim, 0));
    out[at++] = ended(fchmod(descriptor, 0777));
    out[at++] = ended(chmod(victim, 0777));
    out[at++] = ended(mkdir(fresh, 0700));
    out[at++] = ended(symlink(victim, fresh));
    out[at++] = ended(socket(AF_INET, SOCK_STREAM, 0));
    out[at++] = ended(socket(AF_UNIX, SOCK_STREAM, 0));
    out[at++] = ended(kill(getppid(), SIGTERM));
    out[at++] = ended(syscall(SYS_tgkill, getppid(), getppid(), SIGTERM));
    out[at++] = ended(ptrace(PTRACE_ATTACH, getppid(), 0, 0));
    out[at++] = ended(prlimit(getppid(), RLIMIT_NOFILE, &limit, NULL));
    pid_t child = fork();
    if (!child) _exit(0);
    out[at++] = ended(child);
    out[at++] = ended(execv("/bin/true", program));
    out[at++] = system("true") ? EPERM : 0;
    memset(out + at, 0, (32 - at) * sizeof(int));
    free(*data);
    *data = out;
    *room = 32 * sizeof(int);
    return *room;
}

static const Class own = {1, NUMBER, 1, 1, "attempts", NULL, NULL, (void *)attempt};
int H5PLget_plugin_type(void) { return 0; }
const void *H5PLget_plugin_info(void) { return &own; }
""".replace("NUMBER", str(FILTER))
ALLOWED, ATTEMPTS = 2, 22


def compiled(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = folder / "attempts.c"
    source.write_text(PLUGIN)
    plugins = folder / "plugins"
    plugins.mkdir()
    command = [compiler, "-w", "-shared", "-fPIC", "-pthread", "-o", str(plugins / "libattempts.so"), str(source)]
    subprocess.run(command, check=True)
    return plugins


@pytest.mark.skipif(platform.machine() not in confinement.ARCHES, reason="the filter of system calls is not for it")
def test_a_filter_plug_in_can_neither_write_nor_start_nor_reach_anything(tmp_path: Path) -> None:
    plugins, victim, fresh = compiled(tmp_path), tmp_path / "victim", tmp_path / "fresh"
    victim.write_text("mine")
    victim.chmod(0o600)
    path = tmp_path / "strange.h5"
    program = textwrap.dedent("""
        import sys, h5py, numpy as np
        from h5py import h5d, h5p, h5s, h5t
        path, number = sys.argv[1], int(sys.argv[2])
        with h5py.File(path, "w") as file:
            made = h5p.create(h5p.DATASET_CREATE)
            made.set_chunk((32,))
            made.set_filter(number, h5py.h5z.FLAG_MANDATORY, (1,))
            one = h5d.create(file.id, b"x", h5t.NATIVE_INT32, h5s.create_simple((32,)), made)
            one.write_direct_chunk((0,), np.zeros(32, "i4").tobytes())
    """)
    environment = dict(os.environ, HDF5_PLUGIN_PATH=str(plugins), VICTIM=str(victim), FRESH=str(fresh))
    subprocess.run([sys.executable, "-c", program, str(path), str(FILTER)], check=True, env=environment)
    reader = "import sys, solar; print(*solar.read(sys.argv[1], 'x').tolist())"
    done = subprocess.run([sys.executable, "-c", reader, str(path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = list(map(int, done.stdout.split()))
    assert found[:ALLOWED] == [0] * ALLOWED
    assert set(found[ALLOWED:ATTEMPTS]) <= {errno.EPERM, errno.EACCES}, str(found)
    assert found[ATTEMPTS:] == [0] * (32 - ATTEMPTS)
    assert victim.read_text() == "mine"
    assert victim.stat().st_mode & 0o777 == 0o600
    assert not fresh.exists()


@pytest.mark.parametrize("means", ["Landlock", "seccomp"])
def test_either_means_alone_keeps_files_as_they_are(means: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    program = textwrap.dedent("""
        import os, sys
        from solar.io.system import confinement
        other = {"Landlock": "_filter", "seccomp": "_restrict"}[sys.argv[1]]
        setattr(confinement, other, lambda libc: 0)
        print(*confinement.confine(), sep=",", flush=True)
        path = sys.argv[2]
        for act in (lambda: open(path, "w"), lambda: os.remove(path), lambda: os.mkdir(path + "2")):
            try:
                act()
            except PermissionError:
                continue
            print("it was not refused")
    """)
    done = subprocess.run([sys.executable, "-c", program, means, str(victim)], capture_output=True, text=True)
    said, _, rest = done.stdout.partition("\n")
    if means not in said:
        pytest.skip(f"this kernel has no {means}")
    assert (rest, done.returncode) == ("", 0), done.stdout + done.stderr
    assert victim.read_text() == "mine"


def test_the_process_of_libhdf5_is_confined(tmp_path: Path) -> None:
    path = str(tmp_path / "text.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("s", data=np.array(["a", "bb"], object), dtype=h5py.string_dtype())
    assert read(path, "s").tolist() == [b"a", b"bb"]
    status = Path(f"/proc/{guarded_reader._child.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    if platform.machine() in confinement.ARCHES and "Seccomp:" in status:
        assert "Seccomp:\t2" in status


def test_a_crash_is_still_told(tmp_path: Path) -> None:
    """A process that aborts sends a signal to itself, which the filter allows."""
    program = "import os; from solar.io.system.confinement import confine; confine(); os.abort()"
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGABRT


def test_a_loader_of_text_reads_through_it(tmp_path: Path) -> None:
    path, words = str(tmp_path / "words.h5"), [f"sample {at}".encode() for at in range(40)]
    with h5py.File(path, "w") as file:
        file.create_dataset("s", data=np.array(words, object), dtype=h5py.string_dtype())
    got = [word for batch in DataLoader(H5Dataset(path, "s"), 8) for word in batch]
    assert got == words


def test_an_instruction_leads_to_another_one() -> None:
    """Each jump of the filter stays in it, and it ends with an answer, on each machine."""
    for machine in confinement.ARCHES:
        program = list(confinement.instructions(machine, 4711))
        assert len(program) < 4096
        assert program[-1] == (confinement.RETURN, 0, 0, confinement.ALLOW)
        for at, (_, true, false, _) in enumerate(program):
            assert at + 1 + max(true, false) < len(program) or (at == len(program) - 1 and not (true or false))


@pytest.mark.parametrize("machine", confinement.ARCHES)
@pytest.mark.parametrize(
    ("call", "arguments", "code"),
    [
        ("execve", (), errno.EPERM),
        ("socket", (socket.AF_INET,), errno.EPERM),
        (confinement.OPENAT, (0, 0, os.O_RDONLY), 0),
        (confinement.OPENAT, (0, 0, os.O_RDWR), errno.EACCES),
        (confinement.OPENAT, (0, 0, os.O_RDONLY | os.O_CREAT), errno.EACCES),
        (confinement.CLONE, (confinement.THREAD,), 0),
        (confinement.CLONE, (0,), errno.EPERM),
        (confinement.TGKILL, (4711, 1, 6), 0),
        (confinement.TGKILL, (1, 1, 6), errno.EPERM),
        (confinement.PRLIMIT, (0,), 0),
        (confinement.PRLIMIT, (4711,), 0),
        (confinement.PRLIMIT, (1,), errno.EPERM),
        (confinement.IOCTL, (0, confinement.TYPING[0]), errno.EPERM),
        (confinement.IOCTL, (0, confinement.TYPING[1]), errno.EPERM),
        (confinement.IOCTL, (0, 0x5401), 0),
        ("clone3", (), errno.ENOSYS),
    ],
)
def test_the_filter_answers_each_call(machine: str, call: object, arguments: tuple[int, ...], code: int) -> None:
    arch, column = confinement.ARCHES[machine]
    numbers = call if isinstance(call, tuple) else (confinement.DENIED | confinement.ABSENT)[str(call)]
    number = numbers[column]
    if number is None:
        pytest.skip("this machine has no such call")
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    assert run(list(confinement.instructions(machine, 4711)), data) == (
        confinement.FAIL | code if code else confinement.ALLOW
    )
    assert run(list(confinement.instructions(machine, 4711)), b"\0" * len(data)) == confinement.FAIL | errno.EPERM


def run(program: list[confinement.Instruction], data: bytes) -> int:
    """What a filter answers: its instructions, carried out as the kernel does."""
    at = value = 0
    while True:
        what, true, false, number = program[at]
        at += 1
        if what == confinement.LOAD:
            (value,) = struct.unpack_from("=I", data, number)
        elif what == confinement.RETURN:
            return number
        else:
            holds = {
                confinement.EQUAL: value == number,
                confinement.AT_LEAST: value >= number,
                confinement.ANY_BIT: bool(value & number),
            }[what]
            at += true if holds else false
