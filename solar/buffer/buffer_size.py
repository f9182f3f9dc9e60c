"""Decides how large the buffer of a loader is, and whether it is worth having."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from solar.errors import PlanError
from solar.io.channels import detect
from solar.io.reading.engine import ROOM
from solar.io.system import memory as machine
from solar.io.system import profile
from solar.io.system.cores import reading_threads
from solar.io.system.quantities import size, size_of
from solar.planning.budget import Needs, divide_memory, wholes
from solar.planning.planned_passes import PlannedPasses
from solar.planning.regions import whole_region
from solar.planning.units import Units, of_layout, uniform
from solar.samples.row_windows import RowWindows
from solar.values import Layout, Storage

if TYPE_CHECKING:
    from solar.planning.torch_shuffles import ShuffledUses

Size: TypeAlias = int | float | str | None
Profile: TypeAlias = Storage | str | os.PathLike[str] | None

AUTO = "auto"
FITS = "the files fit into the page cache"  # and nothing is decoded, as in most: there is nothing to say
FREE = 4  # one part of so many of the free memory is taken where nobody says how much
SMALL_PIECE, PIECE_SECONDS = 1024, 3e-7  # bytes of a sample that lie together: to find fewer takes longer than to copy
WORTH_FORESIGHT = 0.95  # of the bytes, above which nobody is told that less could be read
FORESEEN = 6  # epochs that are modelled for it, at most
WORTH_A_BUFFER = 1.5  # times cheaper than without, or it is not taken
LEAST_EPOCH_SECONDS = (
    0.02  # that an epoch is shortened by at least: a buffer's plan takes some milliseconds, and its start more
)
MIXED_BLOCK, MIXED_WORTH = 1 << 20, 0.5  # bytes of a block; of the exact shuffle's time, above which nobody is told
MODEL, MODEL_EPOCHS = 20_000, 3  # samples of the small copy of the data set that is modelled; and its epochs


def requested_bytes(buffer: Size) -> int | None:
    """Returns the bytes that the ranks of a node may hold together; None: whatever is best."""
    if buffer is None or buffer == AUTO:
        return None
    there_is = machine.memory_nbytes()
    nbytes = in_bytes(buffer, there_is)
    if nbytes > there_is:
        raise PlanError(
            f"buffer={buffer!r}: this node has {size(there_is)} of memory (the limits of a container count); "
            "give a part of that, such as '25%'"
        )
    return nbytes


def in_bytes(value: int | float | str, there_is: int, name: str = "buffer") -> int:
    """Returns a size in bytes; a share is one of `there_is`. Raises PlanError or TypeError if it is no size."""
    if isinstance(value, str):
        try:
            return size_of(value, there_is)
        except PlanError as error:
            raise PlanError(f"{name}={value!r}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r}: give bytes, a size such as '8GiB', or a share such as '25%' or 0.25")
    if not value >= 0 or (isinstance(value, float) and value >= 1):
        raise PlanError(
            f"{name}={value!r}: bytes are a whole number from 0, and a share of the memory is above 0 and below 1"
        )
    return int(value * there_is) if isinstance(value, float) else value


GivenStorage = Storage | Mapping[str, tuple[Storage, str]] | None  # by the user, or found out before; by path


def checked_storage(storage: Profile) -> Storage | None:
    """Returns the Storage that was given, or the one in the profile that was named."""
    if storage is None or isinstance(storage, Storage):
        return storage
    return profile.load(storage)


def ranks_here() -> int:
    """Returns how many ranks share the memory of this node."""
    try:
        return detect().ranks_per_node
    except PlanError:  # which whoever needs to know the rank raises
        return 1


def decoding_storage(
    layout: Layout, value: GivenStorage, cores: int | None = None, *, warm: bool = False
) -> tuple[Storage, str]:
    """Returns the costs of reading and decoding on this many cores, and where they were measured.

    `warm`: the data are in the page cache.
    """
    if isinstance(value, Storage):
        storage, source = value, "as given"
    else:
        path = layout.paths[0]
        storage, source = (value or {}).get(path) or profile.stored_or_guessed(path)
    if warm:
        storage, source = replace(profile.MEMORY, decode=storage.decode), "the page cache"
    return profile.with_decoding(storage, layout, cores or reading_threads()), source


def storages_of(
    layouts: Sequence[Layout], value: GivenStorage, cores: int | None, *, warm: bool
) -> tuple[list[Storage], list[str]]:
    """Returns the storage of all layouts, and each source once."""
    storages, sources = zip(*(decoding_storage(layout, value, cores, warm=warm) for layout in layouts), strict=True)
    return list(storages), list(dict.fromkeys(sources))


def fit_page_cache(layouts: Sequence[Layout], ranks: int) -> bool:
    """Returns whether the page cache has room for these layouts, once for each rank of this node."""
    if any(one.far for one in layouts):
        return False  # which holds nothing of what is fetched
    return sum(one.stored_nbytes for one in layouts) <= ROOM * machine.page_cache_nbytes() / ranks


def auto(
    reads: Sequence[tuple[Layout, RowWindows | None]],
    batch: int,
    value: GivenStorage,
    needs: Needs,
    ranks: int,
    epochs: int | None,
) -> tuple[int, str]:
    """Chooses the bytes of a buffer if the user gave none, or 0, and says why. Each rank of this node has its own."""
    layouts = [layout for layout, _ in reads]
    fits = fit_page_cache(layouts, ranks)
    everything = sum(layout.nbytes + 16 * batch * rows_per_sample(own) * layout.sample_nbytes for layout, own in reads)
    everything += everything // 8
    memory = min(machine.free_nbytes() // FREE // ranks, everything)
    if fits and not any(form.filters for one in layouts for form in one.forms):
        pieces = sum(layout.samples * small_pieces(layout) for layout in layouts)
        if epochs == 1 or memory < max(everything, needs.least) or pieces * PIECE_SECONDS <= LEAST_EPOCH_SECONDS:
            return 0, FITS
        return memory, "samples are put together from many small pieces once, not in each epoch"
    if memory < needs.least:
        return 0, f"{size(memory)} of the memory could be had, and the batches alone take {size(needs.least)}"
    units = [of_layout(layout) for layout in layouts]
    stored = sum(one.total_nbytes for one in units)
    kept = divide_memory(memory, batch, [needs], wholes([whole_region(one) for one in units])).parts
    without = with_it = 0.0
    for (layout, extents), one in zip(reads, units, strict=True):
        storage = decoding_storage(layout, value, warm=fits)[0]
        memory_of_it = kept * one.total_nbytes // max(stored, 1)
        plain, swept = model_gain(one, batch, memory_of_it, storage, epochs, extents)
        without, with_it = without + plain, with_it + swept
    if without < max(with_it + LEAST_EPOCH_SECONDS, WORTH_A_BUFFER * with_it):
        return 0, f"an epoch would take about {without:.2g} s without a buffer, {with_it:.2g} s with {size(memory)}"
    act = "copied and checked" if all(one.stays_encoded for one in layouts) else "decoded"
    why = f"chunks are {act} less often" if fits else "the files do not fit into the page cache"
    return memory, f"{why}: an epoch takes about {with_it:.2g} s instead of {without:.2g} s"


def small_pieces(layout: Layout) -> int:
    """Returns how many chunks a sample lies in, if finding its pieces takes longer than copying them; else 0."""
    chunks = [form.chunk[1:] for form in layout.forms if any(form.chunk)]
    pieces = [math.prod(-(-n // chunk) for n, chunk in zip(layout.sample_shape, one, strict=True)) for one in chunks]
    return max((one for one in pieces if one > 1 and layout.sample_nbytes < one * SMALL_PIECE), default=0)


def all_of_it(
    held: Sequence[Layout],
    wanted: int,
    value: GivenStorage,
    needs: Needs,
    ranks: int,
    epochs: int | None,
    tables: int,
) -> tuple[int, str]:
    """Chooses the bytes for boxes and ragged samples, of which a buffer holds all or nothing, and says why.

    `tables` are the bytes in which a process keeps where they lie. No smaller copy of such data can be modelled; with
    everything held, each chunk is decoded once.
    """
    if not any(form.filters for one in held for form in one.forms):
        return 0, FITS if fit_page_cache(held, ranks) else "what is not encoded is held where buffer= says how much"
    there_is = machine.free_nbytes() // FREE // ranks
    everything = sum(layout.nbytes for layout in held)
    memory = everything + everything // 8 + 2 * tables + 3 * needs.least  # some batches are ready
    if memory > there_is:
        return (
            0,
            f"to hold all of it takes {size(memory)}, and {size(there_is)} could be had; buffer= holds a part",
        )
    storages, _ = storages_of(held, value, None, warm=fit_page_cache(held, ranks))
    rate = min(one.decode for one in storages)
    without, with_it = wanted / rate, everything / rate / (epochs or MODEL_EPOCHS)
    if without < max(with_it + LEAST_EPOCH_SECONDS, WORTH_A_BUFFER * with_it):
        return 0, f"an epoch decodes {size(wanted)} without a buffer, and all of it is {size(everything)}"
    return memory, f"each chunk is decoded once, where an epoch would decode {size(wanted)} or more"


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
        one, all_ = (plan.outcome(range(epochs)).bytes * smaller for plan in plans)
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
    if mixed > exact * MIXED_WORTH or exact < LEAST_EPOCH_SECONDS:
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


def rows_per_sample(extents: RowWindows | None) -> int:
    """Returns how many rows make up a sample."""
    return 1 if extents is None else extents.slots


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
