"""`solar digest`: one number for what an epoch gives, however it is read, and another for anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import engine, settle, uring_works

from solar import DataLoader, H5Dataset, PlanSampler, compress
from solar.cli import main
from solar.cli.digest import Digest

SAMPLES = 48
Say = Callable[..., list[str]]


def written(path: Path, change: bool = False, **options: Any) -> str:
    values = np.random.default_rng(1).integers(0, 99, (SAMPLES, 6, 4)).astype("f4")
    values[7, 2, 1] += change
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **options)
        file["label"] = np.arange(SAMPLES)
        file["name"] = [f"sample {i}" for i in range(SAMPLES)]
    settle(path)
    return str(path)


@pytest.fixture
def digests(capsys: pytest.CaptureFixture[str]) -> Say:
    """The digests that the command tells of each epoch."""

    def say(path: str, *options: str) -> list[str]:
        names = [] if "--json" in options else ["x", "label", "name"]
        assert main(["digest", path, *names, "--batch-size", "8", "--epochs", "2", *options]) == 0
        out = capsys.readouterr().out
        if "--json" in options:
            return [one["digest"] for one in json.loads(out)["epochs"]]
        return [line.split()[0] for line in out.splitlines()]

    return say


def test_it_is_the_same_whatever_threads_backend_buffer_ranks_and_storage(tmp_path: Path, digests: Say) -> None:
    path = written(tmp_path / "plain.h5")
    wanted = digests(path)
    assert len({*wanted}) == 2, "each epoch has an order of its own"
    for threads, backend in [(1, "pread"), (5, "pread"), *([(3, "uring")] if uring_works() else [])]:
        with engine(threads, backend):
            assert digests(path, "--buffer", "0") == wanted
            assert digests(path, "--buffer", "1MiB") == wanted
    assert digests(path, "--ranks", "2", "--batch-size", "4") == wanted
    assert digests(path, "--ranks", "4", "--batch-size", "2", "--buffer", "0") == wanted
    zipped = written(tmp_path / "zipped.h5", chunks=(3, 6, 2), compression="gzip")
    assert digests(zipped) == digests(zipped, "--buffer", "1MiB") == wanted
    ours = str(tmp_path / "ours.h5")
    compress(path, ours, "lossless")
    assert digests(ours) == wanted


def test_it_is_another_for_other_bytes_orders_and_batches(tmp_path: Path, digests: Say) -> None:
    path = written(tmp_path / "plain.h5")
    found = [
        digests(path),
        digests(written(tmp_path / "changed.h5", change=True)),
        digests(path, "--seed", "1"),
        digests(path, "--batch-size", "6"),
    ]
    assert len({*map(tuple, found)}) == len(found)


def test_a_run_that_was_broken_off_and_gone_on_with_has_the_digest_of_one_that_was_not(
    tmp_path: Path, digests: Say
) -> None:
    path = written(tmp_path / "plain.h5")
    wanted = digests(path)[0]

    def loader() -> Any:
        data = H5Dataset(path, {name: name for name in ("x", "label", "name")})
        return DataLoader(data, 8, sampler=PlanSampler(data))

    digest, first = Digest(), loader()
    iterator = iter(first)
    for _ in range(2):
        digest.add([next(iterator)])
    second = loader()
    second.load_state_dict(first.state_dict())
    for batch in second:
        digest.add([batch])
    assert digest.found()["digest"] == wanted


def test_json_says_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "plain.h5")
    assert main(["digest", path, "x", "--batch-size", "10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [epoch] = told.pop("epochs")
    assert told == {"version": 1, "file": path, "datasets": ["x"], "ranks": 1, "batch": 10, "seed": 0}
    assert {**epoch, "digest": ""} == {"epoch": 0, "steps": 5, "samples": 48, "bytes": 48 * 24 * 4, "digest": ""}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(tmp_path / "none.h5"), "--batch-size", "4"]) == 1
    assert "none.h5" in capsys.readouterr().err


def test_fields_of_which_torch_makes_no_batches_are_left_out_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "odd.h5")
    with h5py.File(path, "w") as file:
        file["rows"] = np.zeros(40, [("a", "i4"), ("b", "f8")])
        file["long"] = np.zeros(40, "longdouble")
        lists = file.create_dataset("lists", 40, h5py.vlen_dtype("i4"))
        lists[3] = [1, 2]
    assert main(["digest", path, "--batch-size", "4"]) == 1
    told = capsys.readouterr().err
    assert "odd.h5" in told and "neither numbers nor text: name another DATASET" in told
    with h5py.File(path, "a") as file:
        file["label"] = np.arange(40)
        file["name"] = [f"sample {i}" for i in range(40)]
    assert main(["digest", path, "--batch-size", "4", "--json"]) == 0
    assert {*json.loads(capsys.readouterr().out)["datasets"]} == {"/label", "/name"}
    assert main(["digest", path, "rows", "--batch-size", "4"]) == 1
    assert "rows holds {a: int32, b: float64}, and neither" in capsys.readouterr().err


def test_what_is_missing_or_meant_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "plain.h5")
    assert main(["digest", path]) == 1
    assert "Give --batch-size B: a digest is of batches, and depends on it\n" in capsys.readouterr().err
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, said in (("0", "and 2 were started: give --ranks 2 without the launcher\n"), ("1", "")):
        monkeypatch.setenv("PMI_RANK", rank)
        assert main(["digest", path, "--batch-size", "8"]) == 1
        found = capsys.readouterr().err
        assert found.endswith(said) and bool(found) == bool(said)


def test_no_nested_tensors_are_made_for_torch_warns_of_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "parts.h5", "w") as file:
        file["hits"], file["ends"] = np.arange(9.0), [0, 2, 2, 9]
        for number in range(4):
            file[f"g/{number}/x"] = np.arange(number + 2.0)
    settle(tmp_path / "parts.h5")
    monkeypatch.setattr("torch.nested.nested_tensor_from_jagged", None)
    for more in (["--ragged", "hits", "--ends", "ends"], ["x", "--groups"]):
        assert main(["digest", str(tmp_path / "parts.h5"), *more, "--batch-size", "3"]) == 0
        found = capfd.readouterr()
        assert "epoch 0: 2 steps, 4 samples" in found.out and found.err == ""
