"""Takes one column out of the rows of a compound table."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS_LISTED = 20


def column_of(column: Any) -> str:
    """Checks the argument `column` of a Field."""
    if not isinstance(column, str):
        raise TypeError(f"column is the name of one column, not {column!r}; for several give a Field for each")
    if not column:
        raise ValueError("column is empty; give the name of a column")
    return column


def dtype_of_column(table: np.dtype[Any], column: str, name: str) -> np.dtype[Any]:
    """Returns the dtype of a column of dataset `name`; ValueError with the columns that exist, the nearest first.

    >>> dtype_of_column(np.dtype([("hit", [("x", "f4"), ("y", "f4")], (3,))]), "hit.x", "/hits")
    dtype(('<f4', (3,)))
    """
    dtype, shape = table.base, table.shape
    for part in _path_of(table, column, name):
        own = dtype[part]
        dtype, shape = own.base, (*shape, *own.shape)
    return np.dtype((dtype, shape)) if shape else dtype


def values_of_column(batch: NDArray[Any], column: str, name: str) -> NDArray[Any]:
    """Returns a view of a column of a batch of rows."""
    for part in _path_of(batch.dtype, column, name):
        batch = batch[part]
    return batch


def columns_of(dtype: np.dtype[Any], before: str = "") -> list[str]:
    """Returns the names of all columns; those within a column have its name before them."""
    found = []
    for one in dtype.base.names or ():
        found += [before + one, *columns_of(dtype.base[one], f"{before}{one}.")]
    return found


def _path_of(table: np.dtype[Any], column: str, name: str) -> list[str]:
    """Returns the names that lead to a column. A name that has a dot itself is found, too."""
    found, dtype, left = list[str](), table.base, column
    while left:
        names = [one for one in dtype.names or () if one == left or left.startswith(one + ".")]
        if not names:
            raise ValueError(_missing(table, column, name))
        found.append(max(names, key=len))
        dtype, left = dtype[found[-1]].base, left[len(found[-1]) + 1 :]
    return found


def _missing(table: np.dtype[Any], column: str, name: str) -> str:
    columns = columns_of(table)
    if not columns:
        return f"column={column!r}: {name} is of {table}, which has no columns; leave column= away"
    lowered = {one.lower(): one for one in reversed(columns)}
    near = [lowered[one] for one in difflib.get_close_matches(column.lower(), lowered, 3)]
    listed = list(dict.fromkeys([*near, *columns]))
    more = f" and {len(listed) - COLUMNS_LISTED:,} more" if len(listed) > COLUMNS_LISTED else ""
    return f"{name} has no column {column!r}; it has {', '.join(listed[:COLUMNS_LISTED])}{more}"
