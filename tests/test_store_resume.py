"""Runs that were ended: killed, told to stop, or without room; the same command goes on, and gives the same bytes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import same
from store_kit import begun, ended, journals, many_samples, smooth

from solar import read
from solar.errors import PlanError
from solar.io.codec import store
from solar.io.codec.store import compress

CODEC = "abs=0.01"
TASK = 256 * 64 * 64 * 4  # bytes of values that are stored at a time
# Where the disk is full; old libhdf5 crashes after the last word, when it lets go of what it could not write.
ENDS = {1} if h5py.version.hdf5_version_tuple >= (1, 14, 4) else {1, -signal.SIGSEGV}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    many_samples(tmp_path / "a.h5")
    compress(tmp_path / "a.h5", tmp_path / "whole.h5", CODEC, threads=2)
    return tmp_path / "a.h5"


def command(large: Path) -> tuple[str | Path, ...]:
    return ("compress", large, large.with_name("b.h5"), "--abs", "0.01", "--threads", "2")


def finished(large: Path) -> int:
    """Goes on to the end; how many bytes of values an earlier run had encoded."""
    again = compress(large, large.with_name("b.h5"), CODEC, threads=2).again
    assert large.with_name("b.h5").read_bytes() == large.with_name("whole.h5").read_bytes()
    assert not [*large.parent.glob(".*")]
    return again


@pytest.mark.slow(but=["1"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(tasks: int, large: Path) -> None:
    code, _ = ended(signal.SIGKILL, tasks * TASK, *command(large))
    assert code == -signal.SIGKILL
    assert not large.with_name("b.h5").exists()
    assert finished(large) == tasks * TASK


@pytest.mark.slow
def test_a_run_may_be_killed_again_and_again(large: Path) -> None:
    for tasks in (1, 1, 2):
        code, _ = ended(signal.SIGKILL, tasks * TASK, *command(large))
        assert code == -signal.SIGKILL
    assert finished(large) == 2 * TASK


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_told_to_stop_says_how_to_go_on(number: signal.Signals, code: int, large: Path) -> None:
    found, said = ended(number, TASK, *command(large))
    assert found == code
    assert "stopped: 256 chunks are kept in " in said
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert finished(large) == TASK


def test_another_command_or_encoder_does_not_go_on_with_it(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(signal.SIGKILL, TASK, *command(large))
    out = large.with_name("b.h5")
    with pytest.raises(PlanError, match=r"unfinished b.h5 lies beside it .* with other settings"):
        compress(large, out, "abs=0.02")
    with monkeypatch.context() as later:
        later.setattr(store, "ENCODER", store.ENCODER + 1)
        with pytest.raises(PlanError, match=r"by another version of solar, .*: --force removes it"):
            compress(large, out, CODEC)
    os.utime(large)
    with pytest.raises(PlanError, match="of another file, or before it changed"):
        compress(large, out, CODEC)
    assert len(journals(large.parent)) == 1
    compress(large, out, "abs=0.02", force=True)
    assert not journals(large.parent)
    assert np.abs(read(out, "x") - read(large, "x")).max() > 0.01


@pytest.mark.slow
def test_two_runs_do_not_write_the_same_file(large: Path) -> None:
    with begun(signal.SIGSTOP, TASK, *command(large)) as first:
        os.waitpid(first.pid, os.WUNTRACED)
        with pytest.raises(PlanError, match="another run is writing"):
            compress(large, large.with_name("b.h5"), CODEC)
        while first.poll() is None:  # it stops at each task from then on
            first.send_signal(signal.SIGCONT)
            time.sleep(0.01)
    assert first.returncode == 0
    assert large.with_name("b.h5").read_bytes() == large.with_name("whole.h5").read_bytes()


@pytest.mark.slow
def test_damage_to_what_was_left_costs_time_only(large: Path) -> None:
    rng = np.random.default_rng(0)
    for damage in ("bytes", "half", "lines", "gone"):
        ended(signal.SIGKILL, TASK, *command(large))
        (journal,) = journals(large.parent)
        file = journal.with_suffix(".h5")
        if damage == "bytes":
            with file.open("r+b") as raw:
                for at in rng.integers(5000, file.stat().st_size, 20):
                    raw.seek(int(at))
                    raw.write(b"\xff")
        elif damage == "half":
            os.truncate(file, file.stat().st_size // 2)
        elif damage == "lines":
            journal.write_bytes(journal.read_bytes()[:-9] + b"zzzz")
        else:
            file.unlink()
        finished(large)
        large.with_name("b.h5").unlink()


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 9, "target": "b.h5", "first": 0}'])
def test_a_journal_that_is_none_is_left_alone(text: str, large: Path) -> None:
    strange = large.with_name(".b.h5.solar-0000.journal")
    strange.write_text(text)
    compress(large, large.with_name("b.h5"), CODEC)
    assert strange.read_text() == text


def test_a_journal_whose_words_make_no_sense_is_refused(large: Path) -> None:
    ended(signal.SIGKILL, TASK, *command(large))
    (journal,) = journals(large.parent)
    journal.write_bytes(journal.read_bytes().replace(b'"parts": [{"name"', b'"parts": [{"nome"'))
    with pytest.raises(PlanError, match="its journal makes no sense"):
        compress(large, large.with_name("b.h5"), CODEC)
    compress(large, large.with_name("b.h5"), CODEC, force=True)


def test_a_journal_cannot_lead_to_another_file(large: Path) -> None:
    ended(signal.SIGKILL, TASK, *command(large))
    (journal,) = journals(large.parent)
    precious = large.with_name("precious.h5")
    precious.write_text("precious")
    head, _, rest = journal.read_bytes().partition(b"\n")
    name = journal.with_suffix(".h5").name.encode()
    for other in (b"../precious.h5", b"precious.h5", str(precious).encode()):
        journal.write_bytes(head.replace(name, other) + b"\n" + rest)
        compress(large, large.with_name("b.h5"), CODEC, force=True)
        assert precious.read_text() == "precious"
    journal.unlink()
    journal.with_suffix(".h5").unlink()


@pytest.mark.slow
def test_a_full_disk_leaves_what_was_done(large: Path) -> None:
    whole = large.with_name("whole.h5").stat().st_size

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole // 2, whole // 2))

    code = "import sys; from solar.cli import main; sys.exit(main(sys.argv[1:]))"
    line = [sys.executable, "-c", code, *map(str, command(large))]
    run = subprocess.run(line, preexec_fn=little, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "free some room and give the same command again, which goes on from here" in run.stderr
    assert "Traceback" not in run.stderr
    assert finished(large) > 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
def test_a_small_file_system_leaves_what_was_done(large: Path) -> None:
    folder = large.with_name("small")
    folder.mkdir()
    whole = large.with_name("whole.h5").stat().st_size
    size = whole * 3 // 4 // 4096 * 4096
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        code = (
            "import sys, os; from solar.cli import main; real = os.statvfs\n"
            "class Plenty: f_bavail, f_frsize = 1 << 40, 4096\n"
            "os.statvfs = lambda _: Plenty\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        line = [sys.executable, "-c", code, "compress", str(large), str(folder / "b.h5"), "--abs", "0.01"]
        run = subprocess.run(line, capture_output=True, text=True, check=False)
        assert run.returncode in ENDS
        assert "No space left on device; free some room" in run.stderr
        assert journals(folder)
        subprocess.run(["mount", "-o", f"remount,size={size * 4}", folder], check=True)
        assert compress(large, folder / "b.h5", CODEC).again > 0
        assert (folder / "b.h5").read_bytes() == large.with_name("whole.h5").read_bytes()
    finally:
        subprocess.run(["umount", folder], check=True)


def peak_kib(*arguments: str | Path) -> int:
    """The most memory of its own that the command took; mapped files are the page cache's."""
    code = """
import re, sys
from contextlib import contextmanager
import solar.cli.compress, solar.cli.verify
from solar.cli import main

peak, shown = 0, solar.cli.compress.shown

@contextmanager
def watched(quiet):
    with shown(quiet) as told:
        def look(progress):
            global peak
            told(progress)
            peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]))
        yield look

solar.cli.compress.shown = solar.cli.verify.shown = watched
code = main(sys.argv[1:])
print("peak", peak)
sys.exit(code)
"""
    line = [sys.executable, "-c", code, *map(str, arguments)]
    run = subprocess.run(line, capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for samples in (1800, 7200):
        many_samples(tmp_path / "a.h5", samples)  # 29 and 118 MB
        out = tmp_path / f"{samples}.h5"
        peaks.append(peak_kib("compress", tmp_path / "a.h5", out, "--rel", "1e-2", "--coder", "pack", "--threads", "2"))
        peaks.append(peak_kib("verify", tmp_path / "a.h5", out, "--threads", "2"))
    assert peaks[2] - peaks[0] < 15_000
    assert peaks[3] - peaks[1] < 50_000


def test_what_h5py_wrote_with_gzip_in_large_chunks_is_not_decoded_for_each_sample(tmp_path: Path) -> None:
    import h5py

    values = smooth(256, 32, 32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(64, 32, 32), compression="gzip")
    stored = compress(tmp_path / "a.h5", tmp_path / "b.h5", "lossless")
    part = stored.parts[0][0]
    assert part.grid.per_task(part.stored_rows) * part.chunk[0] % 64 == 0
    assert same(read(tmp_path / "b.h5", "x"), values)
