"""Finds the layouts and sample maps of fields whose samples may differ in length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import Folder
from solar.io.hdf5.groups import grouped, is_pattern
from solar.io.hdf5.layouts import Samples, check_counts, inspect
from solar.io.hdf5.paths import Paths, files_of
from solar.samples.field import Field
from solar.samples.protocol import by_sample
from solar.samples.ragged import CSR, RAGGED_BY, Ragged, RaggedRows, columns_of, columns_of_groups
from solar.values import Layout

Found = tuple[list[Layout], list[RaggedRows | None]]  # None: each sample is a row


def of_rows(
    path: Paths,
    fields: Sequence[Any],
    samples: Samples = "rows",
    cache: Folder = "auto",
    *,
    collective_open: bool = False,
) -> Found:
    """Returns the Layouts of these fields; and of each that is Ragged or a CSR matrix, where its samples lie."""
    columns: list[RaggedRows | None] = []
    for field in fields:
        if isinstance(field, Ragged | CSR) and samples == "files":
            raise LayoutError(f'{field.name}: with samples="files" each file is one sample: read its parts as they are')
        own = (
            columns_of(path, field, cache, collective_open=collective_open) if isinstance(field, Ragged | CSR) else None
        )
        columns.append(own)
    names = [field_name(field) for field, own in zip(fields, columns, strict=True) if own is None]
    found = iter(
        inspect(path, names, samples=samples, cache=cache, collective_open=collective_open)
        if names or not columns
        else ()
    )
    layouts = [next(found) if own is None else own.layouts[0] for own in columns]
    if any(columns):
        check_counts([by_sample(own, one) for one, own in zip(layouts, columns, strict=True)])
    return layouts, columns


def of_groups(path: Paths, fields: Sequence[Any], pattern: str, cache: Folder = "auto") -> Found:
    """Returns the Layouts of datasets of groups, each of which is a sample; and, where these differ in length, their
    rows.

    `pattern`: of the groups' names; empty for all that have the datasets.
    """
    for field in fields:
        _check_of_groups(field)
    wants_rows = [isinstance(field, Ragged) for field in fields]
    found, groups = grouped(path, [field_name(field) for field in fields], pattern, wants_rows, cache)
    columns: list[RaggedRows | None] = []
    for field, own in zip(fields, found, strict=True):
        if own.lengths is not None and isinstance(field, Field):
            raise LayoutError(
                f"{own.layout.paths[0]}: {own.layout.title} differs in length from group to group, and a Field does "
                "not convert such samples: give its name, and do it in a transform"
            )
        ragged = field if isinstance(field, Ragged) else Ragged(field_name(field))
        columns.append(None if own.lengths is None else columns_of_groups(ragged, own, groups))
    return [own.layout for own in found], columns


def _check_of_groups(field: Any) -> None:
    """LayoutError for what is no dataset of a group as it is."""
    why = ""
    if isinstance(field, Field) and (field.steps or field.axis is not None or field.file or field.cf or field.rows):
        why = "steps, axis, file, cf and rows are not for it"
    elif isinstance(field, CSR):
        why = "a matrix is not"
    elif isinstance(field, Ragged) and any(getattr(field, word) for word in RAGGED_BY):
        why = "its length is its own, which no other dataset tells: Ragged says there only how batches come"
    elif str(field_name(field)).startswith("/"):
        why = 'it is named from there on: "coords", not "/molecules/m1/coords"'
    if why:
        raise LayoutError(f"{field_name(field)}: with groups as samples a field is a dataset in each: {why}")


def field_name(field: Any) -> Any:
    """Returns the dataset that a field is made of."""
    return getattr(field, "name", field)


def in_groups(path: Paths, fields: Sequence[Any]) -> bool:
    """Returns whether samples are rows of many groups: whether a field's name has stars."""
    starred = any(isinstance(field_name(field), str) and "*" in field_name(field) for field in fields)
    return starred and any(is_pattern(files_of(path)[0], field_name(field)) for field in fields)
