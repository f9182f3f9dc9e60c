"""What takes long is shown where a person looks on, and nowhere else. By counts, with a clock and terminal of ours."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from solar import DataLoader, H5Dataset, PlanSampler, SolarError
from solar.cli import main
from solar.io.channels import progress as module
from solar.io.channels.progress import Line, Phase, awaited, in_notebook, is_watched, show, showing
from solar.io.hdf5 import chunk_index, layouts


class Bar:
    """Counts what it is told."""

    def __init__(self, phase: Phase) -> None:
        self.what, self.n, self.closed = phase.what, 0, 0
        self.seen: list[int] = []

    def refresh(self) -> None:
        self.seen.append(self.n)

    def close(self) -> None:
        self.closed += 1


def waits(ends_after: int, asked: list[float]) -> Callable[[float], bool]:
    """An event that is set after so many waits; it notes for how long each would have been."""

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return len(asked) > ends_after

    return wait


def test_what_ends_within_two_seconds_is_never_shown() -> None:
    made: list[Bar] = []
    asked: list[float] = []
    show(waits(0, asked), lambda: Phase("opening"), lambda phase: made.append(Bar(phase)))
    assert asked == [2.0] and made == []


def test_what_takes_longer_is_shown_twice_a_second_until_it_ends_and_then_goes_away() -> None:
    made: list[Bar] = []
    asked: list[float] = []
    done = iter([10, 250, 2000])
    phase = Phase("opening", lambda: next(done), 1000, "files")
    show(waits(3, asked), lambda: phase, lambda one: made.append(Bar(one)) or made[-1])
    assert asked == [2.0, 0.5, 0.5, 0.5]
    [bar] = made
    assert bar.seen == [10, 250, 1000], "never more than there are"
    assert bar.closed == 1


def test_one_within_another_is_shown_while_it_lasts() -> None:
    outer, inner = Phase("opening"), Phase("files", lambda: 7, 9)
    made: list[Bar] = []
    now = iter([outer, inner, inner, outer, None])
    show(waits(5, []), lambda: next(now), lambda one: made.append(Bar(one)) or made[-1])
    assert [(bar.what, bar.seen, bar.closed) for bar in made] == [
        ("opening", [0], 1), ("files", [7, 7], 1), ("opening", [0], 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("done", "all_", "seconds", "said"),
    [
        (None, 0, 3.2, "opening: 3 s"),
        (lambda: 0, 1000, 3, "opening: 0 of 1,000 files"),
        (lambda: 120, 1000, 3, "opening: 120 of 1,000 files, 22 s left"),
        (lambda: 1, 10_000, 3, "opening: 1 of 10,000 files, 8 h 20 min left"),
        (lambda: 1000, 1000, 3, "opening: 1,000 of 1,000 files"),
    ],
)
def test_a_line_says_how_far_it_is_and_how_long_it_will_take(
    done: Callable[[], int] | None, all_: int, seconds: float, said: str
) -> None:
    assert Phase("opening", done, all_, "files").text(seconds) == said


def test_of_bytes_it_says_how_fast_what_is_new_goes_and_what_else_there_is_to_say() -> None:
    phase = Phase("compressing", lambda: 500, 1000, "B", before=lambda: 300, more=lambda: "2.4:1")
    assert phase.text(2.0) == "compressing: 50%, 100 B/s, 2.4:1, 5 s left"
    assert Phase("copying", lambda: 0, 1000, "B").text(2.0) == "copying: 0%, 0 B/s"


def test_a_guess_of_how_long_it_takes_is_said_as_one() -> None:
    assert Phase("planning", about=14.6).text(3.0) == "planning: 3 s, about 15 s in all"
    assert Phase("opening", lambda: 0, 1, "files").text(3.0) == "opening: 3 s"  # of one file that says nothing


def test_where_nobody_looks_on_a_command_writes_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[float] = []
    phase = Phase("staging", began=0.0)
    show(waits(3, asked), lambda: phase, lambda one: module.Lines(one, clock=lambda: 7.0), 10.0, 10.0)
    assert asked == [10.0, 10.0, 10.0, 10.0]
    assert capsys.readouterr().err == "staging: 7 s\n" * 3
    monkeypatch.setattr(module, "LINE_EVERY", 0.0)
    said = ""
    with showing(Phase("opening")) as become:
        become(Phase("coming\x1b[2J", lambda: 3, 12, "files"))
        while "coming?[2J: 3 of 12 files" not in said:
            said += capsys.readouterr().err
    assert "\x1b" not in said and module._phases == []


def test_a_line_goes_away_and_a_lost_terminal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    line = Line(Phase("planning", began=0.0), clock=lambda: 4.0)
    line.refresh()
    line.close()
    assert sys.stderr.getvalue() == "\rplanning: 4 s\033[K\r\033[K"  # type: ignore[attr-defined]
    sys.stderr.close()
    line.refresh()


# --- who looks on ----


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Makes stderr a terminal, and gives the end at which what is shown there can be read."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))  # tqdm shows nothing on one without columns
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with os.fdopen(theirs, "w") as stderr:

        def begin() -> int:
            monkeypatch.setattr(sys, "stderr", stderr)  # in the test itself: pytest has its own before
            return ours

        yield begin
    os.close(ours)


def test_a_terminal_at_rank_0_is_looked_at(terminal: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal()
    assert is_watched()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert is_watched()
    monkeypatch.setenv("RANK", "3")
    assert not is_watched()
    monkeypatch.setenv("RANK", "9")  # of 4: no sense, which is for others to say
    assert not is_watched()


def test_a_process_of_another_is_not(terminal: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal()
    monkeypatch.setattr(module.multiprocessing, "parent_process", lambda: "somebody")
    assert not is_watched()


def test_a_file_a_closed_one_and_none_at_all_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (io.StringIO(), closed, None):
        monkeypatch.setattr(sys, "stderr", stderr)
        assert not is_watched()


def test_a_notebook_is_and_a_console_of_ipython_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for config, is_one in (({"IPKernelApp": {}}, True), ({}, False)):
        shell = SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert in_notebook() is is_one and is_watched() is is_one


def test_where_nobody_looks_on_no_thread_begins_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    before = set(threading.enumerate())
    with awaited("opening"):
        assert set(threading.enumerate()) <= before
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("has_tqdm", [False, True])
def test_it_is_shown_on_a_terminal_with_tqdm_and_without(
    has_tqdm: bool, terminal: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_tqdm and importlib.util.find_spec("tqdm") is None:
        pytest.skip("tqdm is not installed")
    if not has_tqdm:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    ours, seen = terminal(), ""
    assert is_watched()
    with awaited("opening\x1b[2J it", lambda: 3, 12, "files"):
        while ("3/12" if has_tqdm else "3 of 12 files") not in seen:  # the pty waits for more
            seen += os.read(ours, 1000).decode()
    assert "opening?[2J it: " in seen and "\x1b[2J" not in seen
    assert "solar-awaited" not in {thread.name for thread in threading.enumerate()}


def test_an_error_goes_through_and_ends_it(terminal: Callable[[], int]) -> None:
    terminal()
    before = set(threading.enumerate())
    with pytest.raises(SolarError, match="as it was"), awaited("opening"):
        raise SolarError("as it was")
    assert set(threading.enumerate()) <= before and module._phases == []


# --- what is shown ----


@pytest.fixture
def noted(phases: list[Phase], monkeypatch: pytest.MonkeyPatch) -> list[Phase]:
    """Somebody looks on, and what would be shown after two seconds is noted at once."""
    monkeypatch.setattr(module, "is_watched", lambda: True)
    return phases


def write(path: Path, samples: int = 64) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((samples, 256), "f4")
    return path


def test_a_loader_says_that_it_opens_plans_and_waits_for_the_first_batch_of_an_epoch(
    noted: list[Phase], tmp_path: Path
) -> None:
    data = H5Dataset(write(tmp_path / "scan.h5"), "x")
    sampler = PlanSampler(data, 1, 0)
    with DataLoader(data, 4, sampler=sampler, buffer="80KiB", epochs=2) as loader:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert len(list(loader)) == 16
    epoch = ["reading the first batch", "planning what is read when"]
    assert [phase.what for phase in noted] == ["opening scan.h5", *epoch, *epoch]
    planning = noted[2]
    assert planning.about == pytest.approx(64 * 1.6e-7) and planning.text(2.0) == "planning what is read when: 2 s"
    assert module._phases == []


def test_of_many_files_it_says_how_many_are_open(
    noted: list[Phase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.h5", 4)
    monkeypatch.setattr(layouts, "FILES_AT_ONCE", 4)
    native, open_before = layouts._native.read_metadata_of_many, []

    def read(files: list[str], name: str, threads: int) -> Any:
        done = noted[-1].done
        assert done is not None and noted[-1].all == 10
        open_before.append((done(), len(files)))
        return native(files, name, threads)

    monkeypatch.setattr(layouts, "_native", SimpleNamespace(**vars(layouts._native) | {"read_metadata_of_many": read}))
    assert len(H5Dataset(str(tmp_path / "*.h5"), "x")) == 40
    assert open_before == [(0, 4), (4, 4), (8, 2)]
    assert [phase.what for phase in noted] == ["opening *.h5", "opening for x"]


def test_of_a_large_index_it_says_how_many_chunks_were_found(
    noted: list[Phase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        written = file.create_dataset("x", (40, 4), "f4", chunks=(2, 4))
        written[:30] = 1  # the last five chunks were never written
    monkeypatch.setattr(chunk_index, "WORTH_KEEPING", 20)
    H5Dataset(tmp_path / "a.h5", "x")
    [found] = [one for one in noted if one.what == "reading the index of /x"]
    assert found.text(2.0) == "reading the index of /x: 15 of 20 chunks, 1 s left"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["inspect"], {"reading metadata", "looking for samples that are no rows"}),
        (["plan", "--memory", "160k"], {"opening", "planning, and following the others use by use"}),
        (["digest", "--batch-size", "8"], {"reading epoch 0"}),
    ],
)
def test_a_command_says_what_it_does(command: list[str], said: set[str], noted: list[Phase], tmp_path: Path) -> None:
    assert main([command[0], str(write(tmp_path / "scan.h5")), *command[1:]]) == 0
    assert said <= {phase.what for phase in noted}
    for phase in noted:
        assert phase.done is None or phase.all > 0
