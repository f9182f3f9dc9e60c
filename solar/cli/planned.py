"""The output of `solar plan`: JSON, and a table for people. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from solar.cli import words
from solar.cli.compare import ROW_NAMES, Answer, PlannedData
from solar.io.system import quantities
from solar.planning.planned_passes import packed_ratio
from solar.samples.boxes import BoxBlocks
from solar.samples.row_windows import RowWindows
from solar.values import Outcome, Storage


def as_json(
    cases: list[PlannedData], answered: Answer, source: str, compute: float = 0.0, cached: str = ""
) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    one, storage = cases[0], cases[0].storage
    numbers: dict[str, Any] = {"latency": storage.latency, "bandwidth": storage.bandwidth, "iops": storage.iops}
    rates = [one.storage.decode for one in cases if not math.isinf(one.storage.decode)]
    numbers["decode"] = min(rates, default=None)
    return {
        "version": 1,
        "samples": one.samples,
        "nbytes": sum(case.units.total_nbytes for case in cases),
        "ranks": one.world.ranks,
        "ranks_per_node": one.world.ranks_per_node,
        "batch": one.batch,
        "epochs": one.epochs,
        "seed": one.seed,
        "storage": numbers | {"depth": storage.depth, "gap": storage.gap, "from": source},
        "datasets": [case.name for case in cases if case.name],
        "policies": {name: asdict(outcome) for name, outcome in answered.outcomes.items()},
        "first_epoch": None if answered.first_epoch is None else asdict(answered.first_epoch),
        "buffer": _divide(answered),
        "packed": packed_line(answered),
        "planned": {"epochs": len(answered.plan.epochs) if answered.plan else 0, "nodes": answered.nodes},
        "first_batch_seconds": answered.first_batch,
        "estimated": answered.estimated,
        "plan_seconds": answered.plan_seconds,
        "overflow_fraction": answered.overflow_fraction,
        "travel": asdict(answered.travel),
        "compute_seconds": compute,
        "load": storage_load(answered, compute),
        "fits_page_cache": bool(cached),
    }


def _divide(answered: Answer) -> dict[str, int] | None:
    """Returns how the loader divides a node's memory."""
    plan = answered.plan
    if plan is None or plan.budget is None:
        return None
    own, batches = plan.budget, plan.batches_nbytes
    return {
        "samples": own.parts, "batches": batches, "scratch": own.nbytes - own.parts - batches, "ready": own.staged
    }  # fmt: skip


def packed_line(answered: Answer) -> str:
    """Says that the loader's buffer holds samples encoded, and how much smaller; empty if it does not."""
    plan = answered.plan
    return packed_ratio(plan.windows[-1].plans) if plan is not None and plan.windows else ""


def storage_load(answered: Answer, compute: float) -> dict[str, float]:
    """Returns what our epoch asks of the storage per second, if each step computes this long while reading goes on."""
    ours = answered.outcomes["solar"]
    seconds = max(ours.seconds, compute * answered.travel.steps)
    per_second = 1 / seconds if seconds else 0.0
    return {"seconds": seconds, "requests": ours.requests * per_second, "bytes": ours.bytes * per_second}


def as_text(
    cases: list[PlannedData], memory: int, answered: Answer, source: str, compute: float, cached: str, refused: str
) -> Iterator[str]:
    """Yields the lines for people."""
    yield from opening(cases, memory, answered, source, cached, refused)
    yield ""
    head = ("per epoch", "time", "scans", "requests", "read", "hits", "peak memory", "first batch")
    yield from table([head, *(policy_row(name, outcome, answered) for name, outcome in answered.outcomes.items())])
    yield ""
    yield from closing(cases, answered, source, compute, cached, ROW_NAMES)


def opening(
    cases: list[PlannedData], memory: int, answered: Answer, source: str, cached: str, refused: str
) -> Iterator[str]:
    """Yields the question, and how the memory is divided."""
    yield from describe_request(cases, memory, source)
    if refused:
        yield f"solar's loader has no buffer here: {refused}"
    elif divided := _divide(answered):
        ready = f"batches ({divided['ready']} ready on each rank)"
        if cases[0].drawn.jobs > 1:
            ready = f"the steps of all jobs ({divided['ready']} on their way)"
        yield (
            f"solar's buffer: {quantities.size(divided['samples'])} for samples, {quantities.size(divided['batches'])} "
            f"for {ready}, {quantities.size(divided['scratch'])} to decode in"
        )
        if packed := packed_line(answered):
            yield f"solar's buffer holds samples {packed}"
    yield from cached.splitlines()


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Returns rows as a table whose first column is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *facts in rows:
        columns = (fact.rjust(width) for fact, width in zip(facts, widths[1:], strict=True))
        yield "  ".join([label.ljust(widths[0]), *columns])


def closing(
    cases: list[PlannedData], answered: Answer, source: str, compute: float, cached: str, names: Mapping[str, str]
) -> Iterator[str]:
    """Yields what the figures refer to, and how ours compare with the others, which have these names."""
    yield from rank_loads(cases[0], answered, compute)
    yield from figures_epochs(cases[0], answered)
    yield "A scan is the time of reading all of it once, in order."
    if not answered.outcomes["solar"].requests:
        yield "All of it fits into this memory: solar reads it in the first epoch, and never again."
    if not cached and (faster := _in_short(answered, names)):
        yield f"{describe_storage(cases[0].storage, source)}: {faster}"
    if answered.estimated:
        yield "~ was counted on a smaller copy of the data set, and scaled up."


def figures_epochs(one: PlannedData, answered: Answer) -> Iterator[str]:
    """Returns the epochs that the figures refer to."""
    first, plan = answered.first_epoch, answered.plan
    if first is None or plan is None:
        return
    if one.epochs == 1:
        yield "There is one epoch: solar's row has what fills memory, too; caches of others are taken to be full."
    else:
        took = f"{quantities.count(round(first.requests), 'request')} for {quantities.size(first.bytes)}"
        yield f"These figures are for the second and later epochs; the first also fills memory: solar's takes {took}."
    if plan.windows and len(plan.epochs) < one.epochs:
        yield f"{len(plan.epochs)} of {one.epochs} epochs were worked out; the others go on like the last of them."
    nodes = -(-one.world.ranks // one.world.ranks_per_node)
    if answered.nodes < nodes:
        yield f"{answered.nodes} of {nodes} nodes was worked out; the others are taken to be alike."


def from_afar(cases: list[PlannedData], answered: Answer, stage: int | None) -> dict[str, float] | None:
    """Returns the bytes that all nodes fetch if a stage on each keeps this many: everything that they read, once."""
    if stage is None:
        return None
    ours, epochs = answered.outcomes["solar"], cases[0].epochs
    nodes = -(-cases[0].world.ranks // cases[0].world.ranks_per_node)
    kept = min(1.0, stage * nodes / max(1, sum(case.units.total_nbytes for case in cases)))
    first = ours.bytes if answered.first_epoch is None else answered.first_epoch.bytes
    later = ours.bytes * (1 - kept)
    return {"nbytes": stage, "first_epoch": first, "later_epochs": later, "all": first + later * (epochs - 1)}


def afar_in_words(afar: dict[str, float], epochs: int) -> str:
    """Returns that for people."""
    first, later, every = (quantities.size(afar[name]) for name in ("first_epoch", "later_epochs", "all"))
    stage = f"With a stage of {quantities.size(afar['nbytes'])} on each node's disk"
    return f"{stage}, the first epoch reads {first} from afar, each later one {later}: {every} in {epochs} epochs."


def decoded_in_words(cases: list[PlannedData], memory: int, nbytes: int) -> str:
    """Says what a stage that keeps chunks decoded takes, where memory does not hold all of them."""
    nodes = -(-cases[0].world.ranks // cases[0].world.ranks_per_node)
    if nbytes <= memory * nodes:
        return ""
    return (
        f'Kept decoded on a local disk (stage_as="decoded") these data take {quantities.size(nbytes)}, and later '
        "epochs decode nothing."
    )


def rank_loads(one: PlannedData, answered: Answer, compute: float) -> Iterator[str]:
    """Yields what our epoch asks of the network and of the storage."""
    travel, load = answered.travel, storage_load(answered, compute)
    nodes = -(-one.world.ranks // one.world.ranks_per_node)
    if nodes > 1:
        share = travel.samples / max(one.order.uses, 1)
        step = travel.nbytes / max(travel.steps, 1)
        yield (
            f"Between nodes {share:.1%} of the samples travel: {quantities.size(step)} a step in all, "
            f"{quantities.size(step / nodes)} into each node, {quantities.size(travel.most_nbytes)} at most."
        )
    if nodes > 1 or compute:
        why = f", computing {quantities.duration(compute * travel.steps)} of it" if compute else ", as fast as it reads"
        yield (
            f"An epoch of solar's takes {quantities.duration(load['seconds'])}{why}. All nodes together ask the "
            f"storage for {quantities.short(load['requests'])} requests and {quantities.size(load['bytes'])} a second."
        )


def describe_request(cases: list[PlannedData], memory: int, source: str) -> Iterator[str]:
    """Yields a description of the question."""
    storage = cases[0].storage
    yield subject(cases)
    yield describe_machine(cases, memory)
    costs = f"where a request costs as much as reading {quantities.size(storage.gap)}"
    yield f"{describe_storage(storage, source)}, {costs}"
    yield f"storage: {words.printable(source)}"
    yield from describe_decoding(cases)


def subject(cases: list[PlannedData]) -> str:
    """Returns the data set: its samples, fields and bytes."""
    one = cases[0]
    total = sum(case.units.total_nbytes for case in cases)
    each = sum(case.sample_nbytes for case in cases if case.drawn.first == one.drawn.first)
    named = f" of {', '.join(words.printable(case.name) for case in cases)}" if one.name else ""
    kinds = {RowWindows: ("window",), BoxBlocks: ("box", "boxes")}
    counted = quantities.count(one.samples, *kinds.get(type(one.extents), ("sample",)))
    drawn = "" if one.drawn.weights is None else "; drawn by weights"
    if one.drawn.by is not None:
        sizes = one.drawn.by.facts
        drawn = f"; in a mixed order, blocks of {sizes['block']:,} within windows of {sizes['window']:,}"
    drawn = f"; mixed, {one.order.uses:,} of them an epoch" if one.drawn.mixed is not None else drawn
    return (
        f"{counted}{named}, {quantities.size(each)} each, {quantities.size(total)} in all"
        + samples_in_chunk(cases)
        + drawn
    )


def describe_machine(cases: list[PlannedData], memory: int) -> str:
    """Returns the ranks, and how much of the data set their memory holds."""
    one = cases[0]
    nodes = -(-one.world.ranks // one.world.ranks_per_node)
    who = quantities.count(one.world.ranks, "rank") if one.drawn.jobs == 1 else quantities.count(one.drawn.jobs, "job")
    stored = _share_of(memory * nodes, sum(case.units.total_nbytes for case in cases))
    held = f"{stored} of the data set"
    if any(case.units.encoded for case in cases):
        decoded = _share_of(memory * nodes, sum(case.units.samples * case.units.sample_nbytes for case in cases))
        held = f"{decoded} of the data set decoded, {stored} as it is stored"
    return (
        f"{who} on {quantities.count(nodes, 'node')}, {one.batch} samples each a step; "
        f"{quantities.size(memory)} on each node: {held}"
    )


def _share_of(room: int, nbytes: int) -> str:
    return f"{min(1.0, room / max(nbytes, 1)):.0%}"


def describe_storage(storage: Storage, source: str) -> str:
    """Describes the storage that times are modelled for, and whether anybody measured it."""
    how = {"profile ": "a measured", "guessed": "a guessed", "assumed": "an assumed", "as given": "the given"}
    kind = next(said for origin, said in how.items() if origin in source)
    rates = f"{quantities.rate(storage.bandwidth)} and {storage.iops:,.0f} requests/s"
    return f"Modelled, for {kind} storage of {quantities.duration(storage.latency)}, {rates}"


def describe_decoding(cases: list[PlannedData]) -> Iterator[str]:
    """Yields the cost of decoding, and its source."""
    encoded = [case for case in cases if case.units.encoded]
    if not encoded:
        return
    rate = min(case.storage.decode for case in encoded)
    if math.isinf(rate):
        yield "decoding: not counted; --decode RATE says how fast chunks are decoded"
        return
    how = "(--decode; else by the filters, on as many cores as here)"
    yield f"decoding: {quantities.rate(rate)} out of chunks {how}"


def samples_in_chunk(cases: list[PlannedData]) -> str:
    most = max((case.units.per_unit for case in cases if not case.piece.in_blocks), default=1)
    return f", up to {most:,} samples in a chunk" if most > 1 else ""


def policy_row(name: str, outcome: Outcome, answered: Answer) -> tuple[str, ...]:
    uses = outcome.reads + outcome.hits
    sign = "~" if name in answered.estimated else ""
    return (
        ROW_NAMES[name],
        sign + quantities.duration(outcome.seconds),
        quantities.rounded(outcome.scans),
        f"{sign}{outcome.requests:,.0f}",
        sign + quantities.size(outcome.bytes),
        f"{outcome.hits / uses:.1%}" if uses else "",
        quantities.size(outcome.peak_bytes),
        quantities.duration(answered.first_batch[name]) if name in answered.first_batch else "",
    )


def _in_short(answered: Answer, names: Mapping[str, str]) -> str:
    """Yields how ours compares with the others."""
    ours = answered.outcomes.get("solar")
    if ours is None or not ours.seconds:
        return ""
    others = [(names[name], other.seconds / ours.seconds) for name, other in answered.outcomes.items() if other != ours]
    return (
        "solar is " + ", ".join(f"{quantities.rounded(ratio)} times as fast as {name}" for name, ratio in others) + "."
    )
