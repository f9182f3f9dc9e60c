"""PyTorch + h5py at an expert's best as a loader of DLIO, beside its own and solar's (bench.accelerators)."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from torch.utils.data import DataLoader, DistributedSampler

from solar.baseline.h5py_loader import dataset_of
from solar.baseline.h5py_samples import H5pySamples

OPEN = 128  # descriptors, of which Plain takes a half: libhdf5 has half a megabyte for each open file


class PlainLoader(BaseDataLoader):
    """Each rank's samples, a file each, shuffled as by solar's plug-in, read straight into the batch by `read_threads`
    workers.
    """

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self._loader: Any = None

    def read(self) -> None:
        args = self._args
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        plain = H5pySamples([str(file) for file in args.file_list_train], ["records"], whole=True)
        setting = {"kind": "straight", "workers": args.read_threads, "cache": "default"}
        data, more = dataset_of(plain, setting, self.batch_size, 0)
        order: Any = DistributedSampler(data, args.comm_size, args.my_rank, seed=args.seed, drop_last=True)
        if args.read_threads:
            more["prefetch_factor"] = max(1, args.prefetch_size // args.read_threads)
        self._loader = DataLoader(data, self.batch_size, sampler=order, drop_last=True, **more)

    def next(self) -> Iterator[Any]:
        """The batches of one epoch."""
        self._loader.sampler.set_epoch(self.epoch_number)
        self.epoch_number += 1
        yield from self._loader

    def finalize(self) -> None:
        """Called after every epoch, and the next one needs the files again."""
