"""What a learned predictor would gain: python -m bench.learned [--bounds 1e-2 1e-3] [--json FILE] [SET ...]

After AE-SZ, without its network: each patch of 8 x 8 or 4 x 4 x 4 values is foretold from one to eight integers of its
own (latents) by a basis of bytes, learned once from the data set. Latents, and what the prediction leaves, go through
our coders. Its values' integers are those of the built-in predictors, the decoder's arithmetic is of integers alone,
and each tile is decoded and held against the bound. Sizes hold everything: headers, tables and basis, once each.

"patches" is the control: built-in predictors, but residuals in the order of the same patches, and nothing learned.
Gains are over the codec as it is; "or learned", "or patches": over the better of the codec and this bench's tiles,
where each tile may take it. "learned beside patches": over "or patches".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.codec_fields import BOUNDS, Samples, all_sets, mean, span
from bench.learned_parts import HEAD, Basis, Coded, Scale, Tile, bases, coded, foretold, in_patches, patches, tiles_of
from solar import _native

LOOK, TRAIN = 8, 64  # tiles from all over a set: to choose a basis by, to train tables with


@dataclass(frozen=True)
class Row:
    """The bytes of one set's chunks, by what foretells their values."""

    set: str
    bound: float  # of each sample's range; 0: lossless
    nbytes: int  # decoded
    as_is: int  # the codec's own choice, also of the tiles' shape
    built_in: int  # the same predictors on this bench's tiles
    patches: int
    learned: int
    either: int  # of each tile the smaller of built_in and learned; here and below with the tables of each
    without: int  # of each tile the smaller of built_in and patches
    all: int  # of each tile the smallest
    latents: int  # of a patch
    basis: int  # bytes, counted in `learned`
    beyond: int  # values that came back further off than the bound, of what patches and learned made

    @property
    def known(self) -> int:
        """Without a new predictor: what other tiles gain is no merit of it."""
        return min(self.as_is, self.built_in)

    @property
    def offered(self) -> int:
        """With the learned predictor to choose from."""
        return min(self.known, self.learned, self.either)

    @property
    def ordered(self) -> int:
        """With patches to choose from."""
        return min(self.known, self.patches, self.without)


def some(of: list[Any], count: int) -> list[Any]:
    """About so many, evenly."""
    return of[:: max(1, len(of) // count)]


def choose(tiles: list[Tile]) -> Basis:
    """The basis that makes some of the tiles smallest."""
    looked = some(tiles, LOOK)
    cut = np.concatenate([patches(tile.integers) for tile in tiles])
    return min(bases(cut), key=lambda basis: sum(coded(tile, foretold(tile, basis)).nbytes for tile in looked))


def by_tiles(tiles: list[Tile], plans: list[list[Any]]) -> tuple[list[Coded], int]:
    """Each tile by the best of its plans, and the bytes of tables: trained on these, where that makes all smaller."""
    plain = [coded(tile, ways) for tile, ways in zip(tiles, plans, strict=True)]
    tables = _native.train([array for done in some(plain, TRAIN) for array in done.plan.streams], 0.0)
    trained = [coded(tile, ways, tables) for tile, ways in zip(tiles, plans, strict=True)]
    better = sum(done.nbytes for done in trained) + len(tables) < sum(done.nbytes for done in plain)
    return (trained, len(tables)) if better else (plain, 0)


def by_codec(arrays: Samples, bounds: list[float]) -> tuple[list[int], int]:
    """Each array's bytes in the codec as it is, and those of tables: trained, where that makes all smaller."""
    tables = _native.train(some(arrays, TRAIN), float(np.median(bounds)))
    plain, trained = (
        [len(_native.encode(array, bound, "auto", "auto", known)) for array, bound in zip(arrays, bounds, strict=True)]
        for known in (b"", tables)
    )
    return (trained, len(tables)) if sum(trained) + len(tables) < sum(plain) else (plain, 0)


def least(*columns: list[int]) -> int:
    return sum(map(min, zip(*columns, strict=True)))


def row_of(name: str, share: float, samples: Samples) -> Row:
    bounds = [share * span(sample) for sample in samples]
    tiles = [
        Tile.of(values, Scale.of(_native.encode(sample, bound)))
        for sample, bound in zip(samples, bounds, strict=True)
        for values in tiles_of(sample)
    ]
    basis = choose(tiles)
    whole, whole_tables = by_codec(samples, bounds)
    sizes, tables = by_codec([tile.values for tile in tiles], [tile.scale.bound for tile in tiles])
    ordered, ordered_tables = by_tiles(tiles, [in_patches(tile) for tile in tiles])
    learned, learned_tables = by_tiles(tiles, [foretold(tile, basis) for tile in tiles])
    once = HEAD * len(samples)
    ours = [size - HEAD for size in sizes]
    theirs, plain = ([done.nbytes for done in way] for way in (learned, ordered))
    return Row(
        name, share, sum(sample.nbytes for sample in samples),
        as_is=sum(whole) + whole_tables,
        built_in=once + sum(ours) + tables,
        patches=once + sum(plain) + ordered_tables,
        learned=once + sum(theirs) + learned_tables + basis.nbytes,
        either=once + least(ours, theirs) + tables + learned_tables + basis.nbytes,
        without=once + least(ours, plain) + tables + ordered_tables,
        all=once + least(ours, plain, theirs) + tables + ordered_tables + learned_tables + basis.nbytes,
        latents=len(basis.patterns), basis=basis.nbytes,
        beyond=sum(done.beyond(tile) for way in (ordered, learned) for tile, done in zip(tiles, way, strict=True)),
    )  # fmt: skip


def gain(before: int, after: int) -> str:
    return f"{100 * (before / after - 1):+.1f} %"


def line(row: Row) -> str:
    cells = [row.set, f"{row.bound:g}", f"{row.nbytes / row.as_is:.2f}",
             *(gain(row.as_is, size) for size in (row.built_in, row.patches, row.learned)),
             gain(row.known, row.offered), gain(row.known, row.ordered),
             gain(row.ordered, min(row.ordered, row.offered, row.all)),
             str(row.latents), str(row.basis), str(row.beyond)]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[Row]) -> str:
    alone = mean(row.as_is / row.learned for row in rows)
    chosen = mean(row.known / row.offered for row in rows)
    control = mean(row.known / row.ordered for row in rows)
    return f"Geometric means: learned alone {alone:.3f}; to choose from: learned {chosen:.3f}, patches {control:.3f}"


def rows_of(names: Iterable[str], bounds: Iterable[float]) -> Iterator[Row]:
    known = all_sets()
    for name in names:
        samples = known[name]()
        for share in (0.0,) if samples[0].dtype.kind in "iu" else bounds:
            yield row_of(name, share, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help="only these")
    parser.add_argument("--bounds", nargs="+", type=float, default=BOUNDS, help="shares of each sample's range")
    parser.add_argument("--json", type=Path, help="append all rows to this file, a line each")
    asked = parser.parse_args()
    known = all_sets()
    if unknown := set(asked.sets) - set(known):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print("| set | bound | ratio as it is | same tiles | patches | learned | or learned | or patches "
          "| learned beside patches | latents | basis, bytes | beyond |\n" + "| --- " * 12 + "|")  # fmt: skip
    rows = []
    for row in rows_of(asked.sets or known, asked.bounds):
        print(line(row), flush=True)
        rows.append(row)
    print(f"\n{summary(rows)}")
    if asked.json:
        with asked.json.open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


if __name__ == "__main__":
    main()
