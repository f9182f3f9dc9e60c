"""The records of bench.orders as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from bench.tables import Record, newest, parted, rate, table

KEYS = {
    "cost": ("order",), "training": ("data", "order", "seed"), "reading": ("share", "reader"),
    "web": ("share", "reader"),
}  # fmt: skip
READERS = {"exact": "exact shuffle", "mixed": "mixed", "fetched": "as scDataset", "clumps": "as Lance"}
DATA = {"sorted": "sorted by class", "field": "a field on its grid"}


def orders(found: list[Record]) -> str:
    """All of them."""
    return parted(*(of(found) for of in (cost, training, reading, web)))


def of_part(found: Iterable[Record], what: str) -> list[Record]:
    """The newest of a part."""
    return newest([one for one in found if one["what"] == what], *KEYS[what])


def cost(found: list[Record]) -> str:
    rows = (
        (one["order"], f"{one['epoch'] * 1e9:.0f}", f"{one['once'] * 1e9:.0f}", f"{one['nbytes']:.1f}")
        for one in of_part(found, "cost")
    )
    return table("order|an epoch: ns:|once: ns:|memory: bytes:", rows)


def training(found: list[Record]) -> str:
    """Of each data set and order the mean and the spread of seeds, after the first epoch and the last."""
    by: dict[tuple[str, str], list[Record]] = {}
    for one in of_part(found, "training"):
        by.setdefault((one["data"], one["order"]), []).append(one)
    rows = []
    for (data, order), seeds in by.items():
        first, last = ([one["accuracy"][at] for one in seeds] for at in (0, -1))
        loss = [one["losses"][-1] for one in seeds]
        rows.append((
            DATA[data], order, f"{statistics.mean(one['labels'] for one in seeds):.1f}", spread(first), spread(last),
            f"{statistics.mean(loss):.3f}", len(seeds),
        ))  # fmt: skip
    return table("data|order|labels in a batch:|accuracy after one epoch:|after the last:|last loss:|seeds:", rows)


def spread(values: list[float]) -> str:
    """The mean, and the least and the most, in percent."""
    return f"{100 * statistics.mean(values):.1f} % ({100 * min(values):.1f}–{100 * max(values):.1f})"


def reading(found: list[Record]) -> str:
    return of_readers(of_part(found, "reading"), "on the slowed mount, memory for")


def web(found: list[Record]) -> str:
    return of_readers(of_part(found, "web"), "over the web, memory for")


def of_readers(found: list[Record], head: str) -> str:
    rows = []
    exact = {one["share"]: one["median"] for one in found if one["reader"] == "exact"}
    for one in sorted(found, key=lambda one: one["share"]):
        times = f"{one['median'] / exact[one['share']]:.2f}" if one["share"] in exact else "–"
        rows.append((
            f"{one['share']:.0%}", READERS[one["reader"]], f"{one['scans']:.2f}", f"{one['requests']:,.0f}",
            f"{one['nbytes'] / 2**30:.2f} GiB", rate(one["median"]), times, f"{one['regions']:.1f}",
        ))  # fmt: skip
    return table(f"{head}|order|scans:|requests:|read:|samples/s:|times exact:|parts of 128:", rows)


def line(one: Record) -> str:
    """One record for people."""
    keys = ", ".join(str(one[key]) for key in ("what", *KEYS[one["what"]]))
    if one["what"] == "training":
        return f"{keys}: accuracy {one['accuracy'][-1]:.3f}, loss {one['losses'][-1]:.3f}, labels {one['labels']:.1f}"
    if one["what"] == "cost":
        return f"{keys}: {one['epoch'] * 1e9:.0f} ns"
    return f"{keys}: {one['scans']:.2f} scans, {one['requests']:,.0f} requests, {one['median']:,.0f} samples/s"
