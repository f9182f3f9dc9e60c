"""Rules: which rows a Dataset's `__getitem__` reads for an index, learned from some of its reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

Array = np.ndarray[Any, np.dtype[np.int64]]
IndexMap = Callable[[Array], Array]  # of indices that the loader gives; IndexError where it has none

AGREE = 0.75  # share of the samples that a rule has to hold for: at the ends of a file windows are cut off
FEWEST = 4  # samples with different indices that a rule is made of
NESTED = 3  # Datasets within Datasets that are looked through for what maps an index
CANDIDATES = 48  # maps that are tried


class RowsRead(NamedTuple):
    """Rows of a dataset that a sample read in one call."""

    source: int  # the number of the dataset
    start: int
    rows: int


class RowRule(NamedTuple):
    """Sample i reads `rows` rows of a dataset, beginning with row `by * index_map(i) + first`."""

    source: int
    index_map: IndexMap
    by: int
    first: int
    rows: int
    words: str

    def starts(self, indices: Array) -> Array:
        """Returns the first row that is read for each index. Raises IndexError where an index has none."""
        return self.by * self.index_map(indices) + self.first


def learn_rules(indices: Sequence[int], reads: Sequence[Sequence[RowsRead]], dataset: Any) -> list[RowRule]:
    """Returns the rules that these samples of `dataset` followed; none where too few agree.

    The n-th reading of a dataset by each sample is taken for the same thing.

    >>> reads = [[RowsRead(0, 2 * i + 1, 1)] for i in (7, 3, 5, 2)]
    >>> [rule] = learn_rules([7, 3, 5, 2], reads, None)
    >>> rule.by, rule.first, rule.words
    (2, 1, 'row 2i+1')
    """
    found: dict[tuple[int, int], list[tuple[int, RowsRead]]] = defaultdict(list)
    for index, of_sample in zip(indices, reads, strict=True):
        ordinals: Counter[int] = Counter()
        for one in of_sample:
            found[one.source, ordinals[one.source]].append((index, one))
            ordinals[one.source] += 1
    rules, samples = [], len(set(indices))
    for (source, _), each in found.items():
        if len({index for index, _ in each}) < max(FEWEST, AGREE * samples):
            continue
        at = np.array([index for index, _ in each], np.int64)
        starts = np.array([one.start for _, one in each], np.int64)
        rows = Counter(one.rows for _, one in each).most_common(1)[0][0]
        if (rule := _fit_rule(source, at, starts, rows, dataset)) is not None:
            rules.append(rule)
    return rules


def _fit_rule(source: int, at: Array, starts: Array, rows: int, dataset: Any) -> RowRule | None:
    tried = 0
    for name, index_map in index_maps(dataset):
        try:
            mapped = index_map(at)
        except (IndexError, ValueError, TypeError, OverflowError):
            continue
        if (line := straight_line(mapped, starts)) is not None:
            return RowRule(source, index_map, *line, rows, _words(name, *line, rows))
        tried += 1
        if tried == CANDIDATES:
            break
    return None


def straight_line(x: Array, y: Array) -> tuple[int, int] | None:
    """Returns whole numbers a, b with y = a * x + b for nearly all points; None if there are none."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    apart = np.flatnonzero(np.diff(x))
    if not len(apart):
        return (0, int(y[0])) if (y == y[0]).all() else None
    slopes = Counter[int]()
    for at in apart.tolist():
        slope, rest = divmod(int(y[at + 1] - y[at]), int(x[at + 1] - x[at]))
        slopes[slope] += rest == 0
    by = slopes.most_common(1)[0][0]
    first, agreeing = Counter((y - by * x).tolist()).most_common(1)[0]
    return (by, int(first)) if agreeing >= AGREE * len(x) else None


def _words(name: str, by: int, first: int, rows: int) -> str:
    """Describes a rule: "row 2i+1", "rows i to i+16", "row indices[i]"."""
    of = name if by == 1 else f"{by}{name}" if by else ""
    begin = f"{of}{first:+d}" if first and of else of or str(first)
    if rows == 1:
        return f"row {begin}"
    end = f"{of}{first + rows:+d}" if of else str(first + rows)
    return f"rows {begin} to {end}"


def index_maps(dataset: Any, depth: int = NESTED) -> Iterator[tuple[str, IndexMap]]:
    """Yields what a Dataset may do to an index before it reads.

    That is nothing, what Subset does, a look-up in one of its lists, or i // n and i % n for a number n that it has.
    """
    if type(dataset) is Subset:
        yield from _inner_maps(dataset, depth)
        return
    yield "i", lambda indices: indices
    if depth == 0 or type(dataset) is ConcatDataset or not hasattr(dataset, "__dict__"):
        return
    attributes = list(vars(dataset).items())
    for name, value in attributes:
        if type(value) is Subset:
            yield from _inner_maps(value, depth)
        elif isinstance(value, Dataset):
            yield from list(index_maps(value, depth - 1))[1:]  # the first is the same
        elif _is_lookup(value):
            yield f"{name}[i]", LookUp(value)
            for part in range(len(value[0]) if isinstance(value[0], tuple) else 0):
                yield f"{name}[i][{part}]", LookUp(value, part)
    for name, value in attributes:
        if type(value) is int and value > 1:
            yield f"(i // {name})", Divided(value)
            yield f"(i % {name})", Remainder(value)


def _inner_maps(dataset: Any, depth: int) -> Iterator[tuple[str, IndexMap]]:
    chosen = LookUp(dataset.indices)
    for name, inner in index_maps(dataset.dataset, max(0, depth - 1)):
        yield name, Chained(chosen, inner)


def _is_lookup(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 1 and (type(value[0]) is int or isinstance(value[0], tuple | np.integer))
    kind = getattr(value, "ndim", None), hasattr(value, "__array__")
    return kind == (1, True) and type(value).__module__ in ("numpy", "torch", "pandas") and len(value) > 1


@dataclass(frozen=True)
class LookUp:
    """Looks an index up in a table of the Dataset, or in a part of it. It reads the table each time anew."""

    table: Any
    part: int | None = None

    def __call__(self, indices: Array) -> Array:
        if not len(indices):  # of a batch nobody can tell which sample read what
            return indices
        if isinstance(self.table, np.ndarray):
            numbers = self.table[indices]
        elif self.part is None:
            numbers = np.asarray([self.table[at] for at in indices.tolist()])
        else:
            numbers = np.asarray([self.table[at][self.part] for at in indices.tolist()])
        if numbers.dtype.kind not in "iu":
            raise TypeError("no numbers")
        return numbers.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Divided:
    by: int

    def __call__(self, indices: Array) -> Array:
        return indices // self.by


@dataclass(frozen=True)
class Remainder:
    by: int

    def __call__(self, indices: Array) -> Array:
        return indices % self.by


@dataclass(frozen=True)
class Chained:
    first: IndexMap
    then: IndexMap

    def __call__(self, indices: Array) -> Array:
        return self.then(self.first(indices))
