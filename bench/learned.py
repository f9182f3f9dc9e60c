"""What the order of patches and the learned predictor gain: python -m bench.learned [--bounds 1e-2 1e-3] [SET ...]

Each set is encoded as the codec writes files, tables and patterns trained on every other sample and counted once:
in rows (the one built-in predictor that is smallest, without patches), by `auto`, and by `--predictor learned`, which
takes whatever is smallest for each tile. Every chunk is decoded and held against its bound. Rates are decoded bytes by
one thread's own time, the fastest of several passes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import geometric_mean as mean

import numpy as np

from bench import machine, records, tables
from bench.codec import beyond, chosen_sets, fastest
from bench.codec_fields import BOUNDS, Samples, span
from solar import _native

TRAIN = 64  # samples to train with
IN_ROWS = ("none", "x", "xy", "xyz", "interpolation")


@dataclass(frozen=True)
class Way:
    """A set's chunks by one predictor."""

    nbytes: int  # tables included
    learned: float  # share of tiles that what was learned foretells
    patched: float  # share of tiles in the order of patches
    decode_gbs: float
    beyond: int  # values that came back further off than the bound


@dataclass(frozen=True)
class Row:
    """One set by every way."""

    set: str
    bound: float  # of each sample's range; 0: lossless
    nbytes: int  # decoded
    rows: Way
    auto: Way
    learned: Way


def way(samples: Samples, bounds: list[float], predictor: str, seconds: float) -> Way:
    """The set by one predictor."""
    others = samples[::2][:: max(1, len(samples) // (2 * TRAIN))]
    tables = _native.train(others, float(np.median(bounds)), predictor)
    chunks = [_native.encode(one, bound, "auto", predictor, tables) for one, bound in zip(samples, bounds, strict=True)]
    back = [np.empty_like(one) for one in samples]

    def decode() -> None:
        for chunk, out in zip(chunks, back, strict=True):
            _native.decode_into(chunk, out, tables)

    took = fastest(decode, seconds)
    said = [_native.describe_codec(chunk) for chunk in chunks]
    tiles = sum(one[key] for one in said for key in ("raw", "constant", "pack", "dense"))
    learned, patched = (sum(one[key] for one in said) / max(1, tiles) for key in ("learned", "patched"))
    nbytes, decoded = len(tables) + sum(map(len, chunks)), sum(one.nbytes for one in samples)
    return Way(nbytes, learned, patched, decoded / took / 1e9, beyond(samples, back, bounds))


def row_of(name: str, share: float, samples: Samples, seconds: float = 0.3) -> Row:
    """What every way makes of one set."""
    samples = [np.ascontiguousarray(sample) for sample in samples]
    bounds = [share * span(sample) for sample in samples]
    rows = min((way(samples, bounds, one, seconds) for one in IN_ROWS), key=lambda done: done.nbytes)
    auto, learned = (way(samples, bounds, one, seconds) for one in ("auto", "learned"))
    return Row(name, share, sum(sample.nbytes for sample in samples), rows, auto, learned)


def gain(before: Way, after: Way) -> str:
    return f"{100 * (before.nbytes / after.nbytes - 1):+.1f} %"


def line(row: Row) -> str:
    ways = (row.rows, row.auto, row.learned)
    cells = [row.set, f"{row.bound:g}", f"{row.nbytes / row.rows.nbytes:.2f}",
             gain(row.rows, row.auto), f"{row.auto.patched:.0%}",
             gain(row.auto, row.learned), f"{row.learned.learned:.0%}",
             " / ".join(f"{one.decode_gbs:.1f}" for one in ways), str(sum(one.beyond for one in ways))]  # fmt: skip
    return tables.row(cells)


def summary(rows: list[Row]) -> str:
    auto = mean(row.rows.nbytes / row.auto.nbytes for row in rows)
    learned = mean(row.auto.nbytes / row.learned.nbytes for row in rows)
    slower = mean(row.learned.decode_gbs / row.auto.decode_gbs for row in rows)
    return f"Geometric means: auto over rows {auto:.3f}; learned over auto {learned:.3f}, at {slower:.2f} of its rate"


def main() -> None:
    parser = records.arguments("bench.learned", __doc__, "learned")
    parser.add_argument("sets", nargs="*", help="only these")
    parser.add_argument("--bounds", nargs="+", type=float, default=BOUNDS, help="shares of each sample's range")
    asked = parser.parse_args()
    ways = "set|bound:|ratio in rows:|auto over rows:|tiles in patches:|learned over auto:|tiles learned:"
    print(tables.heading(f"{ways}|GB/s, rows / auto / learned:|beyond:"))
    rows = []
    for name, made in chosen_sets(asked.sets, parser).items():
        samples = made()
        for share in (0.0,) if samples[0].dtype.kind in "iu" else asked.bounds[:1] if asked.quick else asked.bounds:
            rows.append(row_of(name, share, samples, 0.0 if asked.quick else 0.3))
            print(line(rows[-1]), flush=True)
    print(f"\n{summary(rows)}")
    facts = {"bench": "learned", **machine.described(asked.out.parent.parent)}
    for row in rows:
        records.append(asked.out, asdict(row) | facts)


if __name__ == "__main__":
    main()
