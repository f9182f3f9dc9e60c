"""DLIO: three lines of a workload, and solar reads its HDF5 files in the place of DLIO's own reader.

    python -m examples.recipes.dlio_run [--compare]

Training is emulated by sleeping; what counts is how much of the time that is. bench/dlio.py has more accelerators.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from examples.recipes import side_by_side

READERS = {"dlio": "DLIO's own reader", "solar": "solar's plug-in"}
FILES, NBYTES, COMPUTE = 4, 2_828_486, 0.00551  # samples and seconds of CosmoFlow on an A100, as DLIO has them
SOLAR = {  # the three lines
    "data_loader": "pytorch",
    "data_loader_classname": "solar.integrations.dlio.SolarDataLoader",
    "data_loader_sampler": "index",
}


def workload(path: Path, output: Path, asked: Any, generate: bool) -> dict[str, Any]:
    reader = SOLAR if asked.reader == "solar" else {"data_loader": "pytorch"}
    return {
        "framework": "pytorch",
        "workflow": {"generate_data": generate, "train": not generate, "evaluation": False, "profiling": False},
        "dataset": {
            "data_folder": str(path), "format": "hdf5", "num_files_train": FILES, "num_files_eval": 0,
            "num_samples_per_file": asked.samples // FILES, "record_length": NBYTES, "num_subfolders_train": 0,
            "generation_buffer_size": NBYTES,
        },
        "reader": {
            **reader, "batch_size": asked.batch_size, "read_threads": asked.setting.get("read_threads", 1),
            "prefetch_size": 4, "sample_shuffle": "seed",
        },
        "train": {"epochs": asked.epochs, "computation_time": COMPUTE, "seed": 17},
        "output": {"folder": str(output)},
    }  # fmt: skip


def ran(path: Path, asked: Any, generate: bool = False) -> dict[str, Any]:
    """What DLIO says of a run. Once in a process, for it keeps what it is asked."""
    if importlib.util.find_spec("tensorflow") is None:
        sys.modules["tensorflow"] = types.ModuleType("tensorflow")  # which DLIO imports, and this workload does not use
    from dlio_benchmark.main import DLIOBenchmark  # after that
    from dlio_benchmark.utils.utility import DLIOMPI

    DLIOMPI.get_instance().initialize()
    with tempfile.TemporaryDirectory() as output:
        benchmark = DLIOBenchmark(workload(path, Path(output), asked, generate))
        benchmark.initialize()
        benchmark.run()
        benchmark.finalize()
        summary = Path(output, "summary.json")
        return dict(json.loads(summary.read_text())["metric"]) if summary.exists() else {}


def make(path: Path, asked: Any) -> None:
    """In a process of its own, for DLIO runs but once in one."""
    making = multiprocessing.get_context("spawn").Process(target=ran, args=(path, asked, True))
    making.start()
    making.join()
    if making.exitcode:
        raise SystemExit(f"DLIO has not made its data: exit status {making.exitcode}")


def train(path: Path, asked: Any) -> dict[str, Any]:
    found = ran(path, asked)
    print(f"computing {found['train_au_percentage'][-1]:.1f} % of the last epoch")
    return {"losses": [], "last_epoch": found["train_throughput_samples_per_second"][-1]}


def tuned(path: Path, asked: Any) -> dict[str, Any]:
    """The number of readers with which DLIO's own is best, by a run of each."""
    rates = {}
    for readers in (0, 2, 4):
        words = ["--reader", "dlio", "--samples", asked.samples, "--epochs", 2, "--batch-size", asked.batch_size]
        words += ["--out", asked.out.resolve(), "--setting", json.dumps({"read_threads": readers})]
        rates[readers] = side_by_side.run("dlio_run", words)["last_epoch"]
    return {"dlio": {"read_threads": max(rates, key=lambda one: rates[one])}}


def main(argv: list[str] | None = None) -> int:
    given = {"readers": READERS, "samples": 192, "batch_size": 1}
    return side_by_side.main("dlio_run", __doc__, argv, make, train, tuned, **given)


if __name__ == "__main__":
    raise SystemExit(main())
