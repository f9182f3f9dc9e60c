"""DLIO, the benchmark of MLPerf Storage, with its own loader and with solar's plug-in: utilisation as DLIO counts it.

    python -m bench.dlio [--scenes warm slowed] [--record]

A cosmoflow-like workload of HDF5 files: samples of 2.8 MB, one a step, 3.5 ms of computing emulated for each. DLIO
makes the files itself; `slowed` reads them on the mount of bench/slowfs. DLIO's own loader is given 0, 2 and 4
readers; it reads all samples by h5py, and hands on one constant image. solar's hands on the samples.

DLIO asks for packages that this workload does not use (TensorFlow, DALI, ...); without them:

    pip install --no-deps dlio_benchmark==2.0.0 pydftracer==1.0.2
    pip install hydra-core pandas pillow pyyaml psutil mpi4py
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine, parts, records, slowfs, tables

STORAGES = ("warm", "slowed")
NEEDED = ("dlio_benchmark", "hydra", "pandas", "mpi4py", "dftracer")
FILES, SAMPLES, NBYTES, COMPUTE, EPOCHS = 4, 48, 2_828_486, 0.0035, 3
READERS = (0, 2, 4)
LIMIT = 240  # seconds for a run
PROGRAM = """
import importlib.util, json, sys, types
if importlib.util.find_spec("tensorflow") is None:
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")  # it is imported for workloads of other frameworks
from dlio_benchmark.main import DLIOBenchmark
from dlio_benchmark.utils.utility import DLIOMPI
DLIOMPI.get_instance().initialize()
benchmark = DLIOBenchmark(json.loads(sys.argv[1]))
benchmark.initialize()
benchmark.run()
benchmark.finalize()
DLIOMPI.get_instance().finalize()
"""
Record = dict[str, Any]


def lacking() -> str:
    """Why DLIO cannot run here; "" when it can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)}: not installed (python -m bench.dlio --help says how)" if missing else ""


def workload(data: Path, output: Path, generate: bool, reader: dict[str, Any]) -> dict[str, Any]:
    """What DLIO is to do."""
    return {
        "framework": "pytorch",
        "workflow": {"generate_data": generate, "train": not generate, "evaluation": False, "profiling": False},
        "dataset": {
            "data_folder": str(data),
            "format": "hdf5",
            "num_files_train": FILES,
            "num_files_eval": 0,
            "num_samples_per_file": SAMPLES,
            "record_length": NBYTES,
            "generation_buffer_size": 16 * NBYTES,  # else 2 GiB of numbers are drawn for each file
            "num_subfolders_train": 0,
        },
        "reader": {"data_loader": "pytorch", "batch_size": 1, "sample_shuffle": "seed", **reader},
        "train": {"epochs": EPOCHS, "computation_time": COMPUTE, "seed": 17},
        "output": {"folder": str(output)},
    }


def dlio(folder: Path, asked: dict[str, Any]) -> Record:
    """What DLIO says of a run in its summary."""
    output = Path(asked["output"]["folder"])
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-P", "-c", PROGRAM, json.dumps(asked)]
    try:
        parts.said(command, LIMIT, [{"OMP_NUM_THREADS": 1, "PYTHONPATH": records.ROOT}], folder)
    except RuntimeError as error:
        return {"failed": str(error)}
    summary = output / "summary.json"
    return dict(json.loads(summary.read_text())["metric"]) if summary.exists() else {}


def utilisation(found: Record) -> list[float]:
    """Of each epoch after the first, which opens what the later ones have open."""
    return [percent / 100 for percent in found["train_au_percentage"][1:]]


def loaders() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The loaders, each with its settings."""
    ahead = {"prefetch_size": 4}
    yield "DLIO's own", [ahead | {"read_threads": readers} for readers in READERS]
    plugin = {"data_loader_classname": "solar.integrations.dlio.SolarDataLoader", "data_loader_sampler": "index"}
    yield "solar.integrations.dlio", [ahead | plugin | {"read_threads": 1}]


def run_scene(name: str, folder: Path, place: Path, left: list[str]) -> Iterator[Record]:
    """A record for each loader, with its best setting."""
    for label, settings in loaders():
        if label not in left:
            continue
        tried, best = [], None
        for setting in settings:
            found = dlio(folder, workload(place / "data", folder / "output", False, setting))
            shown = {"read_threads": setting["read_threads"]}
            if "failed" in found:
                tried.append(shown | {"failed": found["failed"]})
                continue
            reached = utilisation(found)
            tried.append(shown | {"utilisation": reached})
            if best is None or sum(reached) > sum(best[1]):
                best = shown, reached, found
        record = {"bench": "dlio", "scene": name, "peer": label, "tried": tried, "files": FILES, "samples": SAMPLES}
        record |= {"sample_nbytes": NBYTES, "compute_seconds": COMPUTE, "load_before": os.getloadavg()[0]}
        if best is None:
            yield record | {"failed": tried[0]["failed"]}
            continue
        yield record | {"setting": best[0], "utilisation": best[1], "summary": best[2]}


def line(record: Record) -> str:
    """One record for people."""

    def said(one: Record) -> str:
        mean = sum(one["utilisation"]) / len(one["utilisation"])
        return f"{mean:6.1%} of the time computing, {one['setting']['read_threads']} readers"

    return tables.line(f"{record['scene']:8} {record['peer']:24}", record, said)


def main() -> None:
    asked = records.arguments("bench.dlio", __doc__, "dlio", scenes=STORAGES).parse_args()
    scenes, out = asked.scenes or STORAGES, asked.out
    if reason := lacking():
        print(f"skipped: {reason}")
        return
    left = {name: [label for label, _ in loaders() if not records.found(out, scene=name, peer=label)]
            for name in scenes}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as made:
        folder = Path(made)
        source = folder / "source"
        if any(left.values()):
            failed = dlio(folder, workload(source / "data", folder / "output", True, {})).get("failed")
            if failed:
                sys.exit(f"DLIO does not make its data: {failed}")
        facts = machine.described(folder)
        for name in scenes:
            if name == "slowed" and (reason := slowfs.lacking()):
                print(f"slowed: skipped: {reason}")
                continue
            machine.fill_cache(folder)
            with contextlib.ExitStack() as stack:
                slowed = left[name] and name == "slowed"
                place = stack.enter_context(slowfs.mounted(source)).path if slowed else source
                for record in run_scene(name, folder, place, left[name]):
                    print(line(record), flush=True)
                    records.append(out, record | facts)


if __name__ == "__main__":
    main()
