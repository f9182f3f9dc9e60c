"""Every file of other people's tests, odd or damaged, gives the values libhdf5 gives, or a SolarError: nothing else.

Run as a program with paths as arguments, it reads these files and prints what came of each, one JSON line a file. The
tests run it so, with limits of time and memory, so that a crash or a hang is a failure with the file's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SECONDS = 120  # for all files of a folder: they end, also on a busy machine
LARGE = 1 << 30  # bytes of a dataset that is inspected, but not read (nor was it for the manifest)
ADDRESS_SPACE = 4 << 30
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "") or "libtsan" in os.environ.get("LD_PRELOAD", "")


# --- the program ----


def main(files: list[str]) -> None:
    if SANITIZED:  # this program; but libhdf5's process and its plug-ins (sz3 fails under ASan) are not ours to mend
        os.environ.pop("LD_PRELOAD")
    else:  # a sanitizer's shadow memory is terabytes of address space
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for file in files:
        print(json.dumps({"begun": file}), flush=True)
        print(json.dumps(outcome(file)), flush=True)


def outcome(file: str) -> dict[str, Any]:
    """What solar makes of a file: its error, or of each dataset the sha256 of its values or its error."""
    import solar
    from solar.io.hdf5.layouts import survey

    try:
        layouts, problems = survey([file])[:2]
    except solar.SolarError as error:
        return {"error": str(error)}
    datasets: dict[str, Any] = {}
    for name, layout in layouts.items():
        found = datasets[name] = {"reader": layout.reader, "reason": layout.reason}
        if layout.reader == "none":
            found["error"] = layout.reason
            continue
        if layout.nbytes > LARGE:
            found["error"] = "not read"
            continue
        try:
            values = solar.read(file, name)
        except solar.SolarError as error:
            found["error"] = str(error)
            continue
        found.update(shape=list(layout.shape), dtype=str(layout.dtype), sha256=digest(values, layout.dtype))
    return {"datasets": datasets, "problems": problems}


def digest(values: Any, dtype: np.dtype[Any]) -> str | None:
    """sha256 of values in C order, little-endian, without padding; None for objects."""
    if dtype.hasobject:
        return None
    return hashlib.sha256(packed(np.asarray(values))).hexdigest()


def packed(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.names is not None:
        return b"".join(packed(array[name]) for name in array.dtype.names)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# --- the tests ----


def expected(folder: Path) -> dict[str, Any]:
    lines = (folder / "expected.jsonl").read_text().splitlines()
    return {record["file"]: record for record in map(json.loads, lines)}


def outcomes(folder: Path, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The outcome of each file; when the program dies or hangs, the test fails with the file's name."""
    command = [sys.executable, __file__, *(str(folder / file) for file in files)]
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, timeout=SECONDS * (20 if SANITIZED else 1), check=False)
        printed, ending = run.stdout, f"ended with {run.returncode}"
    except subprocess.TimeoutExpired as error:
        printed, ending = error.stdout or b"", "took too long"
    lines = [json.loads(line) for line in printed.splitlines()]
    if len(lines) < 2 * len(files):
        pytest.fail(f"the program {ending} at {lines[-1].get('begun') if lines else 'its start'}")
    return zip(files, lines[1::2], strict=True)


def compare(record: dict[str, Any], found: dict[str, Any], counts: Counter[str]) -> Iterator[str]:
    """Complaints about one file. Counts what was read by whom."""
    if "error" in found:
        counts["file refused"] += 1
        yield from (f"{record['file']}: refused: {found['error']}" for _ in [0] if readable(record))
        return
    for name, theirs in record["dsets"].items():
        ours = found["datasets"].get(name)
        if ours is None:
            if "sha256" in theirs:
                yield f"{record['file']}: {name} is missing; {found['problems']}"
            continue
        yield from compare_dataset(f"{record['file']}: {name}", theirs, ours, counts)


def readable(record: dict[str, Any]) -> bool:
    return any("sha256" in theirs for theirs in record["dsets"].values())


def compare_dataset(where: str, theirs: dict[str, Any], ours: dict[str, Any], counts: Counter[str]) -> Iterator[str]:
    if "error" in ours:
        counts["refused"] += 1
        if theirs.get("sha256"):
            counts["refused though readable"] += 1
            yield f"{where}: refused: {ours['error']}"
        return
    if "error" in theirs:
        yield f"{where}: read by {ours['reader']}, though libhdf5 says {theirs['error']}"
    elif theirs.get("sha256") != ours["sha256"]:
        kinds = f"{ours['dtype']} {ours['shape']}, not {theirs['dtype']} {theirs['shape']}"
        yield f"{where}: other values ({kinds}) by {ours['reader']}"
    else:
        counts[ours["reader"] if ours["sha256"] else "objects"] += 1


def complaints(folder: Path) -> tuple[list[str], Counter[str]]:
    records = expected(folder)
    counts: Counter[str] = Counter()
    found: list[str] = []
    for file, outcome in outcomes(folder, list(records)):
        found += compare(records[file], outcome, counts)
    return found, counts


def test_odd_files_give_libhdf5s_values(shared: Path) -> None:
    found, counts = complaints(shared / "hdf5-odd")
    print(counts)
    assert found == []
    assert counts["direct"] >= 1000


def test_damaged_files_give_libhdf5s_values_or_errors(shared: Path) -> None:
    found, counts = complaints(shared / "hdf5-corrupt")
    print(counts)
    assert found == []
    assert counts["direct"] >= 40


if __name__ == "__main__":
    main(sys.argv[1:])
