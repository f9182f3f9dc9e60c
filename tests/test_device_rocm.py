"""torch's build for AMD's GPUs, played by its version: what is chosen and said where a driver of CUDA is there, too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from device_kit import Eager, pretend
from kit import settle
from null_device import calls, driver, library

from solar import DataLoader, H5Dataset
from solar.device import ring
from solar.device.kernels import decoder
from solar.errors import PlanError

DEVICE = torch.device("cuda", 0)


class Streams(Eager):
    """The host as a device: whether native code copies to it is decided as for a GPU."""

    native = ring.CudaStreams.native
    _open_native = ring.CudaStreams._open_native

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._device, self._native = device, list[Any]()


@pytest.fixture(params=["rocm", "cuda"])
def rocm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """torch for ROCm, or for CUDA, so that what is asserted of the one can fail. A driver of CUDA is there."""
    monkeypatch.setattr(torch.version, "hip", "6.4.43483" if request.param == "rocm" else None)
    monkeypatch.setattr(ring, "CUDA_DRIVER", str(library()))
    driver().null_reset()
    return bool(request.param == "rocm")


def test_torch_copies_and_no_driver_of_cuda_is_opened(
    rocm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "solar")
    opened = Streams(torch.device("cpu")).native()
    assert (opened is None) is rocm
    assert (calls("cuInit") == 0) is rocm
    assert ("and this torch is built for ROCm 6.4.43483" in caplog.text) is rocm
    if rocm:
        pretend(monkeypatch, Streams)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.random.default_rng(0).random((41, 24, 40), "f4")
        settle(tmp_path / "a.h5")
        data = H5Dataset(tmp_path / "a.h5", "x")
        there = [batch.clone() for batch in DataLoader(data, 4, device="cpu", buffer=0)]
        assert all(map(torch.equal, there, DataLoader(data, 4, buffer=0)))
        assert calls("cuInit") == 0
        assert not [one for one in caplog.records if one.levelno > logging.INFO]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_called_as_torch_has_it(rocm: bool) -> None:
    with pytest.raises(ValueError, match="torch finds 0 GPUs for ROCm 6.4" if rocm else "torch finds 0 CUDA devices"):
        ring.device_of("cuda:0")


def test_what_decodes_there_comes_from_torch_and_was_not_tried(
    rocm: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decoder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match="torch for ROCm by its own wheels" if rocm else r"pip install 'solar\[gpu\]'"):
        decoder._launch(DEVICE, torch.float32, torch.float32, b"")
    monkeypatch.undo()
    pytest.importorskip("triton", reason="triton is not installed: pip install 'solar[gpu]'")
    from solar.device.kernels import launch

    monkeypatch.setattr(torch.version, "hip", "6.4.43483" if rocm else None)
    made: list[Any] = []
    monkeypatch.setattr(launch, "Launch", lambda *given: made.append(given))
    decoder._launch(DEVICE, torch.float32, torch.float32, b"")
    assert len(made) == 1
    assert ("were never run on one" in caplog.text) is rocm
    assert launch.kind_of(DEVICE) == ("hip" if rocm else "cuda")
    assert launch.kind_of(torch.device("cpu")) == "cpu"
