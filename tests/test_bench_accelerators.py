"""How many emulated accelerators are fed: what is asked of DLIO, when the count ends, and what is quoted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import accelerators

    return accelerators


def test_loads_are_those_of_dlio_scaled_and_five_times_the_memory(module: Any) -> None:
    for load in module.LOADS.values():
        assert load.files * load.sample >= 5 * module.MEMORY
        assert all(load.files % ranks == 0 for ranks in module.RANKS)
        there = load.batch * load.nbytes / load.compute  # bytes a second of an accelerator that is not scaled
        assert load.demand == pytest.approx(there / load.slower, rel=1e-6)
    assert [load.needed for load in module.LOADS.values()] == [0.9, 0.7]


@pytest.mark.parametrize("peer", ["dlio", "torch", "solar"])
def test_dlio_is_asked_for_a_file_for_each_sample_and_the_readers_loader(module: Any, peer: str) -> None:
    load = module.LOADS["unet3d"]
    asked = module.workload(load, Path("data"), Path("out"), peer, {"read_threads": 2})
    dataset, reader = asked["dataset"], asked["reader"]
    assert (dataset["num_files_train"], dataset["num_samples_per_file"]) == (load.files, 1)
    assert (dataset["record_length"], dataset["format"]) == (load.sample, "hdf5")
    assert (reader["batch_size"], reader["read_threads"]) == (load.batch, 2)
    assert reader.get("data_loader_classname") == module.CLASSES.get(peer)
    assert asked["train"]["computation_time"] == load.seconds
    assert asked["workflow"]["train"] and not asked["workflow"]["generate_data"]


def test_the_count_ends_with_the_first_number_that_no_setting_feeds(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = {(2, 4): 0.5, (2, 2): 0.93, (3, 2): 0.8, (3, 4): 0.89, (4, 4): 1.0, (4, 2): 1.0}
    reached |= {(3, 1): 0.7, (3, 0): 0.1}
    runs: list[tuple[int, int]] = []

    def utilisation(*asked: Any) -> float:
        _, _, _, setting, ranks, _, memory = asked
        assert memory == 99
        runs.append((ranks, setting["read_threads"]))
        if runs[-1] == (3, 2):
            raise RuntimeError("killed")
        return reached[runs[-1]]

    @contextlib.contextmanager
    def made() -> Iterator[Path]:
        yield Path("group")

    monkeypatch.setattr(module, "utilisation", utilisation)
    monkeypatch.setattr(module.groups, "made", made)
    monkeypatch.setattr(module.groups, "killed", lambda group: 0)
    found = module.fed(module.LOADS["unet3d"], Path("data"), "dlio", 99, (2, 3, 4))
    assert runs == [(2, 4), (2, 2), (3, 2), (3, 4), (3, 1), (3, 0)]  # what fed the last number is tried first
    assert found["fed"] == 2
    assert [one["utilisation"] for one in found["tried"]] == [0.93, 0.89]
    assert "killed" in found["tried"][-1]["failed"][0]


def test_one_accelerator_is_tried_where_more_are_not_fed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.groups, "made", lambda: contextlib.nullcontext(Path("group")))
    for one, fed in ((0.95, 1), (0.5, 0)):
        monkeypatch.setattr(module, "utilisation", lambda *asked, one=one: one if asked[4] == 1 else 0.6)
        found = module.fed(module.LOADS["unet3d"], Path("data"), "solar", 99, (2, 3))
        assert found["fed"] == fed
        assert [each["accelerators"] for each in found["tried"]] == [2, 1]


def test_a_run_that_its_groups_memory_ended_says_so(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def utilisation(*asked: Any) -> float:
        raise RuntimeError("[INFO] step 3 [/somewhere/dlio.py:325]")

    monkeypatch.setattr(module, "utilisation", utilisation)
    monkeypatch.setattr(module.groups, "made", lambda: contextlib.nullcontext(tmp_path))
    found = []
    for written in ("", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill_disable 0\noom_kill 0\n"):
        if written:
            (tmp_path / "memory.oom_control").write_text(written)
        [tried] = module.fed(module.LOADS["unet3d"], Path("data"), "solar", 99, (1,))["tried"]
        found.append((*tried["failed"], module.failing(tried)))
    assert found == [
        ("{'read_threads': 1}: [INFO] step 3", "failed"),
        ("{'read_threads': 1}: a rank was ended, as the group had no memory left", "no memory"),
        ("{'read_threads': 1}: [INFO] step 3", "failed"),
    ]


def test_the_data_of_a_folder_named_from_here_are_made_in_it(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []

    def said(command: list[str], seconds: float, each: Any, cwd: Path) -> None:
        ran.append(cwd)
        (cwd / json.loads(command[-1])["dataset"]["data_folder"]).mkdir(parents=True)  # as DLIO does, which runs there

    monkeypatch.setattr(module.parts, "said", said)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        data = module.made("unet3d", module.LOADS["unet3d"], Path("a/b"))
        assert data.parent == tmp_path / "a" / "b" and data.is_dir()
    assert len(ran) == 1


def test_without_a_control_group_nothing_is_measured(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.groups, "made", lambda: contextlib.nullcontext(None))
    with pytest.raises(SystemExit, match="no control group"):
        module.fed(module.LOADS["unet3d"], Path("data"), "dlio", 99, (1,))


def test_the_table_says_how_many_were_fed_and_how_it_was_scaled(module: Any) -> None:
    load = module.LOADS["cosmoflow"]
    tried = [{"accelerators": n, "utilisation": u, "setting": {"read_threads": 2}} for n, u in ((1, 0.9), (2, 0.0))]
    record = {
        "scene": "cosmoflow", "peer": "torch", "fed": 1, "tried": tried, "data_nbytes": load.files * load.sample,
        "sample_nbytes": load.sample, "batch": load.batch, "compute_seconds": load.seconds, "demand": load.demand,
        "disk": 1e9,
    }  # fmt: skip
    text = module.accelerators([record, record | {"peer": "solar", "fed": 2}])
    assert "| cosmoflow | PyTorch + h5py | 1 | 1: 90%; 2: failed | 2, 2 |" in text
    assert text.count("128 MB/s for each accelerator. Plain reads get 1,000 MB/s.") == 1
