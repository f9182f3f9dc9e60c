"""One rank of several that read together: carries out the cases it is given, and prints what it got and counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DistributedSampler

from solar import CSR, Crops, DataLoader, Field, H5Dataset, PlanSampler, Ragged, Windows
from solar.buffer import shared_plans
from solar.io.channels import detect
from solar.io.hdf5 import box_blocks
from solar.planning.sweep import Counts
from solar.values import Storage

UNEQUAL: dict[str, Any] = {
    "ends": lambda name: Ragged(name, ends="ends"), "varying": Ragged, "csr": CSR, "groups": str,
}  # fmt: skip


def dataset_of(case: dict[str, Any]) -> Any:
    fields: dict[str, Any]
    fields = {key: Field(name, steps=case["steps"].get(key)) for key, name in case["fields"].items()}
    fields |= {key: UNEQUAL[case["unequal"]](name) for key, name in case["ragged"].items()}
    samples: Any = Windows(pad="edge") if case["steps"] else "groups" if case["unequal"] == "groups" else "rows"
    if case["crops"]:
        samples = Crops(**case["crops"])
        box_blocks.BLOCK_NBYTES = 300  # so that small volumes have several
    parts = [H5Dataset(path, fields, samples=samples) for path in case["paths"]]
    return parts[0] if len(parts) == 1 else ConcatDataset(parts)


def sampler_of(case: dict[str, Any], dataset: Any, rank: int, ranks: int) -> Any:
    own = {"num_replicas": ranks, "rank": rank, "seed": case["seed"], "shuffle": case["shuffle"]}
    if case["tail"] == "exact" or case["order"]:
        return PlanSampler(dataset, **own, tail=case["tail"], **case["order"])
    return DistributedSampler(dataset, **own, drop_last=case["tail"] == "drop")


def carried_out(case: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    shared_plans.SHARED_SAMPLES = 1 if case["shared"] else 1 << 20
    dataset = dataset_of(case)
    loader: Any = DataLoader(
        dataset, case["batch"], sampler=sampler_of(case, dataset, rank, ranks), buffer=case["buffer"],
        exchange=case["exchange"], balance=case["balance"], epochs=case["known"], drop_last=case["drop_last"],
        storage=Storage(latency=1e-3, bandwidth=1e8, iops=500),
    )  # fmt: skip
    oracle = dataset_of(case)  # with readers of its own
    known = {} if case["crops"] else {
        field: np.concatenate([one.read_batch(np.arange(len(one)))[field] for one in parts(dataset)])
        for field in case["fields"]
    }  # fmt: skip
    ragged = {field: [sample[field] for one in parts(dataset) for sample in one] for field in case["ragged"]}
    if case["state"]:
        loader.load_state_dict(case["state"])
    epochs: list[Any] = []
    weights: list[Any] = []
    for epoch in range(case["begin"], case["end"]):
        loader.set_epoch(epoch)
        steps = []
        sampler = sampler_of(case, dataset, rank, ranks)
        sampler.set_epoch(epoch)
        drawn = list(sampler)
        for one in parts(oracle):
            one.set_epoch(epoch)
        for step, batch in enumerate(loader):
            if not case["crops"]:
                ids = batch["y"][:, 0].numpy()
            else:  # a box does not say its number: the sampler does
                ids = np.array(drawn[step * case["batch"] : (step + 1) * case["batch"]])
                for field in case["fields"]:
                    boxes = np.stack([oracle[int(number)][field] for number in ids])
                    assert np.array_equal(batch[field].numpy(), boxes), (field, epoch, step)
            for field in known:
                assert np.array_equal(batch[field].numpy(), known[field][ids]), (field, epoch, step)
            for field, values in ragged.items():
                for own, number in zip(apart(batch[field]), ids.tolist(), strict=True):
                    assert np.array_equal(own, plain(values[number])), (field, epoch, step)
            steps.append(ids.tolist())
            weights += [batch.weight] if case["balance"] == "uneven" else []
            if case["break"] == [epoch, step]:
                break
        epochs.append(steps)
    buffered, together, own = loader._buffered, loader._buffered.memory.rank_group, loader._buffered.planned_run
    assert together is not None
    if buffered._work is not None:
        buffered._work.stop()  # which may be handing the next epoch to the run
    found = {
        "rank": rank,
        "epochs": epochs,
        "counts": {} if buffered.running is None else buffered.running.counts(),
        "planned": list(Counts() if own is None else own.planned),
        "alone": list(Counts() if own is None else own.planned_alone),
        "state": loader.state_dict(),
        "node": together.mates,
        "exchange": together.exchange,
        "weights": weights,
    }
    loader.close()
    return found


def apart(batch: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    """The samples of a batch of them; rows of a sparse matrix with their zeros."""
    return [own.numpy() for own in (batch.to_dense() if batch.layout == torch.sparse_csr else batch).unbind()]


def plain(sample: Any) -> np.ndarray[Any, Any]:
    return sample.dense() if hasattr(sample, "dense") else sample


def parts(dataset: Any) -> list[H5Dataset]:
    return dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]


def main() -> None:
    by, cases = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    if by == "mpi":
        import mpi4py.MPI  # noqa: F401 - which starts MPI
    else:
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    world = detect()
    for number, case in enumerate(cases):
        print(json.dumps({"case": number, **carried_out(case, world.rank, world.ranks)}), flush=True)
    if by == "torch":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
