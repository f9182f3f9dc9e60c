"""What a stage keeps of local files whose chunks take long to decode: the chunks, decoded.

Each file has a stage file of its own, in which its chunks lie one after another in whole blocks. A Layout then names
these places, and no filters. Native code decodes what is not there yet (native/include/solar/decoded.hpp).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.reading.engine import native_form
from solar.io.reading.stage import STAGE_BLOCK, Became, StageFolder, Tier, became_of_tiers, hash_of, lock_folder
from solar.values import DecodedChunks, Layout

Places = NDArray[np.int64]


def decoded_layout(layout: Layout, tier: Tier) -> Layout:
    """Returns the Layout of what a stage keeps decoded. Files for which it has no room, or that have nothing to be
    decoded, are as they were.
    """
    chunks = decoded_chunks(layout, tier)
    if chunks is None:
        return layout
    stages = _stages(chunks)
    kept = np.array([stage is not None for stage in stages])
    return layout if not kept.any() else _as_kept(replace(chunks, files=kept))


def decoded_nbytes(layout: Layout) -> int:
    """Returns the bytes that a stage takes to keep all its chunks decoded; 0 if there are none to be decoded."""
    chunks = decoded_chunks(layout, Tier(""))
    return 0 if chunks is None else int(chunks.nbytes[chunks.files].sum())


def decoded_chunks(layout: Layout, tier: Tier) -> DecodedChunks | None:
    """Returns the places of all chunks of files of which all parts have filters; None if there are no such files."""
    filtered = np.array([bool(form.filters) for form in layout.forms], bool)
    apart = layout.reader != "direct" or layout.far or layout.dtype.hasobject or layout.stays_encoded
    if apart or len(layout.chunk_file) or not len(layout.chunk_offset) or not filtered.any():
        return None
    files = np.bincount(layout.part_file, ~filtered[layout.part_form], len(layout.paths)) == 0
    blocks = -(-_sizes(layout) // STAGE_BLOCK)[_form_of_chunks(layout)]
    of = _file_of_chunks(layout)
    nbytes = np.bincount(of, blocks, len(layout.paths)).astype(np.int64) * STAGE_BLOCK
    order = np.argsort(of, kind="stable")
    before = np.cumsum(blocks[order]) - blocks[order]
    first = np.cumsum(nbytes) - nbytes
    begin = np.empty(len(blocks), np.uint64)
    begin[order] = before * STAGE_BLOCK - first[of[order]]
    files &= nbytes > 0
    return DecodedChunks(layout, files, begin, nbytes, (tier.folder, tier.nbytes)) if files.any() else None


def native_files(chunks: DecodedChunks) -> list[tuple[_native.DecodedFile, _native.Stage | None] | None]:
    """Returns the native form of what is kept of each file, and its stage if that is there."""
    layout, sizes = chunks.stored, _sizes(chunks.stored)
    forms = [
        (native_form(form, layout.dtype)[1], layout.dtype.itemsize, form.nbytes or size, _in_blocks(size))
        for form, size in zip(layout.forms, sizes.tolist(), strict=True)
        if form.filters
    ]
    number = np.cumsum([bool(form.filters) for form in layout.forms]) - 1
    form_of, file_of = number[_form_of_chunks(layout)].astype(np.int32), _file_of_chunks(layout)
    found: list[tuple[_native.DecodedFile, _native.Stage | None] | None] = []
    for at, stage in enumerate(_stages(chunks)):
        if not chunks.files[at]:
            found.append(None)
            continue
        own = np.flatnonzero(file_of == at)
        file = _native.DecodedFile(
            int(chunks.nbytes[at]),
            forms,
            chunks.begin[own],
            layout.chunk_offset[own],
            layout.chunk_nbytes[own],
            layout.chunk_mask[own],
            form_of[own],
            int(layout.file_nbytes[at]),
        )
        found.append((file, stage))
    return found


def _stages(chunks: DecodedChunks) -> list[_native.Stage | None]:
    """Returns the stage of each file; None if there is none, or no room for one."""
    tier, layout = Tier(*chunks.stage, decoded=True), chunks.stored
    became = became_of_tiers.setdefault(tier, Became())
    found: list[_native.Stage | None] = [None] * len(layout.paths)
    try:
        with lock_folder(tier) as folder:
            opened = StageFolder(folder, tier, became)
            for at in np.flatnonzero(chunks.files).tolist():
                found[at] = opened.decoded(layout, at, _key(chunks, at), int(chunks.nbytes[at]))
    except OSError as error:
        became.problems[f"{error.strerror or error}"] = None
    return found


def _key(chunks: DecodedChunks, at: int) -> bytes:
    """Returns what tells the chunks of a file from those of its other datasets."""
    layout = chunks.stored
    own = np.flatnonzero(_file_of_chunks(layout) == at)
    forms, form_of = np.unique(_form_of_chunks(layout)[own], return_inverse=True)
    arrays = (layout.chunk_offset[own], layout.chunk_nbytes[own], layout.chunk_mask[own], form_of)
    facts = [(layout.forms[one], layout.dtype.itemsize) for one in forms.tolist()]
    return hash_of(repr(facts).encode() + b"".join(one.astype("<u8").tobytes() for one in arrays))


def _as_kept(chunks: DecodedChunks) -> Layout:
    """Returns the Layout whose offsets are those of the chunks that are kept."""
    layout = chunks.stored
    plain = tuple(replace(form, filters=(), nbytes=0) for form in layout.forms)
    of_part = layout.part_form + len(layout.forms) * chunks.files[layout.part_file]
    used, part_form = np.unique(of_part, return_inverse=True)
    every, kept = (*layout.forms, *plain), chunks.files[_file_of_chunks(layout)]
    return replace(
        layout,
        forms=tuple(every[one] for one in used.tolist()),
        part_form=part_form.astype(np.int32),
        chunk_offset=np.where(kept, chunks.begin, layout.chunk_offset),
        chunk_nbytes=np.where(kept, _sizes(layout)[_form_of_chunks(layout)].astype(np.uint64), layout.chunk_nbytes),
        chunk_mask=np.where(kept, np.uint32(0), layout.chunk_mask),
        decoded=chunks,
    )


def _sizes(layout: Layout) -> Places:
    """Returns the bytes of a chunk of each form."""
    return np.array([math.prod(form.chunk) * layout.dtype.itemsize for form in layout.forms], np.int64)


def _in_blocks(nbytes: int) -> int:
    return -(-nbytes // STAGE_BLOCK) * STAGE_BLOCK


def _form_of_chunks(layout: Layout) -> NDArray[np.int32]:
    return np.repeat(layout.part_form, np.diff(layout.part_chunks))


def _file_of_chunks(layout: Layout) -> NDArray[np.int32]:
    return np.repeat(layout.part_file, np.diff(layout.part_chunks))
