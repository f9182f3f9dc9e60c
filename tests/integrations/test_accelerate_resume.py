"""Accelerate with solar's DataLoader: where it goes on after a break or a checkpoint, and whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from solar import DataLoader, H5Dataset

pytest.importorskip("accelerate")

from accelerate.data_loader import skip_first_batches
from integrations.accelerate_kit import alone, indices, standin
from integrations.accelerate_program import Run, main

from solar.integrations.accelerate import prepare

SAMPLES = 53
Told = dict[str, Any]
__all__ = ["alone"]  # a fixture


@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_another_number_of_processes_goes_on_with_the_samples_that_are_left(
    numbered: str, before: int, after: int
) -> None:
    def loaders(ranks: int) -> list[Any]:
        dataset = H5Dataset(numbered, "i")
        return [prepare(standin(rank, ranks), DataLoader(dataset, 3, shuffle=True)) for rank in range(ranks)]

    states, taken = [], []
    for loader in loaders(before):
        loader.set_epoch(4)
        batches = iter(loader)
        taken += [i for _ in range(2) for i in next(batches).tolist()]
        states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1
    assert len(states[0]) < 1000
    rests = loaders(after)
    for loader in rests:
        loader.load_state_dict(json.loads(states[0]))
    steps = list(zip(*(indices(loader) for loader in rests), strict=True))
    in_order = [i for step in steps for batch in step for i in batch]
    assert set(in_order[: SAMPLES - len(taken)]) == set(range(SAMPLES)) - set(taken)
    whole = indices(loaders(1)[0])  # epoch 0
    assert [loader.iteration for loader in rests] == [5] * after
    assert sorted(chain.from_iterable(whole)) == list(range(SAMPLES))


def test_random_numbers_of_a_sample_are_the_same_at_any_number_of_processes_and_after_a_resume(numbered: str) -> None:
    def noisy(sample: Any, rng: Any) -> Any:
        return {"i": sample, "noise": rng.random()}

    def noise(loader: Any) -> dict[int, float]:
        return {i: x for batch in loader for i, x in zip(batch["i"].tolist(), batch["noise"].tolist(), strict=True)}

    def made(rank: int, ranks: int) -> Any:
        return prepare(standin(rank, ranks), DataLoader(H5Dataset(numbered, "i", transform=noisy), 4, shuffle=True))

    whole = noise(made(0, 1))
    assert noise(made(0, 2)) | noise(made(1, 2)) == whole
    left, again = made(0, 1), made(0, 1)
    next(iter(left))
    again.load_state_dict(left.state_dict())
    rest = noise(again)
    assert len(rest) == SAMPLES - 4
    assert rest.items() <= whole.items()


def test_a_loop_that_is_left_goes_on_after_the_batch_it_saw_last(numbered: str) -> None:
    def made() -> Any:
        return prepare(standin(), DataLoader(H5Dataset(numbered, "i"), 4, shuffle=True))

    whole, left, again = indices(made()), made(), made()
    for number, _ in enumerate(left):
        if number == 5:
            break
    again.load_state_dict(left.state_dict())
    assert indices(again) == whole[6:]
    assert len(again) == len(whole)


def test_the_state_of_a_finished_epoch_goes_on_with_the_next_in_the_same_order(numbered: str) -> None:
    def made(seed: int) -> Any:
        config = SimpleNamespace(data_seed=seed)
        return prepare(standin(dataloader_config=config), DataLoader(H5Dataset(numbered, "i"), 4, shuffle=True))

    one, other = made(1), made(2)
    first, second = indices(one), indices(one)
    other.load_state_dict(one.state_dict())
    third = indices(other)
    one.set_epoch(2)
    assert third == indices(one)
    assert sorted(map(tuple, third)) != sorted(map(tuple, second)) != sorted(map(tuple, first))


def test_accelerates_skip_first_batches_leaves_the_first_out(numbered: str) -> None:
    loaders = [prepare(standin(rank, 2), DataLoader(H5Dataset(numbered, "i"), 4, shuffle=True)) for rank in range(2)]
    for loader in loaders:
        indices(loader)
        whole = indices(loader)
        loader.set_epoch(1)
        skipped = skip_first_batches(loader, 3)
        skipped.set_epoch(1)  # which older Accelerates forget
        assert indices(skipped) == whole[3:]
        assert len(skipped) == len(whole) - 3
        loader.set_epoch(1)
        assert indices(loader) == whole


def check(told: dict[str, Told], ranks: int) -> None:
    """What a run of accelerate_program told, against what it must be."""
    length = -(-SAMPLES // (4 * ranks))
    for rank in told.values():
        whole = rank["whole"]
        assert rank["length"] == length
        assert len(whole) == 3 * length
        assert whole == rank["theirs"] == rank["unprepared"]
        assert rank["amid"] == {"seen": whole[length + 4 :], "weights": rank["weights"]}
        assert rank["between"] == {"seen": whole[2 * length :], "weights": rank["weights"]}
        assert rank["skipped"] == whole[length + 3 : 2 * length]
        assert rank["gathered"] == rank["gathered_split"] == list(range(SAMPLES))
        # Every second batch is a step, and the last of an epoch, whatever its number.
        assert [rank["steps"][number * length + length - 1] for number in range(3)] == [True] * 3
        assert rank["weights"] == told["rank0"]["weights"]
        assert rank["state"] == told["rank0"]["state"]
        assert sorted(chain.from_iterable(rank["kept"])) == list(range(SAMPLES))
    for part in ("seedless", "uneven"):
        seen = [i for rank in told.values() for batch in rank[part] for i in batch]
        assert set(seen) == set(range(SAMPLES))
        assert len(seen) == (SAMPLES if part == "uneven" or ranks == 1 else 4 * ranks * length)


def test_one_process_trains_resumes_skips_and_gathers(
    numbered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", str(tmp_path))
    main(numbered, str(tmp_path / "checkpoints"))
    check({"rank0": json.loads((tmp_path / "rank0.json").read_text())}, 1)


@pytest.mark.slow
def test_two_processes_train_resume_skip_and_gather(
    numbered: str, tmp_path: Path, program: Callable[..., dict[str, Told]]
) -> None:
    told = program(Path(__file__).with_name("accelerate_program.py"), numbered, tmp_path, processes=2)
    assert len(told) == 2
    check(told, 2)
    assert all("sharded twice" in rank["twice"] for rank in told.values())
    alone = Run(numbered)
    alone.loader.load_state_dict(json.loads(told["rank0"]["state"]))
    taken = {i for rank in told.values() for batch in rank["whole"][7:11] for i in batch}
    assert set(chain.from_iterable(indices(alone.loader))) == set(range(SAMPLES)) - taken
