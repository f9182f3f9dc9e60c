"""Kinds of samples beside rows, as people ask for them on a command line.

--window /u=-3:1,1:9:2 is the steps -3 to 0, and 1, 3, 5, 7; --axis /stack=2 a slice; --crop 96,96,96 a box of 96
voxels along each axis; --ragged /hits --ends /ends so many rows as the ends tell; --csr /X a row of a sparse matrix;
--groups each group. --beside labels.h5:/label is a field of another file; --where /good leaves some of the samples.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.cli import argument_types
from solar.cli.shapes import groups_alike
from solar.errors import PlanError
from solar.io.hdf5.groups import GroupNames, grouped
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.paths import files_of
from solar.io.system.quantities import count
from solar.samples.build import map_fields, masked
from solar.samples.crops import Crops
from solar.samples.field import Field
from solar.samples.in_groups import maps_in_groups
from solar.samples.kinds import held_as
from solar.samples.protocol import HeldMap, SampleMap
from solar.samples.ragged import CSR, RAGGED_BY, Ragged
from solar.samples.unequal import field_name, in_groups, of_groups, of_rows
from solar.samples.windows import TOLD_BY, Windows
from solar.values import Layout

MOST_AT_ONCE = 1 << 20  # of a window that is written as a range
OF_CROPS = ("at", "per", "overlap", "inside", "share", "volumes")
OF_WINDOWS = ("every", *TOLD_BY, "pad")
ALL_GROUPS = "/"
OF_MANY = ("dataset", "window", "axis", "rows", "beside", "ragged", "csr")
NO_KIND: dict[str, Any] = {  # the arguments, where none is given
    **{word: [] for word in OF_MANY},
    **dict.fromkeys(("by", "where", "crop", "indptr", "groups", *OF_CROPS, *OF_WINDOWS)),
}

Chosen = NDArray[np.int64] | None  # the samples that a mask leaves; None: all


def add_arguments(parser: argparse.ArgumentParser, window: type[argparse.Action] | None = None) -> None:
    """The options; `window` is what --window does where it may be that of an order, too."""
    add = parser.add_argument_group("which samples, and fields of other files").add_argument
    add("--where", metavar="DATASET", help="a mask: samples whose row has a 0 there are left out")
    add(
        "--beside", metavar="FILE:DATASET", action="append", default=[], type=parse_beside,
        help="a field of another file, row for row",
    )  # fmt: skip
    add("--by", metavar="DATASET", help="or joined by these keys, which both files have")
    add = parser.add_argument_group("windows, as solar.Windows has them").add_argument
    steps = "a field of several rows, counted from a place: /u=-3:1,1:9:2"
    if window is None:
        add("--window", metavar="DATASET=STEPS", action="append", default=[], type=parse_window, help=steps)
    else:
        also = "; or, without a DATASET, the window of a mixed order: 4096 samples, 32MiB, or 5%% of the data"
        add("--window", metavar="[DATASET=]SIZE", action=window, default=[], help=steps + also)
    add(
        "--rows", metavar="DATASET=K", action="append", default=[], type=parse_rows,
        help="so many random rows of each sample, drawn anew in each epoch: /points=4096",
    )  # fmt: skip
    add("--every", metavar="K", type=argument_types.count_argument, help="rows from one place to the next (1)")
    for word, meaning in zip(
        TOLD_BY, ("where parts end", "how long parts are", "in which part each row is"), strict=True
    ):
        add(f"--{word}", metavar="DATASET", help=f"{meaning} (each file is one); beside --ragged: samples")
    add("--pad", choices=["edge"], help="every row is a place, and ends come again")
    add(
        "--axis", metavar="DATASET=AXES", action="append", default=[], type=_axis,
        help="samples lie along another axis, /stack=2, or along several, /u=0,1; windows along the last of them",
    )  # fmt: skip
    add = parser.add_argument_group("boxes of volumes, as solar.Crops has them").add_argument
    add(
        "--crop", metavar="SHAPE", type=whole_numbers(1), help="of a box, along the last axes of each DATASET: 96,96,96"
    )
    add("--at", metavar="PLACES", help="grid, random, or a DATASET of centres (grid)")
    add("--per", metavar="N", type=argument_types.count_argument, help="random boxes of each volume in an epoch (1)")
    add("--overlap", metavar="N", type=whole_numbers(0), help="voxels that boxes of a grid share: 16, or 16,16,0 (0)")
    add("--inside", metavar="DATASET", help="of a grid only boxes that have a voxel there that is not 0")
    add("--share", metavar="PART", type=float, help="and so large a part of their voxels")
    add("--volumes", choices=["files", "rows"], help="what a volume is (files)")
    add = parser.add_argument_group("samples of unequal length, as solar.Ragged and solar.CSR have them").add_argument
    add(
        "--ragged", metavar="DATASET", action="append", default=[],
        help="a field of so many rows as --ends, --lengths, --ids or --indptr tells; else of variable length",
    )  # fmt: skip
    add("--indptr", metavar="DATASET", help="where samples end, with a 0 before them")
    add("--csr", metavar="GROUP", action="append", default=[], help="a sparse matrix by rows")
    add(
        "--groups", metavar="PATTERN", nargs="?", const=ALL_GROUPS, type=_pattern,
        help="each group is a sample, of these names: '/molecules/*' (all that have the DATASETs)",
    )  # fmt: skip


def _pattern(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no pattern of groups' names, such as '/molecules/*': give --groups behind the DATASETs"
        )
    return text


def _axis(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, number = text.rpartition("=")
    if not name or not re.fullmatch(r"-?\d{1,2}(,-?\d{1,2})*", number):
        raise argparse.ArgumentTypeError(f"{text!r} is no axis: give DATASET=AXIS, such as /stack=2, or /u=0,1")
    return name, tuple(map(int, number.split(",")))


def parse_rows(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not re.fullmatch(r"[1-9]\d{0,8}", number):
        raise argparse.ArgumentTypeError(f"{text!r}: give DATASET=K, such as /points=4096: so many rows of each sample")
    return name, int(number)


def parse_beside(text: str) -> str:
    if not all(text.rpartition(":")[::2]):
        raise argparse.ArgumentTypeError(f"{text!r}: give FILE:DATASET, such as labels.h5:/label")
    return text


def whole_numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """Returns a parser of whole numbers separated by commas."""

    def numbers(text: str) -> tuple[int, ...]:
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text) or min(found := [*map(int, text.split(","))]) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers from {least} with commas, such as 96,96,96")
        return tuple(found)

    return numbers


def parse_window(text: str) -> tuple[str, tuple[int, ...]]:
    """Returns a dataset's name, and steps: ranges as in Python's slices, and single ones."""
    name, _, window = text.rpartition("=")
    steps: list[int] = []
    for one in window.split(","):
        if not name or not re.fullmatch(r"[+-]?\d{1,9}(:[+-]?\d{1,9}(:[+-]?\d{1,9})?)?", one):
            raise argparse.ArgumentTypeError(f"{text!r} is no window: give DATASET=STEPS, such as /u=-3:1 or /u=0,2,4")
        numbers = [int(number) for number in one.split(":")]
        if numbers[2:] == [0] or len(found := range(*numbers) if len(numbers) > 1 else numbers) > MOST_AT_ONCE:
            raise argparse.ArgumentTypeError(f"{text!r}: the steps {one} are no steps, or too many")
        steps += found
    if not steps:
        raise argparse.ArgumentTypeError(f"{text!r}: it has no steps")
    return name, tuple(steps)


def named_datasets(arguments: argparse.Namespace) -> list[str]:
    """Returns the datasets of the FILE that were named, each once."""
    given = [
        *(name for name, _ in (*arguments.window, *arguments.axis, *arguments.rows)),
        *arguments.ragged,
        *arguments.csr,
    ]
    return list(dict.fromkeys([*arguments.dataset, *given]))


def elsewhere(arguments: argparse.Namespace) -> bool:
    """Returns whether samples do not lie along the first axis, so that its length need not be equal for all."""
    return bool(arguments.crop or arguments.axis)


def fields_beside(arguments: argparse.Namespace) -> dict[str, Layout]:
    """Returns the fields of other files, as they were named."""
    if arguments.beside and (unequal(arguments) or elsewhere(arguments)):
        raise PlanError("--beside: fields of other files are rows, or windows of rows")
    if arguments.by and not arguments.beside:
        raise PlanError("--by names keys by which rows of another file are found: give --beside FILE:DATASET, too")
    named = {text: text.rpartition(":")[::2] for text in arguments.beside}
    return {text: inspect(files_of(path), name) for text, (path, name) in named.items()}


def unequal(arguments: argparse.Namespace) -> bool:
    """Returns whether samples may differ in length: with ragged fields, matrices, or groups."""
    return bool(arguments.ragged or arguments.csr or arguments.groups)


def field_of_arguments(arguments: argparse.Namespace, name: str) -> Field | str:
    """Returns a field as an argument of H5Dataset."""
    if name in arguments.beside:
        path, _, dataset = name.rpartition(":")
        return Field(dataset, file=path, by=arguments.by)
    steps = [step for of, some in arguments.window if of == name for step in some]
    axis = next((tuple(axes) for of, axes in arguments.axis if of == name), None)
    rows = dict(arguments.rows).get(name)
    try:
        drawn = {} if rows is None else {"rows": rows, "at": "random"}
        return Field(name, steps=steps or None, axis=axis, **drawn) if steps or axis or drawn else name
    except ValueError as error:
        raise PlanError(f"--axis, --window, --rows: {error}") from None


def given_arguments(arguments: argparse.Namespace, words: Iterable[str]) -> dict[str, Any]:
    return {word: one for word in words if (one := getattr(arguments, word)) is not None}


def windows_or_crops(arguments: argparse.Namespace) -> Windows | Crops | None:
    windows, crops = given_arguments(arguments, OF_WINDOWS), given_arguments(arguments, OF_CROPS)
    if arguments.indptr:
        raise PlanError("--indptr is of ragged fields: give their --ragged DATASET, too")
    if arguments.crop is None:
        if crops:
            raise PlanError(f"--{next(iter(crops))} is of boxes: give their --crop SHAPE, too")
        return Windows(**windows) if arguments.window or windows else None
    if arguments.window or windows:
        raise PlanError("--crop beside windows: a sample is either a box or a window")
    if len(crops.get("overlap", ())) == 1:
        crops["overlap"] = crops["overlap"][0]
    try:
        return Crops(arguments.crop, **crops)
    except ValueError as error:
        raise PlanError(f"--crop: {error}") from None


def _of_unequal_length(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of samples that may differ in length, by the names of their datasets."""
    many = (word for word in ("window", "axis", "rows", "beside") if getattr(arguments, word))
    other = next(iter(given_arguments(arguments, ("crop", "every", "pad", *OF_CROPS))), next(many, ""))
    if other:
        raise PlanError(f"--{other} beside --ragged, --csr or --groups: a sample is of one kind")
    named = given_arguments(arguments, RAGGED_BY)
    if named and not arguments.ragged:
        raise PlanError(
            f"--{next(iter(named))} tells how long samples of ragged fields are: give --ragged DATASET, too"
        )
    try:
        ragged = {name: Ragged(name, **named) for name in arguments.ragged}
    except ValueError as error:
        raise PlanError(f"--ragged: {error}") from None
    found = {name: name for name in arguments.dataset} | ragged | {name: CSR(name) for name in arguments.csr}
    if not found:
        raise PlanError("--groups: name the DATASETs of each group that make up a sample")
    return found


def fields(arguments: argparse.Namespace, names: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Returns the fields for H5Dataset, by the names of their datasets, and what a sample is."""
    if unequal(arguments):
        samples = "groups" if arguments.groups == ALL_GROUPS else arguments.groups or "rows"
        return _of_unequal_length(arguments), samples
    return {name: field_of_arguments(arguments, name) for name in names}, windows_or_crops(arguments) or "rows"


def flat(arguments: argparse.Namespace) -> dict[str, Ragged]:
    """Returns the fields whose samples differ in length, set so that their batches are values and offsets."""
    own = sample_maps(arguments, {})[1] if unequal(arguments) else {}
    given = {name: getattr(one, "given", None) for name, one in own.items()}
    return {name: replace(one, batch="flat") for name, one in given.items() if isinstance(one, Ragged)}


def of_rows_alone(arguments: argparse.Namespace) -> bool:
    """Returns whether each row of each field is a sample."""
    others = unequal(arguments) or arguments.axis or arguments.beside or arguments.where or arguments.rows
    return not others and windows_or_crops(arguments) is None


def sample_maps(
    arguments: argparse.Namespace, layouts: dict[str, Layout]
) -> tuple[dict[str, Layout], dict[str, SampleMap | None]]:
    """Returns the Layout and the sample map of each field; nothing if samples are rows.

    `layouts` are those of the named datasets, unless samples may differ in length.
    """
    if of_rows_alone(arguments):
        return layouts, {}
    if arguments.file is None:
        raise PlanError("samples other than rows are of the datasets of a FILE: give one")
    if unequal(arguments):
        given, groups = _of_unequal_length(arguments), arguments.groups
        of = [*given.values()]
        found: Sequence[Layout]
        columns: Sequence[Any]
        if groups:
            found, columns = of_groups(arguments.file, of, group_pattern(groups))
        elif in_groups(arguments.file, of):
            found, columns = maps_in_groups(arguments.file, of, "rows", "auto")
        else:
            found, columns = of_rows(arguments.file, of)
        return dict(zip(given, found, strict=True)), dict(zip(given, columns, strict=True))
    every = [field_of_arguments(arguments, name) for name in layouts]
    fields: list[Field | None] = [one if isinstance(one, Field) else None for one in every]
    looking = {"cache": "auto", "collective_open": False}
    own = map_fields(arguments.file, [*layouts.values()], fields, windows_or_crops(arguments) or "rows", looking)
    return layouts, dict(zip(layouts, own, strict=True))


def masked_samples(
    arguments: argparse.Namespace, layouts: dict[str, Layout], own: Mapping[str, SampleMap | None]
) -> Chosen:
    """Returns the samples that --where selects."""
    if arguments.where is None or not layouts:
        return None
    return masked(arguments.where, [*layouts.values()], [own.get(name) for name in layouts])


def group_pattern(asked: str) -> str:
    """Returns the pattern of the groups' names; empty for all."""
    return "" if asked == ALL_GROUPS else asked


def named_groups(arguments: argparse.Namespace) -> GroupNames | None:
    """Returns the names of the groups that are samples; None if samples are something else."""
    if not arguments.groups:
        return None
    names = [field_name(one) for one in _of_unequal_length(arguments).values()]
    return grouped(arguments.file, names, group_pattern(arguments.groups), [False] * len(names), "auto")[1]


def no_groups(path: str, surveyed: Mapping[str, Layout], found: Mapping[str, Layout]) -> None:
    """Refuses unnamed fields in similar groups: it is chance which of these are equally long."""
    for alike in groups_alike(surveyed):
        held = {f"{group}/{name}" for group, members in alike.groups.items() for name in members}
        if alike.fields and any(name in held for name in found):
            given = " ".join(map(shlex.quote, (path, *alike.fields, "--groups", alike.pattern)))
            raise PlanError(
                f"{path}: it has {count(len(alike.groups), 'group')} alike: if each is a sample, give {given}; else "
                "name the DATASETs that make up one"
            )


def held(
    arguments: argparse.Namespace, layouts: dict[str, Layout]
) -> tuple[dict[str, Layout], Mapping[str, HeldMap | None], Chosen]:
    """Returns what a buffer holds of each field, with its map, and the samples that a mask selects; nothing if these
    are rows.

    `layouts` are as in `sample_maps`.
    """
    found, own = sample_maps(arguments, layouts)
    held: dict[str, Layout] = {}
    made: dict[str, HeldMap | None] = {}
    for name, layout in found.items():
        lies = own.get(name)
        if why := lies.not_in_blocks if lies is not None else "":
            raise PlanError(f"no buffer holds these samples of unequal length, so there is nothing to plan: {why}")
        parts = held_as(layout, lies)
        for part, own_map in parts:
            of_part = name if len(parts) == 1 else part.name
            held[of_part] = part
            if own_map is not None:
                made[of_part] = own_map
    return held, made, masked_samples(arguments, found, own)
