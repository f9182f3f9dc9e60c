"""A stretch of a plan cut into shorter ones, which a Run carries out one after another as it would the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solar.extents import Listing
from solar.planner.pass_uses import SampleUses
from solar.values import Parcels, Script, Told


def cut(told: list[Told], uses: SampleUses, steps: int) -> Iterator[tuple[int, int, list[Told]]]:
    """Each with its first step, and the one behind its last. Where samples are of several rows they stay whole."""
    every = len(uses.starts) - 1
    if any(isinstance(one.script.rows, Listing) for one in told):
        steps = every
    for begin in range(0, every, max(1, steps)):
        end = min(begin + steps, every)
        yield begin, end, told if end - begin == every else [_part(one, begin, end) for one in told]


def _part(told: Told, begin: int, end: int) -> Told:
    script, none = told.script, np.empty(0, np.int64)
    assert isinstance(script.rows, np.ndarray)
    own = slice(int(script.starts[begin]), int(script.starts[end]))
    loads = slice(int(script.ends[begin]), int(script.ends[end]))
    first = begin == 0
    made: Script = replace(
        script,
        rows=script.rows[own],
        starts=script.starts[begin : end + 1] - script.starts[begin],
        last=script.last[own],
        loads=script.loads[loads],
        ends=script.ends[begin : end + 1] - script.ends[begin],
        start=script.start if first else script.start[:0],
        start_ends=script.start_ends if first else none,
        start_due=script.start_due if first else none,
    )
    positions = None if told.positions is None else told.positions[own]
    return told._replace(script=made, positions=positions, afresh=told.afresh if first else None)


def parcels_of(parcels: Parcels | None, begin: int, end: int) -> Parcels | None:
    """What travels in these of its steps."""
    if parcels is None:
        return None
    first, last = begin * parcels.letters, end * parcels.letters
    sent, come = (
        rows[np.searchsorted(rows[:, 0], first) : np.searchsorted(rows[:, 0], last)].copy()
        for rows in (parcels.sent, parcels.come)
    )
    sent[:, 0] -= first
    come[:, 0] -= first
    return Parcels(parcels.sizes[begin:end], sent, come, parcels.letters)


def reach(told: list[Told], samples: int, before: float) -> float:
    """How far into the data a stretch's last read of the first field lies, 0 to 1; `before` where nothing is read."""
    script = told[0].script
    loads = script.loads if len(script.loads) else script.start
    return float(loads[-1]) / max(1, samples) if len(loads) else before
