"""What a buffer gains, or more knowledge of the order, modelled on smaller copies of the data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.buffer import buffer_size as sizing
from solar.buffer.buffer_size import MODEL_EPOCHS
from solar.planning.planned_passes import PlannedPasses
from solar.planning.units import Units, uniform
from solar.samples.row_windows import RowWindows
from solar.values import Storage

if TYPE_CHECKING:
    from solar.planning.torch_shuffles import ShuffledUses

WORTH_FORESIGHT = 0.95  # of the bytes, above which nobody is told that less could be read
FORESEEN = 6  # epochs that are modelled for it, at most
MIXED_BLOCK, MIXED_WORTH = 1 << 20, 0.5  # bytes of a block; of the exact shuffle's time, above which nobody is told
MODEL = 20_000  # samples of the small copy of the data set that is modelled


def model_gain(
    units: Units,
    batch: int,
    memory: int,
    storage: Storage,
    epochs: int | None = None,
    extents: RowWindows | None = None,
) -> tuple[float, float]:
    """Returns about how many seconds an epoch takes without a buffer, and with this much memory.

    It is modelled on a smaller copy of the data set with smaller batches, for a later epoch unless there is but one.
    """
    epochs = min(epochs or MODEL_EPOCHS, MODEL_EPOCHS)
    copy, batch, smaller = smaller_copy(units, batch)
    order, extents = _fewer(copy.samples, extents, smaller)
    terms: dict[str, Any] = {"batch": batch, "epochs": epochs, "extents": extents}
    from solar.planning.job import predicted  # a model of the buffer, where it is asked for

    without, with_it = (
        predicted(order, copy, storage, memory=room, **terms).seconds * smaller for room in (0, int(memory / smaller))
    )
    return without, with_it


def foresight(window: PlannedPasses, epochs: int | None) -> str:
    """Describes how much less these epochs would read if their number were known; empty if hardly less.

    It is modelled as a buffer's gain is, for the memory, batches and storage of this window.
    """
    if any(piece.in_blocks for piece in window.pieces):
        return ""  # blocks, of which no smaller copy is made
    from solar.planning.job import followed

    epochs = min(epochs or FORESEEN, FORESEEN)
    apart = rank_group = stored = 0.0
    held = [plan.region.units for plan in window.plans]
    for piece, units, room, storage in zip(window.pieces, held, window.shares, window.storages, strict=True):
        copy, batch, smaller = smaller_copy(units, window.batch)
        order, extents = _fewer(copy.samples, piece.extents, smaller)
        terms: dict[str, Any] = {"batch": batch, "memory": int(room / smaller), "epochs": epochs, "extents": extents}
        plans = [followed(order, copy, storage, **terms, known=known) for known in (1, epochs)]
        one, all_ = (plan.outcome(range(min(epochs, len(plan.epochs)))).bytes * smaller for plan in plans)
        apart, rank_group, stored = apart + one, rank_group + all_, stored + piece.units.total_nbytes
    if rank_group >= WORTH_FORESIGHT * apart:
        return ""
    return (
        "With a `generator` or a PlanSampler the next epochs would be known, and an epoch would read about "
        f"{rank_group / stored:.1f} times the data instead of {apart / stored:.1f}, as modelled."
    )


def mixed_gain(window: PlannedPasses, epochs: int | None) -> str:
    """Describes how much sooner an epoch would be read in a mixed order than in an exact shuffle; empty if not twice.

    It is modelled as `foresight` is, with blocks of about 1 MiB and windows of half the memory.
    """
    if any(piece.extents is not None or piece.dataset for piece in window.pieces):
        return ""  # samples of other kinds, or of several data sets, of which `solar plan --order mixed` says it
    from solar.planning.job import predicted
    from solar.planning.spread import REGIONS, regions_of_mixed, regions_of_shuffle
    from solar.planning.torch_shuffles import mixed_uses, random

    samples = window.pieces[0].region.items
    whole = sum(piece.units.sample_nbytes for piece in window.pieces)
    chunk = max(piece.units.per_unit for piece in window.pieces)
    block = -(-max(1, MIXED_BLOCK // max(1, whole)) // chunk) * chunk
    within = fitting_window(window) // 2
    if within < 2 * block or within >= samples:
        return ""
    exact = mixed = 0.0
    for piece, room, storage in zip(window.pieces, window.shares, window.storages, strict=True):
        copy, batch, smaller = smaller_copy(piece.units, window.batch)
        few = mixed_uses(copy.samples, min(block, copy.samples), max(block, int(within / smaller)), chunk)
        terms: dict[str, Any] = {"batch": batch, "memory": int(room / smaller), "epochs": min(epochs or 3, 3)}
        orders = random(copy.samples), few
        one, other = (predicted(order, copy, storage, **terms).seconds * smaller for order in orders)
        exact, mixed = exact + one, mixed + other
    if mixed > exact * MIXED_WORTH or exact < sizing.LEAST_EPOCH_SECONDS:
        return ""
    step = window.batch
    parts, usual = regions_of_mixed(samples, block, within, chunk, step), regions_of_shuffle(step)
    return (
        f'With PlanSampler(data, order="mixed", block={block}, window={within}) an epoch would be read in about '
        f"{mixed:.2g} s instead of {exact:.2g}, as modelled; {step} samples would come from {parts:.0f} of {REGIONS} "
        f"parts of the data instead of {usual:.0f}. See `solar plan FILE --order mixed` and docs/orders.md."
    )


def fitting_window(window: PlannedPasses) -> int:
    """Returns the largest window of a mixed order, in samples, that fits into the memory of these passes."""
    each = sum(piece.sample_nbytes for piece in window.pieces)
    return sum(window.shares) // max(1, each)


def _fewer(rows: int, extents: RowWindows | None, smaller: float) -> tuple[ShuffledUses, RowWindows | None]:
    """Returns the samples of a smaller copy with this many rows, used equally often, and their order."""
    from solar.planning.torch_shuffles import random

    if extents is None:
        return random(rows), None
    samples = max(1, min(rows, round(len(extents) / smaller)))
    column = np.zeros(1, np.int64)
    thin = RowWindows(np.array([0, samples]), column, column, column + rows, max(1, rows // samples), extents.fields)
    return random(samples), thin


def smaller_copy(units: Units, batch: int) -> tuple[Units, int, float]:
    """Returns a smaller copy of a data set, with smaller batches, and how many times smaller it is."""
    samples = min(units.samples, MODEL)
    smaller = units.samples / samples
    stored = max(1, units.total_nbytes // max(units.units, 1))
    copy = uniform(samples, units.sample_nbytes, per_unit=units.per_unit, stored=stored)
    copy = replace(copy, encoded=units.encoded, packing=units.packing)
    return copy, max(1, round(min(batch, units.samples) / smaller)), smaller
