"""The records of bench.orders as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

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
    """Of each memory and reader; scans by what the mount counted."""
    kept = of_part(found, "reading")
    rows = ((*cells[:2], f"{one['scans']:.2f}", *cells[2:]) for one, cells in of_readers(kept))
    return table(
        "on the slowed mount, memory for|order|scans:|requests:|read:|samples/s:|times exact:|parts of 128:", rows
    )


def web(found: list[Record]) -> str:
    """By what the server counted."""
    rows = (cells for _, cells in of_readers(of_part(found, "web")))
    return table("over the web, memory for|order|requests:|read:|samples/s:|times exact:|parts of 128:", rows)


def of_readers(found: list[Record]) -> Iterator[tuple[Record, tuple[str, ...]]]:
    """Each record, and what both tables say of it."""
    exact = {one["share"]: one["median"] for one in found if one["reader"] == "exact"}
    for one in sorted(found, key=lambda one: one["share"]):
        times = f"{one['median'] / exact[one['share']]:.2f}" if one["share"] in exact else "–"
        nbytes = f"{one['nbytes'] / 2**30:.2f} GiB"
        cells = (f"{one['requests']:,.0f}", nbytes, rate(one["median"]), times, f"{one['regions']:.1f}")
        yield one, (f"{100 * one['share']:g} %", READERS[one["reader"]], *cells)


def line(one: Record) -> str:
    """One record for people."""
    keys = ", ".join(str(one[key]) for key in ("what", *KEYS[one["what"]]))
    if one["what"] == "training":
        return f"{keys}: accuracy {one['accuracy'][-1]:.3f}, loss {one['losses'][-1]:.3f}, labels {one['labels']:.1f}"
    if one["what"] == "cost":
        return f"{keys}: {one['epoch'] * 1e9:.0f} ns"
    return f"{keys}: {one['scans']:.2f} scans, {one['requests']:,.0f} requests, {one['median']:,.0f} samples/s"
