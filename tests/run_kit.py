"""A Run in plain Python: slow and obvious. What the native one is compared with, step by step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solar import _native
from solar.errors import SolarError
from solar.planning.units import Units, of_layout
from solar.values import Layout

COUNTS = _native.count_names()


_known: dict[int, tuple[Any, Layout]] = {}  # by the id of its Source, which is kept lest another gets that


def recorded(source_of: Callable[..., Any]) -> Callable[..., Any]:
    """solar.io.reading.engine.source_of, which tells this kit what lies behind a Source: that does not say it."""

    def made(layout: Layout, *others: Any, **options: Any) -> Any:
        source = source_of(layout, *others, **options)
        _known[id(source)] = source, layout
        return source

    return made


@dataclass
class Extents:
    """solar._native.Extents: which rows samples are made of, one by one."""

    first: Any
    anchor: Any
    low: Any
    high: Any
    every: int
    steps: Any
    sizes: Any

    def rows(self, sample: int) -> list[int]:
        stretch = max(s for s, first in enumerate(self.first[:-1]) if first <= sample)
        place = self.anchor[stretch] + (sample - self.first[stretch]) * self.every
        return [int(min(max(place + step, self.low[stretch]), self.high[stretch] - 1)) for step in self.steps]

    def places(self, position: int, samples: int) -> list[int]:
        found, begin = [], 0
        for size in self.sizes.tolist():
            found += [begin * samples + position * size + k for k in range(size)]
            begin += size
        return found


@dataclass
class Boxes:
    """solar._native.Boxes: what samples are cut out of, which lies in blocks."""

    source: Any
    block: Any
    box: Any
    shape: Any
    lengths: Any

    def cut(self, corner: Any, blocks: dict[int, Any], itemsize: int) -> Any:
        """The bytes of the box at this corner of a whole volume, of which there are these blocks."""
        part, *begin = corner
        grids = [
            [-(-n // b) for n, b in zip((rows, *self.shape[1:]), self.block, strict=True)] for rows in self.lengths
        ]
        first = sum(math.prod(grid) for grid in grids[:part])
        volume = np.zeros([n * b for n, b in zip(grids[part], self.block, strict=True)], f"V{itemsize}")
        for number, place in enumerate(np.ndindex(*grids[part])):
            if first + number in blocks:
                where = tuple(slice(at * b, (at + 1) * b) for at, b in zip(place, self.block, strict=True))
                volume[where] = blocks[first + number].view(volume.dtype).reshape(self.block)
        cut = volume[tuple(slice(at, at + n) for at, n in zip(begin, self.box, strict=True))]
        return np.ascontiguousarray(cut).reshape(-1).view(np.uint8)


@dataclass
class Part:
    """What is known of one part: its units from the Layout, what it holds, and what it is told to do when."""

    source: Any
    field: int
    pages: int
    page: int
    stored: bool
    direct: bool
    ahead: int
    gap: int
    units: Units
    extents: Extents | None
    boxes: Boxes | None
    samples: list[tuple[Any, list[int]]] = field(default_factory=list)  # of each step: corners, positions
    held: dict[int, bool] = field(default_factory=dict)  # key: whether it was used since it was loaded
    failed: set[int] = field(default_factory=set)
    steps: list[tuple[list[int], list[int], list[int]]] = field(default_factory=list)  # rows, positions, last
    # Before this step: groups of loads, and whether they go on where the last ended, as all but a start's may.
    issues: dict[int, list[tuple[list[int], bool]]] = field(default_factory=dict)
    end: int = -1  # where what was loaded last ends

    def __post_init__(self) -> None:
        samples = self.units.samples
        items = np.arange(samples) if self.units.item is None else self.units.item
        first = np.minimum(np.arange(self.units.units + 1) * self.units.per_unit, samples)
        first = first if self.units.first is None else self.units.first
        self.unit_of = np.searchsorted(first, items, side="right") - 1
        self.chunks = self._chunks_of_units()
        self.rows_of: list[list[int]] = [[] for _ in range(self.units.units)]
        for row, unit in enumerate(self.unit_of.tolist()):
            self.rows_of[unit].append(row)

    def append_boxes(self, positions: Any, samples: Any, corners: Any, starts: Any, own: None) -> None:
        """The samples of more steps, each cut out of the rows of its step, which have no position."""
        corners = corners.reshape(len(samples), -1).tolist()
        for begin, end in itertools.pairwise(starts.tolist()):
            places = list(range(end - begin)) if positions is None else positions[begin:end].tolist()
            self.samples.append((corners[begin:end], places))

    def key(self, row: int) -> int:
        """What is held for this row: itself, or its unit."""
        return int(self.unit_of[row]) if self.stored else row

    def pages_of(self, key: int) -> int:
        return sum(-(-nbytes // self.page) for _, nbytes in self.chunks[key]) if self.stored else 1

    def held_pages(self) -> int:
        return sum(map(self.pages_of, self.held))

    def _chunks_of_units(self) -> list[list[tuple[int, int]]]:
        """Where the chunks of each unit lie, and what they take."""
        units = self.units
        if units.offset is None or units.nbytes is None:
            return [[(unit * units.stored_nbytes, units.stored_nbytes)] for unit in range(units.units)]
        if units.chunk_first is None or units.chunk_offset is None or units.chunk_nbytes is None:
            return [[one] for one in zip(units.offset.tolist(), units.nbytes.tolist(), strict=True)]
        chunks = [*zip(units.chunk_offset.tolist(), units.chunk_nbytes.tolist(), strict=True)]
        first = units.chunk_first.tolist()
        return [chunks[begin:end] for begin, end in itertools.pairwise(first)]

    def _ascending(self, rows: list[int]) -> list[list[int]]:
        """The units of these rows, once each, from where it begins anew; their chunks may lie among one another."""
        runs: list[list[int]] = []
        for unit in self.unit_of[rows].tolist() if rows else []:
            if not runs or unit < runs[-1][-1]:
                runs.append([unit])
            elif unit > runs[-1][-1]:
                runs[-1].append(unit)
        return runs

    def joined(self, rows: list[int], end: int = -1) -> tuple[int, int, int]:
        """Requests and bytes of reading these rows in this order; ascending ones over small holes are one request.

        So it is with what ended at `end`. The last number is where these end.
        """
        requests = nbytes = 0
        for units in self._ascending(rows):
            for offset, size in sorted(chunk for unit in units for chunk in self.chunks[unit] if chunk[1]):
                hole = offset - end if end >= 0 else -1
                if hole == 0 or 0 < hole < self.gap:
                    nbytes += hole
                else:
                    requests += 1
                nbytes += size
                end = offset + size
        return requests, nbytes, end


class Run:
    """solar._native.Run. It works only while somebody takes a batch, and asserts all that must hold."""

    def __init__(
        self,
        reader: Any,
        staged: int,
        scratch: int,
        node: None = None,
        lends: int = 0,
        *,
        passed_on: bool = False,
    ) -> None:
        assert staged >= 1
        assert node is None and lends in (0, 1) and not passed_on
        assert scratch >= 0
        self._reader = reader
        self._parts: list[Part] = []
        self._sizes: list[int] = []
        self._done = 0
        self._counts = dict.fromkeys(
            ("reads", "requests", "bytes", "hits", "peak_bytes", "held_bytes", "steps", "recovered", "stall_ns"), 0
        )
        self.closed = False

    def part(
        self,
        source: Any,
        field: int,
        pages: int,
        page: int,
        stored: bool,
        direct: bool,
        ahead: int,
        gap: int,
        extents: Any = None,
        boxes: Any = None,
        pack: None = None,
    ) -> int:
        assert not self._sizes and pack is None
        units = of_layout(_known[id(source)][1])
        self._parts.append(Part(source, field, pages, page, stored, direct, ahead, gap, units, extents, boxes))
        return len(self._parts) - 1

    def append(self, sizes: Any, parts: list[Any]) -> None:
        base = len(self._sizes)
        for part, told in zip(self._parts, parts, strict=True):
            rows, positions, starts, last, loads, ends, start, start_ends, _, boxes, _ = told
            if part.boxes is not None:
                part.append_boxes(positions, *boxes)
                positions = None
            assert {a.dtype.name for a in (rows, loads, start)} == {"int32"}
            for group in np.split(start, start_ends[:-1]) if len(start_ends) else []:
                part.issues.setdefault(base, []).append((group.tolist(), False))
            for step in range(len(sizes)):
                here = slice(int(starts[step]), int(starts[step + 1]))
                mine = rows[here].tolist()
                places = list(range(len(mine))) if positions is None else positions[here].tolist()
                leaves = last[here].tolist() if part.extents is None else []
                if (extents := part.extents) is not None:
                    slots, bits = len(extents.steps), np.unpackbits(last, bitorder="little")
                    leaves = bits[here.start * slots : here.stop * slots].tolist()
                    places = [at for place in places for at in extents.places(place, int(sizes[step]))]
                    mine = [row for sample in mine for row in extents.rows(sample)]
                part.steps.append((mine, places, leaves))
                if issued := loads[ends[step] : ends[step + 1]].tolist():
                    part.issues.setdefault(base + step + 1, []).append((issued, True))
        self._sizes += sizes.tolist()

    def take(self, seconds: float) -> tuple[list[Any], tuple[int, ...]] | None:
        assert not self.closed
        if self._done == len(self._sizes):
            return None
        step, self._done = self._done, self._done + 1
        before = dict(self._counts)
        for part in self._parts:
            for group, goes_on in part.issues.pop(step, []):
                self._issue(part, group, goes_on)
        held = sum(part.held_pages() * part.page for part in self._parts)
        self._counts["peak_bytes"] = max(self._counts["peak_bytes"], held)
        memory = self._made(step)
        for part in self._parts:
            rows, _, last = part.steps[step]
            for key in {part.key(row) for row, is_last in zip(rows, last, strict=True) if is_last}:
                if not part.direct:
                    part.held.pop(key, None)
                    part.failed.discard(key)
        self._counts["held_bytes"] = sum(part.held_pages() * part.page for part in self._parts)
        self._counts["steps"] += 1
        took = {name: self._counts[name] - before[name] for name in self._counts}
        told = {"rows": self._sizes[step], "requests": took["requests"], "bytes_read": took["bytes"]}
        return memory, tuple(told.get(name, 0) for name in COUNTS)

    def _issue(self, part: Part, rows: list[int], goes_on: bool) -> None:
        """Holds what is loaded from now on. What is there already is passed over: the pinned part of a new Course."""
        rows = [row for row in rows if part.key(row) not in part.held]
        end = self._count(part, rows, part.end if goes_on else -1)
        part.end = end if goes_on else -1
        for row in rows:
            key = part.key(row)
            assert key not in part.held, f"{row} is loaded twice"
            part.held[key] = False
            try:
                self._read(part, [row])
            except SolarError:
                part.failed.add(key)
        assert part.held_pages() <= part.pages, f"{part.held_pages()} pages are held, of {part.pages}"

    def _made(self, step: int) -> list[Any]:
        fields = sorted({part.field for part in self._parts})
        memory = []
        for number in fields:
            parts = [part for part in self._parts if part.field == number]
            nbytes = parts[0].source.row_nbytes
            slots = 1 if parts[0].extents is None else len(parts[0].extents.steps)
            if (cut := parts[0].boxes) is not None:
                nbytes = nbytes // math.prod(cut.block) * math.prod(cut.box)
            out = np.zeros((self._sizes[step] * slots, nbytes), np.uint8)
            placed = 0
            for part in parts:
                rows, positions, _ = part.steps[step]
                if part.boxes is not None:
                    self._use(part, rows)
                    found = self._read(part, rows) if rows else []
                    blocks = dict(zip(rows, found, strict=True))
                    itemsize = part.source.row_nbytes // math.prod(part.boxes.block)
                    for corner, position in zip(*part.samples[step], strict=True):
                        out[position] = part.boxes.cut(corner, blocks, itemsize)
                        placed += 1
                    continue
                placed += len(rows)
                if rows:
                    self._use(part, rows)
                    out[positions] = self._read(part, rows)
            assert placed == len(out), "a place of the batch is not filled"
            memory.append(out.reshape(-1))
        return memory

    def _use(self, part: Part, rows: list[int]) -> None:
        alone = [row for row in rows if part.key(row) not in part.held]
        assert part.direct or not alone, f"{alone} are used and were not loaded"
        for row in rows:
            if (key := part.key(row)) in part.held:
                self._counts["hits"] += part.held[key]
                part.held[key] = True
            if key in part.failed:
                self._counts["recovered"] += 1
        self._counts["hits"] += len(alone) - len(set(alone))
        self._count(part, sorted(set(alone), key=lambda row: (int(part.unit_of[row]), row)))

    def _count(self, part: Part, rows: list[int], end: int = -1) -> int:
        requests, nbytes, end = part.joined(rows, end)
        for name, more in (("reads", len(rows)), ("requests", requests), ("bytes", nbytes)):
            self._counts[name] += more
        return end

    def _read(self, part: Part, rows: list[int]) -> Any:
        out = np.empty((len(rows), part.source.row_nbytes), np.uint8)
        ticket = self._reader.submit(part.source, np.array(rows, np.int64), out.reshape(-1), None)
        while self._reader.wait(ticket, 1.0) is None:
            pass
        return out

    def waiting_for(self) -> str:
        return "" if self._done < len(self._sizes) else "the next epoch"

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self, seconds: float) -> bool:
        self.closed = True
        return True
