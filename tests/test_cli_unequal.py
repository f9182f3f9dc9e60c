"""`solar plan --ragged`, `--csr` and `--groups`: what it says is what the loader's run reads, and hits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import groups_kit
import h5py
import numpy as np
import pytest
from buffer_kit import DISK, least_of, run_of
from kit import settle
from ragged_kit import matrix, sparse, written

from solar import CSR, DataLoader, H5Dataset, PlanSampler, Ragged
from solar.cli import main

TERMS = ["--latency", "1ms", "--bandwidth", "100MB/s", "--iops", "500", "--batch-size", "8", "--epochs", "3"]


def answered(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), *TERMS, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def asked_of(kind: str, path: Path, layout: str) -> tuple[list[str], H5Dataset]:
    """A file of ninety samples of a kind; what the command line says of it, and the data set that it means."""
    lengths = np.random.default_rng(0).integers(0, 9, 90).tolist()
    if kind == "csr":
        matrix(path, sparse(90, 11), layout)
        return ["y", "--csr", "X"], H5Dataset(str(path), {"y": "y", "X": CSR("X")})
    if kind.startswith("ragged"):
        told = kind.partition(" ")[2]
        written(path, [max(1, n) for n in lengths] if told == "ids" else lengths, layout, row=(2,))
        field = Ragged("v", **{told: told})
        return ["y", "--ragged", "v", f"--{told}", told], H5Dataset(str(path), {"y": "y", "v": field})
    groups_kit.written(path, [4] * 90, layout)
    asked = ["energy", "coords", "--groups", *([] if kind == "groups" else ["/molecules/*"])]
    names = {name: name for name in ("energy", "coords")}
    return asked, H5Dataset(str(path), names, samples=asked[-1] if asked[-1][0] == "/" else "groups")


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("share", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
@pytest.mark.parametrize("kind", ["ragged ends", "ragged ids", "ragged indptr", "csr", "groups", "groups of a pattern"])
def test_the_plan_of_samples_of_unequal_length_is_the_runs(
    kind: str, layout: str, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("solar.samples.row_blocks.HELD_NBYTES", 32)
    asked, data = asked_of(kind, tmp_path / "a.h5", layout)
    sampler = PlanSampler(data, 1, 0, seed=0)

    def loader_of(nbytes: int) -> DataLoader[Any]:
        return DataLoader(data, 8, sampler=sampler, buffer=nbytes, epochs=3, storage=DISK)

    memory = least_of(loader_of) + int(share * 4_000)
    answer = answered(capsys, tmp_path / "a.h5", *asked, "--memory", memory)
    assert answer["samples"] == len(data) == 90
    assert kind.startswith("groups") or sorted(answer["policies"]) == ["one_by_one", "solar"]
    with loader_of(memory) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert len(list(loader)) == 12
        counts = run_of(loader).counts()
        assert loader.stats()["peak_bytes"] <= memory
    planned = {name: one + 2 * answer["policies"]["solar"][name] for name, one in answer["first_epoch"].items()}
    for name in ("reads", "requests", "bytes", "hits"):
        assert counts[name] == pytest.approx(planned[name], abs=2), name


def test_a_buffer_that_is_too_small_is_the_loaders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, data = asked_of("csr", tmp_path / "a.h5", "gzip")
    sampler = PlanSampler(data, 1, 0, seed=0)
    least = least_of(lambda nbytes: DataLoader(data, 8, sampler=sampler, buffer=nbytes, epochs=3, storage=DISK))
    assert main(["plan", str(tmp_path / "a.h5"), *asked, *TERMS, "--memory", str(least - 1)]) == 1
    assert f"give at least --memory {least}" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "a.h5"), *asked, *TERMS, "--memory", str(least)]) == 0
    capsys.readouterr()


def test_people_are_told_how_long_samples_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5", [2, 0, 4, 6], "gzip", row=(2,))
    asked = ["--ragged", "v", "--lengths", "lengths", "--memory", "1MiB"]
    assert main(["plan", str(tmp_path / "a.h5"), *asked, *TERMS]) == 0
    said = capsys.readouterr().out
    assert "4 samples of v, 24 B each" in said
    assert "one by one" in said


@pytest.mark.parametrize("kind", ["ragged lengths", "csr", "groups"])
def test_a_digest_is_the_same_for_any_ranks_and_buffer(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, _ = asked_of(kind, tmp_path / "a.h5", "gzip")
    found = []
    for more in (["--batch-size", "4", "--buffer", "0"], ["--batch-size", "4", "--buffer", "1MiB"],
                 ["--batch-size", "2", "--ranks", "2"]):  # fmt: skip
        given = ["digest", str(tmp_path / "a.h5"), *asked, *more, "--epochs", "2", "--drop-last", "--json"]
        assert main(given) == 0
        found.append(json.loads(capsys.readouterr().out)["epochs"])
    assert found[0] == found[1] == found[2]
    assert found[0][0]["samples"] == 88 and found[0][0]["digest"] != found[0][1]["digest"]


def test_another_value_or_length_is_another_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for change in ("none", "value", "length"):
        path = tmp_path / f"{change}.h5"
        written(path, [2, 0, 3])
        with h5py.File(path, "r+") as file:
            file["v"][3] += change == "value"
            file["ends"][...] = [2, 3, 5] if change == "length" else [2, 2, 5]
        settle(path)
        assert main(["digest", str(path), "--ragged", "v", "--ends", "ends", "--batch-size", "3", "--json"]) == 0
        digests.add(json.loads(capsys.readouterr().out)["epochs"][0]["digest"])
    assert len(digests) == 3


@pytest.mark.parametrize("kind", ["ragged ends", "csr", "groups"])
def test_they_are_rehearsed(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, _ = asked_of(kind, tmp_path / "a.h5", "gzip")
    given = ["rehearse", str(tmp_path / "a.h5"), *asked, "--batch-size", "8", "--buffer", "1MiB", "--json"]
    assert main(given) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["samples"] == 90 and [one["samples"] for one in answer["epochs"]] == [90, 90]


WRONG = [
    (["--indptr", "ends"], "--indptr is of ragged fields: give their --ragged DATASET, too"),
    (["--csr", "X", "--ends", "ends"], "--ends tells how long samples of ragged fields are"),
    (["--ragged", "v", "--ends", "ends", "--ids", "ids"], "--ragged: ends and ids: one dataset tells"),
    (["--ragged", "v", "--ends", "ends", "--crop", "2"], "--crop beside --ragged"),
    (["--ragged", "v", "--ends", "ends", "--window", "v=0:2"], "--window beside --ragged"),
    (["--ragged", "v", "--ends", "ends", "--every", "2"], "--every beside --ragged"),
    (["--ragged", "v", "--ends", "ends", "--weights", "y"], "such samples are planned shuffled: leave out --weights"),
    (["--ragged", "v", "--ends", "y"], "the last end is 3"),
    (["--ragged", "tiles", "--ends", "ends"], "chunks across its rows"),
    (["--groups"], "--groups: name the DATASETs"),
    (["x", "--groups", "/none/*"], "there are no groups whose names fit"),
    (["--mixture", "b.h5=1", "--ragged", "v", "--ends", "ends"], "leave out --weights, kinds of samples"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_what_makes_no_sense_is_said(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a.h5", [2, 0, 3, 1])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.create_dataset("tiles", data=np.zeros((6, 4)), chunks=(2, 2))
    settle(tmp_path / "a.h5")
    asked = [one.replace("b.h5", str(tmp_path / "a.h5")) for one in asked]
    assert main(["plan", str(tmp_path / "a.h5"), *asked, "--memory", "1MiB"]) == 1
    assert said in capsys.readouterr().err


def test_a_pattern_is_told_from_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "a.h5"), "--groups", "coords"])
    assert "give --groups behind the DATASETs" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "bench", "digest", "rehearse"])
def test_fields_of_groups_are_not_guessed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a b.h5"
    groups_kit.written(path, [3, 5, 3, 2, 5, 5, 1, 5])
    assert main([command, str(path), "--batch-size", "2", *(["--memory", "1M"] if command == "plan" else [])]) == 1
    said = capsys.readouterr().err
    assert f"it has 8 groups alike: if each is a sample, give '{path}' coords energy more/deep --groups" in said
    assert main(["plan", str(path), "coords", "energy", "--groups", "/molecules/*", "--memory", "1M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 8
    assert main(["plan", str(path), "molecules/m1/coords", "--memory", "1M"]) == 0


def test_groups_elsewhere_do_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups_kit.written(tmp_path / "a.h5", [3] * 8)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["x"] = np.zeros((30, 9))
    settle(tmp_path / "a.h5")
    assert main(["plan", str(tmp_path / "a.h5"), "--memory", "1M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"] == ["/x"]
