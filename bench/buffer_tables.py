"""Tables of records of python -m bench.buffer."""

from __future__ import annotations

from collections.abc import Iterable

from bench.tables import Record, mebibytes, pace, paces, parted, rate, setting, shown_of, table, times


def buffered(found: Iterable[Record], titles: dict[Key, str] | None = None) -> str:
    """The scenes, where we gain least first; then a row for each reader of each scene.

    `titles`: of all scenes and the shares of their data that fit into memory; those without a record say so.
    """
    return parted(of_experts(found, titles or {}), of_readers(found))


def of_readers(found: Iterable[Record]) -> str:
    """A row for each reader of each scene."""
    by = {(one["scene"], one["fraction"], one["peer"]): one for one in found if "median" in one}
    rows = (
        (titled(one), one["label"], rate(one["steady"]), "–" if is_part(one) else rate(one["median"]),
         " ".join(f"{each:.2f}" for each in one.get("scans", ())[:5]), mebibytes(one["peak_rss"]), setting(one, " "))
        for one in by.values()
    )  # fmt: skip
    head = "scene|reader|later epochs, samples/s:|whole runs:|scans of the first epochs:|peak MiB:|setting"
    return table(head, rows)


def is_part(one: Record) -> bool:
    """Whether a part of a run was timed, because all of it would have taken minutes."""
    return bool(one.get("partly")) or ("ends" in one and len(one["ends"]) < one["epochs"])


def titled(one: Record) -> str:
    return f"{one['title']}, memory for {one['fraction']:.0%}"


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
        gain = solar["steady"] / best["steady"] if solar and best else float("inf")
        made[scene, fraction] = (gain, titled({**next(iter(of.values())), "fraction": fraction}), of)
    return dict(sorted(made.items(), key=lambda pair: pair[1][0]))


def best_other(of: dict[str, Record]) -> Record | None:
    found = [one for peer, one in of.items() if not peer.startswith("solar")]
    return max(found, key=lambda one: one["steady"], default=None)


def of_experts(found: Iterable[Record], titles: dict[Key, str]) -> str:
    """Solar beside the best other reader in the same memory."""
    made, rows = contests(found), []
    for _, title, of in made.values():
        best, solar, known = best_other(of), of.get("solar"), of.get("solar_known")
        whole = [None if one is None or is_part(one) else one for one in (best, solar)]
        rows.append((title, best["label"] if best else "–", *paces(best, solar), *[*paces(best, known)][1:],
                     shown_of(whole[0]), shown_of(solar), times(solar, whole[0])))  # fmt: skip
    head = (
        "scene|best other reader|later epochs, samples/s:|solar, shuffle=True:|×:|solar, all orders known:|×:|"
        "whole runs:|solar's:|×:"
    )
    return table(head, [*rows, *unrecorded(made, titles, 8)])


def of_people(found: Iterable[Record], titles: dict[Key, str]) -> str:
    """Solar beside PyTorch with h5py and workers in the same memory."""
    made, rows = contests(found), []
    for _, title, of in made.values():
        if "torch" in of and "solar" in of:
            torch, solar = of["torch"], of["solar"]
            cells = (title, setting(torch), *paces(torch, solar), f"{solar['first']:.1f}")
            rows.append((pace(solar) / pace(torch), cells))
    rows.sort(key=lambda row: row[0])
    head = "scene|PyTorch + h5py|samples/s:|solar, later epochs:|×:|its first batch, s:"
    return table(head, [*(cells for _, cells in rows), *unrecorded(made, titles, 4)])


def unrecorded(made: Iterable[Key], titles: dict[Key, str], width: int) -> list[tuple[str, ...]]:
    there = {*made}
    named = {key: f"{title}, memory for {key[1]:.0%}" for key, title in titles.items() if key not in there}
    return [(title, "not recorded", *[""] * width) for title in named.values()]


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
