"""Grain: H5Datasets as data sources, and batches of them as a MapDataset."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import grain
import numpy as np

from solar.arrays import as_arrays, field_array
from solar.errors import PlanError
from solar.samples.dataset import H5Dataset
from solar.samples.pending import leaves, samples_of
from solar.samples.source import sample_source


class Source:
    """An H5Dataset as Grain's RandomAccessDataSource. Samples are numpy arrays, as H5Dataset has them.

    It is picklable, holds no open file, and imports no torch. Its repr has the digest of the data, so that Grain
    refuses a checkpoint of other data.

    A `transform` of the dataset is refused: give it to Grain's `map`, which knows the random numbers of each sample.
    """

    def __init__(self, dataset: H5Dataset) -> None:
        if isinstance(found := sample_source(dataset), str):
            raise TypeError(f"a Source is made of an H5Dataset, and {found}")
        if dataset.transform is not None:
            raise PlanError(
                f"{dataset} has a transform: make it without, and give that to Grain, as in "
                "`MapDataset.source(Source(dataset)).map(transform)`"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self._getitems([operator.index(index)])[0]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        """Returns the samples at these indices, read together. The name is Grain's."""
        pending = self.dataset.start_batch(indices)
        return samples_of(pending.converted(pending.arrived(), field_array))

    def batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """Returns the samples at these indices as one batch, in the structure of the fields."""
        pending = self.dataset.start_batch(indices)
        return pending.converted(pending.arrived(), as_arrays)

    def __repr__(self) -> str:
        digests = "-".join(layout.digest[:12] for layout in leaves(self.dataset.layouts))
        return f"Source({self.dataset}, digest={digests})"


def batches(
    dataset: H5Dataset, batch_size: int, *, shuffle: bool = False, seed: int = 0, drop_remainder: bool = False
) -> grain.MapDataset[Any]:
    """Returns a MapDataset of batches, each read with one call; Grain's `batch` would read sample by sample.

    The order is that of Grain's own shuffle of as many samples with this seed. What follows (`map`, `to_iter_dataset`,
    `mp_prefetch`, checkpoints) is Grain's.
    """
    source = Source(dataset)
    indices = grain.MapDataset.range(len(source))
    if shuffle:
        indices = indices.shuffle(seed=seed)
    return indices.batch(batch_size, drop_remainder=drop_remainder).map(source.batch)
