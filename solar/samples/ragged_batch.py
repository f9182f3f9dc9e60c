"""Batches of samples of unequal length: as they are read, for numpy and for torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.samples.ragged import BatchForm
from solar.samples.torch_bases import with_torch

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


class RaggedArray(Array):
    """One sample of a ragged field: an array that knows the form of its batches.

    Arrays that numpy makes from it know that, too; numpy.asarray of it is an ordinary array.
    """

    form: BatchForm = BatchForm()

    def __array_finalize__(self, made_of: Any) -> None:
        self.form = getattr(made_of, "form", BatchForm())

    def __array_wrap__(self, array: Any, context: Any = None, *more: Any) -> Any:
        return array[()] if array.ndim == 0 else super().__array_wrap__(array, context, *more)

    def __reduce__(self) -> Any:
        return marked, (np.asarray(self), self.form)


def marked(values: Array, form: BatchForm) -> RaggedArray:
    """Returns the values as a sample of a ragged field."""
    sample = values.view(RaggedArray)
    sample.form = form
    return sample


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """Samples one after another: sample i is values[offsets[i] : offsets[i + 1]]. It can be indexed like a list."""

    values: Array
    offsets: Array
    form: BatchForm

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, sample: int) -> RaggedArray:
        begin, end = self.offsets[range(len(self))[sample] + np.arange(2)]
        return marked(self.values[begin:end], self.form)

    def __iter__(self) -> Iterator[RaggedArray]:
        return map(self.__getitem__, range(len(self)))

    def arrays(self) -> tuple[Array, Array]:
        """Returns the batch as numpy has it: padded samples and a mask of them, or else values and offsets."""
        if self.form.batch == "padded":
            return _pad(self.values, np.diff(self.offsets), self.form.length)
        return self.values, self.offsets

    def tensors(self) -> Any:
        """Returns the batch as torch has it."""
        import torch  # only where there are tensors

        values, offsets = map(torch.from_numpy, self.arrays())
        if self.form.batch != "jagged":
            return values, offsets
        return torch.nested.nested_tensor_from_jagged(values, offsets=offsets)


@dataclass(frozen=True, eq=False)
class SparseRow:
    """A row of a sparse matrix with `length` columns: these values in these columns, zeros elsewhere."""

    values: Array
    columns: Array
    length: int

    def dense(self) -> Array:
        """Returns the row with its zeros. Values of a column that occurs more than once are added."""
        rows = dense_rows(self.values, self.columns, np.array([0, len(self.values)]), self.length)
        return rows.reshape(self.length)


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """Rows of a sparse matrix one after another. It can be indexed like a list."""

    values: Array
    columns: Array
    offsets: Array
    length: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, sample: int) -> SparseRow:
        begin, end = self.offsets[range(len(self))[sample] + np.arange(2)]
        return SparseRow(self.values[begin:end], self.columns[begin:end], self.length)

    def __iter__(self) -> Iterator[SparseRow]:
        return map(self.__getitem__, range(len(self)))

    def arrays(self) -> tuple[Array, Array, Array]:
        """Returns values, columns and offsets, which scipy.sparse.csr_array takes."""
        return self.values, self.columns, self.offsets

    def tensors(self) -> torch.Tensor:
        """Returns the batch for torch, with the columns' own type if torch's matrices may have it."""
        import torch  # only where there are tensors

        _warn_once_of_beta()
        kind = self.columns.dtype if self.columns.dtype in (np.int32, np.int64) else np.dtype(np.int64)
        begins, columns = (torch.from_numpy(one.astype(kind, copy=False)) for one in (self.offsets, self.columns))
        shape = (len(self), self.length)
        return torch.sparse_csr_tensor(begins, columns, torch.from_numpy(self.values), size=shape)


def dense_rows(values: Array, columns: Array, offsets: Array, length: int) -> Array:
    """Returns rows of a sparse matrix with their zeros."""
    rows = np.zeros((len(offsets) - 1, length), values.dtype)
    begins = np.repeat(np.arange(len(rows), dtype=np.int64) * length, np.diff(offsets))
    np.add.at(rows.reshape(-1), begins + columns.astype(np.int64, copy=False), values)
    return rows


def _pad(values: Array, lengths: Array, length: int | None) -> tuple[Array, Array]:
    """Returns the samples padded with zeros, and a mask that is True where there are values.

    numpy does it for every type: torch cannot assign through a mask if integers are unsigned.
    """
    longest = int(lengths.max(initial=0))
    if length is not None and longest > length:
        raise ValueError(f"a sample of {longest} rows, and length={length}: give a larger length, or leave it away")
    there = np.arange(longest if length is None else length) < lengths[:, None]
    padded = np.zeros((*there.shape, *values.shape[1:]), values.dtype)
    padded[there] = values
    return padded, there


@cache
def _warn_once_of_beta() -> None:
    """Triggers torch's warning that sparse matrices are new, and hides it: who asks for one by CSR knows."""
    import torch  # only where there are tensors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))


# --- samples that a transform made, or that torch's own collation gets ----


def _offsets(samples: Sequence[Any]) -> Array:
    return np.concatenate(([0], np.cumsum([len(one) for one in samples], dtype=np.int64)))


def batch_of(samples: Sequence[Any]) -> RaggedBatch | SparseBatch:
    """Puts samples of a ragged field, or rows of a sparse matrix, one after another."""
    if not isinstance(samples[0], SparseRow):
        values = np.concatenate([np.asarray(one) for one in samples])
        return RaggedBatch(values, _offsets(samples), samples[0].form)
    values, columns = (np.concatenate([getattr(one, name) for one in samples]) for name in ("values", "columns"))
    return SparseBatch(values, columns, _offsets([one.values for one in samples]), samples[0].length)


def collate_ragged(samples: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return batch_of(samples).tensors()


def _tell_torch() -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map  # imported already

    default_collate_fn_map.update(dict.fromkeys((RaggedArray, SparseRow), collate_ragged))


with_torch(_tell_torch)
