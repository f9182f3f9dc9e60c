"""Crops: says where boxes are cut out of volumes; and samples along other axes than the first."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
from solar.samples.row_windows import Steps
from solar.values import Layout

if TYPE_CHECKING:
    from solar.samples.boxes import Boxes, Places

Look = Callable[[str], Layout]  # the Layout of a dataset of the same files


@dataclass(frozen=True)
class Crops:
    """Where boxes lie that are cut out of volumes; for the `samples` of H5Dataset. All fields have the same places.

    `shape` is that of a box, along the last axes of each dataset; axes before these, such as channels, are taken whole.
    A volume is the dataset of one file; with volumes="rows" it is a row of it, and a dataset of fewer axes than boxes
    have, such as one label for each volume, gives its row.

    at="grid": boxes side by side, or with so many voxels of `overlap`, of which the last ends with the volume. With
    `inside`, a dataset as large as the volumes, only those that have a voxel there that is not 0, or at least this
    `share` of them. at="random": `per` boxes of each volume, drawn anew in each epoch, by (seed, epoch, sample) alone.
    at="/centres": a dataset of voxels in each file, one a line, with the number of the row first for volumes="rows":
    the box about one begins half its shape, rounded down, before it.

    >>> import h5py, numpy, tempfile
    >>> from solar import H5Dataset
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["image"], file["label"] = numpy.arange(60).reshape(5, 4, 3), numpy.zeros((5, 4, 3))
    >>> data = H5Dataset(path, {"image": "image", "label": "label"}, samples=Crops((2, 2, 2), overlap=1))
    >>> len(data), data[1]["image"].tolist(), data[1]["label"].shape
    (24, [[[1, 2], [4, 5]], [[13, 14], [16, 17]]], (2, 2, 2))
    """

    shape: tuple[int, ...]
    at: str = "grid"
    overlap: int | tuple[int, ...] = 0
    inside: str | None = None
    share: float | None = None
    per: int = 1
    seed: int = 0
    volumes: str = "files"

    def __post_init__(self) -> None:
        if isinstance(self.shape, int):
            raise TypeError(
                f"shape={self.shape}: a length for each axis that is cut, such as Crops(({self.shape}, {self.shape}, "
                f"{self.shape})) for boxes of volumes"
            )
        if not all(hasattr(n, "__index__") for n in self.shape):
            raise TypeError(f"shape={self.shape}: whole numbers, one for each axis that is cut")
        shape = tuple(operator.index(n) for n in self.shape)
        if not shape or min(shape) < 1:
            raise ValueError(f"shape={self.shape}: a box has at least one voxel along each axis")
        overlap = (self.overlap,) * len(shape) if isinstance(self.overlap, int) else tuple(self.overlap)
        if len(overlap) != len(shape) or not all(
            0 <= operator.index(o) < n for o, n in zip(overlap, shape, strict=True)
        ):
            raise ValueError(f"overlap={self.overlap}: from 0 to less than a box of shape {shape}, along each axis")
        if self.volumes not in ("files", "rows"):
            raise ValueError(f'volumes={self.volumes!r}: either "files" or "rows"')
        if not isinstance(self.at, str):
            raise TypeError(f'at is "grid", "random" or the name of a dataset, not {type(self.at).__name__}')
        if operator.index(self.per) < 1 or (self.per != 1 and self.at != "random"):
            more = "" if self.at == "random" else f", and at={self.at!r} says how many there are"
            raise ValueError(f'per={self.per}: with at="random" so many boxes of each volume, at least 1{more}')
        if self.at != "grid" and (any(overlap) or self.inside is not None):
            raise ValueError(f'overlap and inside are of at="grid", not of at={self.at!r}')
        if self.share is not None and (self.inside is None or not 0 < self.share <= 1):
            raise ValueError(f"share={self.share}: of the voxels that lie `inside` a dataset, above 0 and up to 1")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "overlap", overlap)

    @property
    def _step(self) -> tuple[int, ...]:
        assert isinstance(self.overlap, tuple), "it was made one"
        return tuple(n - o for n, o in zip(self.shape, self.overlap, strict=True))


class Volumes(NamedTuple):
    """The volumes that boxes are cut from: how many each part has, and the lengths of the axes that are cut."""

    volumes: list[int]
    lengths: list[tuple[int, ...]]


def crops_of(path: Any, layouts: Sequence[Layout], crops: Crops, **looking: Any) -> list[Boxes]:
    """Builds the boxes of datasets that share their places. Raises LayoutError if they do not fit."""
    look: Look = lambda name: inspect(path, name, **looking)  # noqa: E731
    k, rows = len(crops.shape), crops.volumes == "rows"
    own = [volumes_of(layout, k, rows) for layout in layouts]
    first = next((at for at, one in enumerate(own) if one is not None), None)
    if first is None:
        raise LayoutError(
            f"{title_of(layouts[0])} has shape {layouts[0].shape}: no box of {k} axes can be cut out of it"
        )
    volumes = own[first]
    assert volumes is not None, "it is one that has some"
    for layout, one in zip(layouts, own, strict=True):
        check_volumes(layout, one, layouts[first], volumes, rows)
    check_box_fits(layouts[first], volumes, crops.shape)
    places = crop_places(look, layouts[first], volumes, crops)
    return [_boxes(layout, places, k if one is not None else 0, rows) for layout, one in zip(layouts, own, strict=True)]


class Slices(NamedTuple):
    """The axes along which the samples of a dataset lie."""

    axes: tuple[int, ...]  # that samples lie along, as they were given
    steps: Steps  # along the last of them, one after another; None: they do not have that axis


def slice_maps(layouts: Sequence[Layout], slices: Sequence[Slices | None], every: int = 1) -> list[Boxes | None]:
    """Builds the sample maps of slices along other axes; None for rows, of which there must be as many.

    With `every`, windows begin every so many steps, wherever the steps of all fields have room.
    """
    steps = [step for one in slices if one is not None and one.steps for step in one.steps]
    reach = min([0, *steps]), max([0, *steps])
    found: list[Boxes | None] = []
    for layout, one in zip(layouts, slices, strict=True):
        rows = one is None or (not steps and one.axes in ((0,), (-len(layout.shape),)))
        found.append(None if one is None or rows else boxes_of_slices(layout, one, reach, every))
    _check_counts(layouts, found)
    return found


def boxes_of_slices(layout: Layout, slices: Slices, reach: tuple[int, int], every: int) -> Boxes:
    from solar.samples.boxes import Boxes, grid

    axes, said = _axes_of(layout, slices.axes)
    rows = np.diff(layout.part_first).tolist()
    if 0 not in axes:
        rows = [_same_rows(layout, f"a sample along axis {said} has all of them")] * len(rows)
    lengths = [tuple(n if axis == 0 else layout.shape[axis] for axis in axes) for n in rows]
    wide = reach[1] - reach[0] + 1
    if wide > 1 and max(one[-1] for one in lengths) < wide:
        raise LayoutError(
            f"{title_of(layout)} has shape {layout.shape}, and windows reach over {wide:,} steps along axis {axes[-1]} "
            f"(steps {reach[0]} to {reach[1]}): give fewer"
        )
    # The last window lies a whole number of strides behind the first.
    fits = [(*one[:-1], wide + max(0, one[-1] - wide) // every * every) for one in lengths]
    alone = (1,) * (len(axes) - 1)
    places = grid([int(one[-1] >= wide) for one in lengths], fits, (*alone, wide), (*alone, every))
    steps = slices.steps or (0,)
    shape = (rows[0] if rows else 0, *layout.shape[1:])
    box = tuple((len(steps) if d == axes[-1] else 1) if d in axes else n for d, n in enumerate(shape))
    _check_voxels(layout, box)
    at = tuple(2 + axes.index(d) if d in axes else -1 for d in range(len(shape)))
    behind = tuple(steps[0] - reach[0] if d == axes[-1] else 0 for d in range(len(shape)))
    return Boxes(places, box, at, axes[:-1] if slices.steps else axes, layout.part_first, behind)


def _axes_of(layout: Layout, given: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Returns the axes counted from 0, and as text in the way they were given."""
    rank, said = len(layout.shape), str(given[0] if len(given) == 1 else given)
    why = f"it has {rank} axes" if not all(-rank <= axis < rank for axis in given) else ""
    if layout.per_file:
        why = 'with samples="files" each file is one sample'
    axes = tuple(axis % max(1, rank) for axis in given)
    if why or len({*axes}) < len(axes):
        refused = f"{title_of(layout)} has shape {layout.shape}, and axis={said} was asked for: "
        raise LayoutError(refused + (why or "one axis is named twice"))
    return axes, said


# --- volumes ----


def title_of(layout: Layout, part: int = 0) -> str:
    return f"{layout.paths[int(layout.part_file[part])] if len(layout.part_file) else layout.paths[0]}: {layout.title}"


def _same_rows(layout: Layout, why: str) -> int:
    lengths = np.diff(layout.part_first)
    other = np.flatnonzero(lengths != lengths[:1])
    if len(other):
        at = int(other[0])
        raise LayoutError(
            f"{title_of(layout, at)} has {lengths[at]} rows, {title_of(layout)} has {lengths[0]}, and {why}"
        )
    return int(lengths[0])


def volumes_of(layout: Layout, k: int, rows: bool) -> Volumes | None:
    """Returns the volumes of a dataset; None if its rows have fewer axes than boxes, and are used as they are."""
    if layout.per_file or not layout.shape:
        why = 'with samples="files" each file is one sample' if layout.per_file else "a scalar has no axes"
        raise LayoutError(f"{title_of(layout)}: boxes are cut out of volumes, and {why}")
    lengths = np.diff(layout.part_first).tolist()
    if rows:
        return None if len(layout.shape) <= k else Volumes(lengths, [layout.shape[-k:]] * len(lengths))
    if len(layout.shape) < k:
        raise LayoutError(
            f"{title_of(layout)} has shape {layout.shape}, and boxes have {k} axes: give boxes of fewer axes, or "
            'volumes="rows" where each row belongs to a volume'
        )
    if len(layout.shape) == k:
        return Volumes([1] * len(lengths), [(n, *layout.shape[1:]) for n in lengths])
    _same_rows(layout, "axes before those of a box are taken whole")
    return Volumes([1] * len(lengths), [layout.shape[-k:]] * len(lengths))


def check_volumes(layout: Layout, own: Volumes | None, first: Layout, volumes: Volumes, rows: bool) -> None:
    if len(layout.part_file) != len(first.part_file) or (rows and (layout.part_first != first.part_first).any()):
        raise LayoutError(
            f"{title_of(layout)} has {layout.samples} rows, {first.title} has {first.samples}: each volume needs one, "
            "in the same file"
        )
    if own is None or own.lengths == volumes.lengths:
        return
    part = next(p for p, pair in enumerate(zip(own.lengths, volumes.lengths, strict=True)) if pair[0] != pair[1])
    raise LayoutError(
        f"{title_of(layout, part)}: its volume is {own.lengths[part]}, that of {first.title} is {volumes.lengths[part]}"
        ": what is cropped together has volumes of one shape"
    )


def check_box_fits(layout: Layout, whole: Volumes, box: tuple[int, ...]) -> None:
    for part, (volumes, lengths) in enumerate(zip(*whole, strict=True)):
        if volumes and any(n > length for n, length in zip(box, lengths, strict=True)):
            raise LayoutError(
                f"{title_of(layout, part)}: boxes of shape {box} are larger than its volume, which is {lengths}: give "
                "smaller ones, or leave the file out"
            )
    if not any(whole.volumes):
        raise LayoutError(f"{title_of(layout)}: it has no volume")


def _check_voxels(layout: Layout, box: tuple[int, ...]) -> None:
    if not all(box):
        raise LayoutError(f"{title_of(layout)} has shape {layout.shape}: its samples would have no values")


def _boxes(layout: Layout, places: Places, k: int, rows: bool) -> Boxes:
    """Builds the boxes of a dataset at these places; with k = 0 each row is taken whole."""
    from solar.samples.boxes import Boxes

    rank = len(layout.shape)
    own = rank - k
    heights = (1,) if rows else (_same_rows(layout, "all are taken"),) if own else ()
    box = (*heights, *layout.shape[1:own], *places.box) if k else (1, *layout.shape[1:])
    at = [-1] * own + [2 + axis for axis in range(k)]
    if rows:
        at[0] = 1
    _check_voxels(layout, box)
    return Boxes(places, box, tuple(at), (0,) if rows else (), layout.part_first)


def _check_counts(layouts: Sequence[Layout], found: Sequence[Boxes | None]) -> None:
    """Raises unless all fields have equally many samples in each file, and along each of several axes."""
    firsts = [
        layout.part_first if own is None else own.places.first for layout, own in zip(layouts, found, strict=True)
    ]
    counts = [(layout, own.places.counts) for layout, own in zip(layouts, found, strict=True) if own is not None]
    for layout, first in zip(layouts[1:], firsts[1:], strict=True):
        if not np.array_equal(first, firsts[0]):
            raise LayoutError(
                f"{layouts[0].paths[0]}: fields of one sample differ in length: {layouts[0].name} has {firsts[0][-1]} "
                f"samples, {layout.name} has {first[-1]}, along the axes that were asked for"
            )
    for layout, own in counts[1:]:
        if not np.array_equal(own, counts[0][1]):
            raise LayoutError(
                f"{layout.paths[0]}: fields of one sample differ in length: {counts[0][0].name} has "
                f"{counts[0][1][0].tolist()} samples along the axes that were asked for, {layout.name} has "
                f"{own[0].tolist()}"
            )


# --- places ----


def crop_places(look: Look, layout: Layout, whole: Volumes, crops: Crops) -> Places:
    from solar.samples.boxes import drawn_places, grid, listed_places

    volumes, lengths = whole
    fits = [one if n else crops.shape for n, one in zip(volumes, lengths, strict=True)]  # without a volume: none is cut
    if crops.at == "random":
        return drawn_places(volumes, fits, crops.shape, crops.per, crops.seed)
    if crops.at != "grid":
        return listed_places(
            _about_centres(_centres(look, crops.at), layout, whole, crops), len(volumes), fits, crops.shape
        )
    places = grid(volumes, fits, crops.shape, crops._step)
    return places if crops.inside is None else places_within(places, look(crops.inside), layout, whole, crops)


def _centres(look: Look, name: str) -> Layout:
    """Returns the dataset of centres. Raises LayoutError, with the nearest name, if there is none."""
    try:
        return look(name)
    except LayoutError as error:
        raise LayoutError(
            f'at={name!r} is neither "grid" nor "random", so it would be a dataset that tells centres: {error}'
        ) from None


def _about_centres(centres: Layout, layout: Layout, whole: Volumes, crops: Crops) -> NDArray[np.int64]:
    rows, k = crops.volumes == "rows", len(crops.shape)
    columns = k + rows
    if centres.shape[1:] != (columns,) or centres.dtype.kind not in "iu" or centres.dtype.shape:
        what = "the number of a row and a voxel of it" if rows else "a voxel"
        raise LayoutError(
            f"{title_of(centres)} has shape {centres.shape} of {centres.dtype}; what tells centres has {columns} whole "
            f"numbers a line: {what}"
        )
    values = Rows(centres, native_order=True, mapped=False).start(np.arange(centres.samples)).wait()
    found = []
    for part, (volumes, lengths) in enumerate(zip(*whole, strict=True)):
        begin, end = centres.first_of_files[part : part + 2].tolist()
        own = values[begin:end].astype(np.int64)  # what is too large for it becomes negative, and so does not fit
        row = own[:, :1] if rows else np.zeros((len(own), 1), np.int64)
        room = np.array(lengths, np.int64) - crops.shape
        half = np.array(crops.shape, np.int64) // 2
        fits = ((own[:, -k:] >= half) & (own[:, -k:] <= room + half)).all(1) & ((row >= 0) & (row < volumes))[:, 0]
        if not fits.all():
            at = int(np.flatnonzero(~fits)[0])
            raise LayoutError(
                f"{title_of(centres, part)}: centre {at} is {tuple(values[begin + at].tolist())}, and a box of shape "
                f"{crops.shape} about it leaves {layout.title}, which has {volumes} volumes of {lengths}: leave it "
                "out, or move it inwards"
            )
        found.append(np.column_stack((np.full(len(own), part), row, own[:, -k:] - half)))
    every = np.concatenate(found)
    if not len(every):
        raise LayoutError(f"{title_of(centres)} has no centre")
    return every


def places_within(places: Places, mask: Layout, layout: Layout, whole: Volumes, crops: Crops) -> Places:
    """Returns the places of a grid whose boxes contain enough voxels that are not 0."""
    rows, k = crops.volumes == "rows", len(crops.shape)
    own = volumes_of(mask, k, rows)
    if own != whole or len(mask.shape) != k + rows:
        raise LayoutError(
            f"{title_of(mask)} has shape {mask.shape}, {layout.title} has {layout.shape}: a mask says of each voxel of "
            "a volume whether it is inside"
        )
    least = 1 if crops.share is None else max(1, int(np.ceil(crops.share * np.prod(crops.shape))))
    kept, reader = [], Rows(mask, native_order=True, mapped=False)
    for part, volumes in enumerate(whole.volumes):
        begin, first = int(mask.first_of_files[part]), int(places.first[part])
        per = int(places.first[part + 1] - first) // max(1, volumes)
        for row in range(volumes):
            there = begin + np.arange(*((row, row + 1) if rows else (0, whole.lengths[part][0])))
            volume = reader.start(there).wait()
            volume = (volume[0] if rows else volume) != 0
            numbers = np.arange(first + row * per, first + (row + 1) * per)
            for number, (*_, at) in zip(numbers, _cuts(places.of(numbers), crops.shape), strict=True):
                if np.count_nonzero(volume[at]) >= least:
                    kept.append(int(number))
    if not kept:
        raise LayoutError(
            f"{title_of(mask)}: no box of shape {crops.shape} has {least} voxels of it: give smaller boxes, more "
            "overlap or a smaller share"
        )
    return places.chosen(np.array(kept, np.int64))


def _cuts(places: NDArray[np.int64], box: tuple[int, ...]) -> list[tuple[int, int, tuple[slice, ...]]]:
    return [
        (part, row, tuple(slice(begin, begin + n) for begin, n in zip(at, box, strict=True)))
        for part, row, *at in places.tolist()
    ]
