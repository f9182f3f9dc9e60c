"""The experiment of the SOLAR paper: surrogates' samples, several ranks and nodes, one parallel file system.

    python -m bench.cluster [--ranks 4 8] [--surrogates NAME ...] [--shares .1 .25 .5 .9] [--readers NAME ...]
        [--quick] [--record]
    python -m bench.cluster --model [--record]        # 32 ranks on 8 nodes, by the planner alone

Ranks are processes of this machine that meet by gloo; four are told to be one node. The file system is a slowed mount
(bench/slowfs) with the latency of the modelled one (2 ms) and an eighth of a node's share of its 10 GB/s and 10,000
requests a second, for two cores do not keep up with all of it: seconds are eight times as long as there. Memory is
`share` of the data, on all nodes together, for whoever reads. Data and storage grow with the ranks.

Rates are those of epochs after the first. Of `torch` and `pinned`, whose steps are all alike, a part of an epoch is
read. Beside each stands what `solar plan` says. docs/paper.md has the table. JSON lines; --record adds them to
bench/results/cluster.jsonl; given again within an hour, it goes on where it was ended.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster_tables, machine, parts, records, slowfs, tables, utilisation
from bench.cluster_part import SEED
from solar.cli.compare import PlannedData, compare_policies, job_of, scratch_of
from solar.planning.budget import BufferTooSmall
from solar.planning.job import plan_node
from solar.planning.units import uniform
from solar.values import Storage, World

PER_NODE = 4  # ranks
NODE = {"latency": 2e-3, "bandwidth": 10e9 / 8, "iops": 10e3 / 8}  # a node's share of the file system
SLOWER = 8
RPC = 4 << 20
SHARES = (0.1, 0.25, 0.5, 0.9)
LATER = 8  # epochs of the model
EPOCHS = 3  # of those whose first epoch differs
MANY = 100  # steps of an epoch
LIMIT = 240  # seconds for a reader
DATA = 321e9  # bytes, where 32 ranks are modelled
Record = dict[str, Any]


class Surrogate(NamedTuple):
    """Samples of a network of the paper, and how many of them there are here."""

    title: str
    sample_nbytes: int
    batch: int  # of a rank
    samples: int  # for each rank
    modelled: int  # the batch of a rank where 32 are modelled


SURROGATES = {
    "ptychonn": Surrogate("PtychoNN, 64 KB", 64 << 10, 16, 4096, 64),
    "autophasenn": Surrogate("AutoPhaseNN, 3 MB", 3 << 20, 2, 160, 16),
    "cosmoflow": Surrogate("CosmoFlow, 17 MB", 16 << 20, 1, 32, 4),
}
READERS = {
    "torch": {"peer": "torch", "workers": 4, "kind": "items", "epochs": 2},
    "torch_0": {"peer": "torch", "workers": 0, "kind": "items", "epochs": 2},
    "torch_8": {"peer": "torch", "workers": 8, "kind": "straight", "epochs": 2},
    "pinned": {"peer": "pinned", "ahead": 1, "epochs": 1},  # alike from the first step on, once its part is there
    "pinned_4": {"peer": "pinned", "ahead": 4, "epochs": 1},
    "windowed": {"peer": "windowed", "epochs": 1},
    "solar": {"peer": "solar", "epochs": EPOCHS},
}


# --- what is read here ----


def storage_of(ranks: int, slower: float = SLOWER) -> dict[str, float]:
    """The mount: what so many ranks have of the file system."""
    nodes = ranks / PER_NODE
    rates = {name: NODE[name] * nodes / slower for name in ("bandwidth", "iops")}
    return {"latency": NODE["latency"], **rates}


def steps_of(reader: str, share: float, steps: int) -> int:
    """How many steps of an epoch are read: of many that are all alike so many that a quarter of an epoch is missed."""
    if steps < MANY or not reader.startswith(("torch", "pinned")):
        return steps
    if reader.startswith("torch"):
        return steps // (4 if reader == "torch" else 8)
    return min(steps, round(steps / 4 / (1 - share)))


def measured(job: Record) -> Record:
    """What all ranks found: the time of the slowest, the samples of all, the mount's own counts."""
    quiet = {"OMP_NUM_THREADS": 1, "LOCAL_WORLD_SIZE": min(PER_NODE, job["ranks"])}
    each = [one | quiet | {"LOCAL_RANK": rank % PER_NODE} for rank, one in enumerate(parts.torch_ranks(job["ranks"]))]
    found = parts.measured(LIMIT, "bench.cluster_part", job, each)
    epochs = []
    for of in zip(*(one["epochs"] for one in found), strict=True):
        most = {name: max(one[name] for one in of) for name in ("seconds", "first")}
        epochs.append({**most, "samples": sum(one["samples"] for one in of), "counts": of[0]["counts"]})
    later = epochs[1:] or epochs
    samples = sum(one["samples"] for one in later)
    of_samples = {f"{name}_a_sample": sum(one["counts"][name] for one in later) / samples
                  for name in ("requests", "bytes")}  # fmt: skip
    filling = max(one["filling"] for one in found)
    first = filling + epochs[0]["seconds"] * job["samples"] / epochs[0]["samples"]  # of a whole epoch
    rates = [one["samples"] / one["seconds"] for one in later]
    return {"median": statistics.median(rates), "rates": rates, "first_batch": epochs[0]["first"], "first_epoch": first,
            "memory_grown": sum(one["pss_grown"] for one in found), "epochs_read": epochs, **of_samples}  # fmt: skip


def planned(
    samples: int, one: Surrogate, ranks: int, memory: int, storage: dict[str, float], batch: int, epochs: int
) -> Record:
    """What `solar plan` says of an epoch by each policy. Of solar's own the epochs between the first and the last."""
    units, world = uniform(samples, one.sample_nbytes), World(0, ranks, 0, min(PER_NODE, ranks))
    costs = Storage(**storage)
    case = PlannedData("", units, world, batch, memory, costs, SEED, epochs, scratch_of(units))
    asked = job_of([case], memory)
    try:
        answered = compare_policies([case], asked)
    except BufferTooSmall as error:
        return {"refused": str(error)}
    nodes = range(answered.nodes)
    each = [plan_node(asked, node).outcome(range(1, epochs - 1)) for node in nodes]
    requests, nbytes = (
        sum(getattr(of, name) for of in each) * asked.nodes / len(nodes) for name in ("requests", "bytes")
    )
    ours = {"requests": requests, "bytes": nbytes, "seconds": costs.seconds(requests, nbytes)}
    policies = {name: asdict(of) for name, of in answered.outcomes.items()} | {"solar": ours}
    batches = answered.plan.batches_nbytes if answered.plan else 0
    return {"policies": policies, "batches": batches, "epochs": epochs}


def run(name: str, ranks: int, left: list[tuple[float, str]], folder: Path, quick: bool) -> Iterator[Record]:
    """A record of each reader with so much memory. The data are in the folder."""
    one = SURROGATES[name]
    samples, nodes = samples_of(one, ranks, quick), max(1, ranks // PER_NODE)
    storage = storage_of(ranks, SLOWER / 4 if quick else SLOWER)
    plans: dict[float, Record] = {}
    with slowfs.mounted(folder, **storage, rpc=RPC) as mount:
        for share, reader in left:
            memory = int(share * samples * one.sample_nbytes / nodes)
            if share not in plans:
                plans[share] = planned(samples, one, ranks, memory, storage, one.batch, EPOCHS + 1)
            whole = samples // (one.batch * ranks)
            job = {
                "ranks": ranks, "nodes": nodes, "samples": samples, "sample_nbytes": one.sample_nbytes,
                "batch": one.batch, "memory": memory, "storage": storage, "compute": 0.0,
                "steps": steps_of(reader, share, whole), **READERS[reader],
            }  # fmt: skip
            record = {"bench": "cluster", "scene": name, "title": one.title, "reader": reader, "share": share, **job}
            record |= {"steps_of_an_epoch": whole, "slower": SLOWER, "plan": plans[share], "load": os.getloadavg()[0]}
            try:
                record |= measured(job | {
                    "folder": str(folder), "mount": str(mount.path), "path": str(mount.path / "data.h5"),
                })  # fmt: skip
            except RuntimeError as error:
                record["failed"] = str(error)
            head = f"{one.title:18} {ranks} ranks f={share:<5} {reader:9}"
            parts.note(tables.line(head, record, cluster_tables.line))
            yield record


def samples_of(one: Surrogate, ranks: int, quick: bool) -> int:
    return one.samples * ranks // (4 if quick else 1)


# --- what is modelled ----


def model(quick: bool) -> Iterator[Record]:
    """32 ranks on 8 nodes, and the storage as it is."""
    for name, one in SURROGATES.items():
        samples, nodes = int((DATA / 50 if quick else DATA) / one.sample_nbytes), 8
        for share in SHARES:
            memory = int(share * samples * one.sample_nbytes / nodes)
            ranks = nodes * PER_NODE
            said = planned(samples, one, ranks, memory, storage_of(ranks, 1), one.modelled, LATER)
            record = {"bench": "cluster", "scene": name, "title": one.title, "reader": "model", "share": share}
            record |= {"ranks": ranks, "samples": samples, "memory": memory, "batch": one.modelled}
            parts.note(f"{one.title:18} {ranks} ranks f={share:<5} {said.get('refused', 'planned')}")
            yield record | {"plan": said}


# --- the command ----


def main() -> None:
    parser = records.arguments("bench.cluster", __doc__, "cluster", surrogates=SURROGATES, readers=READERS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the data, in all memory")
    parser.add_argument("--model", action="store_true", help="32 ranks by the planner, and nothing is read")
    asked = parser.parse_args()
    if not all(2 <= ranks <= PER_NODE or ranks % PER_NODE == 0 for ranks in asked.ranks):
        parser.error(f"--ranks: 2 to {PER_NODE}, or whole nodes of {PER_NODE}")
    facts = {"quick": asked.quick, "load_before": records.load(asked.load_before)}
    shown: list[Record] = []
    if asked.model:
        for record in model(asked.quick):
            records.append(asked.out, record | facts)
            shown.append(record)
    elif reason := slowfs.lacking():
        print(f"skipped: {reason}")
        return
    for name, ranks in [] if asked.model else [(n, r) for r in asked.ranks for n in asked.surrogates or SURROGATES]:
        # What torch does depends on no memory; its other settings are tried once.
        wanted = [(share, reader) for place, share in enumerate(asked.shares) for reader in asked.readers or READERS
                  if not (reader.startswith("torch") and place)]  # fmt: skip
        there = [records.found(asked.out, scene=name, reader=reader, share=share, ranks=ranks, quick=asked.quick)
                 for share, reader in wanted]  # fmt: skip
        shown += [one for one in there if one]
        left = [one for one, known in zip(wanted, there, strict=True) if not known]
        for record in measure(name, ranks, left, asked.folder, asked.quick) if left else ():
            records.append(asked.out, record | facts)
            shown.append(record)
    print(cluster_tables.cluster(shown))


def measure(name: str, ranks: int, left: list[tuple[float, str]], folder: Path | None, quick: bool) -> Iterator[Record]:
    """Makes the data, lets each reader run, deletes the data."""
    one = SURROGATES[name]
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as made:
        samples = samples_of(one, ranks, quick)
        parts.note(f"{one.title}: making {samples * one.sample_nbytes / 2**20:,.0f} MiB")
        utilisation.make(Path(made), utilisation.Load(samples, one.sample_nbytes, one.batch, 0.0, 1, samples), samples)
        machine.fill_cache(Path(made))
        about = machine.described(Path(made))
        for record in run(name, ranks, left, Path(made), quick):
            yield record | about


if __name__ == "__main__":
    main()
