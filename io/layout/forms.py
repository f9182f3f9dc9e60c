"""How datasets are stored: chunks, filters and fill values, and why these cannot be read directly (if so)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from solar import _native
from solar.io.layout import datatype
from solar.values import Filter, Form

dtype_of = lru_cache(maxsize=1024)(datatype.decode)  # by the bytes of the message: alike in many files and datasets


def forms_of(
    datasets: list[_native.Dataset], dtype: np.dtype[Any], per_file: bool
) -> tuple[list[Form], list[int], list[str]]:
    """The different Forms, the Form of each part, and why each cannot be read directly (empty if it can)."""
    forms: list[Form] = []
    reasons: list[str] = []
    numbers: dict[tuple[Any, ...], int] = {}
    part_form = []
    for dataset in datasets:
        key = (
            str(dataset["chunk"]),
            str(dataset["filters"]),
            dataset["fill"],
            dataset["storage"],
            dataset["elsewhere"],
        )
        if (number := numbers.get(key)) is None:
            number = numbers[key] = len(forms)
            forms.append(_form(dataset, per_file))
            reasons.append(reason_of(dataset, dtype))
        part_form.append(number)
    return forms, part_form, reasons


def _form(dataset: _native.Dataset, per_file: bool) -> Form:
    filters = tuple(Filter(number, flags, tuple(values)) for number, flags, values in dataset["filters"])
    shape = dataset["shape"]
    if dataset["storage"] == "chunked":
        chunk = ((1,) if per_file else ()) + tuple(dataset["chunk"])
    else:
        chunk = (0, *(shape if per_file else shape[1:]))
    return Form(chunk, filters, dataset["fill"])


def reason_of(dataset: _native.Dataset, dtype: np.dtype[Any]) -> str:
    """Why a dataset cannot be read natively; empty if it can."""
    if dataset["elsewhere"]:
        return dataset["elsewhere"]
    if why := dtype_of(dataset["datatype"])[1]:
        return why
    if dtype.itemsize != dataset["itemsize"]:
        return f"an element has {dataset['itemsize']} bytes in the file and {dtype.itemsize} in memory"
    return _native.unsupported(dataset["filters"], dataset["itemsize"])
