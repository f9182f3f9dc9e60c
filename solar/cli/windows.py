"""Windows as people ask for them on a command line: /u=-3:1,1:9:2 is the steps -3 to 0, and 1, 3, 5, 7."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from solar.cli import quantities
from solar.errors import PlanError
from solar.extents import Extents, Steps
from solar.io.field import Field
from solar.io.windows import TOLD_BY, Windows, extents_of
from solar.values import Layout

MOST_AT_ONCE = 1 << 20  # of a window that is written as a range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("windows, as solar.Windows has them").add_argument
    add(
        "--window", metavar="DATASET=STEPS", action="append", default=[], type=window,
        help="a field of several rows, counted from a place: /u=-3:1,1:9:2",
    )  # fmt: skip
    add("--every", metavar="K", type=quantities.count, help="rows from one place to the next (1)")
    for word, told in zip(TOLD_BY, ("where parts end", "how long parts are", "in which part each row is"), strict=True):
        add(f"--{word}", metavar="DATASET", help=f"{told}; else each file is a part")
    add("--pad", choices=["edge"], help="every row is a place, and ends come again")


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
    return list(dict.fromkeys([*arguments.dataset, *(name for name, _ in arguments.window)]))


def _steps(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, tuple[Steps, ...]]:
    of_field: dict[str, list[Steps]] = {name: [] for name in names}
    for name, steps in arguments.window:
        of_field[name].append(steps)
    return {name: tuple(steps) or (None,) for name, steps in of_field.items()}


def _places(arguments: argparse.Namespace) -> Windows | None:
    words = ("every", *TOLD_BY, "pad")
    given = {word: getattr(arguments, word) for word in words if getattr(arguments, word) is not None}
    return Windows(**given) if arguments.window or given else None


def fields(arguments: argparse.Namespace, names: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """The fields of a sample for H5Dataset, by the names of their datasets, and what a sample is."""
    found: dict[str, Any] = {}
    for name, every in _steps(arguments, names).items():
        steps = [step for one in every if one is not None for step in one]
        found[name] = Field(name, steps=steps) if steps else name
    return found, _places(arguments) or "rows"


def extents(arguments: argparse.Namespace, layouts: Mapping[str, Layout]) -> dict[str, Extents]:
    """Of each field the rows that make up its samples; nothing where these are rows."""
    places = _places(arguments)
    if places is None:
        return {}
    if arguments.file is None:
        raise PlanError("windows are of the datasets of a FILE: give one")
    of_field = _steps(arguments, layouts)
    every = [steps for own in of_field.values() for steps in own]
    found = extents_of(arguments.file, list(layouts.values()), every, places)
    return {name: found.of_fields(own) for name, own in of_field.items()}
