"""Finds out, from a few rows, how small the rows of a Layout become when encoded without loss."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import SolarError
from solar.io.reading.reader import Rows
from solar.io.reading.run import scratch_nbytes
from solar.values import Layout, RowPacking, Storage

log = logging.getLogger("solar")

NUMBERS = ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")  # that our codec encodes
ROW = range(4 << 10, 64 << 20)  # bytes: what lies beside a smaller row is much, and a larger one takes much memory
PACKS, UNPACKS = 120e6, 400e6  # values a second that one core encodes, and decodes; most are quicker
PACK_PREDICTORS = ("none", "x", "xy")
WORTH_FORETELLING = 0.9  # of the bytes, above which values are not foretold: that takes longer to decode
REQUESTS = range(8, 65)  # that a trial makes; where it would be fewer, the data set is too small to be tried
NEIGHBOURS = 4  # rows of a request, at most, as far as they take no longer than the request itself
TRIAL_SHARE = 0.1  # of the time that reading everything once takes: a trial takes no more
LEFT_OUT = (0, 1 / 64, 1 / 16)  # shares of the rows that may be too large for their pages
BESIDE = 8  # bytes of a page before what is encoded
ALIGNED, MARGIN = 64, 1 / 16  # of pages; and what they are larger than the largest row that was tried
WORTH = 1.25  # times smaller than they are, or rows are held as they are
AT_ONCE = 1 << 18  # bytes of rows that are read together
FAR_AT_ONCE, FAR_SHARE = 16 << 20, 8  # from afar: a round trip for all of them; or one part of so many of the memory
WAIT = 60.0  # seconds for a trial's rows; a storage that takes longer has other troubles


def may_be_packed(layout: Layout) -> bool:
    """Returns whether rows can be packed: each is a run of numbers in its file or in a chunk of several, and large
    enough.

    A chunk that is one row is held as it is stored.
    """
    if layout.reader != "direct" or layout.sample_nbytes not in ROW or layout.dtype.str[1:] not in NUMBERS:
        return False
    forms = layout.forms
    whole = all(form.chunk[1:] == layout.sample_shape for form in forms)
    return bool(forms) and whole and all(not form.filters or form.chunk[0] > 1 for form in forms)


def try_packing(layout: Layout, storage: Storage, share: float) -> RowPacking | None:
    """Returns how to hold rows packed, if memory has room for this share of them as they are; None if they cannot be.

    It reads a few rows from all over the Layout, always the same ones, so all ranks find the same. The rates are those
    of one core.
    """
    if not may_be_packed(layout):
        return None
    found = trial_rows(layout, storage)
    if not len(found):
        return None
    try:
        at_once = min(FAR_AT_ONCE, int(share * layout.nbytes) // FAR_SHARE) if layout.far else 0
        predictor, sizes = _trial_size(Rows(layout, native_order=True, mapped=False), found, max(at_once, AT_ONCE))
    except (SolarError, OSError) as error:  # who uses the row hears of it
        log.info("%s is not tried for packing: %s", layout.title, error)
        return None
    nbytes, lost = _page(sizes, layout.sample_nbytes, storage, share)
    if nbytes * WORTH > layout.sample_nbytes:
        return None
    size = layout.dtype.itemsize
    filtered = any(form.filters for form in layout.forms)
    scratch = scratch_nbytes(layout) if filtered else layout.sample_nbytes
    scratch += _native.pack_scratch(layout.sample_nbytes, size)
    number = layout.dtype.newbyteorder("=").str[1:]
    return RowPacking(number, predictor, nbytes, lost, PACKS * size, UNPACKS * size, scratch)


def on_cores(packing: RowPacking | None, cores: int) -> RowPacking | None:
    """Returns the packing with rates on this many cores of the node."""
    if packing is None:
        return None
    cores = min(cores, os.cpu_count() or cores)
    return replace(packing, encode=packing.encode * cores, decode=packing.decode * cores)


def trial_rows(layout: Layout, storage: Storage) -> NDArray[np.int64]:
    """Returns the rows of a trial, ascending; none if it would take too long compared with what it may save."""
    size = layout.sample_nbytes
    near = max(1, min(NEIGHBOURS, storage.gap // size))
    encoding = 2 * near * size / (PACKS * layout.dtype.itemsize)  # once, and some of them by each predictor
    chunk = max([0, *(form.chunk[0] for form in layout.forms if form.filters)]) * size
    each = max(storage.request_seconds, near * size / storage.bandwidth) + encoding + chunk / storage.decode
    scan = layout.nbytes / min(storage.bandwidth, storage.decode if chunk else storage.bandwidth)
    requests = min(REQUESTS[-1], layout.samples // near, int(TRIAL_SHARE * scan / each))
    if requests < REQUESTS[0]:
        return np.empty(0, np.int64)
    starts = np.arange(requests) * (layout.samples - near) // max(1, requests - 1)
    return np.unique(starts[:, None] + np.arange(near)).astype(np.int64)


def _trial_size(rows: Rows, wanted: NDArray[np.int64], at_once: int) -> tuple[str, NDArray[np.int64]]:
    """Returns the predictor that makes some of these rows smallest, if predicting is worth it, and each row's size."""
    few = wanted[:: max(1, len(wanted) // REQUESTS[0])]
    found = [{name: _sizes(values, name) for name in PACK_PREDICTORS} for values in read_trial_rows(rows, few, at_once)]
    nbytes = {name: sum(int(sizes[name].sum()) for sizes in found) for name in PACK_PREDICTORS}
    plain, best = PACK_PREDICTORS[0], min(PACK_PREDICTORS, key=lambda name: nbytes[name])
    predictor = best if nbytes[best] < WORTH_FORETELLING * nbytes[plain] else plain
    others = [_sizes(values, predictor) for values in read_trial_rows(rows, np.setdiff1d(wanted, few), at_once)]
    return predictor, np.concatenate([*(sizes[predictor] for sizes in found), *others])


def read_trial_rows(rows: Rows, wanted: NDArray[np.int64], at_once: int) -> Iterator[NDArray[np.generic]]:
    """Returns these rows, reading `at_once` bytes at a time."""
    most = max(1, at_once // rows.layout.sample_nbytes)
    most -= most % NEIGHBOURS if most > NEIGHBOURS else 0
    for begin in range(0, len(wanted), most):
        yield rows.start(wanted[begin : begin + most]).wait(WAIT)


def _sizes(rows: NDArray[np.generic], predictor: str) -> NDArray[np.int64]:
    """Returns the encoded size of each row."""
    return np.array([len(_native.encode(row, 0.0, "pack", predictor)) for row in rows], np.int64)


def _page(sizes: NDArray[np.int64], row: int, storage: Storage, share: float) -> tuple[int, float]:
    """Returns the bytes of a page, and the share of rows that are larger.

    With larger pages memory holds fewer rows, and a sweep costs that many more scans; with smaller ones more rows are
    read one by one.
    """
    sizes = np.sort(sizes)[::-1]
    found = []
    for left_out in LEFT_OUT:
        lost = int(left_out * len(sizes))
        nbytes = math.ceil((int(sizes[lost]) * (1 + MARGIN) + BESIDE) / ALIGNED) * ALIGNED
        scans = nbytes / row / (2 * share) + lost / len(sizes) * (1 + storage.gap / row)
        found.append((scans, nbytes, lost / len(sizes)))
    return min(found)[1:]
