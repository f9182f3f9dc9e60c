"""bench/: every reader's batches are h5py's, runs are whole, both peers stand beside solar, losses come first."""

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
        *(rated("lost", "ram_copy", 20.0, 21.0), rated("lost", "limit_pread", 100.0, 100.0)),
    ]
    said = tables.rates(found, {"won": "w", "lost": "l", "never": "a third"})
    rows = [line for line in said.splitlines() if line.startswith("| ")]
    assert rows[1] == "| title of lost | torch_h5py | 90 | 50 | 0.6 | 5 | 10 | 2.0 |"
    assert rows[2] == "| title of won | torch_h5py | 40 | 200 | 5.0 | 30 | 90 | 3.0 |"
    assert rows[3] == "| a third | not recorded |  |  |  |  |  |  |"
    rows = tables.rates_of_people(found, {"never": "a third"}).splitlines()[2:]
    assert rows[0] == "| title of lost | default | 90 | 50 | 0.6 | 1.0 | 1.0 | 5 | 10 | 2.0 |"
    assert rows[2].startswith("| a third | not recorded |")
    assert tables.limits(found).splitlines()[2:] == ["| title of lost | limit_pread | 100 | 50 | 0.50 |"]


def test_a_run_of_one_epoch_counts_as_a_whole_and_is_shown_in_brackets(bench: Any) -> None:
    """Otherwise a copy into RAM, which has read everything before its first batch, would win every cold scene."""
    tables = bench("bench.tables")
    of = {"epochs": 1, "cache": "cold"}
    found = [rated("cold", "solar_loader", 60.0, 80.0) | of, rated("cold", "ram_copy", 50.0, 900.0) | of]
    [row] = tables.rates_of_experts(found).splitlines()[2:]
    assert row == "| title of cold | ram_copy | (50) | (60) | 1.2 | 50 | 60 | 1.2 |"


def kept(scene: str, peer: str, whole: float, steady: float, **facts: Any) -> dict[str, Any]:
    """A record of `bench.buffer`, with memory for a quarter."""
    of = {"fraction": 0.25, "bench": "buffer", "first": 1.5, "ends": [1.0] * 5, "made": "2026-01-02T03:04:05"}
    return rated(scene, peer, whole, steady) | of | facts


def test_memory_is_told_by_later_epochs_and_no_part_of_a_run_as_a_whole(bench: Any) -> None:
    tables = bench("bench.buffer_tables")
    found = [
        *(kept("tied", "solar", 10.5, 21.0), kept("tied", "windowed", 10.0, 20.0)),
        *(kept("won", "solar", 50.0, 60.0), kept("won", "torch", 10.0, 10.0, ends=[1.0, 2.0])),
    ]
    said = tables.buffered(found, {("tied", 0.25): "t", ("new", 0.1): "n"}).splitlines()
    assert said[2] == "| title of tied, memory for 25% | windowed | 20 | 21 | 1.1 | – | – | 10 | 10.5 | 1.1 |"
    assert said[3] == "| title of won, memory for 25% | torch | 10 | 60 | 6.0 | – | – | – | 50 | – |"
    assert said[4].startswith("| n, memory for 10% | not recorded |")
    [row, *_] = tables.of_people(found, {}).splitlines()[2:]
    assert row == "| title of won, memory for 25% | default | 10 | 60 | 6.0 | 1.5 |"
    situations = bench("bench.situations")
    assert situations.reading(found[2], seconds="first").first == 1.5
    assert situations.reading(found[3], seconds="first").first is None, "imports are not in it"


def test_readme_has_both_peers_in_each_situation_one_tie_and_the_figures_of_records(bench: Any) -> None:
    situations, records = bench("bench.situations"), bench("bench.records")
    found = situations.of_readme()
    gains = [one.solar.rate / one.expert.rate for one in found]
    assert 6 <= len(found) <= 8 and 1 <= sum(gain < 1.15 for gain in gains) <= 2 and gains[-1] == min(gains)
    recorded = [one for path in records.RESULTS.glob("*.jsonl") for one in records.read(path)]
    for situation in found:
        people, expert, solar = situation[1:4]
        assert people.rate <= expert.rate < solar.rate * 1.1
        assert all(reading.record in recorded and reading.rate in reading.record.values() for reading in situation[1:4])
        assert all(reading.record.get("load_before", reading.record.get("load")) < 1 for reading in situation[1:4])
    drawn = [found[place] for place in situations.DRAWN]
    assert len(drawn) == 5 and found[-1] in drawn, "the tie is in the picture"
    rows = situations.compared(found).splitlines()[2 : 2 + len(found)]
    assert all(row.count(" × |") == 2 for row in rows)
    assert situations.no_gain().count("\n- ") == 2


def test_pages_quote_quiet_whole_records_alone(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = bench("bench.records")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    ones = [{"load_before": 0.9}, {"load_before": 1.0}, {"load_before": 0.1, "quick": True}, {}]
    (tmp_path / "rates.jsonl").write_text("\n".join(map(json.dumps, ones)) + "\n")
    assert records.quoted("rates") == ones[:1]
