"""Whether what is planned may be held packed: a trial of each dataset, with one result on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solar.extents import Extents
from solar.io.read.run import threads
from solar.io.read.trial import may_be_packed, on_cores, tried
from solar.planner.course import Plan
from solar.planner.planned_passes import Piece, packed_ratio
from solar.torch.buffer.group import RankGroup
from solar.values import Layout, RowPacking, Storage


def packings(
    pieces: Sequence[Piece],
    layouts: Sequence[Layout],
    storages: Sequence[Storage],
    memory: int,
    together: RankGroup | None,
) -> list[RowPacking | None]:
    """How each of these pieces of these Layouts may be held packed, with so much memory; None: it may not.

    Ranks that read together do so only where all of them found the same.
    """
    pairs = zip(pieces, layouts, strict=True)
    # Blocks are cut where they lie.
    asked = [may_be_packed(one) and isinstance(own.extents, Extents | None) for own, one in pairs]
    if not any(asked):
        return [None] * len(pieces)
    share = memory / sum(piece.region.items * piece.units.sample_nbytes for piece in pieces)
    found = [
        tried(layout, storage, share) if may and share < 1 else None
        for layout, storage, may in zip(layouts, storages, asked, strict=True)
    ]
    if together is None:
        return [on_cores(one, threads()) for one in found]
    pages = {str(at): one.nbytes if one else 0 for at, one in enumerate(found)}
    least = together.least({"cores": threads(), **pages, **{f"-{at}": -page for at, page in pages.items()}})
    most = {at: -least[f"-{at}"] for at in pages}
    cores = least["cores"] * len(together.names)
    return [on_cores(one, cores) if least[at] == most[at] else None for at, one in zip(pages, found, strict=True)]


def with_packings(pieces: Sequence[Piece], found: Sequence[RowPacking | None]) -> list[Piece]:
    """The pieces with what a trial found for each."""
    return [replace(piece, packing=how) for piece, how in zip(pieces, found, strict=True)]


def held_in_words(plans: Sequence[Plan]) -> str:
    """How these hold samples, where that is not as they are."""
    said = packed_ratio(plans)
    return said and f"The buffer holds samples {said}: encoded when they are read, decoded when they are used."
