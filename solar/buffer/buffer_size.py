"""Decides how large the buffer of a loader is, and whether it is worth having."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from solar.errors import PlanError
from solar.io.channels import detect
from solar.io.reading.engine import ROOM
from solar.io.system import memory as machine
from solar.io.system import profile
from solar.io.system.cores import reading_threads
from solar.io.system.quantities import size, size_of
from solar.planning.budget import Needs, divide_memory, wholes
from solar.values import Layout, Storage

if TYPE_CHECKING:
    from solar.samples.row_windows import RowWindows

Size: TypeAlias = int | float | str | None
Profile: TypeAlias = Storage | str | os.PathLike[str] | None

AUTO = "auto"
SERVICE_NBYTES = 1 << 62  # a service says itself whether its memory is enough
FITTING = "fits into the page cache, and samples are copied out of it"
FITS = "the files fit into the page cache"  # and nothing is decoded, as in most: there is nothing to say
FREE = 4  # one part of so many of the free memory is taken where nobody says how much
SMALL_PIECE, PIECE_SECONDS = 1024, 3e-7  # bytes of a sample that lie together: to find fewer takes longer than to copy
WORTH_A_BUFFER = 1.5  # times cheaper than without, or it is not taken
LEAST_EPOCH_SECONDS = 0.02  # by which an epoch is shorter at least: a plan takes some milliseconds, its start more
MODEL_EPOCHS = 3  # that are modelled


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


def kept_at_hand(layouts: Sequence[Layout], ranks: int) -> str:
    """Returns why a buffer gains nothing where a stage keeps all decoded and the page cache holds it; else nothing."""
    decoded = any(one.decoded is not None for one in layouts)
    plain = not any(form.filters for one in layouts for form in one.forms)
    return f"what the stage keeps decoded {FITTING}" if decoded and plain and fit_page_cache(layouts, ranks) else ""


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
    from solar.buffer.buffer_gain import model_gain  # loads the planner
    from solar.planning.regions import whole_region
    from solar.planning.units import of_layout

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


def small_pieces(layout: Layout) -> int:
    """Returns how many chunks a sample lies in, if finding its pieces takes longer than copying them; else 0."""
    chunks = [form.chunk[1:] for form in layout.forms if any(form.chunk)]
    pieces = [math.prod(-(-n // chunk) for n, chunk in zip(layout.sample_shape, one, strict=True)) for one in chunks]
    return max((one for one in pieces if one > 1 and layout.sample_nbytes < one * SMALL_PIECE), default=0)


def rows_per_sample(extents: RowWindows | None) -> int:
    """Returns how many rows make up a sample."""
    return 1 if extents is None else extents.slots
