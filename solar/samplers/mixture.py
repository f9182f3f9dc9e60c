"""Mixture: several datasets as one, each with its share of every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from solar.errors import PlanError
from solar.samplers.orders import Epoch, EpochOrder, by_sources, epoch_length, whole_shares
from solar.samples.dataset import H5Dataset, alike
from solar.samples.pending import leaves, mapped
from solar.samples.protocol import shape_in
from solar.samples.source import SampleSource, sample_source
from solar.values import Layout


class Mixture(ConcatDataset[Any]):
    """Several datasets as one: {name: (dataset, share)}. PlanSampler(mixture) takes samples of each by its share.

    After any number of samples each source has had its share of them, within one sample: nothing is left to chance but
    which comes first. Every sample of a source comes once before any comes twice, also from epoch to epoch.

    `epoch` says how many samples an epoch has: a number, or "first": as many as until the first source has been gone
    through once, so none comes twice in the first epoch; or "all": until every source has been gone through.

    Shares are divided by their sum. `shares` has them as they are taken: those that are simple fractions exactly,
    others in parts of a million (2^-20).

    >>> from solar import PlanSampler
    >>> mixed = Mixture({"real": (range(30), 0.75), "simulated": (range(100), 0.25)}, epoch="first")
    >>> PlanSampler(mixed).counts()
    {'real': 30, 'simulated': 10}
    """

    def __init__(self, sources: Mapping[str, tuple[Dataset[Any], float]], *, epoch: Epoch = "first") -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise TypeError('a mixture is made of {"name": (dataset, share), ...}, with one source or more')
        self.names = tuple(map(str, sources))
        datasets, shares = zip(*(_pair(name, value) for name, value in sources.items()), strict=True)
        check_sources(self.names, datasets)
        super().__init__(datasets)
        whole = whole_shares(np.array(shares, np.float64), [f"source {name}" for name in self.names])
        self.shares = dict(zip(self.names, (whole / whole.sum()).tolist(), strict=True))
        sizes = np.diff([0, *self.cumulative_sizes])
        if not sizes.all():
            raise PlanError(f"source {self.names[int(sizes.argmin())]} has no sample: leave it out")
        self.epoch = epoch
        length = epoch_length(epoch, sizes, whole)
        self._order = by_sources("mixture", len(self), length, sizes, self.names, whole)

    def order(self) -> EpochOrder:
        """Returns the order for PlanSampler."""
        return self._order

    def sources(self, samples: Iterable[int] | np.ndarray[Any, Any]) -> list[str]:
        """Returns the names of the sources that these samples are of.

        >>> Mixture({"a": (range(3), 1), "b": (range(5), 1)}).sources([0, 2, 3])
        ['a', 'a', 'b']
        """
        places = np.searchsorted(self.cumulative_sizes, np.asarray([*samples], np.int64), side="right")
        return [self.names[place] for place in places.tolist()]


def _pair(name: Any, value: Any) -> tuple[Any, float]:
    try:
        dataset, share = value
        return dataset, float(share)
    except (TypeError, ValueError):
        raise TypeError(f"source {name}: give (dataset, share), not {value!r:.60}") from None


def check_sources(names: tuple[str, ...], datasets: tuple[Any, ...]) -> None:
    """Raises PlanError if samples of two sources cannot be in one batch."""
    found = [sample_source(dataset) for dataset in datasets]
    first = found[0]
    for name, other in zip(names[1:], found[1:], strict=True):
        if isinstance(first, SampleSource) != isinstance(other, SampleSource):
            read, not_read, why = (names[0], name, other) if isinstance(other, str) else (name, names[0], first)
            raise PlanError(
                f"source {read} is read natively, and source {not_read} is not: {why}. Make both of H5Dataset"
            )
        if isinstance(first, SampleSource) and isinstance(other, SampleSource) and not alike(first.first, other.first):
            one, two = _description(first.first), _description(other.first)
            raise PlanError(
                f"samples of source {names[0]} and of source {name} cannot stand in one batch: {one}; and {two}. Make "
                "them alike, with solar.Field or the same transform, or take a loader for each"
            )


def _description(dataset: H5Dataset) -> str:
    """Describes a dataset: the structure of a sample, and the type, shape and processing of each field."""
    pairs = zip(leaves(dataset.layouts), leaves(dataset.extents), strict=True)
    said = iter([f"{layout.name} is {layout.dtype} {_shape(layout, own)}" for layout, own in pairs])
    fields = mapped(dataset.layouts, lambda _: next(said))
    by = [field for field in map(str, leaves(dataset.fields)) if field != "None"]
    made = "" if dataset.transform is None else f", transform {getattr(dataset.transform, '__name__', 'given')}"
    text = str(fields).replace("'", "") if isinstance(fields, dict | list | tuple) else str(fields)
    return ", ".join([text, *by]) + made


def _shape(layout: Layout, own: Any) -> str:
    shape = shape_in(own, layout)
    return str(shape) if own is None or own.lengths is None else f"with {shape} in each of its rows, of unequal number"
