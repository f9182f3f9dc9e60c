"""What a plan does over its first epochs: where its read head is and how full its memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar.extents import Listing
from solar.planner import policies
from solar.planner.course import Plan
from solar.values import Script

EPOCHS_TRACED = 3  # from the first batch on, at most
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


def trace(plan: Plan) -> Trace | None:
    """What a plan does in its first epochs; None where no head moves."""
    if plan.way.direct:
        return None
    epochs = plan.epochs[:EPOCHS_TRACED]
    scripts = [plan.script(epoch) for epoch in epochs]
    if not any(len(one.loads) for one in scripts):
        return None
    units = plan.region.units
    steps = len(scripts[0].ends) - 1
    loads = [policies.unit_of(units, one.loads) for one in scripts]
    comes = [_per_step(_weights(plan, unit), one.ends) for one, unit in zip(scripts, loads, strict=True)]
    uses = [policies.unit_of(units, one.rows[:]) for one in scripts]
    goes = [_per_step(_weights(plan, unit) * _last(one), one.starts) for one, unit in zip(scripts, uses, strict=True)]
    # What is issued at a step comes once the step before has let go of its own.
    at_first = _weights(plan, policies.unit_of(units, scripts[0].start)).sum()
    held = at_first + np.concatenate(([0.0], np.cumsum(np.concatenate(comes) - np.concatenate(goes))[:-1]))
    read_at = np.concatenate([at + _issued_at(one.ends) / steps for at, one in enumerate(scripts)])
    shown = np.linspace(0, len(read_at) - 1, min(POINTS, len(read_at))).astype(int)
    return Trace(read_at[shown], np.concatenate(loads)[shown] / units.units, np.arange(len(held)) / steps, held)


def _last(script: Script) -> NDArray[np.uint8]:
    """Whether each use is the last of what it uses."""
    if not isinstance(script.rows, Listing):
        return script.last
    return np.unpackbits(script.last, count=len(script.rows), bitorder="little")


def _weights(plan: Plan, unit: Ints) -> Floats:
    """What each takes in memory: a sample of the unit, or all of it."""
    units = plan.region.units
    if plan.kept == "rows":
        return np.full(len(unit), float(units.sample_nbytes))
    return np.full(len(unit), float(units.paged)) if isinstance(units.paged, int) else units.paged[unit].astype(float)


def _per_step(weights: Floats, ends: Ints) -> Floats:
    """The sum of each step's weights."""
    return np.diff(np.concatenate(([0.0], np.cumsum(weights)))[ends])


def _issued_at(ends: Ints) -> Floats:
    """The step at which each load is issued."""
    return np.repeat(np.arange(1.0, len(ends)), np.diff(ends))
