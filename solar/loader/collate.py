"""Collates whole arrays, with the result of torch's default_collate on single samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import worker as torchs

from solar.samples.pending import TENSOR_KINDS, samples_of

NAMES_SHOWN = 4  # shapes


def collated(samples: list[Any], where: str = "batch") -> Any:
    """Calls torch's default_collate. Its error names the part (`where`) and says what to do."""
    try:
        first = samples[0]
        if type(first) is np.ndarray and first.dtype.kind in TENSOR_KINDS and torchs._worker_info is None:
            # As torch does, in fewer calls. In a process for transforms it makes the batch in shared memory.
            return torch.stack([*map(torch.as_tensor, samples)])
        return default_collate(samples)
    except TypeError as error:
        raise _explain(error, samples[0], where) from None
    except RuntimeError:
        said = differing_part(samples, where)
        if not said:
            raise
    raise RuntimeError(
        f"{said} do not make one tensor. Give the DataLoader collate_fn=list, which hands out a batch as a list of "
        "samples, or a collate_fn of your own that pads them, or give the H5Dataset a transform that makes them alike. "
        'Where they are of HDF5\'s variable-length type, name the field as Ragged("..."), which makes batches of them'
    )


def differing_part(samples: list[Any], where: str) -> str:
    """Returns which part of the samples differs in shape, and how; empty if all agree."""
    first = samples[0]
    if isinstance(first, Mapping):
        parts = ((f"{where}[{key!r}]", [sample[key] for sample in samples if key in sample]) for key in first)
    elif isinstance(first, (tuple, list)):
        parts = ((f"{where}[{place}]", list(part)) for place, part in enumerate(zip(*samples, strict=False)))
    else:
        shapes = list(dict.fromkeys(str(tuple(sample.shape)) for sample in samples if hasattr(sample, "shape")))
        others = f" and {len(shapes) - NAMES_SHOWN} others" if len(shapes) > NAMES_SHOWN else ""
        return f"{where}: samples of the shapes {', '.join(shapes[:NAMES_SHOWN])}{others}" if len(shapes) > 1 else ""
    return next((said for name, part in parts if (said := differing_part(part, name))), "")


def _convert(sample: Any, where: str) -> Any:
    """Calls torch's default_convert. Its error says which type torch cannot convert."""
    try:
        return default_convert(sample)  # type: ignore[no-untyped-call]
    except TypeError as error:
        raise _explain(error, sample, where) from None


def _explain(error: TypeError, sample: Any, where: str) -> TypeError:
    """Returns the error with an explanation where numpy's uint64 scalars cause it; any other error as it is."""
    if not (name := _wide_scalar(sample, where)):
        return error
    return TypeError(
        f"{name}: torch makes no tensor of numpy's uint64 scalars ({error}), though it does of arrays of them. Name "
        'the dataset as Field("...", dtype="int64"), which keeps values below 2**63, or give the H5Dataset a '
        "transform that makes an int, or an array, of each"
    )


def _wide_scalar(sample: Any, where: str) -> str:
    """Returns which part of a sample is a uint64 scalar; empty if none is."""
    if isinstance(sample, Mapping):
        parts = [(f"{where}[{key!r}]", part) for key, part in sample.items()]
    elif isinstance(sample, (tuple, list)):
        parts = [(f"{where}[{place}]", part) for place, part in enumerate(sample)]
    else:
        return where if isinstance(sample, np.uint64) else ""
    return next((name for key, part in parts if (name := _wide_scalar(part, key))), "")


class Collation:
    """Turns a batch of arrays into tensors with torch's types and torch's errors.

    For each numpy dtype it has torch collate a single sample and looks at the result, so it is right for any version of
    torch.
    """

    def __init__(self, auto_collation: bool) -> None:
        self._auto_collation = auto_collation
        self._dtypes: dict[tuple[np.dtype[Any], bool], torch.dtype | None] = {}

    def __call__(self, arrays: Any, where: str = "batch") -> Any:
        if isinstance(arrays, np.ndarray) and (dtype := self._dtype_of(arrays, where)) is not None:
            tensor = torch.from_numpy(arrays)
            if tensor.dtype is not dtype:
                tensor = tensor.to(dtype)
            return tensor if self._auto_collation else tensor[0]
        if isinstance(arrays, torch.Tensor):  # of bfloat16
            return arrays if self._auto_collation else arrays[0]
        if hasattr(arrays, "tensors") and self._auto_collation:  # of samples of unequal length
            return arrays.tensors()
        if isinstance(arrays, dict):
            return {name: self(part, f"{where}[{name!r}]") for name, part in arrays.items()}
        if isinstance(arrays, tuple):
            # torch transposes tuples with zip, and leaves what is no number as it is: tuples of text.
            return [
                tuple(part) if self._is_text(part) else self(part, f"{where}[{place}]")
                for place, part in enumerate(arrays)
            ]
        samples = samples_of(arrays)
        return collated(samples, where) if self._auto_collation else _convert(samples[0], where)

    def as_they_are(self, dtype: np.dtype[Any], ndim: int) -> bool:
        """Returns whether a batch with this dtype and number of axes becomes a tensor without a copy."""
        values = np.empty((1,) * ndim, dtype)
        try:
            return self._auto_collation and self._dtype_of(values) is torch.from_numpy(values).dtype
        except (TypeError, RuntimeError):  # which is raised with the batch
            return False

    def _is_text(self, part: Any) -> bool:
        return self._auto_collation and isinstance(part, list) and isinstance(default_collate(part[:1]), list)

    def _dtype_of(self, batch: np.ndarray[Any, Any], where: str = "batch") -> torch.dtype | None:
        """Returns the dtype of torch's tensor for such a batch; None if it makes none. Raises torch's errors."""
        key = (batch.dtype, batch.ndim == 1)
        if key not in self._dtypes:
            sample = np.zeros((1,) * batch.ndim, batch.dtype)[0]
            made = collated([sample], where) if self._auto_collation else _convert(sample, where)
            self._dtypes[key] = made.dtype if isinstance(made, torch.Tensor) else None
        return self._dtypes[key]
