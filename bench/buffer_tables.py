"""Tables of records of python -m bench.buffer; and the short one of it and of python -m bench, for README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.tables import (
    Record,
    by_scene,
    contest,
    mebibytes,
    parted,
    rate,
    ratio,
    setting,
    shown_of,
    table,
    times,
)  # fmt: skip

TIE = 1.1  # times as fast as the best other: no more than that is a tie
NONE = "Nothing was recorded yet on a quiet machine by today's rules: `python -m bench.matrix --record` does."


def buffered(found: Iterable[Record], titles: dict[Key, str] | None = None) -> str:
    """A row for each reader of each scene, and before it the scenes, where we gain least first.

    `titles`: of all scenes and the shares of their data that fit into memory; those without a record say so.
    """
    found = [one for one in found if "median" in one]
    by = {(one["scene"], one["fraction"], one["peer"]): one for one in found}
    rows = (
        (f"{one['title']}, {one['fraction']:g}", one["label"], rate(one["median"]), rate(one["steady"]),
         " ".join(f"{each:.2f}" for each in one.get("scans", ())), mebibytes(one["peak_rss"]), setting(one, " "))
        for one in by.values()
    )  # fmt: skip
    head = "scene, memory|reader|whole runs, samples/s:|epochs alone:|scans of each epoch:|peak MiB:|setting"
    return parted(_gains(found, titles or {}), table(head, rows))


Key = tuple[str, float]  # a scene, and the share of its data that fits into memory
Contest = tuple[float, str, dict[str, Record]]  # solar's gain, the scene's title, and who was measured


def contests(found: Iterable[Record]) -> dict[Key, Contest]:
    """Of each scene with so much memory, where we gain least first."""
    by: dict[Key, dict[str, Record]] = {}
    for one in found:
        if "median" in one:
            by.setdefault((one["scene"], one["fraction"]), {})[one["peer"]] = one
    made: dict[Key, Contest] = {}
    for (scene, fraction), of in by.items():
        if not any(peer.startswith("solar") for peer in of):
            continue  # ended before we had our turn
        # PyTorch of any memory, where it makes no difference to it.
        torch = [some["torch"] for (name, _), some in by.items() if name == scene and "torch" in some]
        of = {"torch": torch[0], **of} if torch else of
        best, solar = best_other(of), of.get("solar")
        gain = solar["median"] / best["median"] if solar and best else float("inf")
        made[scene, fraction] = (gain, f"{next(iter(of.values()))['title']}, {fraction:g}", of)
    return dict(sorted(made.items(), key=lambda pair: pair[1][0]))


def best_other(of: dict[str, Record]) -> Record | None:
    found = [one for peer, one in of.items() if not peer.startswith("solar")]
    return max(found, key=lambda one: one["median"], default=None)


def _gains(found: Iterable[Record], titles: dict[Key, str]) -> str:
    made = contests(found)
    rows = [
        (title, best["label"] if (best := best_other(of)) else "–", shown_of(best), shown_of(of.get("solar")),
         times(of.get("solar"), best), times(of.get("solar"), of.get("windowed")), shown_of(of.get("solar_known")),
         times(of.get("solar_known"), best), times(of.get("solar_known"), of.get("windowed")))
        for _, title, of in made.values()
    ]  # fmt: skip
    none = [(f"{title}, {key[1]:g}", "not recorded", *[""] * 7) for key, title in titles.items() if key not in made]
    head = (
        "scene, memory|best other reader|samples/s:|solar, shuffle=True:|×:|× windowed:|"
        "solar, all orders known:|×:|× windowed:"
    )
    return table(head, [*rows, *none])


def short(rated: list[Record], kept: list[Record], scenes: Sequence[str], memories: Sequence[Key]) -> str:
    """Whole runs with solar's defaults, or with `buffer=` alone: all that lose or tie, then these, the least first."""
    rows: list[tuple[float, tuple[object, ...]]] = []
    for name, of in by_scene(rated).items():
        if name in scenes or ratio(of) < TIE:
            cells = [*contest(of)]
            rows.append((ratio(of), (cells[0], *cells[1:5])))
    for key, (gain, title, of) in contests(kept).items():
        best, solar = best_other(of), of.get("solar")
        if key in memories or gain < TIE:
            label = best["label"] if best else "–"
            rows.append(
                (
                    gain,
                    (
                        f"{title} of it in memory",
                        label,
                        shown_of(best),
                        shown_of(solar),
                        times(solar, best),
                    ),
                )
            )
    head = "data|best other reader|samples/s:|solar:|×:"
    return table(head, (cells for _, cells in sorted(rows, key=lambda row: row[0]))) or NONE


def calibrated(found: Iterable[Record]) -> str:
    """What plain reads of each slowed mount gave, when it was last measured."""
    last = {one["calibration"][0]["storage"]: one["calibration"] for one in found if one.get("calibration")}
    rows = [
        (one["storage"], one["title"], one["threads"], f"{one['reads_per_second']:,.1f}",
         f"{one['bytes_per_second'] / 1e6:,.1f}",
         f"{one['reads_per_second'] / one['modelled_reads_per_second'] - 1:+.1%}")
        for each in last.values() for one in each
    ]  # fmt: skip
    return table("storage|plain reads of the slowed mount|threads:|reads/s:|MB/s:|off the model:", rows)
