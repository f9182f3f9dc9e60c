"""Checks this installation: writes small files, reads them, and compares every bit with h5py and PyTorch.

It takes some seconds, needs nothing besides solar, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from solar import __version__
from solar.cli.progress_bar import ended_in_order
from solar.cli.words import error_text_of, printable
from solar.errors import SolarError

DETAILS = """\
Prints one line for each check. The exit code is 0 if all passed, 1 if not.
`python -m solar.selftest` is the same.
"""

TRIED_BOUND = 2.0  # photons
BATCH = 8
PLUGIN = """
import sys, h5py
with h5py.File(sys.argv[1]) as whole, h5py.File(sys.argv[2]) as small:
    assert abs(whole["counts"][()] - small["counts"][()]).max() <= float(sys.argv[3]), "further off than the bound"
assert not any(name.partition(".")[0] == "solar" for name in sys.modules)
"""
Check = Callable[[], str]  # says what was compared; raises where it is not as it should be


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    print(f"solar {__version__}, Python {sys.version.split()[0]}", flush=True)
    passed, failed = 0, 0
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="solar-selftest-") as folder:
        for name, check in checks(Path(folder)):
            begun = time.perf_counter()
            try:
                found = check()
            except Exception as error:  # whatever it is: the others are still worth knowing
                failed += 1
                print(f"FAILED  {name}: {error_text(error)}", flush=True)
            else:
                passed += 1
                print(f"ok      {name}: {found} ({time.perf_counter() - begun:.1f} s)", flush=True)
    if failed:
        print(
            f"{failed} of {passed + failed} checks failed: do not train with this installation, and please report this"
        )
        return 1
    print(f"all {passed} checks passed")
    return 0


def checks(folder: Path) -> Iterator[tuple[str, Check]]:
    """Yields the checks by name, one after another."""
    from solar.io import example_files
    from solar.io import example_files as specimen

    path, cut, whole, small, same = (str(folder / f"{name}.h5") for name in ("each", "cut", "whole", "small", "same"))
    for name, values in example_files.write_one_of_each(path).items():
        yield f"read {name}", partial(read_as_h5py, path, name, values)
    names = [*example_files.BATCHED]
    yield "batches", partial(same_batches, path, names)
    yield "batches from a buffer", partial(same_batches, path, names, buffer="50%", epochs=2)
    yield "batches after a restart", partial(resumed, path, names)
    yield "transform in threads", partial(check_transform, path, names[0], thread_safe=True)
    yield "transform in processes", partial(check_transform, path, names[0], num_workers=2)
    yield "refuse a file that is cut short", partial(check_refusal, path, cut)
    specimen.write(whole, 64)
    yield "compress with a bound", partial(compressed, whole, small, TRIED_BOUND)
    yield "compress without loss", partial(compressed, whole, same, 0)
    yield "h5py alone, by the plug-in", partial(read_by_plugin, whole, small)


# --- the checks ----


def read_as_h5py(path: str, name: str, values: Any) -> str:
    import numpy as np

    from solar.io.hdf5.layouts import inspect
    from solar.io.reading.reader import read

    order = np.random.default_rng(1).integers(0, len(values), 2 * len(values))
    for got, expected in ((read(path, name), values), (read(path, name, order), values[order])):
        if got.dtype != expected.dtype or got.shape != expected.shape:
            raise AssertionError(f"{got.dtype} {got.shape}, h5py gives {expected.dtype} {expected.shape}")
        differing = np.flatnonzero((got != expected).reshape(len(got), -1).any(axis=1))
        if len(differing):
            raise AssertionError(
                f"{len(differing)} of {len(got)} samples differ from h5py's, the first is {differing[0]}"
            )
    return f"{len(values)} samples, in order and shuffled, read by {inspect(path, name).reader}"


def _loaders(path: str, names: list[str], **options: Any) -> tuple[Any, Any]:
    """Returns our loader and PyTorch's over h5py, with the same order."""
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.baseline.h5py_loader import plain_loader, simple
    from solar.baseline.h5py_samples import H5pySamples

    data = H5Dataset(path, {name: name for name in names})
    sampler = PlanSampler(data, 1, 0, seed=0, drop_last=True)
    return (
        DataLoader(data, BATCH, sampler=sampler, drop_last=True, **options),
        plain_loader(H5pySamples([path], names), BATCH, 0, simple(), 0),
    )


def same_batches(path: str, names: list[str], **options: Any) -> str:
    ours, theirs = _loaders(path, names, **options)
    compared = 0
    with ours:
        for epoch in range(2):
            ours.set_epoch(epoch)
            theirs.sampler.set_epoch(epoch)
            compared += sum(check_alike_batches(got, expected) for got, expected in zip(ours, theirs, strict=True))
    return f"{compared} of two shuffled epochs as PyTorch's loader gives them"


def resumed(path: str, names: list[str]) -> str:
    ours, theirs = _loaders(path, names)
    expected = list(theirs)
    begun = iter(ours)
    for _ in range(2):
        next(begun)
    state = ours.state_dict()
    ours.close()
    again, _ = _loaders(path, names)
    again.load_state_dict(state)
    with again:
        compared = sum(check_alike_batches(got, one) for got, one in zip(again, expected[2:], strict=True))
    return f"{compared} that were left, as PyTorch's loader gives them"


def check_transform(path: str, name: str, num_workers: int = 0, thread_safe: bool = False) -> str:
    from solar import DataLoader, H5Dataset

    plain = H5Dataset(path, name)
    mapped = H5Dataset(path, name, transform=doubled, thread_safe=thread_safe)
    compared = 0
    with DataLoader(plain, BATCH) as as_stored, DataLoader(mapped, BATCH, num_workers=num_workers) as ours:
        for got, expected in zip(ours, as_stored, strict=True):
            compared += check_alike_batches({name: got}, {name: 2 * expected})
    return f"{compared} batches"


def doubled(sample: Any) -> Any:
    return 2 * sample


def check_refusal(path: str, cut: str) -> str:
    from solar.io.reading.reader import read

    Path(cut).write_bytes(Path(path).read_bytes()[:-4096])
    try:
        read(cut, "zstd")  # the last that was written
    except SolarError as error:
        if cut not in str(error):
            raise AssertionError(f"the error does not name the file: {error}") from None
        return f"{type(error).__name__} that names it"
    raise AssertionError("it was read as if nothing was missing")


def compressed(source: str, target: str, bound: float) -> str:
    from solar.io.codec.store import compress
    from solar.io.codec.verify import verify
    from solar.io.reading.reader import read

    compress(source, target, f"abs={bound}" if bound else "lossless")
    furthest = abs(read(source, "counts") - read(target, "counts")).max()
    if not furthest <= bound or not verify(source, target).holds:
        raise AssertionError(f"values are up to {furthest:.2g} off")
    ratio = Path(source).stat().st_size / Path(target).stat().st_size
    return f"at most {furthest:.2g} off, {ratio:.1f} times smaller"


def read_by_plugin(source: str, target: str) -> str:
    from solar.filters import FOLDER

    env = {**os.environ, "HDF5_PLUGIN_PATH": FOLDER}
    command = [sys.executable, "-c", PLUGIN, source, target, str(TRIED_BOUND)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    if ended.returncode:
        raise AssertionError(ended.stderr.strip().rpartition("\n")[2] or f"the process ended with {ended.returncode}")
    return f"within the bound, in a process without solar; HDF5_PLUGIN_PATH={FOLDER}"


def check_alike_batches(got: Any, expected: Any) -> bool:
    """Returns True, so that results can be summed. Raises if a batch differs from the other in any bit."""
    for name, tensor in expected.items():
        if got[name].dtype != tensor.dtype or not got[name].equal(tensor):
            raise AssertionError(f"a batch of {name} is not PyTorch's")
    return True


def error_text(error: Exception) -> str:
    text = error_text_of(error) if isinstance(error, SolarError) else f"{type(error).__name__}: {error}"
    return printable(text)
