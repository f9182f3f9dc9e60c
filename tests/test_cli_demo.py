"""`solar demo`: what it says of two storages, and that a batch that differs is its exit code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from solar.baseline.h5py_samples import H5pySamples
from solar.cli import main


def test_every_batch_is_compared_and_the_rates_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--samples", "100", "--batch-size", "16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["storage"] for one in answer["storages"]] == ["contiguous", "one sample a chunk, gzip"]
    for one in answer["storages"]:
        assert one["same"] and one["batches"] == 6  # the seventh is not full
        assert one["torch"] > 0 and one["solar"] > 0


@pytest.mark.slow
def test_fewer_samples_than_a_batch_are_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--samples", "5"]) == 0
    said = capsys.readouterr().out
    assert "5 samples of 16 KiB, shuffled batches of 5" in said
    assert said.count("1 identical") == 2


@pytest.mark.slow
def test_a_batch_that_differs_is_said_and_is_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch's side is given the sample before the one it asks for."""
    right = H5pySamples._place
    monkeypatch.setattr(H5pySamples, "_place", lambda plain, index: right(plain, max(0, index - 1)))
    monkeypatch.setattr("solar.baseline.h5py_loader.WAYS_TO_READ", ("straight",))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--samples", "32", "--batch-size", "8"]) == 1
    assert "DIFFERENT after 0" in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "it left something behind"
