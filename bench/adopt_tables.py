"""What docs/ say of a Dataset of the user's own, from the records of python -m bench.adopt."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator

from bench.records import Record
from bench.tables import newest, parted, rate, table

SHARE = "1/4"  # of the samples, for which a buffer has room
COMPRESSED = ("gzip64", "gzip1", "bitshuffle")  # scenes of small samples that are decoded
NO_HELP = ("contiguous", "tiny", "memory")  # and those that solar cannot help
BESIDE = "only the import, beside torch"  # a way whose records have a ratio of processor times
Scene = dict[str, Record]  # records by way


def by_scene(found: Iterable[Record]) -> dict[str, Scene]:
    """The newest records of whole runs."""
    scenes: dict[str, Scene] = {}
    for one in newest((one for one in found if not one["quick"]), "scene", "way"):
        scenes.setdefault(one["scene"], {})[one["way"]] = one
    return scenes


def best(scene: Scene, who: str) -> Record:
    """The way of this loader whose number of workers was best in later epochs."""
    found = (one for way, one in scene.items() if way.startswith(f"{who}, ") and way.endswith("workers"))
    return max(found, key=lambda one: one["later"])


def later(scene: Scene, way: str) -> str:
    return rate(scene[way]["later"]) if way in scene else ""


def measured(found: Iterable[Record]) -> str:
    """Samples a second of a later epoch; of the first in words; and with memory for a part."""
    scenes = by_scene(found)
    return parted(
        table(
            "samples|torch, best of 0, 2, 4 workers:|only the import:|`H5Dataset`, transform:|"
            "`H5Dataset`, `Field`, no `log1p`:",
            (list(_rates(scene)) for scene in scenes.values()),
        ),
        _first(scenes),
        _with_buffer(scenes),
        _beside(scenes),
    )


def _rates(scene: Scene) -> Iterator[str]:
    ours, alone = best(scene, "only the import"), scene["only the import, 0 workers"]
    yield ours["what"]
    yield rate(best(scene, "torch")["later"])
    of_workers = ours["way"].rpartition(", ")[2]
    yield rate(alone["later"]) + ("" if ours is alone else f"; with {of_workers} {rate(ours['later'])}")
    yield later(scene, "H5Dataset, transform")
    yield later(scene, "H5Dataset, Field")


def _first(scenes: dict[str, Scene]) -> str:
    chosen = [scenes[name] for name in (*COMPRESSED, "large") if name in scenes]
    if not chosen:
        return ""
    ours, theirs = ([scene[f"{who}, 0 workers"]["first"] for scene in chosen] for who in ("only the import", "torch"))
    return wrapped(
        "The decoded chunks of the compressed ones fit into the memory that they have. In the first epoch, where "
        f"everything must still be decoded, the import alone gives {_listed(ours)} (torch without workers: "
        f"{_listed(theirs)})."
    )


def _with_buffer(scenes: dict[str, Scene]) -> str:
    ways = f"only the import, buffer of {SHARE}", f"H5Dataset, transform, buffer of {SHARE}"
    chosen = [scene for scene in scenes.values() if ways[0] in scene]
    rows = ([of[ways[0]]["what"], rate(best(of, "torch")["later"]), *(later(of, way) for way in ways)] for of in chosen)
    of_table = table("samples|torch, best of 0, 2, 4 workers:|only the import:|`H5Dataset`, transform:", rows)
    said = f"With a `buffer` for {SHARE} of the samples, the second epoch is planned in both ways but torch's:"
    return parted(wrapped(said), of_table) if of_table else ""


def _beside(scenes: dict[str, Scene]) -> str:
    ratios = [
        f"{scene[BESIDE]['of_torch']:.2f} ({scene[BESIDE]['what']})" for scene in scenes.values() if BESIDE in scene
    ]
    if not ratios:
        return ""
    said = (
        "Where solar cannot help, the loader is torch's. By processor time, in epochs in turns, only the import gives"
    )
    return wrapped(f"{said} {'; '.join(ratios)} of torch's rate.")


def in_words(found: Iterable[Record]) -> str:
    """The figures of docs/migrating.md."""
    scenes = by_scene(found)
    ours = lambda scene: scene["only the import, 0 workers"]["later"]  # noqa: E731
    theirs = lambda scene: best(scene, "torch")["later"]  # noqa: E731
    return wrapped(
        f"For compressed samples of 16 and 64 KiB, later epochs with only the import run at "
        f"{_range(scenes, COMPRESSED, ours, theirs)} times the rate of torch's loader with its best number of workers. "
        f"An `H5Dataset` with a `transform` in Python runs at "
        f"{_range(scenes, COMPRESSED, lambda scene: scene['H5Dataset, transform']['later'], ours)} times the rate of "
        f"that, and with a `Field` and no Python at "
        f"{_range(scenes, COMPRESSED, lambda scene: scene['H5Dataset, Field']['later'], ours)} times. Where solar "
        f"cannot help, as for contiguous samples in the page cache, the import gives "
        f"{_no_help(scenes) or _range(scenes, NO_HELP, ours, theirs)} times torch's rate "
        "([all figures](measured.md#a-dataset-of-your-own))."
    )


def _no_help(scenes: dict[str, Scene]) -> str:
    ratios = sorted(scenes[name][BESIDE]["of_torch"] for name in NO_HELP if BESIDE in scenes.get(name, {}))
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else ""


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def _range(
    scenes: dict[str, Scene], names: Iterable[str], one: Callable[[Scene], float], by: Callable[[Scene], float]
) -> str:
    ratios = [one(scenes[name]) / by(scenes[name]) for name in names if name in scenes]
    if not ratios:
        return "–"
    low, high = (f"{end:.0f}" if end >= 10 else f"{end:.1f}" if end >= 1 else f"{end:.2f}" for end in
                 (min(ratios), max(ratios)))  # fmt: skip
    return f"{low} to {high}"


def _listed(values: list[float]) -> str:
    texts = [rate(one) for one in values]
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]
