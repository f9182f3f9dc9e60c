"""Groups beside each other that hold the same datasets: molecules, demonstrations, trials."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from solar.cli.lines import Shape, call, numbers_of, quoted
from solar.io.machine import figures
from solar.values import Layout

GROUPS = 8  # of any names that are worth to be samples
IN_SERIES = 2  # the same of names that differ only in their numbers
MEMBERS_SHOWN = 16  # fields of groups that are told by name
CLIP_STEPS = 16  # steps of the windows that are shown
OF_STEPS = re.compile(r"(^|/)(actions?|obs|observations?|rewards?|dones?|qpos|qvel|states?|timestamps?|frames?)(/|$)")
COPIES = re.compile(r"(^|/)next_")  # of what other fields have one row later: told last

Layouts = Mapping[str, Layout]


class GroupsAlike(NamedTuple):
    """Groups beside each other that hold the same datasets."""

    above: str  # the group that holds them; "" for the file itself
    star: str  # "*", or what the names of some there have in common: "demo_*"
    groups: Mapping[str, Layouts]  # by full name, what each has, by its name there
    fields: list[str]  # the datasets that are samples: numbers, of shapes that differ in the first axis at most
    unlike: list[str]  # numbers whose shapes differ in other axes
    others: list[str]  # what is no number, such as text

    @property
    def pattern(self) -> str:
        """That of the groups' names."""
        return f"{self.above}/{self.star}"


def groups_alike(layouts: Layouts) -> Iterator[GroupsAlike]:
    """Finds the groups that hold the same datasets, in groups of their own too; the outermost that do."""
    below: dict[str, dict[str, dict[str, Layout]]] = defaultdict(lambda: defaultdict(dict))
    for name, one in layouts.items():
        parts = name.strip("/").split("/")
        for depth in range(1, len(parts)):
            above = "".join(f"/{part}" for part in parts[: depth - 1])
            below[above][parts[depth - 1]]["/".join(parts[depth:])] = one
    found: list[str] = []
    for above, children in below.items():
        if any(above.startswith(outer) for outer in found):
            continue
        for star, some in _beside(children):
            if (made := _alike(above, star, some)) is not None:
                found.append(f"{above}/")
                yield made
                break


def _beside(children: Mapping[str, dict[str, Layout]]) -> Iterator[tuple[str, dict[str, dict[str, Layout]]]]:
    """Groups that may be alike, with what their names have in common: all, or else those of the longest series."""
    series: dict[str, list[str]] = defaultdict(list)
    for name in children:
        series[re.sub(r"\d+", "*", name)].append(name)
    star, names = max(series.items(), key=lambda item: len(item[1]))
    if len(children) >= (GROUPS if len(series) > 1 or "*" not in star else IN_SERIES):
        yield "*", {**children}
    if (
        len(series) > 1
        and "*" in star
        and len(names) >= IN_SERIES
        and len(fnmatch.filter(children, star)) == len(names)
    ):
        yield star, {name: children[name] for name in names}


def _alike(above: str, star: str, children: Mapping[str, dict[str, Layout]]) -> GroupsAlike | None:
    """The groups as one, if they hold the same datasets."""
    each = [*children.values()]
    kinds = [{name: (one.dtype, len(one.shape)) for name, one in members.items()} for members in each]
    if any(kind != kinds[0] for kind in kinds):
        return None
    numbers = [name for name in numbers_of(each[0]) if all(members[name].reader == "direct" for members in each)]
    if not numbers:
        return None
    unlike = [name for name in numbers if len({members[name].shape[1:] for members in each}) > 1]
    fields = sorted((name for name in numbers if name not in unlike), key=lambda name: bool(COPIES.search(name)))
    others = [name for name in each[0] if name not in numbers]
    return GroupsAlike(above, star, {f"{above}/{name}": one for name, one in children.items()}, fields, unlike, others)


def shapes_of_groups(asked: str, files: Sequence[str], layouts: Layouts) -> Iterator[Shape]:
    """The lines that read groups alike: each as a sample, its rows, and windows within it."""
    for found in groups_alike(layouts):
        parts = [f"{group}/{name}" for group, members in found.groups.items() for name in members]
        for one in _shapes(asked, found, alone=len(files) == 1):
            yield one._replace(parts=parts)


def _shapes(asked: str, found: GroupsAlike, *, alone: bool) -> Iterator[Shape]:
    said = f"{figures.count(len(found.groups), 'group')} alike"
    left = f", without {', '.join(found.others)}, which is no number" if found.others else ""
    rows = [*_of_rows(asked, found, said, left)] if alone else []
    if found.unlike:
        yield from rows
        if not rows:
            why = f"{said}, of which {' and '.join(found.unlike)} cannot be read"
            yield Shape("groups", [], f"{why}: from group to group they differ in more than the first axis", "")
        rows, left = [], f", without {', '.join([*found.unlike, *found.others])}"
    if not found.fields:
        return
    more = len(found.fields) - MEMBERS_SHOWN
    left += f" (and {figures.count(more, 'field')} more)" if more > 0 else ""
    fields = {name: quoted(name) for name in found.fields}
    whole = Shape(
        "groups", [], f"{said}, each a sample{left}",
        call(asked, fields, f"samples={quoted(found.pattern)}", MEMBERS_SHOWN),
    )  # fmt: skip
    of_steps = any(OF_STEPS.search(name) for name in found.fields)
    yield from [*rows, whole] if of_steps else [whole, *rows]


def _of_rows(asked: str, found: GroupsAlike, said: str, left: str) -> Iterator[Shape]:
    """The rows of groups that have one for each step, or for each conformer of a molecule; and windows of such rows."""
    groups = [*found.groups.values()]
    names = [*found.unlike, *found.fields][:MEMBERS_SHOWN]
    first = [each[names[0]].shape[:1] for each in groups]
    rows = [name for name in names if [each[name].shape[:1] for each in groups] == first]
    once = [name for name in names if name not in rows]
    ragged = [name for name in rows if len({each[name].shape[1:] for each in groups}) > 1]
    lengths = [count for shape in first for count in shape]
    if len(names) < 2 or len(lengths) < len(groups) or min(lengths) < 1 or not {*found.unlike} <= {*rows}:
        return
    if any(len({each[name].shape[2:] for each in groups}) > 1 for name in ragged):  # they differ in two axes
        return
    if not found.unlike and (once or min(lengths) < 2):
        return
    between = str(lengths[0]) if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    full = {name: quoted(f"{found.pattern}/{name}") for name in rows}
    constants = {name: _constant(f"{found.pattern}/{name}", [each[name] for each in groups]) for name in once}
    words = f"{said} of {between} rows, each row a sample{left}"
    yield Shape("rows", [], words, call(asked, full | constants, most=MEMBERS_SHOWN))
    if found.unlike:
        return
    steps = min(CLIP_STEPS, *lengths)
    clips = {name: f"Field({text}, steps=range({steps}))" for name, text in full.items()}
    words = f"windows of {steps} rows within these groups{left}"
    yield Shape("windows", [], words, call(asked, clips, most=MEMBERS_SHOWN))


def _constant(name: str, layouts: Sequence[Layout]) -> str:
    """What each group has once, as a field: ragged where its length differs from group to group."""
    kind = "Field" if len({one.shape for one in layouts}) == 1 else "Ragged"
    return f"{kind}({quoted(name)}, constant=True)"
