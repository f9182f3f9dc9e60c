"""SampleReads: what a Dataset's samples read by h5py. Some reads are noted, the others follow from rules or a table."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from solar.loader.read_rules import FEWEST, Array, LookUp, RowRule, RowsRead, learn_rules

TABLE_NBYTES = 64 << 20  # of what samples read, at most
ENOUGH = 32  # samples by which a rule is known, or none will be found


def leaves_of(dataset: Any) -> list[Any]:
    """Returns the Datasets beneath torch's Subsets and ConcatDatasets."""
    if type(dataset) is Subset:
        return leaves_of(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return [leaf for part in dataset.datasets for leaf in leaves_of(part)]
    return [dataset]


def locate_leaves(dataset: Any, indices: Array) -> tuple[Array, Array]:
    """Returns the leaf that each index leads to, and the index there. Raises IndexError if there is none."""
    if type(dataset) is Subset:
        return locate_leaves(dataset.dataset, LookUp(dataset.indices)(indices))
    if type(dataset) is not ConcatDataset:
        return np.zeros(len(indices), np.int64), indices
    ends = np.asarray(dataset.cumulative_sizes, np.int64)
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < ends[-1]:
        raise IndexError("out of range")
    part_of = np.searchsorted(ends, indices, side="right")
    leaves, inner = np.empty((2, len(indices)), np.int64)
    before = 0
    for number, part in enumerate(dataset.datasets):
        here = np.flatnonzero(part_of == number)
        if len(here):
            begin = ends[number - 1] if number else 0
            found, inner[here] = locate_leaves(part, indices[here] - begin)
            leaves[here] = found + before
        before += len(leaves_of(part))
    return leaves, inner


def asks_one_by_one(dataset: Any) -> bool:
    """Returns whether torch takes each sample by `dataset[index]`, or does something equivalent."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not getattr(dataset, "__getitems__", None)


class ReadTable:
    """What each index read, as a few numbers. It is kept from one epoch for the later ones."""

    def __init__(self) -> None:
        self._begins: dict[int, int] = {}
        self._numbers = array("q")  # for each index the count of its reads, and three numbers for each

    def __len__(self) -> int:
        return len(self._begins)

    def note(self, index: int, reads: Sequence[RowsRead]) -> None:
        """Keeps what an index read, unless it is known already or there is no room."""
        nbytes = 8 * len(self._numbers) + 100 * len(self._begins)
        if reads and index not in self._begins and nbytes < TABLE_NBYTES:
            self._begins[index] = len(self._numbers)
            self._numbers.append(len(reads))
            for one in reads:
                self._numbers.extend(one)

    def reads(self, indices: Iterable[int]) -> dict[tuple[int, int], list[int]]:
        """Returns the rows at which reads for these indices begin, for each dataset and number of rows."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index in indices:
            if (at := self._begins.get(index)) is None:
                continue
            for read in range(self._numbers[at]):
                source, start, rows = self._numbers[at + 1 + 3 * read : at + 4 + 3 * read]
                found[source, rows].append(start)
        return found


class SampleReads:
    """What the samples of a Dataset read. Reads are noted sample by sample until rules explain all of them.

    Reads that no rule explains are kept in a table for the next epoch.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.leaves = leaves_of(dataset)
        self.rules: dict[int, list[RowRule]] = {}  # of each leaf
        self.table = ReadTable()
        self.uses_table = False
        self.samples = self.calls = 0  # noted
        self.seconds: list[float] = []  # that h5py took for calls
        self._noted: dict[int, list[tuple[int, list[RowsRead]]]] = defaultdict(list)  # of leaves without rules
        self._whole: set[int] = set()  # leaves whose rules say all

    def note(self, indices: Sequence[int], reads: Sequence[list[RowsRead]]) -> None:
        """Notes what these samples read, and derives rules as soon as there are enough notes."""
        self.samples += len(indices)
        leaves, inner = locate_leaves(self.dataset, np.array(indices, np.int64))
        for leaf, index, own, of_sample in zip(leaves.tolist(), indices, inner.tolist(), reads, strict=True):
            if leaf in self._whole:
                continue
            if leaf not in self.rules:
                self._noted[leaf].append((own, of_sample))
            self.table.note(index, of_sample)
        for leaf in set(leaves.tolist()) - set(self.rules):
            self._learn(leaf)

    def _learn(self, leaf: int) -> None:
        noted = self._noted[leaf]
        different = len({index for index, _ in noted})
        if different < FEWEST:
            return
        rules = learn_rules([index for index, _ in noted], [reads for _, reads in noted], self.leaves[leaf])
        asked = sum(len(reads) for _, reads in noted)
        whole = len(rules) * len(noted) >= asked  # nothing is read that no rule speaks of
        if rules and whole:
            self._whole.add(leaf)
        if (rules and whole) or different >= min(ENOUGH, self._length(leaf)):
            self.rules[leaf] = rules
            del self._noted[leaf]

    def forget_rules(self) -> None:
        """Starts learning anew, because the rules were wrong."""
        self.rules.clear()
        self._whole.clear()
        self._noted.clear()
        self.table, self.uses_table = ReadTable(), False
        self.samples = self.calls = 0
        self.seconds.clear()

    def _length(self, leaf: int) -> int:
        try:
            return len(self.leaves[leaf])
        except (TypeError, NotImplementedError):
            return ENOUGH

    def explains(self, leaf: int) -> bool:
        """Returns whether the rules of a leaf explain all that it reads."""
        return leaf in self._whole

    @property
    def known(self) -> bool:
        """Whether anything is known yet."""
        return any(self.rules.values()) or self.uses_table

    @property
    def learned(self) -> bool:
        """Whether the rules of all leaves are known, as far as there are any."""
        return len(self.rules) == len(self.leaves)

    @property
    def complete(self) -> bool:
        """Whether rules explain every read, so that nothing more needs to be noted."""
        return len(self._whole) == len(self.leaves)

    def expected(self, indices: Array) -> list[tuple[int, Array, int]]:
        """Returns what samples will read: the dataset, the first row of each read, and how many rows each has."""
        leaves, inner = locate_leaves(self.dataset, indices)
        found: list[tuple[int, Array, int]] = []
        for leaf in np.unique(leaves).tolist():
            here = inner if len(self.leaves) == 1 else inner[leaves == leaf]
            found += [(rule.source, rule.starts(here), rule.rows) for rule in self.rules.get(leaf, ())]
        if self.uses_table:
            known = self.table.reads(index for index, leaf in zip(indices.tolist(), leaves, strict=True)
                                     if leaf not in self._whole)  # fmt: skip
            found += [(source, np.array(starts, np.int64), rows) for (source, rows), starts in known.items()]
        return found
