"""The results of a rehearsal: sums over ranks and epochs, and their text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from solar.cli import words
from solar.io.machine import figures

FED = 0.02  # share of its time that a rank may wait and still count as fed
RANKS_SHOWN = 16  # ranks in the table; of more, the slowest
SUMMED = (
    *("batches", "samples", "batch_bytes", "bytes", "bytes_mapped", "requests", "bypassed", "bytes_decoded"),
    *("buffer_hits", "exchanged_bytes", "busy_seconds"),
)

Epoch = Mapping[str, Any]


def as_json(facts: Mapping[str, Any], per_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of --json; its keys are listed in rehearse.DETAILS."""
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
    fed, verdict = _verdict(answer)
    return answer | {"fed": fed, "verdict": verdict}


def _all_ranks(number: int, of: Sequence[Epoch]) -> dict[str, Any]:
    """One epoch of all ranks together."""
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
    """The sum of the epochs but the first, which begins with nothing in memory; of one epoch, that one."""
    chosen = epochs[1:] or epochs
    waits = {cause: sum(one["wait_seconds"][cause] for one in chosen) for cause in chosen[0]["wait_seconds"]}
    summed = {name: sum(one[name] for one in chosen) for name in ("seconds", *SUMMED)}
    return summed | {"wait_seconds": waits, "peak_bytes": chosen[-1]["peak_bytes"]}


def _waited(one: Epoch) -> float:
    return float(sum(one["wait_seconds"].values()))


def _most(one: Epoch) -> str:
    """What was waited for longest; empty if for nothing."""
    cause, seconds = max(one["wait_seconds"].items(), key=lambda pair: pair[1])
    return cause if seconds else ""


def _verdict(answer: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether a training with such steps would be fed, and why."""
    later = {one["rank"]: _later(one["epochs"]) for one in answer["per_rank"]}
    rank, slowest = max(later.items(), key=lambda pair: pair[1]["seconds"])
    if not slowest["batches"]:
        return None, "There are too few samples for one batch on each rank: give a smaller --batch-size."
    step = figures.duration(slowest["seconds"] / slowest["batches"])
    which = f"the slowest, rank {rank}," if len(later) > 1 else "it"
    if not answer["compute_seconds"]:
        had = f"the slowest, rank {rank}, had" if len(later) > 1 else "there was"
        return None, (
            f"Nothing was computed: {had} a batch every {step}. Steps that compute longer than this will hardly wait; "
            "--compute shows it."
        )
    compute = figures.duration(answer["compute_seconds"])
    share = max(_waited(one) / one["seconds"] if one["seconds"] else 0.0 for one in later.values())
    if share <= FED:
        nobody = "no rank waited" if len(later) > 1 else "it did not wait"
        return True, f"Steps of {compute} hardly wait for data: {nobody} more than {share:.1%} of the time."
    waited = _waited(slowest) / slowest["seconds"]
    return False, (
        f"Steps of {compute} WAIT for data: {which} took {step} a step, {waited:.0%} of it waiting, most for "
        f"{_most(slowest)}. {REMEDIES.get(_most(slowest), '')}"
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
    """The lines for people."""
    yield from _asked(answer)
    yield ""
    head = ("epoch", "time", "samples/s", "MB/s read", "requests", "hits", "waited", "first batch", "slowest/mean")
    yield from _table(head, [_epoch_row(one, answer) for one in answer["epochs"]])
    if answer["ranks"] > 1:
        yield ""
        yield from _ranks(answer)
    yield ""
    yield from _remarks(answer)
    yield answer["verdict"]


def _asked(answer: Mapping[str, Any]) -> Iterator[str]:
    fields = ", ".join(words.printable(name) for name in answer["datasets"])
    each = figures.size(answer["nbytes"])
    yield f"{words.printable(answer['file'])}: {figures.count(answer['samples'], 'sample')} of {fields}, {each} each"
    met = f" by {answer['by']}" if answer["ranks"] > 1 else ""
    compute = answer["compute_seconds"]
    steps = f", steps of {figures.duration(compute)}" if compute else ""
    buffer = f"; buffer {answer['buffer']} on each node" if answer["buffer"] is not None else ""
    yield (
        f"{figures.count(answer['ranks'], 'rank')} on {figures.count(answer['nodes'], 'node')}{met}, "
        f"{answer['batch']} samples each a step{steps}{buffer}"
    )


def _ranks(answer: Mapping[str, Any]) -> Iterator[str]:
    """The table of ranks, over the epochs but the first."""
    of = sorted(((_later(one["epochs"]), one) for one in answer["per_rank"]), key=lambda pair: -pair[0]["seconds"])
    shown = sorted(of[:RANKS_SHOWN], key=lambda pair: pair[1]["rank"])
    fields = len(answer["datasets"])
    head = ("rank", "node", "samples/s", "MB/s read", "requests", "hits", "waited", "most for", "memory")
    rows = [
        (
            str(one["rank"]),
            words.printable(one["node"]),
            *_rates(sums, fields),
            _most(sums),
            figures.size(sums["peak_bytes"]),
        )
        for sums, one in shown
    ]
    total = _later(answer["epochs"])
    rows.append(("all", "", *_rates(total, fields, answer["ranks"]), _most(total), ""))
    yield from _table(head, rows)
    if len(of) > RANKS_SHOWN:
        yield f"and {len(of) - RANKS_SHOWN:,} ranks more, each faster than these; --json has them all"
    if len(answer["epochs"]) > 1:
        yield "Ranks are summed over the epochs after the first."


def _epoch_row(one: Epoch, answer: Mapping[str, Any]) -> tuple[str, ...]:
    rates = _rates(one, len(answer["datasets"]), answer["ranks"])
    first = figures.duration(one["first_batch_seconds"])
    return str(one["epoch"]), figures.duration(one["seconds"]), *rates, first, f"{one['imbalance']:.2f}"


def _rates(one: Epoch, fields: int, ranks: int = 1) -> tuple[str, ...]:
    """Samples a second, MB read a second, requests, share of hits, share of the time waited."""
    seconds = one["seconds"] or float("inf")
    samples = one["samples"]
    return (
        f"{samples / seconds:,.0f}",
        f"{one['bytes'] / seconds / 1e6:,.0f}",
        f"{one['requests']:,}",
        f"{one['buffer_hits'] / samples / fields:.1%}" if samples else "",
        f"{_waited(one) / seconds / ranks:.1%}",
    )


def _remarks(answer: Mapping[str, Any]) -> Iterator[str]:
    """What makes the figures mean less than they seem to."""
    total = _later(answer["epochs"])
    if total["exchanged_bytes"]:
        share = total["exchanged_bytes"] / total["batch_bytes"]
        yield f"{share:.1%} of the data came from ranks of other nodes: {figures.size(total['exchanged_bytes'])}."
    mapped = total["bytes_mapped"] / total["bytes"] if total["bytes"] else 0.0
    if mapped > 0.01:
        yield f"{mapped:.0%} of the bytes were in the page cache already: data that do not fit there come slower."
    if len(answer["epochs"]) == 1:
        yield "One epoch begins with nothing in memory: give --epochs 2 or more to see the later ones."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
