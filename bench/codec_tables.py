"""What python -m bench.codec found, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from bench.tables import Record, folded, parted, table, where

VERY_SMOOTH = {"smooth64", "femm_f64"}  # where interpolation over a whole field cannot be beaten by tiles
SZ3 = ("SZ3 interp", "SZ3 Lorenzo")
Cases = dict[tuple[str, float], dict[str, Record]]  # by set and bound the rows of the codecs


def codec(found: Iterable[Record], hidden: bool = False) -> str:
    """Of the last run, whose records were written together at its end. `hidden`: all sets behind their headings."""
    every = [one for one in found if "made" in one]
    made = [datetime.fromisoformat(one["made"]) for one in every]
    last = [one for one, at in zip(every, made, strict=True) if made[-1] - at < timedelta(minutes=1)]
    rows = [one for one in last if "ratio" in one]
    bounded, lossless = ([row for row in rows if bool(row["bound"]) is bound] for bound in (True, False))
    sets = {
        "Each set with each bound: the ratio, and GB/s of decoding on one core": _each_set(bounded),
        "Lossless, of whole numbers": _each_set(lossless),
    }
    shown = (folded(head, text) if hidden else parted(f"{head}:", text) for head, text in sets.items())
    return parted(where(every[-1]), summary(rows, [one for one in last if "two_decoders" in one]), *shown)


def summary(rows: Iterable[Record], scaling: Iterable[Record]) -> str:
    """All but the cases one by one."""
    rows = [*rows]
    threads = [
        (one["codec"], f"{one['batch']} MiB", f"{one['two_threads']:.2f}", f"{one['two_decoders']:.2f}")
        for one in scaling
    ]
    tables = (
        ("codec|against the better SZ3, geometric means of|ratio:|decoding:", _against_sz3(_cases(rows))),
        ("coder|encoding, MB/s, geometric mean:|the slowest", _encoding(rows)),
        ("coder|batch:|two reader threads of the loader against one:|two processes, each with the decoder alone:",
         threads),
    )  # fmt: skip
    return parted(*(table(head, some) for head, some in tables))


def _cases(rows: Iterable[Record]) -> Cases:
    cases: Cases = {}
    for row in rows:
        cases.setdefault((row["set"], row["bound"]), {})[row["codec"]] = row
    return cases


def _against_sz3(cases: Cases) -> list[Sequence[str]]:
    """Solar's paths against the smaller of SZ3's two, by geometric means over sets and bounds."""
    paths = sorted({name for found in cases.values() for name in found if name.split()[0] in {"pack", "dense"}})
    lines = []
    for sets in ("all sets but the very smooth", "very smooth sets", "all sets"):
        for path in paths:
            pairs = [
                (found[path], max((found[one] for one in SZ3 if one in found), key=lambda row: row["ratio"]))
                for (name, _), found in cases.items()
                if path in found and {*SZ3} & {*found}
                and (sets == "all sets" or (name in VERY_SMOOTH) is (sets == "very smooth sets"))
            ]  # fmt: skip
            if pairs:
                ratio, speed = (
                    statistics.geometric_mean(ours[of] / theirs[of] for ours, theirs in pairs)
                    for of in ("ratio", "decode_gbs")
                )
                lines.append((path, f"{sets}, {len(pairs)} cases", f"{ratio:.2f}", f"{speed:.1f}"))
    return lines


def _encoding(rows: list[Record]) -> list[Sequence[str]]:
    """Of each coder: the geometric mean over sets and bounds, and the slowest."""
    lines = []
    for coder in ("pack", "dense"):
        rates = {(row["set"], row["bound"]): row["encode_mbs"] for row in rows if row["codec"].split()[0] == coder}
        if rates:
            name, bound = slowest = min(rates, key=lambda case: rates[case])
            mean = statistics.geometric_mean(rates.values())
            lines.append((coder, f"{mean:.0f}", f"{rates[slowest]:.0f} ({name}, {bound:g})"))
    return lines


def _each_set(rows: list[Record]) -> str:
    """A line for each set and bound, a column for each codec: its ratio, and GB/s of decoding."""
    codecs = [name for name in dict.fromkeys(row["codec"] for row in rows) if "avx2" not in name]
    lines = ((name, f"{bound:g}", *(_cell(found.get(one)) for one in codecs)) for (name, bound), found in
             _cases(rows).items())  # fmt: skip
    return table("|".join(["set", "bound:", *(f"{one}:" for one in codecs)]), lines)


def _cell(row: Record | None) -> str:
    if row is None:
        return ""
    far = f", {row['beyond']:,} beyond" if row["beyond"] else ""
    return f"{row['ratio']:.3g} : 1, {row['decode_gbs']:.2g}{far}"
