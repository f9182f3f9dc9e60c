"""Reads whole epochs as a training would, without one: what to run before the hours on GPUs are paid for."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from solar.cli import kinds, quantities, rehearsed, words
from solar.cli.gather import together
from solar.errors import SolarError
from solar.io.ranks.gather import Ranks
from solar.io.ranks.peers import peers

DETAILS = """\
Alone, or one for each rank, started as the training will be:

  mpiexec -n 8 solar rehearse scan.h5 --batch-size 64 --epochs 3 --compute 30ms
  srun --mpi=pmi2 solar rehearse ...
  torchrun --nproc-per-node 8 --no-python solar rehearse ...

Ranks meet by torch.distributed (gloo) where MASTER_ADDR is set, else by MPI, for which mpi4py must be installed.
The order, what each rank reads and the memory are those of DataLoader(H5Dataset(FILE, ...), B, sampler=PlanSampler()).

keys of --json: version (1), file, datasets, samples, nbytes (of a sample), ranks, nodes, by (alone, MPI or
  torch.distributed), batch, buffer, exchange, balance, compute_seconds, seed, epochs ([{epoch, seconds (of the
  slowest rank), imbalance (slowest over mean), and the sums of all ranks}]), per_rank ([{rank, node, epochs}]; of
  each epoch: seconds, first_batch_seconds, batches, samples, batch_bytes, bytes, bytes_mapped, requests, bypassed,
  bytes_decoded, buffer_hits (of each field), exchanged_bytes (had from other nodes), busy_seconds, wait_seconds
  ({cause: s}), peak_bytes (the node's buffer counts at each of its ranks)), fed (null without --compute), verdict
"""

EXCHANGES = ("auto", "mpi", "torch", "read", "off")
BALANCES = ("torch", "equal", "uneven")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="the fields of a sample; else those as long as the largest one")
    run = parser.add_argument_group("the training")
    run.add_argument(
        "--batch-size", metavar="B", type=quantities.count, required=True, help="samples of a batch on each rank"
    )
    run.add_argument("--epochs", metavar="E", type=quantities.count, default=2, help="how many are read (2)")
    run.add_argument("--compute", metavar="TIME", type=quantities.seconds, help="that a step takes: slept through")
    run.add_argument("--seed", metavar="SEED", type=quantities.seed, default=0, help="of the shuffles (0)")
    run.add_argument("--drop-last", action="store_true", help="leaves out what does not fill a batch of each rank")
    loader = parser.add_argument_group("the loader")
    loader.add_argument("--buffer", metavar="SIZE", help="memory on each node, 8GiB or 25%%; 0: none (what is best)")
    loader.add_argument("--exchange", choices=EXCHANGES, help="how ranks talk, as DataLoader's exchange")
    loader.add_argument("--balance", choices=BALANCES, help="who takes what of a step, as DataLoader's balance")
    kinds.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with together(arguments.exchange) as ranks:
        try:
            return _rehearsed(arguments, ranks)
        except SolarError as error:
            _complain(ranks, error)
            ranks.give_up()
            raise SystemExit(1) from None


def _complain(ranks: Ranks, error: Exception) -> None:
    """One line on stderr, which names the rank."""
    text = words.said(error).removeprefix(ranks.name)  # some errors of the loader name it, too
    sys.stderr.write(f"solar: {ranks.name}{text}\n")  # in one write: lines of other ranks come between two
    sys.stderr.flush()


def _rehearsed(arguments: argparse.Namespace, ranks: Ranks) -> int:
    loader, facts = _opened(arguments, ranks)
    if loader is None:
        return 1
    with loader:
        mine = [_epoch(loader, epoch, arguments.compute or 0.0, ranks) for epoch in range(arguments.epochs)]
    per_rank = ranks.gather({"rank": ranks.rank, "node": socket.gethostname(), "epochs": mine})
    if ranks.rank == 0:
        answer = rehearsed.as_json(facts, per_rank)
        for line in [json.dumps(answer, indent=1)] if arguments.json else rehearsed.as_text(answer):
            print(line)
    ranks.tell(None)  # no rank ends before the answer is out: launchers end the others with the first
    return 0


# --- the door ----


def _opened(arguments: argparse.Namespace, ranks: Ranks) -> tuple[Any, dict[str, Any]]:
    """This rank's loader and what is the same on all; None after an error on any rank, which has said it."""
    said: SolarError | None = None
    loader: Any = None
    facts: dict[str, Any] = {}
    names = ranks.tell(_named(arguments, ranks) if ranks.rank == 0 else None)
    if names:
        try:
            nodes = _nodes(arguments.exchange or "auto")  # first: a meeting waits for all, and no loader is there yet
            loader, facts = _loader(arguments, names, ranks)
            facts["nodes"] = nodes
        except SolarError as error:
            said = error
            _complain(ranks, error)
    whole = all(ranks.gather(said is None and bool(names)))
    return (loader if ranks.tell(whole) else None), facts


def _nodes(exchange: str) -> int | None:
    """How many nodes the loader will see; None where ranks do not talk."""
    others = peers(exchange)
    return 1 + max(others.meet("solar rehearse", {}, {}, {}).node_of) if others else None


def _named(arguments: argparse.Namespace, ranks: Ranks) -> list[str]:
    """The fields of a sample. One rank looks, for a file with many objects takes its time; empty after an error."""
    from solar.cli.plan import names_of  # only rank 0 needs the planner's side

    try:
        return names_of(arguments)
    except SolarError as error:
        _complain(ranks, error)
        return []


def _loader(arguments: argparse.Namespace, names: list[str], ranks: Ranks) -> tuple[Any, dict[str, Any]]:
    from solar.torch import DataLoader, H5Dataset, PlanSampler  # only here: torch takes seconds to import

    fields, samples = kinds.fields(arguments, names)
    data = H5Dataset(arguments.file, fields, samples=samples, where=arguments.where, together=ranks.ranks > 1)
    sampler = PlanSampler(data, ranks.ranks, ranks.rank, seed=arguments.seed, drop_last=arguments.drop_last)
    shown = ranks.rank == 0 and sys.stderr.isatty() and find_spec("tqdm") is not None
    given = {name: getattr(arguments, name) for name in ("exchange", "balance") if getattr(arguments, name) is not None}
    loader = DataLoader(
        data,
        arguments.batch_size,
        sampler=sampler,
        drop_last=arguments.drop_last,
        buffer=arguments.buffer,
        epochs=arguments.epochs,
        progress="rehearsal" if shown else False,
        **given,
    )
    facts = {
        "file": arguments.file,
        "datasets": names,
        "samples": len(data),
        "nbytes": sum(one.rows.sample_nbytes for one in data.opened()),
        "ranks": ranks.ranks,
        "by": ranks.by,
        "batch": arguments.batch_size,
        "buffer": arguments.buffer,
        "exchange": arguments.exchange,
        "balance": arguments.balance,
        "compute_seconds": arguments.compute or 0.0,
        "seed": arguments.seed,
    }
    return loader, facts


# --- the epochs ----


def _epoch(loader: Any, epoch: int, compute: float, ranks: Ranks) -> dict[str, Any]:
    """What this rank counted of one epoch, which all ranks begin together."""
    ranks.gather(None)
    ranks.tell(None)
    before, begin, first = loader.stats(), time.perf_counter(), 0.0
    loader.set_epoch(epoch)
    for step, _batch in enumerate(loader):
        if not step:
            first = time.perf_counter() - begin
        if compute:
            time.sleep(compute)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "first_batch_seconds": first, **_since(before, loader.stats())}


def _since(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted between two looks at a loader's stats."""
    counted: dict[str, Any] = {name: after[name] - before[name] for name in rehearsed.SUMMED}
    waits = {cause: seconds - before["wait_seconds"][cause] for cause, seconds in after["wait_seconds"].items()}
    return counted | {"wait_seconds": waits, "peak_bytes": after["peak_bytes"]}
