"""Runs an Ignite engine over the samples of a file on every process, and tells the batches."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events

from solar import DataLoader, H5Dataset, PlanSampler


def recorded(loader: Any, epochs: int) -> list[list[int]]:
    """The batches that an engine gets, which tells the sampler its epochs."""
    seen: list[list[int]] = []
    engine = Engine(lambda _, batch: seen.append(batch.tolist()))
    engine.add_event_handler(Events.EPOCH_STARTED, lambda engine: loader.sampler.set_epoch(engine.state.epoch - 1))
    engine.run(loader, max_epochs=epochs)
    return seen


def main(file: str) -> None:
    with idist.Parallel(backend="gloo"):
        dataset = H5Dataset(file, "i")
        ours = DataLoader(dataset, 4, sampler=PlanSampler(dataset, seed=7))
        auto = idist.auto_dataloader(dataset, batch_size=8, sampler=PlanSampler(dataset, seed=7))
        told = {"ours": recorded(ours, 2), "auto": recorded(auto, 2)}
        Path(os.environ["TOLD"], f"rank{idist.get_rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
