"""Shows what an epoch would cost by each policy: PyTorch's, caches, the published SOLAR's, and ours."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from solar.cli import quantities, words
from solar.cli.compare import POLICY_NAMES, Answer, Case, answer, together
from solar.errors import PlanError
from solar.io.layout.hdf5 import inspect, survey
from solar.io.layout.paths import files_of
from solar.io.machine import available as machine
from solar.io.machine import profile
from solar.io.read.engine import ROOM
from solar.planner.units import Units, of_layout, uniform
from solar.values import Layout, Outcome, Storage, World

DETAILS = """\
Sizes are written 8GiB, 64k (of 1024) or 100MB (of 1000), times 2ms, rates 1GB/s, counts 10M.
Without --profile, --latency, --bandwidth or --iops: the profile that `solar probe` stored for the file's storage, or
else a guess by the kind of its file system; without a FILE 2 ms, 1 GB/s and 500 requests/s, a parallel file system on
disks. All times are modelled for that storage, with nothing of the data in the page cache.

keys of --json: version (1), samples, nbytes, ranks, ranks_per_node, batch, memory, epochs, seed, storage ({latency,
  bandwidth, iops, decode (null: nothing is decoded), depth, gap, from}), datasets, policies ({torch, lru, pinned,
  solar_paper, solar}, each {reads, requests, bytes, scans, seconds, hits, peak_bytes}, per epoch, once it is under
  way), first_batch_seconds (of each),
  estimated (policies that were followed on a smaller copy), plan_seconds (of one epoch on the first node),
  overflow_fraction (samples that another rank takes than the one that reads them), travel ({steps, samples, nbytes,
  most_nbytes}: what goes from node to node in an epoch, and what one node receives in a step at most), compute_seconds,
  load ({seconds, requests, bytes}: of our epoch with its computing, and of the storage per second of it),
  fits_page_cache (the FILE's data do, on this machine: once they are there, no storage is waited for)
"""

ASSUMED = profile.NETWORK  # where there is no file yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="the fields of a sample; else those as long as the largest one")
    made = parser.add_argument_group("instead of a file")
    made.add_argument("--samples", metavar="N", type=quantities.count, help="how many samples there are")
    made.add_argument("--sample-bytes", metavar="SIZE", type=quantities.size, help="of one sample")
    made.add_argument("--samples-per-chunk", metavar="K", type=quantities.count, default=1, help="read together (1)")
    run = parser.add_argument_group("the training")
    run.add_argument("--ranks", metavar="W", type=quantities.ranks, default=1, help="processes in all (1)")
    run.add_argument("--ranks-per-node", metavar="R", type=quantities.count, help="of these on one node (all)")
    run.add_argument("--batch-size", metavar="B", type=quantities.count, default=64, help="samples per rank (64)")
    run.add_argument("--memory", metavar="SIZE", type=quantities.size, help="for samples, on each node (must be given)")
    run.add_argument("--epochs", metavar="E", type=quantities.count, default=3, help="how many there will be (3)")
    run.add_argument(
        "--compute", metavar="TIME", type=quantities.seconds, default=0.0, help="of a step, beside reading (0)"
    )
    run.add_argument("--seed", metavar="SEED", type=quantities.seed, default=0, help="of the shuffles (0)")
    on = parser.add_argument_group("the storage")
    on.add_argument(
        "--profile", metavar="FILE", help="as `solar probe` stored it; numbers given beside it replace its own"
    )
    on.add_argument("--latency", metavar="TIME", type=quantities.seconds, help="of one request alone (2ms)")
    on.add_argument("--bandwidth", metavar="RATE", type=quantities.rate, help="bytes a second in large reads (1GB/s)")
    on.add_argument("--iops", metavar="RATE", type=quantities.per_second, help="requests a second at best (500)")
    on.add_argument("--decode", metavar="RATE", type=quantities.rate, help="bytes a second out of chunks (by filters)")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="also draws a picture: .html, or .png (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    storage, source = _storage(arguments)
    cases = [*_cases(arguments, storage)]
    if arguments.plot:
        from solar.cli import plot  # only here: matplotlib takes its time

        plot.check(arguments.plot)  # before the work
    answers = [answer(case) for case in cases]
    answered = together(answers, cases)
    cached = _cached(arguments.file, cases)
    if arguments.plot:
        shown, of = plot.panels(cases, answers, answered)
        said = [_subject(cases), _machine(cases), modelled(storage, source) + ".", *cached.splitlines(), of]
        plot.draw(arguments.plot, [line for line in said if line], shown)
    if arguments.json:
        print(json.dumps(as_json(cases, answered, source, arguments.compute, cached), indent=1))
    else:
        for line in as_text(cases, answered, source, arguments.compute, cached):
            print(line)
        if arguments.plot:
            print(f"\n{arguments.plot} has the picture")
    return 0


# --- what is asked ----


def _storage(arguments: argparse.Namespace) -> tuple[Storage, str]:
    """The storage, and where its numbers come from."""
    given = {name: getattr(arguments, name) for name in ("latency", "bandwidth", "iops", "decode")}
    given = {name: value for name, value in given.items() if value is not None}
    base, source = ASSUMED, "assumed: measure yours with `solar probe`"
    if arguments.profile:
        base, source = profile.load(arguments.profile), f"profile {arguments.profile}"
    elif arguments.file:
        base, source = storage_of(arguments.file)
    if {"latency", "bandwidth", "iops"} <= set(given):
        source = "as given"
    elif given:
        source = f"{', '.join(given)} as given; else {source}"
    return replace(base, **given), source


def storage_of(path: str) -> tuple[Storage, str]:
    """The storage of a data set as the loader takes it, and where its numbers come from."""
    return profile.stored_or_guessed(files_of(path)[0])


def _cached(path: str | None, cases: list[Case]) -> str:
    """What is to be said where this machine's page cache has room for all that would be read; else nothing."""
    if path is None or not fits_page_cache(sum(case.units.total_nbytes for case in cases)):
        return ""
    decoding = any(case.units.encoded and case.units.per_unit > 1 for case in cases)
    left = "only decoding is left to plan" if decoding else "there is nothing to plan"
    return (
        "These data fit into this machine's page cache: after the first epoch neither PyTorch nor solar waits for the "
        f"storage, and {left}.\nThe figures are for a machine without room for them."
    )


def fits_page_cache(nbytes: float) -> bool:
    """Whether this machine's page cache has room for so much of files."""
    return nbytes <= ROOM * machine.page_cache_nbytes()


def _decoding(storage: Storage, layout: Layout | None) -> Storage:
    """The storage, with what cores like those of this machine decode of its chunks where nobody has said."""
    if layout is None or not math.isinf(storage.decode):
        return storage
    return replace(storage, decode=profile.decodes(layout) * len(os.sched_getaffinity(0)))


def _cases(arguments: argparse.Namespace, storage: Storage) -> Iterator[Case]:
    """One for each field of the samples; the memory is divided among them by their bytes."""
    per_node = arguments.ranks_per_node or arguments.ranks
    if per_node > arguments.ranks:
        raise PlanError(f"--ranks-per-node {per_node} of --ranks {arguments.ranks}: a node has at most all ranks")
    world = World(0, arguments.ranks, 0, per_node)
    layouts: dict[str, Layout | None] = {"": None}
    if arguments.file is not None:
        layouts = {**layouts_of(arguments.file, arguments.dataset)}
    named = {name: _made(arguments) if one is None else of_layout(one) for name, one in layouts.items()}
    if arguments.file is not None and (arguments.samples or arguments.sample_bytes):
        raise PlanError(
            "how many samples there are, and how large, is in the FILE: leave out --samples and --sample-bytes"
        )
    total = sum(units.total_nbytes for units in named.values())
    if arguments.memory is None:
        raise PlanError(
            f"how much memory may samples take on each node? Give --memory SIZE: of {words.size(total)} a quarter "
            f"is --memory {total // 4}"
        )
    for name, units in named.items():
        memory = arguments.memory * units.total_nbytes // max(total, 1)
        costs = _decoding(storage, layouts[name])
        yield Case(name, units, world, arguments.batch_size, memory, costs, arguments.seed, arguments.epochs)


def _made(arguments: argparse.Namespace) -> Units:
    if not arguments.samples or not arguments.sample_bytes:
        raise PlanError("what is to be read? Give a FILE, or --samples and --sample-bytes")
    return uniform(arguments.samples, arguments.sample_bytes, per_unit=arguments.samples_per_chunk)


def layouts_of(path: str, names: list[str]) -> dict[str, Layout]:
    """The fields of a sample: those named, or all that have as many samples as the largest dataset."""
    files = files_of(path)
    if names:
        layouts = {name: inspect(files, name) for name in names}
        samples = {layout.samples for layout in layouts.values()}
        if len(samples) > 1:
            found = ", ".join(f"{name}: {layout.samples:,}" for name, layout in layouts.items())
            raise PlanError(f"{path}: the fields of a sample must have the same number of samples, not {found}")
    else:
        surveyed = survey(files).layouts
        layouts = fields_of(surveyed)
        if not layouts:
            raise PlanError(f"{path}: it has no dataset with samples that can be read; `solar inspect` says why")
    unread = next((layout for layout in layouts.values() if layout.reader == "none"), None)
    if unread is not None:
        raise PlanError(f"{path}: {unread.name} cannot be read: {unread.reason}")
    return layouts


def fields_of(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Those that have as many samples as the largest, each once; none where none can be read."""
    usable = {name: one for name, one in layouts.items() if one.reader != "none" and one.nbytes and one.shape}
    first: dict[object, str] = {}  # by where it is: the name that is its own, or else the first link's
    for name, one in sorted(usable.items(), key=lambda item: bool(item[1].names)):
        first.setdefault((one.paths, one.names or (one.name,) * len(one.paths)), name)
    once = set(first.values())
    usable = {name: one for name, one in usable.items() if name in once}
    samples = max(usable.values(), key=lambda layout: layout.nbytes).samples if usable else 0
    return {name: layout for name, layout in usable.items() if layout.samples == samples}


# --- what is said ----


def as_json(cases: list[Case], answered: Answer, source: str, compute: float = 0.0, cached: str = "") -> dict[str, Any]:
    """The answer of --json; its keys are listed in DETAILS."""
    one, storage = cases[0], cases[0].storage
    numbers: dict[str, Any] = {"latency": storage.latency, "bandwidth": storage.bandwidth, "iops": storage.iops}
    rates = [one.storage.decode for one in cases if not math.isinf(one.storage.decode)]
    numbers["decode"] = min(rates, default=None)
    return {
        "version": 1,
        "samples": one.units.samples,
        "nbytes": sum(case.units.total_nbytes for case in cases),
        "ranks": one.world.ranks,
        "ranks_per_node": one.world.ranks_per_node,
        "batch": one.batch,
        "memory": sum(case.memory for case in cases),
        "epochs": one.epochs,
        "seed": one.seed,
        "storage": numbers | {"depth": storage.depth, "gap": storage.gap, "from": source},
        "datasets": [case.name for case in cases if case.name],
        "policies": {name: asdict(outcome) for name, outcome in answered.outcomes.items()},
        "first_batch_seconds": answered.first_batch,
        "estimated": answered.estimated,
        "plan_seconds": answered.plan_seconds,
        "overflow_fraction": answered.overflow_fraction,
        "travel": asdict(answered.travel),
        "compute_seconds": compute,
        "load": _load(answered, compute),
        "fits_page_cache": bool(cached),
    }


def _load(answered: Answer, compute: float) -> dict[str, float]:
    """What our epoch asks of the storage per second, if the steps compute so long and reading goes on meanwhile."""
    ours = answered.outcomes["solar"]
    seconds = max(ours.seconds, compute * answered.travel.steps)
    per_second = 1 / seconds if seconds else 0.0
    return {"seconds": seconds, "requests": ours.requests * per_second, "bytes": ours.bytes * per_second}


def as_text(cases: list[Case], answered: Answer, source: str, compute: float = 0.0, cached: str = "") -> Iterator[str]:
    """The lines for people."""
    yield from _asked(cases, source)
    yield from cached.splitlines()
    yield ""
    head = ("per epoch", "time", "scans", "requests", "read", "hits", "peak memory", "first batch")
    rows = [head] + [_row(name, outcome, answered) for name, outcome in answered.outcomes.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *facts in rows:
        columns = (fact.rjust(width) for fact, width in zip(facts, widths[1:], strict=True))
        yield "  ".join([label.ljust(widths[0]), *columns])
    yield ""
    yield from _ranks(cases[0], answered, compute)
    yield "These figures are for the second and later epochs; the first also fills memory."
    yield "A scan is the time of reading all of it once, in order."
    if not answered.outcomes["solar"].requests:
        yield "All of it fits into this memory: solar reads it in the first epoch, and never again."
    if not cached and (faster := _in_short(answered)):
        yield f"{modelled(cases[0].storage, source)}: {faster}"
    if answered.estimated:
        yield "~ was counted on a smaller copy of the data set, and scaled up."


def _ranks(one: Case, answered: Answer, compute: float) -> Iterator[str]:
    """What our epoch asks of the network and of the storage."""
    travel, load = answered.travel, _load(answered, compute)
    nodes = -(-one.world.ranks // one.world.ranks_per_node)
    if nodes > 1:
        share = travel.samples / max(one.order.uses, 1)
        step = travel.nbytes / max(travel.steps, 1)
        yield (
            f"Between nodes {share:.1%} of the samples travel: {words.size(step)} a step in all, "
            f"{words.size(step / nodes)} into each node, {words.size(travel.most_nbytes)} at most."
        )
    if nodes > 1 or compute:
        why = f", computing {quantities.duration(compute * travel.steps)} of it" if compute else ", as fast as it reads"
        yield (
            f"An epoch of solar's takes {quantities.duration(load['seconds'])}{why}. All nodes together ask the "
            f"storage for {quantities.short(load['requests'])} requests and {words.size(load['bytes'])} a second."
        )


def _asked(cases: list[Case], source: str) -> Iterator[str]:
    """What was asked, in words."""
    storage = cases[0].storage
    yield _subject(cases)
    yield _machine(cases)
    yield f"{modelled(storage, source)}, where a request costs as much as reading {words.size(storage.gap)}"
    yield f"storage: {words.printable(source)}"
    yield from _decoded(cases)


def _subject(cases: list[Case]) -> str:
    """The data set: its samples, fields and bytes."""
    one = cases[0]
    total = sum(case.units.total_nbytes for case in cases)
    each = sum(case.units.sample_nbytes for case in cases)
    named = f" of {', '.join(words.printable(case.name) for case in cases)}" if one.name else ""
    return f"{words.count(one.units.samples, 'sample')}{named}, {words.size(each)} each, {words.size(total)} in all" + (
        _chunks(cases)
    )


def _machine(cases: list[Case]) -> str:
    """The ranks, and how much of the data set their memory holds."""
    one = cases[0]
    nodes = -(-one.world.ranks // one.world.ranks_per_node)
    memory, total = sum(case.memory for case in cases), sum(case.units.total_nbytes for case in cases)
    stored = " as it is stored" if any(case.units.encoded for case in cases) else ""
    return (
        f"{words.count(one.world.ranks, 'rank')} on {words.count(nodes, 'node')}, {one.batch} samples each a step; "
        f"{words.size(memory)} on each node: {min(1.0, memory * nodes / max(total, 1)):.0%} of the data set{stored}"
    )


def modelled(storage: Storage, source: str) -> str:
    """For what storage times are modelled, and whether anybody measured it."""
    how = {"profile ": "a measured", "guessed": "a guessed", "assumed": "an assumed", "as given": "the given"}
    kind = next(said for origin, said in how.items() if origin in source)
    rates = f"{storage.bandwidth / 1e9:.3g} GB/s and {storage.iops:,.0f} requests/s"
    return f"Modelled, for {kind} storage of {quantities.duration(storage.latency)}, {rates}"


def _decoded(cases: list[Case]) -> Iterator[str]:
    """What decoding costs, and by whose word: chunks of several samples come out whole, and may do so often."""
    often = [case for case in cases if case.units.encoded and case.units.per_unit > 1]
    if not often:
        return
    rate = min(case.storage.decode for case in often)
    if math.isinf(rate):
        yield "decoding: not counted; --decode RATE says how fast chunks of several samples are decoded"
        return
    how = "(--decode; else by the filters, on as many cores as here)"
    yield f"decoding: {rate / 1e9:.3g} GB/s out of chunks of several samples {how}"


def _chunks(cases: list[Case]) -> str:
    most = max(case.units.per_unit for case in cases)
    return f", up to {most:,} samples in a chunk" if most > 1 else ""


def _row(name: str, outcome: Outcome, answered: Answer) -> tuple[str, ...]:
    uses = outcome.reads + outcome.hits
    sign = "~" if name in answered.estimated else ""
    return (
        POLICY_NAMES[name],
        sign + quantities.duration(outcome.seconds),
        quantities.figure(outcome.scans),
        f"{sign}{outcome.requests:,.0f}",
        sign + words.size(outcome.bytes),
        f"{outcome.hits / uses:.1%}" if uses else "",
        words.size(outcome.peak_bytes),
        quantities.duration(answered.first_batch[name]) if name in answered.first_batch else "",
    )


def _in_short(answered: Answer) -> str:
    """Ours beside the others."""
    ours = answered.outcomes.get("solar")
    if ours is None or not ours.seconds:
        return ""
    others = [
        (POLICY_NAMES[name], other.seconds / ours.seconds) for name, other in answered.outcomes.items() if other != ours
    ]
    return (
        "solar is " + ", ".join(f"{quantities.figure(ratio)} times as fast as {name}" for name, ratio in others) + "."
    )
