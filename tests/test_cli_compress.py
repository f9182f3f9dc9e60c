"""`solar compress`: what it asks, prints and advises."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import settle
from store_kit import smooth

from solar import read
from solar.cli import main
from solar.io.channels.progress import Phase
from solar.io.system import profile
from solar.io.system.cores import reading_threads
from solar.planning.budget import SampleBytes, divide_memory, needs
from solar.planning.job import LOADERS_PACE

Make = Callable[..., str]


@pytest.fixture
def scan(make: Make) -> str:
    counts = np.random.default_rng(0).poisson(2, (40, 40, 40)).astype("u2")
    path = make("a.h5", field=smooth(40, 40, 40), counts=counts, label=np.arange(40))
    settle(path)
    return path


def test_people_are_told_what_became_of_each_dataset(
    scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress", scan, str(tmp_path / "b.h5"), "--rel", "1e-3", "--field", "counts:lossless"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert any(
        line.startswith("/field  40 × 40 × 40 float32  within ") and "(rel 0.001 of the range " in line
        for line in lines
    )
    assert any(line.startswith("/counts  40 × 40 × 40 uint16  lossless: 125 KiB in ") for line in lines)
    assert "1 other dataset copied as stored (--json says why)" in lines
    assert lines[-1].startswith(f"{tmp_path / 'b.h5'}: ")
    assert shown.err == ""  # done before the first line of progress is due


def test_what_would_not_be_smaller_is_copied_and_how_to_compress_it_all_the_same_is_told(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 80), np.uint8)
    path = make("a.h5", field=smooth(40, 40, 40), noise=noise)
    settle(path)
    line = ["compress", path, str(tmp_path / "b.h5"), "--lossless", "--force"]
    advice = "--field NAME:HOW compresses also what would not be smaller"
    assert main(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "/noise  copied, 125 KiB: it would not be smaller" in lines and advice in lines
    assert main([*line, "--field", "noise:lossless"]) == 0
    shown = capsys.readouterr().out
    assert "/noise  40 × 40 × 80 uint8  lossless" in shown and advice not in shown


def test_a_file_of_which_nothing_is_compressed_is_said_to_be_such(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("a.h5", label=np.arange(40), words=np.array([b"text"] * 9), times=np.arange(9.0))
    assert main(["compress", path, str(tmp_path / "b.h5"), "--rel", "1e-3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "nothing was compressed: every dataset was copied as it is",
        "  it is small: /label, /times",
        "  its values are no numbers: /words",
        "--field NAME:HOW compresses also what is small, or has a single axis",
    ]
    assert lines[-1].startswith(f"{tmp_path / 'b.h5'}: ") and "/s" not in lines[-1].removeprefix(str(tmp_path))
    assert main(["compress", path, str(tmp_path / "c.h5"), "--field", "label:lossless"]) == 0
    assert "/label  40 int64  lossless" in capsys.readouterr().out


def test_the_keys_of_the_answer_are_fixed(scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "b.h5")
    line = ["compress", scan, out, "--abs", "1e-2", "--coder", "pack", "--chunk-samples", "5", "--json"]
    assert main([*line, "--field", "field:rel=1e-3,coder=dense,label:keep"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == ["version", "file", "nbytes", "seconds", "again", "datasets", "left", "lost"]
    assert answer["nbytes"] == Path(out).stat().st_size
    counts, field = answer["datasets"]
    assert [*counts] == [
        *("name", "kind", "asked", "bound", "unit", "stored_bound", "coder", "filter", "samples", "chunk"),
        *("nbytes", "original_nbytes", "stored_nbytes", "ratio", "why"),
    ]
    assert (counts["name"], counts["kind"], counts["bound"], counts["coder"]) == ("/counts", "abs", 0.01, "pack")
    assert (field["kind"], field["asked"], field["coder"], field["chunk"]) == ("rel", 1e-3, "dense", [5, 40, 40])
    values = read(scan, "field").astype("f8")
    exact = Fraction(1e-3) * (Fraction(values.max()) - Fraction(values.min()))
    assert Fraction(field["bound"]) <= exact < Fraction(math.nextafter(field["bound"], math.inf))
    assert answer["left"] == [{"name": "/label", "reason": "you said so", "nbytes": 320, "unread": False}]
    with h5py.File(out) as file:
        said = json.loads(file["field"].attrs["solar_bound"])
        assert said["bound"] == field["bound"]


def test_only_what_is_named_is_compressed_without_a_bound_for_all(
    scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        "compress",
        scan,
        str(tmp_path / "b.h5"),
        "--field",
        "label:lossless",
        "--field",
        "/counts/:abs=2",
        "--json",
    ]
    assert main(line) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in answer["datasets"]] == ["/counts", "/label"]
    assert answer["left"][0]["reason"] == "not among the fields named"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--abs", "0"], "a bound of 0 would keep every bit: say --lossless"),
        (["--abs", "-0.0"], "say --lossless"),
        (["--rel", "nan"], "'nan': a bound is a number above 0"),
        (["--abs", "1e999"], "a bound is a number above 0"),
        (["--abs", "-1"], "'-1': a bound is a number above 0, such as 1e-3; see"),
        (["--abs", "tiny"], "a bound is a number above 0"),
        (["--abs", "1", "--lossless"], "not allowed with"),
        (["--lossless", "--coder", "sz3"], "invalid choice: 'sz3'"),
        (["--lossless", "--predictor", "learned"], "learned was removed after solar 0.1.0: leave it out"),
        (["--lossless", "--threads", "0"], "argument --threads: '0'"),
        (["--lossless", "--chunk-samples", "-3"], "argument --chunk-samples"),
    ],
)
def test_what_makes_no_sense_names_the_option(
    arguments: list[str], why: str, scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compress", scan, str(tmp_path / "b.h5"), *arguments])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "how exact? Give --abs E"),
        (["--field", "field"], "write NAME:abs=E"),
        (["--field", "field:"], "there is no setting ''"),
        (["--field", "field:abs=0"], "a bound of 0 would keep every bit: say /field:lossless"),
        (["--field", "field:abs=1,rel=2"], "must name one of"),
        (["--field", "field:abs=1,predictor=learned"], "learned was removed after solar 0.1.0: leave it out"),
        (["--field", "field:lossy"], "or NAME:keep"),
        (["--field", "field:abs=1", "--field", "field:keep"], "/field is there twice"),
        (["--field", "feld:abs=1"], "there is no dataset /feld to be compressed; did you mean /field?"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], why: str, scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress", scan, str(tmp_path / "b.h5"), *arguments]) == 1
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert not (tmp_path / "b.h5").exists()


def test_an_existing_file_is_overwritten_by_force_only(
    scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.h5").write_text("precious")
    line = ["compress", scan, str(tmp_path / "b.h5"), "--lossless"]
    assert main(line) == 1
    assert "--force to overwrite it" in capsys.readouterr().err
    assert main([*line, "--force"]) == 0
    assert np.array_equal(read(tmp_path / "b.h5", "counts"), read(scan, "counts"))


def test_names_that_would_command_a_terminal_are_printed_harmlessly(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("a.h5", **{"evil\x1b[2J": smooth(20, 40, 40), "\x1b]0;x": np.arange(3)})
    assert main(["compress", path, str(tmp_path / "b.h5"), "--abs", "1e-2"]) == 0
    assert main(["verify", path, str(tmp_path / "b.h5")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_what_it_does_and_how_far_it_is_is_told_and_nothing_where_it_is_to_be_quiet(
    scan: str, tmp_path: Path, phases: list[Phase]
) -> None:
    line = ["compress", scan, str(tmp_path / "b.h5"), "--rel", "1e-3", "--force"]
    assert main(line) == 0
    told = {one.what: one.text(2.0) for one in phases}
    assert re.fullmatch(r"looking for the range: 100%, [\d.,]+ [kMG]B/s", told["looking for the range"])
    assert re.fullmatch(r"compressing: 100%, [\d.,]+ [kMG]B/s, \d[\d.]*:1", told["compressing"])
    assert main(["verify", scan, str(tmp_path / "b.h5")]) == 0
    assert "comparing" in {one.what for one in phases}
    before = len(phases)
    assert main([*line, "--quiet"]) == main([*line, "--json"]) == 0
    assert len(phases) == before


# --- what was lost before ----


@pytest.fixture
def damaged(make: Make) -> str:
    """A file one of whose datasets has a chunk that cannot be decoded."""
    values = np.random.default_rng(0).poisson(2, (40, 40, 40)).astype("u2")
    path = make("a.h5", bad=(values, {"chunks": (10, 40, 40), "compression": "gzip"}), good=values)
    with h5py.File(path) as file:
        chunk = file["bad"].id.get_chunk_info(2)
    with Path(path).open("r+b") as bytes_of:
        bytes_of.seek(chunk.byte_offset + 50)
        bytes_of.write(bytes([255]) * 200)
    settle(path)
    return path


def test_what_cannot_be_read_is_copied_as_it_is_and_the_exit_code_says_so(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["compress", damaged, str(tmp_path / "b.h5"), "--lossless", "--quiet"]
    assert main(line) == 1
    shown = capsys.readouterr()
    assert "/bad  copied, " in shown.out and "it cannot be read: " in shown.out
    assert shown.err.startswith(f"solar: {damaged}: /bad cannot be read, and was copied as it is, damage and all: ")
    assert f"`solar verify {damaged}`" in shown.err and shown.err.count("\n") == 1
    assert np.array_equal(read(tmp_path / "b.h5", "good"), read(damaged, "good"))
    assert main([*line, "--force", "--json"]) == 1
    (left,) = json.loads(capsys.readouterr().out)["left"]
    assert (left["name"], left["unread"]) == ("/bad", True)


def test_what_solar_compressed_before_keeps_its_bound_and_that_is_said(
    scan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = str(tmp_path / "once.h5"), str(tmp_path / "twice.h5")
    assert main(["compress", scan, once, "--rel", "1e-3", "--field", "label:keep", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compress", once, twice, "--rel", "1e-2"]) == 0
    assert f"{once}: solar compressed /counts, /field already: copied with the bound it has" in capsys.readouterr().err
    assert main(["compress", once, twice, "--force", "--field", "field:rel=1e-2"]) == 0
    assert f"{once}: solar compressed /field already: its values may be off by the old bound" in capsys.readouterr().err
    assert main(["compress", once, "--advise"]) == 1
    assert "solar compressed its samples already: give --advise the original file" in capsys.readouterr().err


# --- advice ----


def test_advice_has_bounds_and_coders_with_their_costs(
    scan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "solar.io.codec.preparation._seconds", lambda work: work() or 1e-6
    )  # however busy the machine is
    before = Path(scan).stat()
    disks = profile.Profile("/data", "2026-01-01T00:00:00+00:00", "as told", (), profile.NETWORK)
    profile.save(disks, profile.default_path(scan))
    assert main(["compress", "--advise", scan, "--memory", "280k", "--batch-size", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == ["version", "file", "memory", "batch", "storage", "datasets"]
    assert [one["name"] for one in answer["datasets"]] == ["/counts", "/field"]
    field = answer["datasets"][1]
    settings = [(one["setting"], one["coder"]) for one in field["trials"]]
    assert settings == [
        (how, coder)
        for how in ("lossless", "rel=1e-05", "rel=0.0001", "rel=0.001", "rel=0.01")
        for coder in ("pack", "dense")
    ]
    for one in field["trials"]:
        assert one["largest_error"] <= one["bound"]
        assert one["encode"] > 0 < one["decode"]
        assert 0 < one["memory_share"] <= 1
    ratios = [one["ratio"] for one in field["trials"] if one["coder"] == "dense"]
    assert ratios == sorted(ratios)
    seconds = [one["seconds"] for one in field["trials"] if one["coder"] == "dense"]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[1] <= field["now"]["seconds"]  # the lossless one has to be decoded, in memory
    assert all(one["scans"] >= 0 for one in field["trials"])
    assert Path(scan).stat() == before or Path(scan).stat().st_mtime == before.st_mtime


def test_advice_is_of_the_bound_and_the_field_asked_for(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", "--advise", scan, "--field", "field:abs=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("/field  40 × 40 × 40 float32, 250 KiB, stored in 250 KiB")
    assert [line.split()[:2] for line in lines[2:4]] == [["abs=0.5", "pack"], ["abs=0.5", "dense"]]
    assert lines[-1].startswith("--memory SIZE")
    assert not any("/counts" in line for line in lines)


def test_advice_says_of_which_memory_and_storage_its_epochs_are(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["compress", "--advise", scan, "--memory", "300k", "--batch-size", "4", "--field", "field:abs=0.5"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    asked = next(line for line in lines if "batches of 4 and 300 KiB of memory" in line)
    assert re.match("Modelled, for a guessed storage of .* requests/s: reading in the second and later epochs", asked)
    assert "divided" not in asked
    assert "page cache: here only the first epoch would wait." in lines[-1]


def test_advice_divides_the_memory_among_the_datasets(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    asking = ["compress", "--advise", scan, "--batch-size", "4", "--memory", "420k"]
    assert main([*asking, "--json"]) == 0
    shares = [one["now"]["memory_share"] for one in json.loads(capsys.readouterr().out)["datasets"]]
    for share, sample in zip(shares, (3200, 6400), strict=True):
        taken = needs(
            [SampleBytes(3200), SampleBytes(6400)], LOADERS_PACE, 4, scratch=sample, threads=reading_threads()
        )
        assert share == pytest.approx(divide_memory(420 << 10, 4, [taken]).parts / (40**3 * (2 + 4)), rel=1e-3)
    assert main(asking) == 0
    assert "of memory, divided among 2 datasets by their values." in capsys.readouterr().out


def test_advice_has_no_columns_that_say_the_same_in_every_row(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    asking = ["compress", "--advise", scan, "--batch-size", "4", "--field", "field:abs=0.5", "--memory"]
    assert main([*asking, "8GiB"]) == 0
    shown = capsys.readouterr().out
    assert "It fits into this memory as it is stored: only the first epoch reads it, whatever the bound." in shown
    assert not re.search(r"in memory|scans|as it is  |\b0 µs", shown)
    assert main([*asking, "290k"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:5]
    assert rows[0].endswith("in memory  scans  reading")
    assert rows[1].split()[:3] == ["as", "it", "is"]
    assert all(re.search(r" 100%\s+0\s+nothing$", row) for row in rows[2:]), "the columns say that it pays here"


def test_advice_for_what_has_no_samples_is_an_error(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", "--advise", make("a.h5", x=np.arange(4))]) == 1
    assert "it has no samples to be compressed" in capsys.readouterr().err
