"""solar in DLIO, the benchmark of MLPerf Storage: its HDF5 workloads read by solar's loader.

reader:
  data_loader: pytorch
  data_loader_classname: solar.integrations.dlio.SolarDataLoader
  data_loader_sampler: index
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle, StorageType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import LayoutError

RECORDS = "records"  # the dataset in which DLIO's generator puts the samples, and all that its own reader reads


class SolarDataLoader(BaseDataLoader):
    """DLIO's loader over solar: every rank gets its share of the samples of all files, and the batches are real.

    (DLIO's own loaders read the samples, then hand on batches of one constant image.) The order is that of PlanSampler
    with the workload's seed, the same on every rank: `sample_shuffle: random` is shuffled by it too. `prefetch_size`
    batches are read ahead; `preprocess_time` is slept for every sample, beside the reading.
    """

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self._loader: DataLoader[Any] | None = None

    def read(self) -> None:
        """Opens the workload's files; DLIO calls it once, before the first epoch."""
        args = self._args
        if self.format_type is not FormatType.HDF5:
            raise LayoutError(
                f"the workload's files are {self.format_type}, solar reads hdf5: set dataset.format: hdf5"
            )
        if args.storage_type not in (StorageType.LOCAL_FS, StorageType.PARALLEL_FS):
            raise LayoutError(f"the workload's storage is {args.storage_type}; solar reads files: set it to local_fs")
        files = args.file_list_train if self.dataset_type is DatasetType.TRAIN else args.file_list_eval
        sleeps = args.preprocess_time > 0 or args.preprocess_time_stdev > 0
        preprocess = Preprocess(args.preprocess_time, args.preprocess_time_stdev) if sleeps else None
        dataset = H5Dataset([str(file) for file in files], RECORDS, transform=preprocess, thread_safe=True)
        sampler = PlanSampler(
            dataset,
            num_replicas=args.comm_size,
            rank=args.my_rank,
            shuffle=args.sample_shuffle is not Shuffle.OFF,
            seed=args.seed,
            drop_last=True,
        )
        self._loader = DataLoader(
            dataset,
            self.batch_size,
            sampler=sampler,
            num_workers=args.read_threads,
            pin_memory=torch.cuda.is_available(),
            drop_last=True,
            ahead=max(1, args.prefetch_size),
        )

    def next(self) -> Iterator[Any]:
        """Yields the batches of one epoch. DLIO may leave it before its end."""
        if self._loader is None:
            raise RuntimeError("next() before read(): the workload's files are not open yet")
        self._loader.set_epoch(self.epoch_number if self._args.seed_change_epoch else 0)
        self.epoch_number += 1
        yield from self._loader

    def finalize(self) -> None:
        """Called after every epoch. It frees nothing, because the next epoch needs the files again."""


class Preprocess:
    """Returns samples unchanged, after sleeping as long as the workload says that preparing one takes."""

    def __init__(self, seconds: float, spread: float) -> None:
        self.seconds = seconds
        self.spread = spread

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        time.sleep(max(0.0, rng.normal(self.seconds, self.spread)))
        return sample
