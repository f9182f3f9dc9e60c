"""Arguments by their old names: they work, and say the new ones."""

from __future__ import annotations

import inspect as signatures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from solar import H5Dataset, PlanSampler, ReadError, compress, inspect, verify
from solar.io.system.probe import probe


@pytest.fixture
def path(make: Any) -> str:
    return make("a.h5", x=np.arange(96, dtype="f4").reshape(12, 8))


def test_old_names_of_arguments_work_and_warn(path: str, tmp_path: Path) -> None:
    target, lines = str(tmp_path / "b.h5"), list[Any]()
    with pytest.warns(DeprecationWarning, match=r"^together= is called collective_open= now$") as caught:
        assert inspect(path, "x", together=False).shape == (12, 8)  # type: ignore[call-overload]
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="together= is called collective_open= now"):
        data = H5Dataset(path, "x", together=False)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="together= is called groups= now"):
        old = PlanSampler(data, 1, 0, together=np.arange(12) % 3)  # type: ignore[call-arg]
    assert list(old) == list(PlanSampler(data, 1, 0, groups=np.arange(12) % 3))
    with pytest.warns(DeprecationWarning, match="told= is called progress= now"):
        compress(path, target, "lossless", told=lines.append)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="told= is called progress= now"):
        assert verify(path, target, told=lines.append).holds  # type: ignore[call-arg]
    assert lines
    with pytest.warns(DeprecationWarning, match="told= is called progress= now"), pytest.raises(ReadError):
        probe(path, 0.05, told=lines.append)  # type: ignore[call-arg]  # so small a file cannot be measured


def test_an_argument_by_both_names_is_an_error(path: str) -> None:
    with pytest.raises(TypeError, match="together is the old name of collective_open; leave it out"):
        H5Dataset(path, "x", together=False, collective_open=False)  # type: ignore[call-arg]


@pytest.mark.parametrize(("function", "name"), [(H5Dataset, "collective_open"), (PlanSampler, "groups")])
def test_help_shows_the_new_names_alone(function: Any, name: str) -> None:
    names = signatures.signature(function).parameters
    assert name in names and "together" not in names
