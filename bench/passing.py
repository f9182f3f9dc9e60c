"""When each sample of a run is read, how long it waits and when it is used, by the planner itself. For pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar.planning.plan import Plan, plan_rows
from solar.planning.torch_shuffles import ShuffledUses, distributed, steps
from solar.planning.units import uniform
from solar.values import Storage

DISK = Storage(latency=1e-3, bandwidth=1e9, iops=500)  # a parallel file system on disks
SAMPLE = 64 * 1024

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Stay:
    """Samples of which each is in memory from one step to another; used in the last. All arrays are of one length."""

    sample: Ints
    read: Ints
    used: Ints


def stays(samples: int, batch: int, share: float, epochs: int, seed: int = 0) -> Stay:
    """When a planned run reads each sample, and when it uses it."""
    of = distributed(samples, seed=seed)
    found, _ = loads(of, batch, share, epochs)
    at = _uses(of, batch, epochs)
    rows = [(sample, read, least) for sample, read in found if (least := _next(at[:, sample], read)) is not None]
    return Stay(*np.array(rows, np.int64).T)


def _uses(of: ShuffledUses, batch: int, epochs: int) -> Ints:
    """In which step of each epoch each sample is used, counted through all epochs."""
    steps_of = np.argsort(np.stack([of.of(epoch) for epoch in range(epochs)]), axis=1) // batch
    return steps_of + of.uses // batch * np.arange(epochs)[:, None]


def loads(of: ShuffledUses, batch: int, share: float, epochs: int) -> tuple[list[tuple[int, int]], Plan]:
    """Each sample that a planned run reads and the step before which it does, in its order; and the plan."""
    memory, starts = int(share * of.uses * SAMPLE), steps(of, batch)
    made = plan_rows(
        lambda epoch: (of.of(epoch), starts), uniform(of.uses, SAMPLE), memory=memory, storage=DISK,
        epochs=range(epochs), ahead=0, facts=(),
    )  # fmt: skip
    found: list[tuple[int, int]] = []
    for epoch in range(epochs):
        script = made.script(epoch)
        found += [(sample, 0) for sample in script.start.tolist()]
        issued = np.repeat(np.arange(1, len(script.ends)), np.diff(script.ends)) + epoch * (len(starts) - 1)
        found += zip(script.loads.tolist(), issued.tolist(), strict=True)
    return found, made


def _next(uses: Ints, since: int) -> int | None:
    later = uses[uses >= since]
    return int(later[0]) if len(later) else None


@dataclass(frozen=True)
class Reading:
    """Samples in the order in which they are read, when each is there, and when each batch is: in modelled seconds."""

    sample: Ints
    request: Ints  # that brings it, counted from 0
    seconds: Seconds
    used: Seconds  # when the next batch with it is there
    batches: Seconds


def one_by_one(samples: int, batch: int, epochs: int) -> Reading:
    """As PyTorch's loader reads: each sample by a request of its own, when its turn comes."""
    order = np.concatenate([distributed(samples).of(epoch) for epoch in range(epochs)]).astype(np.int64)
    step = np.arange(len(order)) // batch
    return _reading(order, step, step, 0)


def in_sweeps(samples: int, batch: int, share: float, epochs: int) -> Reading:
    """As a planned run reads: in the order of the file, and holes that take no longer than a request along with it."""
    of = distributed(samples)
    found, made = loads(of, batch, share, epochs)
    order, step = np.array(found, np.int64).T
    at = _uses(of, batch, epochs)
    used = np.array([_next(at[:, sample], before) for sample, before in found])
    return _reading(order, np.maximum(step, 1) - 1, used, DISK.gap if made.policy.gap is None else made.policy.gap)


def _reading(order: Ints, step: Ints, used: Ints, gap: int) -> Reading:
    """Of samples read in this order, each before its step: requests over holes below the gap, one after another."""
    hole = np.diff(order) * SAMPLE - SAMPLE
    joined = (hole >= 0) & (hole < gap)
    request = np.concatenate([[0], np.cumsum(~joined)])
    first, last = (np.flatnonzero(np.diff(request, **ends)) for ends in ({"prepend": -1}, {"append": -1}))
    nbytes = (order[last] - order[first] + 1) * SAMPLE
    took = np.maximum(DISK.request_seconds, nbytes / DISK.bandwidth)
    passed = (order - order[first][request] + 1) * SAMPLE / nbytes[request]
    seconds = np.cumsum(took)[request] - took[request] * (1 - passed)
    batches = seconds[np.searchsorted(step, np.arange(int(used.max()) + 1), side="right") - 1]
    return Reading(order, request, seconds, batches[used], batches)
