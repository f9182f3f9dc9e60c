"""Shows datasets as a tree of lines: similar ones share a line, and links show their targets."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from solar.cli import words
from solar.cli.cost import advice, costs_in_words
from solar.cli.words import Paint
from solar.io.codec.codec import FILTER, OUR_FILTER
from solar.io.hdf5.packing import packing_text
from solar.io.system import quantities
from solar.values import Filter, Layout

WAYS = 3  # of storing a dataset that are told
FILES_NAMED = 3  # that hold the values of a dataset


def how_stored(layout: Layout) -> str:
    """Describes in one line how it is stored; empty if none of it can be read."""
    if layout.reader == "none":
        return ""
    if layout.spread:
        return f"{layout.storage}: {_from_others(layout)}"
    if len(layout.forms) > 1:
        return f"{len(layout.forms):,} layouts: {'; '.join(_number(layout))}"
    form = layout.forms[0] if layout.forms else None
    if form is None or not form.chunk[0] or layout.storage != "chunked":
        return layout.storage
    chunks = quantities.count(len(layout.chunk_offset), "chunk")
    parts = [f"{chunks} of {words.times(form.chunk)}", words.INDEXES.get(layout.index, layout.index)]
    if form.filters:
        pipeline = " + ".join(map(_filter_name, form.filters))
        parts.append(f"{pipeline} {words.ratio(layout.nbytes, layout.stored_nbytes)}".strip())
    return " · ".join(parts)


def _from_others(layout: Layout) -> str:
    """Describes how many files hold the samples of a virtual or external dataset, and with which filters."""
    filled = np.diff(layout.part_chunks) > 0
    samples = np.diff(layout.part_first)
    numbers = np.unique(layout.part_file[filled])
    files, named = len(numbers), [words.printable(layout.paths[number]) for number in numbers[:FILES_NAMED].tolist()]
    many = quantities.count(int(samples[filled].sum()), "sample")
    names = ", ".join(named) + (f" and {files - len(named)} more" if files > len(named) else "")
    parts = [f"{many} from {quantities.count(files, 'file')}, read natively: {names}"]
    if missing := int(samples[~filled].sum()):
        parts.append(f"{quantities.count(missing, 'sample')} that nothing holds, of the fill value")
    filters = dict.fromkeys(" + ".join(map(_filter_name, form.filters)) for form in layout.forms if form.filters)
    return " · ".join([*parts, *filters])


def ways(files: list[str], layouts: dict[str, Layout]) -> int:
    """Returns in how many ways the files store their datasets; 0 for a single file, or if it is unknown."""
    forms = [one.part_form.tolist() for one in layouts.values() if len(one.part_form) == len(files)]
    return len(set(zip(*forms, strict=True))) if len(files) > 1 else 0


def _number(layout: Layout) -> Iterator[str]:
    """Describes how many files store a dataset in which way; of many ways, only the commonest."""
    parts = Counter(layout.part_form.tolist()).most_common()
    for number, count in parts[:WAYS]:
        form = layout.forms[number]
        how = f"chunks of {words.times(form.chunk)}" if form.chunk and form.chunk[0] else "without chunks"
        filters = " + ".join(map(_filter_name, form.filters))
        yield f"{quantities.count(count, 'file')} {how}{f', {filters}' if filters else ''}"
    if len(parts) > WAYS:
        yield "…"


def _filter_name(one: Filter) -> str:
    return OUR_FILTER if one.id == FILTER else words.filter_name(one)


WORTH_WORDS = 64 << 10  # bytes; smaller datasets have one line
DEEPEST = 50  # levels of the tree; what lies deeper keeps the rest of its path as its name
IN_SERIES, ALIKE = 10, 100  # so many groups or datasets alike are one line: of names that differ by numbers, of any
LINES = 300  # of a tree; --all prints the others
READER_COLOURS = {"direct": "green", "h5py": "yellow", "none": "red"}

Datasets = tuple[Layout, ...]  # one, or several that share a line


@dataclass
class TreeGroup:
    """The members of a group, by name; of several similar ones the first."""

    members: dict[str, TreeGroup | Datasets] = field(default_factory=dict)
    link: str = ""  # where it leads, if its name is a link
    alike: int = 1


@dataclass(frozen=True)
class Show:
    """How a tree is shown."""

    paint: Paint
    folder: str  # of the file: what lies in it is called by its name there
    in_detail: bool = False  # words for every dataset
    everything: bool = False  # nothing shares a line, and no line is left out
    headers: Mapping[str, int] = field(default_factory=dict)  # where those of the datasets lie


def tree_lines(layouts: Mapping[str, Layout], aliases: Mapping[str, tuple[str, str]], show: Show) -> Iterator[str]:
    """Yields the lines, in colours and signs that the output can show."""
    tree = tree_of(layouts, aliases, show.folder)
    if not show.everything:
        tree = _fold(tree)
    left = 0
    for number, line in enumerate(_branch(tree, "", show)):
        if show.everything or number < LINES:
            yield show.paint.signs(line)
        else:
            left += 1
    if left:
        yield show.paint.signs(f"… and {quantities.count(left, 'line')} more: --all shows them")


def tree_of(layouts: Mapping[str, Layout], aliases: Mapping[str, tuple[str, str]], folder: str) -> TreeGroup:
    root = TreeGroup()
    for name, layout in layouts.items():
        group, leaf = _parent(root, name)
        group.members[leaf] = (layout,)
    for name, (file, path) in aliases.items():
        group, leaf = _parent(root, name)
        linked = group.members.setdefault(leaf + "/", TreeGroup())
        assert isinstance(linked, TreeGroup)
        linked.link = f"{relative_to(file, folder)}:{path}" if file else path
    return root


def _parent(root: TreeGroup, name: str) -> tuple[TreeGroup, str]:
    """Returns the group of a name, made if it does not exist, and the last part of the name."""
    *groups, leaf = name.strip("/").split("/", DEEPEST)
    for part in groups:
        below = root.members.setdefault(part + "/", TreeGroup())
        assert isinstance(below, TreeGroup)
        root = below
    return root, leaf


def relative_to(file: str, folder: str) -> str:
    return file.removeprefix(folder.rstrip("/") + "/")


# --- what is alike ----


def _fold(group: TreeGroup) -> TreeGroup:
    """Returns the group with similar members sharing a line, if there are many of them."""
    sets: dict[Hashable, list[str]] = defaultdict(list)
    for name, member in group.members.items():
        sets[re.sub(r"\d+", "0", name), _kind(member)].append(name)
    rest: dict[Hashable, list[str]] = defaultdict(list)
    for key, names in sets.items():
        if len(names) < IN_SERIES:
            assert isinstance(key, tuple)
            rest[key[1]] += names
    chosen = [names for names in sets.values() if len(names) >= IN_SERIES]
    chosen += [names for names in rest.values() if len(names) >= ALIKE]
    together = {names[0]: names for names in chosen}
    others = {name for names in chosen for name in names[1:]}
    folded = TreeGroup({}, group.link, group.alike)
    for name in group.members:
        if name in others:
            continue
        names = together.get(name, [name])
        label = name if len(names) == 1 else f"{name} … {names[-1]}"
        merged = _merge([group.members[one] for one in names])
        folded.members[label] = _fold(merged) if isinstance(merged, TreeGroup) else merged
    return folded


def _kind(member: TreeGroup | Datasets) -> Hashable:
    """Returns a key that is equal for members that may share a line, whatever their length along axis 0."""
    if isinstance(member, TreeGroup):
        return bool(member.link), tuple((name, _kind(below)) for name, below in member.members.items())
    one = member[0]
    return one.shape[1:], len(one.shape), str(one.dtype), one.storage, one.reader, one.reason, bool(one.names)


def _merge(members: list[TreeGroup | Datasets]) -> TreeGroup | Datasets:
    """Returns members of one kind as one."""
    first = members[0]
    if not isinstance(first, TreeGroup):
        return tuple(layout for member in members if not isinstance(member, TreeGroup) for layout in member)
    groups = [member for member in members if isinstance(member, TreeGroup)]
    below = {name: _merge([group.members[name] for group in groups]) for name in first.members}
    return TreeGroup(below, first.link, sum(group.alike for group in groups))


# --- lines ----


def _branch(group: TreeGroup, indent: str, show: Show) -> Iterator[str]:
    """Yields the lines of a group's members."""
    paint = show.paint
    rows = {
        name: columns_of_line(name, member)
        for name, member in group.members.items()
        if not isinstance(member, TreeGroup)
    }
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    for position, (name, member) in enumerate(group.members.items()):
        last = position == len(group.members) - 1
        stem, under = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(member, TreeGroup):
            yield paint("dim", indent + stem) + _group_line(name, member, paint)
            yield from _branch(member, indent + under, show)
            continue
        label, *facts = (fact.ljust(width) for fact, width in zip(rows[name], widths, strict=True))
        padded, one = facts.pop(), member[0]
        reader = paint(READER_COLOURS[one.reader], one.reader) + padded[len(one.reader) :]
        shows_details = show.in_detail or _worth_words(one)
        why = "" if shows_details or not one.reason else paint("dim", words.printable(f"({one.reason})"))
        line = [
            paint("bold", label),
            *facts,
            reader,
            stored_text(member),
            packed_text(one, show),
            _link(member, show),
            why,
        ]
        yield paint("dim", indent + stem) + "  ".join(part for part in line if part).rstrip()
        if shows_details:
            yield from advice_lines(one, paint("dim", indent + under), len(indent) + 3, paint)


def _group_line(name: str, group: TreeGroup, paint: Paint) -> str:
    alike = (
        f"  {paint('dim', quantities.count(group.alike, 'group') + ' alike')}"
        if " … " in name and group.alike > 1
        else ""
    )
    link = f"  {paint('dim', '→ ' + words.printable(group.link))}" if group.link else ""
    return paint("cyan", words.printable(name)) + link + alike


def _worth_words(layout: Layout) -> bool:
    slow = layout.storage == "virtual" and layout.reader == "h5py"  # whatever its size: something can be done about it
    return layout.reader == "none" or slow or (layout.samples > 1 and layout.nbytes >= WORTH_WORDS)


def columns_of_line(name: str, datasets: Datasets) -> list[str]:
    """Returns the columns of a line: name, shape, type, size, and the reader."""
    one = datasets[0]
    lengths = sorted({layout.samples for layout in datasets})
    axes = [str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]}–{lengths[-1]}", *map(str, one.shape[1:])]
    shape = " × ".join(axes) if one.shape else ("scalar" if one.reader != "none" else "")
    known = one.dtype.itemsize and not one.dtype.hasobject
    nbytes = quantities.size(sum(layout.nbytes for layout in datasets)) if known else ""
    return [words.printable(name), shape, words.kind(one.dtype), nbytes, one.reader]


def stored_text(datasets: Datasets) -> str:
    how = {how_stored(layout) for layout in datasets}
    text = how.pop() if len(how) == 1 else datasets[0].storage
    return text if len(datasets) == 1 else f"{text} · {len(datasets):,} alike".removeprefix(" · ")


def packed_text(layout: Layout, show: Show) -> str:
    said = packing_text(layout, show.headers.get(layout.name))
    return f"· packed: {said}" if said else ""


def _link(datasets: Datasets, show: Show) -> str:
    one = datasets[0]
    if not one.names:
        return ""
    to = f"{relative_to(one.paths[0], show.folder)}:{one.names[0]}" if one.asked else one.names[0]
    more = " …" if len(one.names) > 1 or len(datasets) > 1 else ""
    return show.paint("dim", f"→ {words.printable(to)}{more}")


def advice_lines(layout: Layout, margin: str, used: int, paint: Paint) -> Iterator[str]:
    width = max(40, paint.width - used - 2)
    text = words.printable(costs_in_words(layout))
    for line in textwrap.wrap(text, width):
        yield f"{margin}  {paint('dim', line)}"
    if what_to_do := advice(layout):
        text, *commands = map(words.printable, what_to_do.split("\n"))
        for line in textwrap.wrap("→ " + text, width, subsequent_indent="  "):
            yield f"{margin}  {paint('yellow', line)}"
        yield from (f"{margin}    {paint('bold', command)}" for command in commands)
