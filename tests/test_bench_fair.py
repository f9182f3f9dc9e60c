"""bench/: every reader's batches are h5py's, whole runs are whole, and a table begins with where we lose."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("psutil")
ROOT = Path(__file__).parent.parent
PEERS = ("solar_loader", "solar_buffer_0", "torch_h5py", "ram_copy", "memmap")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """import_module, for bench/ which is not installed; behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["contiguous_64k", "chunk16_deflate", "auto_gzip", "many_files"])
def test_every_peer_gives_the_samples_of_h5py_and_runs_all_epochs(
    bench: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, peers, scenes, scene = (bench(f"bench.{one}") for one in ("run", "peers", "scenes", "scene"))
    monkeypatch.setattr(run, "TRIAL_SECONDS", 0.001)
    few = scenes.all_scenes()[name]
    few = replace(few, samples=40, batch=8, epochs=2, files=40 if few.files > 1 else 1)
    monkeypatch.setattr(run, "all_scenes", lambda quick: {name: few})
    for one in (peers.load("torch_h5py"), bench("bench.torch_side")):
        monkeypatch.setattr(one, "WORKERS", (0,))
    scene.make(few, tmp_path)
    ran = 0
    for peer in PEERS:
        if peers.lacking(peers.load(peer), few):
            continue
        job = {"peer": peer, "scene": name, "folder": str(tmp_path), "quick": False, "epochs": 2}
        ready = run.part(job | {"do": "ready"})
        assert ready["compared"] >= 8  # in the time that there is for it
        whole = run.part(job | {"do": "whole", "setting": ready["setting"], "begin": time.perf_counter()})
        assert whole["samples"] == 80
        assert 0 < whole["first"] < whole["ends"][0] < whole["ends"][1]
        ran += 1
    assert ran >= 3


def test_a_peer_with_other_samples_is_not_counted(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, peers, scenes, scene = (bench(f"bench.{one}") for one in ("run", "peers", "scenes", "scene"))
    few = replace(scenes.all_scenes()["contiguous_64k"], samples=32, batch=8)
    scene.make(few, tmp_path)
    copy = peers.load("ram_copy")
    right = copy.batches
    monkeypatch.setattr(copy, "batches", lambda *given: (batch.flip(0) for batch in right(*given)))
    with pytest.raises(ValueError, match="other samples than the reference"):
        run.check(copy, few, tmp_path, {})


@pytest.mark.parametrize(("options", "longest"), [({}, 0), ({"chunk": 16, "filters": {"compression": "gzip"}}, 100)])
def test_every_reader_with_little_memory_gives_the_samples_of_h5py(
    bench: Any, options: dict[str, Any], longest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, scenes, scene = bench("bench.buffer_part"), bench("bench.buffer_scenes"), bench("bench.scene")
    one = replace(scenes.scenes(True)["slowed"], samples=96, batch=4, epochs=2, options=options, shape=(8, 8))
    scene.make(one.data, tmp_path)
    job = {
        "folder": str(tmp_path), "path": str(tmp_path / "data.h5"), "mount": None, "storage": None, "samples": 96,
        "batch": 4, "memory": 24 << 20, "epochs": 2, "shape": [8, 8], "ranks": 1, "bounded": False, "workers": [0],
        "part": 4, "search": 2, "trying": 9.0,
    }  # fmt: skip
    monkeypatch.setattr(part, "LONGEST", longest)
    for peer in ("torch", "windowed", "ram_copy", "solar", "solar_known"):
        found = part.PARTS[peer](job | {"begin": time.perf_counter()})
        partly = peer == "torch" and not longest
        assert found["each"] == ([4, 16] if partly else [96, 96])
        assert found.get("partly", False) == partly
        assert found["ends"] == sorted(found["ends"])
    check = scene.Check(tmp_path, (8, 8))
    batch = np.zeros((2, 8, 8), "f4")
    with pytest.raises(ValueError, match="a sample twice"):
        check.numbers(batch)
    batch[1] = 1.0
    with pytest.raises(ValueError, match="is not of samples"):
        check.numbers(batch, np.array([1, 0]))
    with pytest.raises(ValueError, match="other samples than the reference"):
        check.bytes(batch, check.numbers(batch))


def test_utilisation_is_of_all_bytes_and_never_above_what_the_storage_allows(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = bench("bench.utilisation")
    scene = module.SCENES["unet3d, slowed"]
    assert module.most(scene, 3, False) == pytest.approx(0.3148, abs=1e-4)
    assert module.most(scene, 1, True) == module.most(scene, 3, False)
    assert module.most(scene, 3, True) == pytest.approx(2 * module.most(scene, 3, False))  # 1 + 2 × 1/4 of 3
    assert module.most(module.SCENES["unet3d, warm"], 3, True) == 1.0
    monkeypatch.setattr(module.parts, "measured", lambda *_: [{"utilisation": [0.42]}])
    assert "measured wrongly" in module.measured({"most": 0.315})["failed"]
    assert module.measured({"most": 0.42})["median"] == 0.42


def test_what_was_read_before_the_first_batch_is_waited_for(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still but while batches are made: the first takes what ten take."""
    module, now = bench("bench.utilisation"), [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    job = {"compute": 1.0, "samples": 10, "batch": 1}

    def epoch(number: int) -> Any:
        now[0] += 10.0
        for samples in module.order_of(job, number):
            yield samples[:, None].astype("f4")

    assert module.reached(job, epoch, [0, 1]) == 20 / 40


RATED = {"epochs": 5, "peak_rss": 1e8, "setting": {}, "start": 1.0, "rates": [1.0], "cache": "warm"}


def rated(scene: str, peer: str, whole: float, steady: float) -> dict[str, Any]:
    facts = {"scene": scene, "title": f"title of {scene}", "peer": peer, "label": peer, "median": whole}
    machine = {"cpu": "c", "cores": 2, "memory_gib": 4, "file_system": "ext4", "kernel": "6.1", "python": "3.11"}
    return RATED | facts | {"steady": steady, "machine": machine, "versions": {}, "load_before": 0.5}


def test_the_scene_that_is_lost_comes_first_and_one_without_a_record_says_so(bench: Any) -> None:
    tables = bench("bench.tables")
    found = [
        *(rated("won", "solar_loader", 90.0, 200.0), rated("won", "torch_h5py", 30.0, 40.0)),
        *(rated("lost", "solar_loader", 10.0, 50.0), rated("lost", "torch_h5py", 5.0, 90.0)),
        rated("lost", "ram_copy", 20.0, 21.0),
    ]
    said = tables.rates(found, {"won": "w", "lost": "l", "never": "a third"})
    rows = [line for line in said.splitlines() if line.startswith("| ")]
    assert rows[1] == "| title of lost | ram_copy | 20 | 10 | 0.5 | 21 | 50 | 2.4 | – | – |"
    assert rows[2].startswith("| title of won | torch_h5py | 30 | 90 | 3.0 |")
    assert rows[3] == "| a third | not recorded |  |  |  |  |  |  |  |  |"


def test_the_short_table_has_all_that_lose_or_tie_and_what_is_asked_for(bench: Any) -> None:
    tables = bench("bench.buffer_tables")
    of = {"fraction": 0.25, "peak_rss": 1e8, "setting": {}}
    found = [rated("won", "solar_loader", 90.0, 200.0), rated("won", "torch_h5py", 30.0, 40.0)]
    kept = [
        *(rated("tied", "solar", 10.5, 1.0) | of, rated("tied", "windowed", 10.0, 1.0) | of),
        *(rated("other", "solar", 50.0, 1.0) | of, rated("other", "windowed", 10.0, 1.0) | of),
    ]
    said = tables.short(found, kept, ["won"], [])
    assert [line.split(" | ")[0] for line in said.splitlines()[2:]] == [
        *("| title of tied, 0.25 of it in memory", "| title of won")
    ]
    assert tables.short([], [], [], []) == tables.NONE
    said = tables.buffered(kept, {("tied", 0.25): "t", ("new", 0.1): "n"})
    assert "| title of tied, 0.25 | windowed | 10 | 10.5 | 1.1 | 1.1 | – | – | – |" in said
    assert "| n, 0.1 | not recorded |" in said


def test_pages_quote_quiet_whole_records_alone(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = bench("bench.report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    ones = [{"load_before": 0.9}, {"load_before": 1.0}, {"load_before": 0.1, "quick": True}, {}]
    (tmp_path / "rates.jsonl").write_text("\n".join(map(json.dumps, ones)) + "\n")
    assert report.quoted("rates") == ones[:1]
