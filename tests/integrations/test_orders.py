"""Weights, classes and mixtures under DDP, Lightning, Accelerate and the Trainer: nobody takes a part of a part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integrations import orders_program
from integrations.orders_program import sampler
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, PlanBatchSampler

PROGRAM = Path(orders_program.__file__)
Told = dict[str, Any]
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (".*LeafSpec.*is deprecated:FutureWarning", "Checkpoint directory:UserWarning", "The `srun` command")
]


def wanted(file: str, kind: str, ranks: int, rank: int, epochs: int = 2) -> list[Any]:
    """The batches of a rank, by the sampler alone: [epoch, samples] each."""
    of, made = sampler(file, kind, num_replicas=ranks, rank=rank), []
    for epoch in range(epochs):
        of.set_epoch(epoch)
        # A mixture's sources are the file in order, so its numbers are the samples'.
        made += [[epoch, batch] for batch in PlanBatchSampler(of, 4, False)]
    return made


def test_under_ddp_each_rank_gets_its_part_and_both_tell_one_state(numbered: str, program: Callable[..., Told]) -> None:
    told = program(PROGRAM, "ddp", numbered, processes=2)
    for kind in ("weights", "classes", "mixture"):
        for rank in range(2):
            assert told[f"rank{rank}"][kind] == wanted(numbered, kind, 2, rank)
        states = [told[f"rank{rank}"][f"{kind} states"] for rank in range(2)]
        assert states[0] == states[1]
        assert max(map(len, states[0])) < 1000
        of = sampler(numbered, kind, num_replicas=1, rank=0)
        of.set_epoch(1)
        for name, count in of.counts().items():
            assert f"{count} of {name}" in told["rank0"][f"{kind} report"]
        # One rank goes on alone where two were.
        at = json.loads(states[0][4])
        loader = DataLoader(of.dataset, 4, sampler=sampler(numbered, kind, num_replicas=1, rank=0))
        loader.load_state_dict(at)
        assert [i for batch in loader for i in batch["i"].tolist()] == sampler(
            numbered, kind, num_replicas=1, rank=0
        ).order()[at["samples"] :].tolist()


def test_under_lightning_on_two_processes_the_sampler_is_kept(numbered: str, program: Callable[..., Told]) -> None:
    pytest.importorskip("lightning")
    told = program(PROGRAM, "lightning", numbered)
    for kind in ("weights", "mixture"):
        for rank in range(2):
            assert told[f"rank{rank}"][kind] == wanted(numbered, kind, 2, rank)
            assert told[f"rank{rank}"][f"{kind} sampler"] == "PlanSampler"


@pytest.mark.parametrize("kind", ["weights", "classes", "mixture"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_accelerate_keeps_the_sampler(numbered: str, kind: str, ranks: int) -> None:
    pytest.importorskip("accelerate")
    from integrations.accelerate_kit import standin

    from solar.integrations.accelerate import prepare

    for rank in range(ranks):
        of = sampler(numbered, kind, num_replicas=ranks, rank=rank)
        prepared = prepare(standin(rank, ranks), DataLoader(of.dataset, 4, sampler=of))
        assert prepared.sampler is of
        found = [[epoch, batch["i"].tolist()] for epoch in range(2) for batch in prepared]
        assert found == wanted(numbered, kind, ranks, rank)


@pytest.mark.parametrize("kind", ["weights", "classes", "mixture"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_trainers_loader_keeps_the_sampler(numbered: str, kind: str, ranks: int) -> None:
    pytest.importorskip("transformers")
    from accelerate.data_loader import prepare_data_loader

    from solar.integrations.hf import read_by_solar

    for rank in range(ranks):
        of = sampler(numbered, kind, num_replicas=ranks, rank=rank)
        prepared = read_by_solar(
            prepare_data_loader(TorchLoader(of.dataset, 4, sampler=of), None, ranks, rank, use_seedable_sampler=True)
        )
        found = [[epoch, batch["i"].tolist()] for epoch in range(2) for batch in prepared]
        assert found == [one for one in wanted_by_torch(numbered, kind, ranks, rank)]


def wanted_by_torch(file: str, kind: str, ranks: int, rank: int) -> Iterator[Any]:
    """The Trainer cuts batches as torch's BatchSampler does, which knows of no exact end."""
    of = sampler(file, kind, num_replicas=ranks, rank=rank)
    for epoch in range(2):
        of.set_epoch(epoch)
        own = list(of)
        yield from ([epoch, own[begin : begin + 4]] for begin in range(0, len(own), 4))
