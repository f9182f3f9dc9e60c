"""solar's DataLoader in Hugging Face's Trainer.

    from transformers import Trainer

    from solar.integrations.hf import TrainerMixin

    class SolarTrainer(TrainerMixin, Trainer): ...

A Trainer makes torch loaders itself. The mixin reads the same batches with solar's engine.
"""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import BatchSamplerShard, DataLoaderShard

from solar import DataLoader
from solar.integrations.accelerate import PreparedLoader, remade
from solar.samplers.samplers import PlanSampler


class TrainerMixin:
    """A base class before Trainer: training, evaluation and prediction read through solar.

    Samplers, seeds, batch sizes, collator and worker options are those of the Trainer; the batches and their order are
    the same. Datasets without indices, such as an IterableDataset, stay with the Trainer's loader.
    """

    def get_train_dataloader(self) -> Any:
        """Returns the Trainer's training batches."""
        return read_by_solar(super().get_train_dataloader())  # type: ignore[misc]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the Trainer's evaluation batches."""
        return read_by_solar(super().get_eval_dataloader(eval_dataset))  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Returns the Trainer's prediction batches."""
        return read_by_solar(super().get_test_dataloader(test_dataset))  # type: ignore[misc]


def read_by_solar(prepared: Any) -> Any:
    """Returns the batches of a loader that Accelerate has prepared, read by solar; other loaders unchanged."""
    if type(prepared) is not DataLoaderShard or prepared.batch_sampler is None or prepared.batch_size is not None:
        return prepared
    known: PreparedLoader | None = vars(prepared).get("_read_by_solar")
    if known is None:  # a Trainer with persistent workers keeps its loader, and so do we
        sampler = prepared.batch_sampler
        known = PreparedLoader(
            remade(DataLoader, prepared.base_dataloader, batch_sampler=_once_sharded(sampler)),
            device=prepared.device,
            non_blocking=prepared._non_blocking,
            processes=sampler.num_processes if isinstance(sampler, BatchSamplerShard) else 1,
            synchronized=(prepared.rng_types, prepared.synchronized_generator),
        )
        prepared._read_by_solar = known
    return known


def _once_sharded(sampler: Any) -> Any:
    """Returns the sampler without Accelerate's sharding if a PlanSampler gives this process its part already."""
    if not isinstance(sampler, BatchSamplerShard):
        return sampler
    inner = sampler.batch_sampler
    plan, place = getattr(inner, "sampler", None), (sampler.process_index, sampler.num_processes)
    return inner if isinstance(plan, PlanSampler) and (plan.rank, plan.num_replicas) == place else sampler
