"""Tables of records of python -m bench.shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.tables import Record, folded, mebibytes, newest, not_counted, parted, rate, setting, table, where

FORMATS = ("lance", "b2nd", "zarr", "anndata", "scdataset", "annbatch")  # those that people leave h5py for
FRAMES = {"every 1": "every frame", "every 2": "every second frame"}  # of clips
OURS = ("solar", "solar_stage")
OWN_ORDER = ("scdataset_blocks", "annbatch_blocks")  # no exact shuffle: shown, but never the best other reader
HEAD = (
    "samples|memory|best other reader, epochs after the first|samples/s:|solar:|×:|first epoch, best other:|solar:|×:|"
    "limit:|solar's, of it:"
)
Key = tuple[str, int]  # scene, variant


def shapes(found: Iterable[Record]) -> str:
    """solar beside the best others, where it loses first; all readers; formats; who did not run."""
    found = [*found]
    return parted(contested(found), readers(found), formats(found), left_out(found))


def beside_others(found: Iterable[Record], titles: dict[Key, str]) -> str:
    """What the page of benchmarks has: where it was measured, solar beside the best others, and who did not run.

    `titles`: of all scenes and variants; those without a record are rows that say so.
    """
    found = [*found]
    on = [where(one) for one in found if "machine" in one][-1:]
    return parted(*on, folded("Solar beside the best other reader", contested(found, titles)), left_out(found))


def contested(found: Iterable[Record], titles: dict[Key, str] | None = None) -> str:
    by = by_variant(found)
    rows = sorted((row for of in by.values() for row in contests(of)), key=lambda row: row[0])
    none = [(title, "", "not recorded", *[""] * 8) for key, title in (titles or {}).items() if key not in by]
    return table(HEAD, [*(cells for _, cells in rows), *none])


def left_out(found: Iterable[Record]) -> str:
    return not_counted(
        {(one["scene"], one["peer"], one.get("failed"), one.get("skipped")): one for one in found}.values()
    )


def named(one: Record) -> str:
    return ", ".join(part for part in (one["title"], FRAMES.get(one["what"], one["what"])) if part)


def others(of: Iterable[Record]) -> list[Record]:
    """Those that hand out an exact shuffle of the same samples, as solar does."""
    return [one for one in of if one["peer"] not in (*OURS, "limit", *OWN_ORDER)]


def by_variant(found: Iterable[Record]) -> dict[Key, list[Record]]:
    """For each scene and variant the newest record of each reader with each memory."""
    by: dict[Key, list[Record]] = {}
    for one in newest(found, "scene", "variant", "peer", "share"):
        if "later" in one:
            by.setdefault((one["scene"], one["variant"]), []).append(one)
    return by


def beside_formats(found: Iterable[Record]) -> list[tuple[str, str, float]]:
    """Where another format was read, too: the samples and the memory, the best of the formats, and solar's gain on it.

    Where solar chooses its memory, so do the others, and a stage is left out. Memory for all the data is left out:
    formats keep nothing in it, and a copy in RAM, which does, is none.
    """
    made = []
    for of in by_variant(found).values():
        for ours in (one for one in of if one["peer"] in OURS and one["share"] != 1):
            share, stage = ours["share"], ", a stage" if ours["peer"] == "solar_stage" else ""
            if stage and share is None:
                continue  # the picture is long enough
            beside = [one for one in others(of) if one["peer"] in FORMATS and (share is None or one["share"] <= share)]
            if beside:
                best = max(beside, key=lambda one: one["later"])
                memory = "as each likes" if share is None else f"for {share:.0%}"
                made.append((f"{named(ours)}, memory {memory}{stage}", best["label"], ours["later"] / best["later"]))
    return sorted(made, key=lambda one: one[2])


def contests(of: list[Record]) -> Iterable[tuple[float, tuple[object, ...]]]:
    """A row for each share of the data that solar had in memory: others had as much, or less.

    Where solar chooses, others have as much as they like.
    """
    limits = [one["later"] for one in of if one["peer"] == "limit"]
    for ours in (one for one in of if one["peer"] in OURS):
        share = ours["share"]
        found = [one for one in others(of) if share is None or one["share"] <= share]
        later = max(found, key=lambda one: one["later"], default=None)
        first = max(found, key=lambda one: one["first"], default=None)
        times = ours["later"] / later["later"] if later else float("inf")
        memory = ("as each likes" if share is None else f"{share:g}") + ", stage" * (ours["peer"] == "solar_stage")
        yield times, (
            named(ours), memory, later["label"] if later else "–", rate(later["later"]) if later else "–",
            rate(ours["later"]), f"{times:.1f}" if later else "–",
            f"{first['label']}, {rate(first['first'])}" if first else "–", rate(ours["first"]),
            f"{ours['first'] / first['first']:.1f}" if first else "–",
            rate(max(limits)) if limits else "–", f"{ours['later'] / max(limits):.2f}" if limits else "–",
        )  # fmt: skip


def readers(found: Iterable[Record]) -> str:
    """All that ran, the fastest first."""
    rows = (
        (named(one), reader(one), "as it likes" if one["share"] is None else f"{one['share']:g}", rate(one["first"]),
         rate(one["later"]), mebibytes(one["memory"]), said(one))
        for of in by_variant(found).values() for one in sorted(of, key=lambda one: -one["later"])
    )  # fmt: skip
    return table("samples|reader|memory|first epoch, samples/s:|later epochs:|its own MiB:|setting", rows)


def reader(one: Record) -> str:
    """With its version, of those that are not in every record."""
    return f"{one['label']} {one.get('version', '')}".strip()


def said(one: Record) -> str:
    """The setting that was best, with the form of its format."""
    parts = [*([one["form"]] if one["form"] != "file" else []), *([setting(one)] if one["setting"] else [])]
    return ", ".join(parts) or "default"


def formats(found: Iterable[Record]) -> str:
    """What each format takes on the disk, and what making it took."""
    rows: dict[tuple[Any, ...], tuple[object, ...]] = {}
    for one in (one for of in by_variant(found).values() for one in of):
        label = "HDF5" if one["form"] == "file" else one["form"].replace("_", ", ")
        conversion = f"{one['conversion']:.1f}" if "conversion" in one else "–"
        rows[one["title"], label] = (
            one["title"], label, mebibytes(one["disk"]), f"{one['nbytes'] / one['disk']:.2f}", conversion
        )  # fmt: skip
    return table("data|format|MiB on the disk:|: 1:|conversion, s:", rows.values())
