"""bench/shapes: every reader's clips, crops and rows are h5py's, other ones are refused, the table says who lost."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("psutil")
ROOT = Path(__file__).parent.parent
SMALL = {"clips": (70, 6, 5, 3), "climate": (40, 8, 6), "crops": (20, 20, 20), "rows": (90, 33_000)}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """import_module, for bench/ which is not installed; behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module


@pytest.fixture
def small(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scenes, with data that are made in no time."""
    data = bench("bench.shapes_data")

    def made() -> dict[str, Any]:
        found = {}
        for name, scene in real().items():
            if scene.real:  # that is in a package
                continue
            shape = SMALL[name.partition("_")[0]]
            stored = dict(scene.stored)
            if "chunks" in stored and scene.kind != "rows":
                most = (8,) * 3 if scene.kind == "crops" else (8, *shape[1:])
                stored["chunks"] = tuple(map(min, stored["chunks"], most))
            variants = (5, 3) if scene.kind == "crops" else scene.variants
            found[name] = replace(
                scene, shape=shape, stored=stored, variants=variants, batch=4, crops=24 if scene.crops else 0
            )
        return found

    real = data.scenes
    monkeypatch.setattr(data, "scenes", made)
    return made()


def job_of(scene: Any, folder: Path, variant: int, peer: str, share: float | None, **more: Any) -> dict[str, Any]:
    memory = None if share is None else max(2 << 20, scene.memory(share, variant, peer))
    about = {"scene": scene.name, "quick": False, "folder": str(folder), "seconds": 0.001}
    return about | {"do": "run", "variant": variant, "peer": peer, "memory": memory, "form": "file", **more}


NAMES = ("clips", "clips_gzip_16", "climate", "crops", "crops_gzip", "crops_lz4", "crops_codec", "rows", "rows_gzip")


@pytest.mark.slow(but=["rows"])
@pytest.mark.parametrize("name", NAMES)
def test_every_reader_with_every_setting_gives_the_samples_of_h5py(
    bench: Any, small: Any, name: str, tmp_path: Path
) -> None:
    shapes, data, part = bench("bench.shapes"), bench("bench.shapes_data"), bench("bench.shapes_part")
    scene = small[name]
    data.make(scene, tmp_path / "data.h5")
    ran = set()
    for variant in scene.variants:
        for peer in (peer for peer in scene.peers if peer not in shapes.NEEDS and not shapes.lacking(peer)):
            for share in shapes.shares(scene, variant, peer):
                for setting in shapes.settings(scene, peer, scene.memory(share or 0, variant, peer), variant):
                    if setting.get("workers") and (name, variant) != ("rows_gzip", 0):
                        continue  # forked processes take their time
                    found = part.part(job_of(scene, tmp_path, variant, peer, share, setting=setting))
                    assert found["first"] > 0
                    assert found["epochs"] >= 0
                    ran.add((variant, peer, share))
    assert {peer for _, peer, _ in ran} >= {"solar", "h5py", "ram"}
    assert {variant for variant, *_ in ran} == set(scene.variants)


@pytest.mark.parametrize("name", ["clips", "crops", "rows"])
def test_a_reader_of_other_samples_is_refused(bench: Any, small: Any, name: str, tmp_path: Path) -> None:
    data, part = bench("bench.shapes_data"), bench("bench.shapes_part")
    scene = small[name]
    data.make(scene, tmp_path / "data.h5")
    job = job_of(scene, tmp_path, scene.variants[0], "h5py", 0.0, setting={})
    part.check(part.by_h5py, job)
    with pytest.raises(ValueError, match="than h5py"):
        part.check(lambda job, orders: part.by_h5py(job, orders[:, ::-1]), job)
    if scene.kind == "rows":
        other = lambda job, orders: (  # noqa: E731
            (values + 1, columns, offsets) for values, columns, offsets in part.by_h5py(job, orders)
        )
        with pytest.raises(ValueError, match="does not have"):
            part.check(other, job | {"peer": "scdataset"})


def test_rates_are_those_of_whole_epochs_or_of_the_second_half(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    part, now = bench("bench.shapes_part"), [0.0]
    monkeypatch.setattr(part.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(part, "own_nbytes", lambda: 0)
    monkeypatch.setattr(part, "orders_of", lambda job: np.zeros((9, 4, 2), "i8"))

    def reader(each: list[float]) -> Any:
        def batches(job: Any, orders: Any) -> Any:
            for seconds in each:
                now[0] += seconds
                yield None

        return batches

    found = part.timed(reader([2.0] + [1.0] * 3 + [0.5] * 8), {"seconds": 4.0})
    assert (found["first"], found["later"], found["epochs"], found["batches"]) == (8 / 5, 8 / 2, 2, 8)
    found = part.timed(reader([40.0, 4.0, 3.0, 1.0]), {"seconds": 2.0})
    assert (found["first"], found["epochs"], found["batches"]) == (6 / 47, 0, 3)
    found = part.timed(reader([1.0] * 2 + [0.5] * 2), {"seconds": 9.0})
    assert (found["first"], found["later"], found["epochs"]) == (8 / 3, 2 / 0.5, 1)


def recorded(peer: str, share: float | None, first: float, later: float, **more: Any) -> dict[str, Any]:
    about = {"bench": "shapes", "scene": "s", "title": "clips", "what": "every 1", "variant": 1, "kind": "clips"}
    numbers = {"first": first, "later": later, "memory": 2**20, "nbytes": 100, "disk": 50, "form": "file"}
    return about | numbers | {"peer": peer, "label": peer, "share": share, "setting": {}, **more}


def test_others_have_as_much_memory_or_less_and_the_worst_ratio_comes_first(bench: Any) -> None:
    tables = bench("bench.shapes_tables")
    found = [
        *(recorded("solar", 0.1, 20.0, 40.0), recorded("solar", 0.25, 30.0, 300.0), recorded("limit", 0.0, 1e3, 1e3)),
        *(recorded("h5py", 0.0, 10.0, 10.0), recorded("h5py", 0.1, 80.0, 80.0), recorded("h5py", 0.25, 90.0, 100.0)),
        recorded("lance", 0.0, 5.0, 50.0, form="lance_fixed", conversion=2.0),
        recorded("scdataset_blocks", 0.0, 9e9, 9e9),
        {"scene": "s", "variant": 1, "share": 0.0, "peer": "zarr", "skipped": "it is not installed"},
    ]
    titles = {("s", 1): "clips, every frame", ("s", 2): "clips, every second frame"}
    said = tables.beside_others(found, titles)
    rows = [line for line in said.splitlines() if line.startswith("| clips, every")]
    assert rows[0] == ("| clips, every frame | 0.1 | h5py | 80 | 40 | 0.5 | h5py, 80 | 20 | 0.2 | 1,000 | 0.04 |")
    assert rows[1].startswith("| clips, every frame | 0.25 | h5py | 100 | 300 | 3.0 | h5py, 90 | 30 | 0.3 |")
    assert rows[2].startswith("| clips, every second frame |  | not recorded |")
    assert "- zarr: it is not installed" in said
    assert said.count("<details") == said.count("</details>") == 1
    printed = tables.shapes(found)
    assert rows[0] in printed and "| clips | lance, fixed | 0 | 2.00 | 2.0 |" in printed
    # Beside formats alone: h5py is faster than Lance here, and blocks are no exact shuffle.
    gains = tables.beside_formats([*found, recorded("solar", 1.0, 9e9, 9e9)])
    assert gains == [
        ("clips, every frame, memory for 10%", "lance", 40 / 50),
        ("clips, every frame, memory for 25%", "lance", 300 / 50),
    ]


def test_every_scene_is_recorded_by_a_step_and_has_its_row_in_the_page(bench: Any) -> None:
    scenes = bench("bench.shapes_data").scenes()
    page = (ROOT / "bench" / "results" / "readers.md").read_text()
    assert all(f"| {scene.title}" in page for scene in scenes.values())
    assert set(bench("bench.shapes").LABELS) >= {peer for scene in scenes.values() for peer in scene.peers}
