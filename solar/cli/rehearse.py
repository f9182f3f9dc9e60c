"""Reads whole epochs as a training would, without one, before you pay for hours on GPUs."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from solar.cli import argument_types, mixed, sample_arguments, words
from solar.cli.gather import meet_ranks
from solar.errors import SolarError
from solar.io.channels.control import Ranks
from solar.io.channels.meeting import peers
from solar.io.system import quantities

FED = 0.02  # share of its time that a rank may wait and still count as fed
RANKS_SHOWN = 16  # ranks in the table; of more, the slowest
SUMMED = (
    *("batches", "samples", "batch_bytes", "bytes", "bytes_mapped", "requests", "bypassed", "bytes_decoded"),
    *("buffer_hits", "exchanged_bytes", "busy_seconds"),
)

Epoch = Mapping[str, Any]


def as_json(facts: Mapping[str, Any], per_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in rehearse.DETAILS."""
    epochs = [
        _all_ranks(number, of) for number, of in enumerate(zip(*(one["epochs"] for one in per_rank), strict=True))
    ]
    answer = {
        "version": 1,
        **facts,
        "nodes": facts.get("nodes") or len({one["node"] for one in per_rank}),
        "epochs": epochs,
        "per_rank": list(per_rank),
    }
    fed, verdict = judge_rehearsal(answer)
    return answer | {"fed": fed, "verdict": verdict}


def _all_ranks(number: int, of: Sequence[Epoch]) -> dict[str, Any]:
    """Returns one epoch of all ranks together."""
    seconds = [one["seconds"] for one in of]
    causes = of[0]["wait_seconds"]
    return {
        "epoch": number,
        "seconds": max(seconds),
        "imbalance": max(seconds) / fmean(seconds) if max(seconds) else 1.0,
        "first_batch_seconds": max(one["first_batch_seconds"] for one in of),
        **{name: sum(one[name] for one in of) for name in SUMMED},
        "wait_seconds": {cause: sum(one["wait_seconds"][cause] for one in of) for cause in causes},
        "peak_bytes": max(one["peak_bytes"] for one in of),
    }


# --- the verdict ----


def _later(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Returns the sum of the epochs after the first, which begins with empty memory; of a single epoch, that one."""
    chosen = epochs[1:] or epochs
    waits = {cause: sum(one["wait_seconds"][cause] for one in chosen) for cause in chosen[0]["wait_seconds"]}
    summed = {name: sum(one[name] for one in chosen) for name in ("seconds", *SUMMED)}
    return summed | {"wait_seconds": waits, "peak_bytes": chosen[-1]["peak_bytes"]}


def _waiting_share(one: Epoch) -> float:
    return float(sum(one["wait_seconds"].values()))


def longest_wait(one: Epoch) -> str:
    """Returns the main cause of waiting; empty if there was none."""
    cause, seconds = max(one["wait_seconds"].items(), key=lambda pair: pair[1])
    return cause if seconds else ""


def judge_rehearsal(answer: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Returns whether a training with such steps would be fed, and why."""
    later = {one["rank"]: _later(one["epochs"]) for one in answer["per_rank"]}
    rank, slowest = max(later.items(), key=lambda pair: pair[1]["seconds"])
    if not slowest["batches"]:
        return None, "There are too few samples for one batch on each rank: give a smaller --batch-size."
    step = quantities.duration(slowest["seconds"] / slowest["batches"])
    which = f"the slowest, rank {rank}," if len(later) > 1 else "it"
    if not answer["compute_seconds"]:
        had = f"the slowest, rank {rank}, had" if len(later) > 1 else "there was"
        return None, (
            f"Nothing was computed: {had} a batch every {step}. Steps that compute longer than this will hardly wait; "
            "--compute shows it."
        )
    compute = quantities.duration(answer["compute_seconds"])
    share = max(_waiting_share(one) / one["seconds"] if one["seconds"] else 0.0 for one in later.values())
    if share <= FED:
        nobody = "no rank waited" if len(later) > 1 else "it did not wait"
        return True, f"Steps of {compute} hardly wait for data: {nobody} more than {share:.1%} of the time."
    waited = _waiting_share(slowest) / slowest["seconds"]
    return False, (
        f"Steps of {compute} WAIT for data: {which} took {step} a step, {waited:.0%} of it waiting, most for "
        f"{longest_wait(slowest)}. {REMEDIES.get(longest_wait(slowest), '')}"
    ).rstrip()


REMEDIES = {  # by what is waited for
    "storage": "`solar plan` says what a larger --buffer or a faster storage would bring.",
    "decode": (
        "More cores would help, a larger --buffer if chunks hold many samples (`solar inspect` says so), or `solar "
        "compress`, whose chunks are decoded fast."
    ),
    "buffer": "These batches were in memory already: more cores would help, or fewer bytes for each sample.",
    "plan": "Planning and filling the buffer takes its time at first: give more --epochs to see what comes after it.",
    "exchange": "The rank that reads slowest, or the network, sets the pace; see the ranks above.",
}


# --- in words ----


def as_text(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines for people."""
    yield from describe_run(answer)
    yield ""
    head = ("epoch", "time", "samples/s", "MB/s read", "requests", "hits", "waited", "first batch", "slowest/mean")
    yield from align_table(head, [_epoch_row(one, answer) for one in answer["epochs"]])
    if answer["ranks"] > 1:
        yield ""
        yield from rank_table(answer)
    yield ""
    yield from rehearsal_remarks(answer)
    yield answer["verdict"]


def describe_run(answer: Mapping[str, Any]) -> Iterator[str]:
    fields = ", ".join(words.printable(name) for name in answer["datasets"])
    each = quantities.size(answer["nbytes"])
    yield f"{words.printable(answer['file'])}: {quantities.count(answer['samples'], 'sample')} of {fields}, {each} each"
    met = f" by {answer['by']}" if answer["ranks"] > 1 else ""
    compute = answer["compute_seconds"]
    steps = f", steps of {quantities.duration(compute)}" if compute else ""
    buffer = f"; buffer {answer['buffer']} on each node" if answer["buffer"] is not None else ""
    yield (
        f"{quantities.count(answer['ranks'], 'rank')} on {quantities.count(answer['nodes'], 'node')}{met}, "
        f"{answer['batch']} samples each a step{steps}{buffer}"
    )


def rank_table(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of ranks, over the epochs after the first."""
    of = sorted(((_later(one["epochs"]), one) for one in answer["per_rank"]), key=lambda pair: -pair[0]["seconds"])
    shown = sorted(of[:RANKS_SHOWN], key=lambda pair: pair[1]["rank"])
    fields = len(answer["datasets"])
    head = ("rank", "node", "samples/s", "MB/s read", "requests", "hits", "waited", "most for", "memory")
    rows = [
        (
            str(one["rank"]),
            words.printable(one["node"]),
            *measured_rates(sums, fields),
            longest_wait(sums),
            quantities.size(sums["peak_bytes"]),
        )
        for sums, one in shown
    ]
    total = _later(answer["epochs"])
    rows.append(("all", "", *measured_rates(total, fields, answer["ranks"]), longest_wait(total), ""))
    yield from align_table(head, rows)
    if len(of) > RANKS_SHOWN:
        yield f"and {len(of) - RANKS_SHOWN:,} ranks more, each faster than these; --json has them all"
    if len(answer["epochs"]) > 1:
        yield "Ranks are summed over the epochs after the first."


def _epoch_row(one: Epoch, answer: Mapping[str, Any]) -> tuple[str, ...]:
    rates = measured_rates(one, len(answer["datasets"]), answer["ranks"])
    first = quantities.duration(one["first_batch_seconds"])
    return str(one["epoch"]), quantities.duration(one["seconds"]), *rates, first, f"{one['imbalance']:.2f}"


def measured_rates(one: Epoch, fields: int, ranks: int = 1) -> tuple[str, ...]:
    """Returns samples per second, MB read per second, requests, share of hits, and share of the time waited."""
    seconds = one["seconds"] or float("inf")
    samples = one["samples"]
    return (
        f"{samples / seconds:,.0f}",
        f"{one['bytes'] / seconds / 1e6:,.0f}",
        f"{one['requests']:,}",
        f"{one['buffer_hits'] / samples / fields:.1%}" if samples else "",
        f"{_waiting_share(one) / seconds / ranks:.1%}",
    )


def rehearsal_remarks(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields reasons why the figures mean less than they seem to."""
    total = _later(answer["epochs"])
    if total["exchanged_bytes"]:
        share = total["exchanged_bytes"] / total["batch_bytes"]
        yield f"{share:.1%} of the data came from ranks of other nodes: {quantities.size(total['exchanged_bytes'])}."
    mapped = total["bytes_mapped"] / total["bytes"] if total["bytes"] else 0.0
    if mapped > 0.01:
        yield f"{mapped:.0%} of the bytes were in the page cache already: data that do not fit there come slower."
    if len(answer["epochs"]) == 1:
        yield "One epoch begins with nothing in memory: give --epochs 2 or more to see the later ones."


def align_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


DETAILS = """\
Alone, or one for each rank, started as the training will be:

  mpiexec -n 8 solar rehearse scan.h5 --batch-size 64 --epochs 3 --compute 30ms
  srun --mpi=pmi2 solar rehearse ...
  torchrun --nproc-per-node 8 --no-python solar rehearse ...

Ranks meet by torch.distributed (gloo) where MASTER_ADDR is set, else by MPI, for which mpi4py must be installed.
The order, what each rank reads and the memory are those of DataLoader(H5Dataset(FILE, ...), B, sampler=PlanSampler()),
with --order mixed of PlanSampler(order="mixed", block=SIZE, window=SIZE).

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
        "--batch-size",
        metavar="B",
        type=argument_types.count_argument,
        required=True,
        help="samples of a batch on each rank",
    )
    run.add_argument(
        "--epochs", metavar="E", type=argument_types.count_argument, default=2, help="how many are read (2)"
    )
    run.add_argument(
        "--compute", metavar="TIME", type=argument_types.seconds_argument, help="that a step takes: slept through"
    )
    run.add_argument("--seed", metavar="SEED", type=argument_types.seed, default=0, help="of the shuffles (0)")
    run.add_argument("--drop-last", action="store_true", help="leaves out what does not fill a batch of each rank")
    loader = parser.add_argument_group("the loader")
    loader.add_argument("--buffer", metavar="SIZE", help="memory on each node, 8GiB or 25%%; 0: none (what is best)")
    loader.add_argument("--exchange", choices=EXCHANGES, help="how ranks talk, as DataLoader's exchange")
    loader.add_argument("--balance", choices=BALANCES, help="who takes what of a step, as DataLoader's balance")
    sample_arguments.add_arguments(parser, mixed.WindowOrSteps)
    mixed.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with meet_ranks(arguments.exchange) as ranks:
        try:
            return _rehearse(arguments, ranks)
        except SolarError as error:
            _complain(ranks, error)
            ranks.give_up()
            raise SystemExit(1) from None


def _complain(ranks: Ranks, error: Exception) -> None:
    """Prints one line on stderr, which names the rank."""
    text = words.error_text_of(error).removeprefix(ranks.name)  # some errors of the loader name it, too
    sys.stderr.write(f"solar: {ranks.name}{text}\n")  # in one write: lines of other ranks come between two
    sys.stderr.flush()


def _rehearse(arguments: argparse.Namespace, ranks: Ranks) -> int:
    loader, facts = open_loader(arguments, ranks)
    if loader is None:
        return 1
    with loader:
        mine = [_epoch(loader, epoch, arguments.compute or 0.0, ranks) for epoch in range(arguments.epochs)]
    per_rank = ranks.gather({"rank": ranks.rank, "node": socket.gethostname(), "epochs": mine})
    if ranks.rank == 0:
        answer = as_json(facts, per_rank)
        for line in [json.dumps(answer, indent=1)] if arguments.json else as_text(answer):
            print(line)
    ranks.tell(None)  # no rank ends before the answer is out: launchers end the others with the first
    return 0


# --- the door ----


def open_loader(arguments: argparse.Namespace, ranks: Ranks) -> tuple[Any, dict[str, Any]]:
    """Returns this rank's loader and what is equal on all; None after an error on any rank, which has printed it."""
    said: SolarError | None = None
    loader: Any = None
    facts: dict[str, Any] = {}
    names = ranks.tell(named_fields(arguments, ranks) if ranks.rank == 0 else None)
    if names:
        try:
            nodes = count_nodes(
                arguments.exchange or "auto"
            )  # first: a meeting waits for all, and no loader is there yet
            loader, facts = _loader(arguments, names, ranks)
            facts["nodes"] = nodes
        except SolarError as error:
            said = error
            _complain(ranks, error)
    whole = all(ranks.gather(said is None and bool(names)))
    return (loader if ranks.tell(whole) else None), facts


def count_nodes(exchange: str) -> int | None:
    """Returns how many nodes the loader will see; None if ranks cannot talk."""
    others = peers(exchange)
    return 1 + max(others.meet("solar rehearse", {}, {}, {}).node_of) if others else None


def named_fields(arguments: argparse.Namespace, ranks: Ranks) -> list[str]:
    """Returns the fields of a sample, which one rank looks up; empty after an error."""
    from solar.cli.plan import field_names  # only rank 0 needs the planner's side

    try:
        return field_names(arguments)
    except SolarError as error:
        _complain(ranks, error)
        return []


def _loader(arguments: argparse.Namespace, names: list[str], ranks: Ranks) -> tuple[Any, dict[str, Any]]:
    from solar import DataLoader, H5Dataset, PlanSampler  # only here: torch takes seconds to import

    fields, samples = sample_arguments.fields(arguments, names)
    data = H5Dataset(arguments.file, fields, samples=samples, where=arguments.where, collective_open=ranks.ranks > 1)
    seed, drop, order = arguments.seed, arguments.drop_last, mixed.sampler_options(arguments)
    sampler = PlanSampler(data, ranks.ranks, ranks.rank, seed=seed, drop_last=drop, **order)
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
    """Returns this rank's counts of one epoch, which all ranks begin together."""
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
    """Returns the counts between two looks at a loader's stats."""
    counted: dict[str, Any] = {name: after[name] - before[name] for name in SUMMED}
    waits = {cause: seconds - before["wait_seconds"][cause] for cause, seconds in after["wait_seconds"].items()}
    return counted | {"wait_seconds": waits, "peak_bytes": after["peak_bytes"]}
