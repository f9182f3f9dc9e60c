"""`solar compress` under mpiexec: the same bytes as by one process, also after an end on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi_kit import under_mpi
from store_kit import many_samples

from solar.io.codec.store import compress
from solar.io.codec.unfinished import leftovers

PROGRAM = """
import contextlib, io, json, os, signal, sys
import solar.io.codec.store as shares
from solar.cli import main

append, left = shares._append, [int(sys.argv[4])]

def counting(writing, chunks):
    append(writing, chunks)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

shares._append = counting
said = io.StringIO()
with contextlib.redirect_stdout(said):
    code = main(["compress", sys.argv[1], sys.argv[2], "--abs", "0.01", "--threads", "1", "--json", *sys.argv[5:]])
print(json.dumps({"code": code, "said": json.loads(said.getvalue() or "{}")}), flush=True)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    many_samples(tmp_path / "a.h5", 2400)  # ten tasks
    compress(tmp_path / "a.h5", tmp_path / "whole.h5", "abs=0.01")
    return tmp_path / "a.h5"


@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_write_the_same_bytes_as_one_process(ranks: int, large: Path) -> None:
    said = under_mpi(ranks, PROGRAM, large, large.with_name("b.h5"), "", 0)
    assert [one["code"] for one in said] == [0] * ranks
    assert said[0]["said"]["again"] == 0
    assert said[0]["said"]["nbytes"] == large.with_name("whole.h5").stat().st_size
    assert [one["said"] for one in said[1:]] == [{}] * (ranks - 1)
    assert large.with_name("b.h5").read_bytes() == large.with_name("whole.h5").read_bytes()
    assert not [*large.parent.glob(".*")]


@pytest.mark.slow
def test_what_ranks_did_before_the_job_ended_is_not_done_again(large: Path) -> None:
    out = large.with_name("b.h5")
    under_mpi(3, PROGRAM, large, out, "", 2, dying=range(3))
    assert not out.exists()
    left = leftovers(out)
    chunks = {number for one in left for number in range(one.first, one.first + one.chunks)}
    for one in left:
        one.close()
    assert chunks
    said = under_mpi(2, PROGRAM, large, out, "", 0)
    assert said[0]["said"]["again"] == len(chunks) * 64 * 64 * 4  # what other ranks made just now is not among them
    assert out.read_bytes() == large.with_name("whole.h5").read_bytes()
    assert not [*large.parent.glob(".*")]


def test_an_error_of_rank_0_ends_all(large: Path) -> None:
    large.with_name("b.h5").write_text("precious")
    under_mpi(2, PROGRAM, large, large.with_name("b.h5"), "", 0, dying=range(2))
    assert large.with_name("b.h5").read_text() == "precious"
