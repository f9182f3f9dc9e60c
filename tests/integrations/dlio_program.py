"""Runs DLIO on a tiny workload of HDF5 files that it makes itself, read by solar, and tells what the batches were."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if importlib.util.find_spec("tensorflow") is None:
    # DLIO imports it for workloads of other frameworks, too; this one does not use it.
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")

WORKLOAD = {
    "framework": "pytorch",
    "workflow": {"generate_data": True, "train": True, "evaluation": True, "profiling": False},
    "dataset": {
        "data_folder": "data",
        "format": "hdf5",
        "num_files_train": 3,
        "num_files_eval": 2,
        "num_samples_per_file": 8,
        "record_length": 64,
        "num_subfolders_train": 0,
        "num_subfolders_eval": 0,
        "generation_buffer_size": 1024,
    },
    "reader": {
        "data_loader": "pytorch",
        "data_loader_classname": "solar.integrations.dlio.SolarDataLoader",
        "data_loader_sampler": "index",
        "batch_size": 4,
        "batch_size_eval": 2,
        "read_threads": 2,
        "prefetch_size": 3,
        "sample_shuffle": "seed",
        "preprocess_time": 0.0001,
    },
    "train": {"epochs": 2, "computation_time": 0.001, "seed": 17},
    "evaluation": {"eval_time": 0.001, "epochs_between_evals": 1},
    "output": {"folder": "output"},
}


def main(told: Path, form: str) -> None:
    from dlio_benchmark.main import DLIOBenchmark
    from dlio_benchmark.utils.utility import DLIOMPI

    from solar.errors import LayoutError
    from solar.integrations.dlio import SolarDataLoader

    DLIOMPI.get_instance().initialize()
    epochs: list[list[Any]] = []
    given = SolarDataLoader.next

    def noted(self: SolarDataLoader) -> Iterator[Any]:
        epochs.append([str(self.dataset_type)])
        for batch in given(self):
            epochs[-1].append(batch.tolist())
            yield batch

    SolarDataLoader.next = noted  # type: ignore[method-assign]
    WORKLOAD["dataset"]["format"] = form  # type: ignore[index]
    benchmark = DLIOBenchmark(WORKLOAD)
    benchmark.initialize()
    try:
        benchmark.run()
    except LayoutError as error:
        found = {"type": type(error).__name__, "message": str(error)}
        (told / "refused.json").write_text(json.dumps(found))
        return
    benchmark.finalize()
    DLIOMPI.get_instance().finalize()
    found = {"folder": str(Path.cwd()), "epochs": epochs}
    (told / f"rank{benchmark.my_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(os.environ["TOLD"]), *sys.argv[1:] or ["hdf5"])
