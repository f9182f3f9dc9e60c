"""What our plan does on the first node over a few epochs: where its read head is and how full its memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar.cli.compare import Case
from solar.planner import Plan, plan, policies
from solar.planner.sweep import KeepPolicy

EPOCHS_TRACED = range(3)  # from the first batch to the last
POINTS = 3000  # of the head's way

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trace:
    """Over the epochs: places are shares of the data set, in memory are bytes while each step is at work."""

    read_at: Floats
    place: Floats
    step_at: Floats
    held: Floats


def trace(case: Case, way: KeepPolicy) -> Trace | None:
    """What the first node does when the training has three epochs; None where no head moves."""
    if way.direct:
        return None
    of = case.order, case.units, case.world
    room = case.memory
    course = plan(*of, batch=case.batch, memory=room, storage=case.storage, epochs=EPOCHS_TRACED, ahead=0, way=way)
    scripts = [course.script(epoch) for epoch in EPOCHS_TRACED]
    if not any(len(one.loads) for one in scripts):
        return None
    steps = len(scripts[0].ends) - 1
    loads = [policies.unit_of(case.units, one.loads) for one in scripts]
    comes = [_per_step(_weights(course, unit), one.ends) for one, unit in zip(scripts, loads, strict=True)]
    uses = [policies.unit_of(case.units, one.rows) for one in scripts]
    goes = [_per_step(_weights(course, unit) * one.last, one.starts) for one, unit in zip(scripts, uses, strict=True)]
    # What is issued at a step comes once the step before has let go of its own.
    after = np.cumsum(np.concatenate(comes) - np.concatenate(goes))
    # When the last step is over nothing is left but what is pinned: so it is known how much there was at first.
    held = np.concatenate(([0.0], after[:-1])) + (course.region.held_nbytes(way.pinned, whole=way.whole) - after[-1])
    read_at = np.concatenate(
        [epoch + _issued_at(one.ends) / steps for epoch, one in zip(EPOCHS_TRACED, scripts, strict=True)]
    )
    shown = np.linspace(0, len(read_at) - 1, min(POINTS, len(read_at))).astype(int)
    return Trace(read_at[shown], np.concatenate(loads)[shown] / case.units.units, np.arange(len(held)) / steps, held)


def _weights(course: Plan, unit: Ints) -> Floats:
    """What each takes in memory: a sample of the unit, or all of it."""
    units = course.region.units
    if course.kept == "rows":
        return np.full(len(unit), float(units.sample_nbytes))
    return np.full(len(unit), float(units.paged)) if isinstance(units.paged, int) else units.paged[unit].astype(float)


def _per_step(weights: Floats, ends: Ints) -> Floats:
    """The sum of each step's weights."""
    return np.diff(np.concatenate(([0.0], np.cumsum(weights)))[ends])


def _issued_at(ends: Ints) -> Floats:
    """The step at which each load is issued."""
    return np.repeat(np.arange(1.0, len(ends)), np.diff(ends))
