"""Requests for far files that come one after another are under way at the same time: a thread waits for the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from far_kit import served
from kit import settle
from test_first_batch import Gate

pytest.importorskip("obstore")

READS_ROWS_ONE_BY_ONE = """
import sys
import numpy as np
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows

url, rows = sys.argv[1], Rows(inspect(sys.argv[1], "x", cache=None))
pending = []
for line in sys.stdin:
    pending.append(rows.start(np.array([int(line)])))
print(*(int(one.wait()[0, 0]) for one in pending))
"""


def test_a_request_does_not_wait_for_the_answer_to_the_one_before(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", (8, 1 << 17), "f4")
        for row in range(8):
            x[row] = row
        begin, nbytes = x.id.get_offset(), x.id.get_storage_size() // len(x)
    settle(tmp_path / "a.h5")
    with served(tmp_path) as web:
        web.fault = gate = Gate(begin)
        command = [sys.executable, "-c", READS_ROWS_ONE_BY_ONE, web.url("a.h5")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None and program.stdout is not None
            try:
                for number in range(8):
                    program.stdin.write(f"{number}\n")
                    program.stdin.flush()
                    # Those before are not answered yet, and no more are asked for until this one is there.
                    assert gate.holds([begin + row * nbytes for row in range(number + 1)])
            finally:
                gate.open()
                program.stdin.close()
            assert program.stdout.read().split() == [str(number) for number in range(8)]
