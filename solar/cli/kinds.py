"""Kinds of samples beside rows, as people ask for them on a command line.

--window /u=-3:1,1:9:2 is the steps -3 to 0, and 1, 3, 5, 7; --crop 96,96,96 a box of 96 voxels along each axis;
--ragged /hits --ends /ends so many rows as the ends tell; --csr /X a row of a sparse matrix; --groups each group.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from solar.blocks import Blocks, refused
from solar.boxes import BoxBlocks, Boxes
from solar.cli import quantities
from solar.errors import PlanError
from solar.extents import Extents, Steps
from solar.io.crops import Crops, crops_of
from solar.io.field import Field
from solar.io.layout.blocks import in_blocks
from solar.io.layout.groups import GroupNames, grouped
from solar.io.ragged import CSR, RAGGED_BY, Columns, Ragged
from solar.io.unequal import name_of, of_groups, of_rows
from solar.io.windows import TOLD_BY, Windows, extents_of
from solar.values import Layout

MOST_AT_ONCE = 1 << 20  # of a window that is written as a range
OF_CROPS = ("at", "per", "overlap", "inside", "share", "volumes")
OF_WINDOWS = ("every", *TOLD_BY, "pad")
ALL_GROUPS = "/"
OF_MANY = ("dataset", "window", "ragged", "csr")
NO_KIND: dict[str, Any] = {  # the arguments, where none is given
    **{word: [] for word in OF_MANY},
    **dict.fromkeys(("crop", "indptr", "groups", *OF_CROPS, *OF_WINDOWS)),
}

Lies = Extents | Boxes | Columns | None  # where the samples of a field lie; None: each is a row
Held = Extents | BoxBlocks | Blocks | None  # what samples are made of in a buffer; None: each is a row of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("windows, as solar.Windows has them").add_argument
    add(
        "--window", metavar="DATASET=STEPS", action="append", default=[], type=window,
        help="a field of several rows, counted from a place: /u=-3:1,1:9:2",
    )  # fmt: skip
    add("--every", metavar="K", type=quantities.count, help="rows from one place to the next (1)")
    for word, told in zip(TOLD_BY, ("where parts end", "how long parts are", "in which part each row is"), strict=True):
        add(f"--{word}", metavar="DATASET", help=f"{told} (each file is one); beside --ragged: samples")
    add("--pad", choices=["edge"], help="every row is a place, and ends come again")
    add = parser.add_argument_group("boxes of volumes, as solar.Crops has them").add_argument
    add("--crop", metavar="SHAPE", type=_numbers(1), help="of a box, along the last axes of each DATASET: 96,96,96")
    add("--at", metavar="PLACES", help="grid, random, or a DATASET of centres (grid)")
    add("--per", metavar="N", type=quantities.count, help="random boxes of each volume in an epoch (1)")
    add("--overlap", metavar="N", type=_numbers(0), help="voxels that boxes of a grid share: 16, or 16,16,0 (0)")
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


def _numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of whole numbers with commas between."""

    def numbers(text: str) -> tuple[int, ...]:
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text) or min(found := [*map(int, text.split(","))]) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers from {least} with commas, such as 96,96,96")
        return tuple(found)

    return numbers


def window(text: str) -> tuple[str, tuple[int, ...]]:
    """A dataset's name, and steps: ranges as Python's slices have them, and single ones."""
    name, _, told = text.rpartition("=")
    steps: list[int] = []
    for one in told.split(","):
        if not name or not re.fullmatch(r"[+-]?\d{1,9}(:[+-]?\d{1,9}(:[+-]?\d{1,9})?)?", one):
            raise argparse.ArgumentTypeError(f"{text!r} is no window: give DATASET=STEPS, such as /u=-3:1 or /u=0,2,4")
        numbers = [int(number) for number in one.split(":")]
        if numbers[2:] == [0] or len(found := range(*numbers) if len(numbers) > 1 else numbers) > MOST_AT_ONCE:
            raise argparse.ArgumentTypeError(f"{text!r}: the steps {one} are no steps, or too many")
        steps += found
    if not steps:
        raise argparse.ArgumentTypeError(f"{text!r}: it has no steps")
    return name, tuple(steps)


def names_of(arguments: argparse.Namespace) -> list[str]:
    """The datasets that were named, each once."""
    named = [*arguments.dataset, *(name for name, _ in arguments.window), *arguments.ragged, *arguments.csr]
    return list(dict.fromkeys(named))


def unequal(arguments: argparse.Namespace) -> bool:
    """Whether samples may differ in length: there are ragged fields, matrices, or groups."""
    return bool(arguments.ragged or arguments.csr or arguments.groups)


def _steps(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, tuple[Steps, ...]]:
    of_field: dict[str, list[Steps]] = {name: [] for name in names}
    for name, steps in arguments.window:
        of_field[name].append(steps)
    return {name: tuple(steps) or (None,) for name, steps in of_field.items()}


def _given(arguments: argparse.Namespace, words: Iterable[str]) -> dict[str, Any]:
    return {word: one for word in words if (one := getattr(arguments, word)) is not None}


def _places(arguments: argparse.Namespace) -> Windows | Crops | None:
    windows, crops = _given(arguments, OF_WINDOWS), _given(arguments, OF_CROPS)
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
    """The fields of samples that may differ in length, by the names of their datasets."""
    other = next(iter(_given(arguments, ("crop", "every", "pad", *OF_CROPS))), "window" if arguments.window else "")
    if other:
        raise PlanError(f"--{other} beside --ragged, --csr or --groups: a sample is of one kind")
    told = _given(arguments, RAGGED_BY)
    if told and not arguments.ragged:
        raise PlanError(f"--{next(iter(told))} tells how long samples of ragged fields are: give --ragged DATASET, too")
    try:
        ragged = {name: Ragged(name, **told) for name in arguments.ragged}
    except ValueError as error:
        raise PlanError(f"--ragged: {error}") from None
    found = {name: name for name in arguments.dataset} | ragged | {name: CSR(name) for name in arguments.csr}
    if not found:
        raise PlanError("--groups: name the DATASETs of each group that make up a sample")
    return found


def fields(arguments: argparse.Namespace, names: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """The fields of a sample for H5Dataset, by the names of their datasets, and what a sample is."""
    if unequal(arguments):
        samples = "groups" if arguments.groups == ALL_GROUPS else arguments.groups or "rows"
        return _of_unequal_length(arguments), samples
    found: dict[str, Any] = {}
    for name, every in _steps(arguments, names).items():
        steps = [step for one in every if one is not None for step in one]
        found[name] = Field(name, steps=steps) if steps else name
    return found, _places(arguments) or "rows"


def of_rows_alone(arguments: argparse.Namespace) -> bool:
    """Whether each sample is a row of each field."""
    return not unequal(arguments) and _places(arguments) is None


def lying(arguments: argparse.Namespace, layouts: dict[str, Layout]) -> tuple[dict[str, Layout], dict[str, Lies]]:
    """Of each field its Layout, and where its samples lie in that; nothing where these are rows.

    `layouts`: those of the named datasets, unless samples may differ in length.
    """
    if of_rows_alone(arguments):
        return layouts, {}
    if arguments.file is None:
        raise PlanError("samples other than rows are of the datasets of a FILE: give one")
    if unequal(arguments):
        given, groups = _of_unequal_length(arguments), arguments.groups
        of = [*given.values()]
        found, columns = of_groups(arguments.file, of, _of_groups(groups)) if groups else of_rows(arguments.file, of)
        return dict(zip(given, found, strict=True)), dict(zip(given, columns, strict=True))
    places = _places(arguments)
    if isinstance(places, Crops):
        boxes = crops_of(arguments.file, [*layouts.values()], places)
        return layouts, dict(zip(layouts, boxes, strict=True))
    of_field = _steps(arguments, layouts)
    every = [steps for own in of_field.values() for steps in own]
    assert places is not None, "samples are windows"
    extents = extents_of(arguments.file, list(layouts.values()), every, places)
    return layouts, {name: extents.of_fields(own) for name, own in of_field.items()}


def _of_groups(asked: str) -> str:
    """The pattern of their names; empty for all."""
    return "" if asked == ALL_GROUPS else asked


def groups_of(arguments: argparse.Namespace) -> GroupNames | None:
    """The names of the groups that are samples; None where samples are something else."""
    if not arguments.groups:
        return None
    names = [name_of(one) for one in _of_unequal_length(arguments).values()]
    return grouped(arguments.file, names, _of_groups(arguments.groups), [False] * len(names), "auto")[1]


def held(arguments: argparse.Namespace, layouts: dict[str, Layout]) -> tuple[dict[str, Layout], Mapping[str, Held]]:
    """Of each field what a buffer holds, and what its samples are made of there; nothing where these are rows.

    `layouts`: as above.
    """
    found, own = lying(arguments, layouts)
    held: dict[str, Layout] = {}
    made: dict[str, Held] = {}
    for name, layout in found.items():
        lies = own.get(name)
        if isinstance(lies, Boxes):
            held[name], made[name] = in_blocks(layout, lies)
        elif isinstance(lies, Columns):
            if why := next(filter(None, map(refused, lies.layouts)), ""):
                raise PlanError(f"no buffer holds these samples of unequal length, so there is nothing to plan: {why}")
            for part, blocks in zip(lies.layouts, lies.blocks, strict=True):
                of_part = name if len(lies.layouts) == 1 else part.name
                held[of_part], made[of_part] = blocks.layout, blocks
        else:
            held[name] = layout
            if lies is not None:
                made[name] = lies
    return held, made
