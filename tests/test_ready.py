"""ready_kit: programs that begin as forks are as any other to who begins them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ready_kit import python

TELL = """
import json, os, sys, threading
from __main__ import json as same
told = [sys.argv, os.environ["NUMBER"], os.getcwd(), sys.stdin.read(), sys.path[0], threading.active_count()]
print(json.dumps(told))
sys.exit(7)
"""
WAIT = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"told\\n"))  # it may come amid the print below
print(os.getpid(), flush=True)
while True: time.sleep(60)
"""


def test_a_program_has_its_words_environment_folder_input_and_exit_status(tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": os.environ | {"NUMBER": "5"}, "input": "some text", "text": True}
    ended = subprocess.run([*python(), "-c", TELL, "a", "b c"], stdout=subprocess.PIPE, check=False, **options)
    assert json.loads(ended.stdout) == [["-c", "a", "b c"], "5", str(tmp_path), "some text", "", 1]
    assert ended.returncode == 7
    (tmp_path / "tell.py").write_text(TELL)
    ended = subprocess.run([*python(), "tell.py", "a"], stdout=subprocess.PIPE, check=False, **options)
    assert json.loads(ended.stdout) == [["tell.py", "a"], "5", str(tmp_path), "some text", str(tmp_path), 1]


def test_descriptors_that_are_handed_on_keep_their_numbers() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as told:
        code = f"import gc, os; gc.collect(); os.write({theirs}, b'here')"
        subprocess.run([*python(), "-c", code], pass_fds=[theirs], check=True)
        os.close(theirs)
        assert told.read() == "here"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL, signal.SIGINT])
def test_a_program_that_a_signal_ends_is_seen_to_end_so(number: int) -> None:
    code = f"import os; os.kill(os.getpid(), {number:d})"
    ended = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -number
    assert ("KeyboardInterrupt" in ended.stderr) == (number == signal.SIGINT)


def test_signals_are_handed_on_and_who_kills_the_stand_in_kills_the_program() -> None:
    with subprocess.Popen([*python(), "-c", WAIT], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == b"told\n"
        kept = os.pidfd_open(pid)
        running.kill()
        select.select([kept], [], [], 60)
        os.close(kept)
    until = time.monotonic() + 60
    while Path("/proc", str(pid)).exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_is_read_when_a_process_begins_is_obeyed() -> None:
    code = "import os, sys; print('torch' in sys.modules, os.environ['LD_BIND_NOW'])"
    begun = subprocess.run([*python(), "-c", code], env=os.environ | {"LD_BIND_NOW": "1"}, stdout=subprocess.PIPE)
    assert begun.stdout == b"False 1\n"
    code = "import h5py; print(h5py.h5pl.get(0).decode(), h5py.h5pl.size())"
    told = subprocess.run([*python(), "-c", code], env=os.environ | {"HDF5_PLUGIN_PATH": "/x:/y"}, capture_output=True)
    assert (told.stdout, told.stderr) == (b"/x 2\n", b"")
