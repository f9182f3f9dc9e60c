"""`solar bench`: that both readers give the same, what it prints, and what it says where one cannot read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle

import solar.cli.bench
from solar.baseline.h5py_samples import H5pySamples
from solar.cli import contestant, main
from solar.cli.contest import Failed
from solar.io.channels.progress import Phase

SAMPLES = 96


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: numbers in both byte orders, a number for each sample, and text, which is not compared."""
    folder = tmp_path_factory.mktemp("bench")
    rng = np.random.default_rng(2)
    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"] = rng.normal(size=(SAMPLES, 5, 4)).astype(">f4")
            file["i"] = rng.integers(0, 99, SAMPLES, "u2")
            file["words"] = ["text"] * SAMPLES
            file["h"], file["lengths"] = rng.normal(size=SAMPLES // 2), [2, 0, 1] * (SAMPLES // 6)
            file.create_dataset("vlen", SAMPLES // 2, h5py.vlen_dtype("i4"))
            file["few_words"] = ["text"] * (SAMPLES // 2)
        settle(folder / f"{name}.h5")
    return folder


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_both_readers_give_the_same_and_are_told_with_fixed_keys(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = children()
    command = ["bench", str(files), "--batch-size", "8", "--seconds", "20ms", "--buffer", "0", "--workers", "0", "1"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == [
        *("version", "file", "datasets", "samples", "nbytes", "batch", "seconds", "buffer", "cached", "compared"),
        *("readers", "ratio", "step_seconds", "verdict", "cores", "versions"),
    ]
    assert (answer["samples"], answer["nbytes"], sorted(answer["datasets"])) == (2 * SAMPLES, 82, ["/i", "/x"])
    assert answer["cached"] is True
    assert answer["compared"] >= 2
    ours, theirs = answer["readers"]
    for one in (ours, theirs):
        assert len(one["samples_per_second"]) == 5
        assert one["least"] <= one["median"] <= one["most"]
        assert one["peak_bytes"] > 1 << 20
    ways = [(one["kind"], one["workers"], one["cache"]) for one in theirs["tried"]]
    assert ways[:3] == [("straight", 0, "default"), ("items", 0, "default"), ("sorted", 0, "default")]
    assert [workers for _, workers, _ in ways[3:]] == [1, 1]  # of the best two
    best = max(theirs["tried"], key=lambda one: one["samples_per_second"])
    assert theirs["setting"] == {name: best[name] for name in ("kind", "workers", "cache")}
    assert theirs["memory"] == 4 * 8 * 82  # the batches that solar has on their way without a buffer
    assert answer["ratio"] == ours["median"] / theirs["median"]
    assert answer["step_seconds"] == 8 / ours["median"]
    assert children() <= before


def test_rows_of_many_files_are_those_of_h5py(files: Path) -> None:
    plain = H5pySamples([str(files / "a.h5"), str(files / "b.h5")], ["x", "i"])
    whole: dict[str, Any] = {"x": [], "i": []}
    for one in "ab":
        with h5py.File(files / f"{one}.h5", locking=False) as file:
            for name, rows in whole.items():
                rows.extend(file[name][()])
    order = np.random.default_rng(1).permutation(len(plain))[:40].tolist()
    batch = plain.batch(order)
    for name, values in whole.items():
        assert batch[name].dtype.isnative
        np.testing.assert_array_equal(batch[name], np.array(values)[order])
        np.testing.assert_array_equal([plain.sample(index)[name] for index in order], np.array(values)[order])


KINDS = {
    "windows": (["--window", "x=0:3", "--window", "i=0,2", "--every", "2"], 2 * 47, 3 * 80 + 2 * 2),
    "boxes": (["x", "--crop", "2,3", "--volumes", "rows"], 2 * SAMPLES * 6, 2 * 3 * 4),
    "slices": (["--axis", "x=0,1"], 2 * SAMPLES * 5, 4 * 4),
    "ragged": (["--ragged", "h", "--lengths", "lengths"], SAMPLES, 8),  # of one row on average
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_any_kind_are_compared(kind: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, samples, nbytes = KINDS[kind]
    command = ["bench", str(files), *asked, "--batch-size", "8", "--seconds", "10ms", "--buffer", "0", "--workers", "0"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["samples"], answer["nbytes"]) == (samples, nbytes)
    assert answer["compared"] >= 2
    tried = {one["kind"] for one in answer["readers"][1]["tried"]}
    assert tried == {"straight", "items"} | ({"span"} if kind == "windows" else set())
    assert not [one for one in answer["readers"][1]["tried"] if "failed" in one]


@pytest.mark.slow
def test_samples_that_a_mask_leaves_are_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = sum(int(np.count_nonzero(h5py.File(files / f"{name}.h5")["i"])) for name in "ab")
    asked = ["x", "--where", "i", "--batch-size", "8", "--seconds", "10ms", "--buffer", "0", "--workers", "0"]
    assert main(["bench", str(files), *asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["samples"] == left < 2 * SAMPLES
    assert answer["compared"] >= 2


class Pretended:
    """A reader that gives what the test says."""

    digests: dict[str, list[str]]
    rates: dict[str, float]
    reason = ""
    hits = untried = 0

    def __init__(self, job: dict[str, Any]) -> None:
        self.name = job["reader"]

    def answer(self) -> dict[str, Any]:
        if self.name == "torch" and self.reason:
            raise Failed(self.reason)
        tried = [{"kind": "items", "workers": 1, "cache": "none", "samples_per_second": 100.0}]
        facts = {"setting": {"kind": "items", "workers": 1, "cache": "none"}, "tried": tried, "untried": self.untried}
        return facts if self.name == "torch" else {"setting": {}, "tried": [], "untried": 0}

    def ask(self, **question: Any) -> dict[str, Any]:
        if "check" in question:
            return {"digests": self.digests[self.name]}
        came = {"samples": self.rates[self.name] * question["seconds"], "seconds": question["seconds"]}
        return {**came, "hits": self.hits}

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        yield [3 << 20]

    def rest(self) -> None:
        pass

    close = rest


def told(
    files: Path, monkeypatch: pytest.MonkeyPatch, digests: list[str], rates: tuple[float, float], reason: str = ""
) -> int:
    pretended = type("Told", (Pretended,), {})
    pretended.digests = {"solar": ["p", "q"], "torch": digests}  # type: ignore[attr-defined]
    pretended.rates = dict(zip(("solar", "torch"), rates, strict=True))  # type: ignore[attr-defined]
    pretended.reason = reason  # type: ignore[attr-defined]
    monkeypatch.setattr(solar.cli.bench, "Reader", pretended)
    return main(["bench", str(files / "a.h5"), "x", "--batch-size", "32"])


def test_the_conclusion_is_plain(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(files, monkeypatch, ["p", "q"], (3200.0, 1600.0)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The file reads at 3,200 samples/s (256 kB/s) from the page cache" in shown
    assert "training that takes more than 10 ms a step of 32 samples will not wait for it" in shown
    assert "With PyTorch + h5py it waits if a step takes less than 20 ms; solar is 2 times as fast." in shown
    assert "The first 2 batches of both were compared, and are the same." in shown
    assert "sample by sample, 1 worker, no chunk cache" in shown


def test_what_comes_from_the_buffer_is_not_said_to_be_read(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pretended, "hits", 32)
    assert told(files, monkeypatch, ["p", "q"], (3200.0, 1600.0)) == 0
    assert "from solar's buffer, once its first epoch is over" in " ".join(capsys.readouterr().out.split())


def test_where_batches_take_long_it_says_what_there_was_no_time_for(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pretended, "untried", 3)
    monkeypatch.setattr(solar.cli.bench, "time", Hours())
    assert told(files, monkeypatch, ["p", "q"], (3200.0, 1600.0)) == 0
    shown = capsys.readouterr().out
    assert "random batches of 32, 1 round of 2 s" in shown
    assert "1 of 4 settings of PyTorch were tried; its best may be faster" in shown
    assert "time for 1 round of 5; --seconds gives more" in shown


class Hours:
    """A clock on which whatever is done between two looks takes an hour."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 3600.0
        return self._now


def test_one_setting_of_each_reader_is_measured_however_long_it_takes(files: Path) -> None:
    job = {"paths": [str(files / "a.h5")], "names": ["x"], "batch": 8, "seed": 0, "seconds": 0.01, "buffer": None}
    measured, facts = contestant.torch_side({**job, "workers": [0], "trying": -1.0})
    assert ([one["kind"] for one in facts["tried"]], facts["untried"]) == (["straight"], 2)
    assert facts["setting"] == {"kind": "straight", "workers": 0, "cache": "default"}
    assert measured.timed(0.0)[0] >= 1


def test_what_is_going_on_is_told_now_and_then_where_nobody_looks_on(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    phases: list[Phase],
) -> None:
    assert told(files, monkeypatch, ["p", "q"], (3200.0, 800.0)) == 0
    assert capsys.readouterr().err == ""  # done before the first line is due
    said = [one.text(4.0) for one in phases]
    assert said[1:3] == ["solar gets ready: 4 s", "PyTorch + h5py gets ready, and tries its settings: 4 s"]
    assert said[3:] == ["measuring: 4 of 5 rounds, 1 s left"]


def test_batches_that_differ_are_an_error_and_no_figures(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(files, monkeypatch, ["p", "z"], (1.0, 1.0)) == 1
    found = capsys.readouterr()
    assert "batch 1 of solar is not that of h5py" in found.err
    assert found.out == ""


def test_a_file_that_h5py_cannot_read_is_measured_alone(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(files, monkeypatch, [], (3200.0, 0.0), "OSError: no such filter") == 0
    shown = capsys.readouterr().out
    assert "PyTorch + h5py  cannot read it: OSError: no such filter" in shown
    assert "3,200" in shown
    assert "compared" not in shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["words"], "words holds text, and torch has no such numbers"),
        (["x", "--batch-size", "64"], "has 96 samples: two batches of 64 are needed at least"),
        (["x", "--batch-size", "8", "--workers", "-1"], "--workers -1: a number of processes cannot be below 0"),
        (["nothing"], "nothing"),
        (["--window", "words=0:2"], "words holds text, and torch has no such numbers"),
        (["few_words", "--ragged", "h", "--lengths", "lengths"], "few_words holds text, and torch has no such numbers"),
        (["--window", "x=0:90"], "has 7 samples: two batches of 64 are needed at least"),
        (["--window", "x=0:97"], "windows reach over 97 rows"),
        (["x", "--crop", "2,3", "--window", "x=0:2"], "--crop beside windows: a sample is either a box or a window"),
        (["x", "--beside", "b.h5:i"], "--beside: what is compared reads one set of files"),
        (["--groups"], "--groups: name the DATASETs of each group"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], why: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(files / "a.h5"), *arguments]) == 1
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_arrays_whose_lengths_are_not_known_before_are_refused(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.samples.ragged.is_native", lambda _: False)
    assert main(["bench", str(files / "a.h5"), "--ragged", "vlen", "--batch-size", "8"]) == 1
    assert "libhdf5 alone reads these arrays of variable length" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_fails_is_told_with_its_last_words(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(files / "a.h5"), "x", "--buffer", "much", "--batch-size", "8"]) == 1
    assert "solar cannot read it: buffer='much': 'much' is not a size" in capsys.readouterr().err


@pytest.mark.slow
def test_damage_is_told_in_one_line_as_other_commands_tell_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        x = np.random.default_rng(3).normal(size=(32, 16))
        made = file.create_dataset("x", data=x, chunks=(1, 16), fletcher32=True)
        places = [made.id.get_chunk_info(row).byte_offset for row in range(32)]
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 255
    path.write_bytes(content)
    command = [str(path), "x", "--batch-size", "8"]
    assert main(["digest", *command]) == 1
    digested = capfd.readouterr().err
    assert main(["bench", *command, "--seconds", "20ms", "--workers", "0", "--buffer", "0"]) == 1
    said = capfd.readouterr().err.splitlines(True)[-1]  # a slow machine is told before what takes so long
    assert "checksum is wrong" in said
    assert re.sub(r"sample \d+, offset \d+", "", said) == re.sub(r"sample \d+, offset \d+", "", digested)
