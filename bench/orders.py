"""Orders: what each costs, what it reads, and what a training makes of it.

    python -m bench.orders [--what cost training reading web] [--quick] [--samples N] [--record]

cost        processor time and memory of each order, for each sample (bench/orders_cost.py)
training    a small network, five seeds, in an exact, mixed orders and blocks, on a file sorted by class and a real one
            (bench/orders_training.py): losses, accuracy, labels of a batch
reading     what an epoch of exact and mixed orders reads on the slowed mount with 2, 5 and 10 % of the data in memory,
            beside what scDataset and Lance would read (bench/orders_reading.py)
web         the same over the web, by the server's counters

docs/measured.md has the tables; --record adds the lines to bench/results/orders.jsonl.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine, orders_tables, parts, records

WHAT = ("cost", "training", "reading", "web")
SAMPLES = 10_000_000


def measured(what: str, asked: Any) -> Iterator[dict[str, Any]]:
    """The records of a part."""
    from bench import orders_cost, orders_reading, orders_training  # each takes torch

    if what == "cost":
        yield from orders_cost.cost(asked.samples // (10 if asked.quick else 1))
    elif what == "training":
        with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
            yield from orders_training.training(Path(name), asked.quick)
    else:
        yield from orders_reading.measure(asked.folder, asked.quick, what)


def main() -> None:
    parser = records.arguments("bench.orders", __doc__, "orders", what=WHAT)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="whose orders are made, for cost (%(default)s)")
    asked = parser.parse_args()
    facts = {"quick": asked.quick, "load_before": records.load(asked.load_before)}
    facts |= machine.described(asked.folder or Path(tempfile.gettempdir()))
    shown = []
    for what in asked.what or WHAT:
        for record in measured(what, asked):
            one = {"bench": "orders", **record, **facts}
            parts.note(f"    {orders_tables.line(record)}")
            records.append(asked.out, one)
            shown.append(one)
    print(orders_tables.orders(shown))


if __name__ == "__main__":
    main()
