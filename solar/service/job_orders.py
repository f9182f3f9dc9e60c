"""Checks the orders that jobs send, and counts the memory that all of them take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.channels.frames import Fault, Refused
from solar.io.system.quantities import size
from solar.planning.pass_uses import SampleUses
from solar.service.scheduler import ENTRIES
from solar.service.shared_data import SharedData
from solar.service.window import Member

FOR_TOLD, LEAST_FOR_TOLD = 8, 64 << 20  # beside the memory, one part of so many of it is for what is told; or so much
OF_TEXT = 33  # bytes that a byte of JSON takes at most, as Python's objects
MOST_PASSES, SHORT = 64, 1 << 20  # times that an order may have each sample, unless it has no more uses than this
OF_USE = np.dtype(np.int32).itemsize + np.dtype(np.uint8).itemsize + np.dtype(np.int64).itemsize  # a batch of one


def room_for_orders(memory: int) -> int:
    """Returns how many bytes a service with so much memory takes for what jobs tell it, all together.

    >>> room_for_orders(64 << 30) >> 30, room_for_orders(1 << 20) >> 20
    (8, 64)
    """
    return max(memory // FOR_TOLD, LEAST_FOR_TOLD)


def check_room(memory: int, taken: int, more: int) -> None:
    """Raises Refused if this many more bytes have no room beside what jobs have sent already."""
    if taken + more > (room := room_for_orders(memory)):
        raise Refused(
            f"what jobs tell of their samples and orders takes {size(taken)}, this would take {size(more)} more, and "
            f"{size(room)} is for that: give --memory {size(FOR_TOLD * (taken + more))} or more",
            again=True,
        )


def check_length(nbytes: int, data: SharedData) -> None:
    """Raises Refused if an order is longer than any pass of a training.

    Blocks, out of which samples are cut, may be used any number of times.
    """
    if any(one["held"] != ["rows"] for one in data.description[0]):
        return
    most = max(SHORT, MOST_PASSES * data.samples)
    if nbytes > most * OF_USE + 4096:  # its head
        raise Refused(
            f"an order of {nbytes:,} bytes for {data.samples:,} samples: a service takes one that has each sample "
            f"{MOST_PASSES} times, or {SHORT:,} in all; this training reads by itself"
        )


def order_nbytes(file_nbytes: int, several: bool) -> int:
    """Returns the memory of an order that was sent in this many bytes, with the copies that are made of it."""
    return file_nbytes * (3 if several else 2)


def ledger_nbytes(most: int) -> int:
    """Returns the memory of a member's ledger, for batches of up to `most` samples."""
    return ENTRIES * 4 * max(0, most)


def member_nbytes(member: Member) -> int:
    """Returns the memory of a member's orders and of its ledger."""
    orders = [*member.order.epochs]
    arrays = [one for uses in orders for one in (uses.which, uses.rows, uses.starts) if one is not None]
    return sum(one.nbytes for one in arrays) + ledger_nbytes(member.most)


def order_of_arrays(arrays: list[NDArray[Any]], data: SharedData) -> SampleUses:
    """Returns the order that these arrays hold. Raises Fault if they hold none."""
    datasets = 1 + max(piece.dataset for piece in data.pieces)
    if [one.dtype for one in arrays] != [np.int32, np.int64, np.uint8][: 2 + (datasets > 1)]:
        raise Fault("an order is rows, where batches begin, and of several data sets the number of each")
    rows, starts = arrays[0], arrays[1]
    which = arrays[2].astype(np.int64) if datasets > 1 and len(arrays[2]) == len(rows) else None
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(rows) or np.any(starts[1:] <= starts[:-1]):
        raise Fault("batches begin one after another, and have samples")
    if (which is None and datasets > 1) or int(rows.min()) < 0:
        raise Fault("an order with samples that there are not")
    for number in range(datasets):
        own = rows if which is None else rows[which == number]
        if len(own) and int(own.max()) >= data.samples_of(number):
            raise Fault("an order with samples that there are not")
    if which is not None and int(which.max()) >= datasets:
        raise Fault("an order with data sets that there are not")
    return SampleUses(which, rows, np.array(starts))
