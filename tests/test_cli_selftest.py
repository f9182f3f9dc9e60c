"""`python -m solar.selftest`: a line for each check, and an exit code that a broken installation does not pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from solar.baseline.h5py_samples import H5pySamples
from solar.cli import main
from solar.io import example_files


@pytest.mark.slow
def test_an_installation_passes_far_from_its_source(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-W", "error", "-m", "solar.selftest"]
    with tempfile.TemporaryDirectory() as temporary:  # tmp_path is too long for a socket's name
        env = {**os.environ, "TMPDIR": temporary}
        ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        left = [*Path(temporary).iterdir()]
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    _, *lines, last = ended.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert last == f"all {len(lines)} checks passed"
    for what in ("contiguous", "gzip", "zstd", "text", "batches from a buffer", "in processes", "plug-in"):
        assert any(what in line for line in lines), what
    assert left == [], "it left something behind"


def test_what_differs_is_said_and_the_other_checks_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """h5py's side is given another value in one dataset, and PyTorch's the sample before the one it asks for."""

    def write(path: Path) -> dict[str, Any]:
        found = written(path)
        found["lzf"][17, 0, 0] += 1
        return found

    written, right = example_files.write_one_of_each, H5pySamples.sample
    monkeypatch.setattr(example_files, "write_one_of_each", write)
    monkeypatch.setattr(H5pySamples, "sample", lambda plain, index: right(plain, max(0, index - 1)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["selftest"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    assert "FAILED  read lzf: AssertionError: 1 of 50 samples differ from h5py's, the first is 17" in failed
    assert len(failed) == 4, "lzf, and batches: plain, from a buffer, after a restart"
    assert re.fullmatch(r"4 of \d+ checks failed: .*", lines[-1])
    assert any(line.startswith("ok      h5py alone") for line in lines)
    assert not list(tmp_path.glob("solar-*")), "it left something behind"


def test_each_layout_is_one_that_it_says(tmp_path: Path) -> None:
    from solar import inspect

    path = tmp_path / "each.h5"
    names = example_files.write_one_of_each(path)
    layouts = {name: inspect(path, name) for name in names}
    assert {name for name, one in layouts.items() if one.reader != "direct"} == {"text"}
    assert all(one.samples == example_files.SAMPLES for one in layouts.values())
    assert set(example_files.BATCHED) <= set(names)
