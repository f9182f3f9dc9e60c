"""What an order costs: processor time and memory for each sample, torch's shuffle and draws beside them.

Each order is made once (tables, groups), then three epochs of it, by turns with the others. Processor time, for others
may use the machine, and the least of the three. Memory is what stays between epochs, beside the arrays that were given
and the epoch itself, which takes 4 bytes a sample.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from solar import Mixture, PlanSampler

Epoch = Callable[[int], Any]


def orders(samples: int) -> dict[str, Callable[[], Epoch]]:
    """How each is made; what is made gives an epoch."""
    rng = np.random.default_rng(0)
    data, weights = range(samples), rng.random(samples)
    thousand, many = rng.integers(0, 1000, samples), np.arange(samples) // 50
    sources = {"a": (range(samples // 2), 2**0.5), "b": (range(samples), 0.3), "c": (range(samples // 9), 1)}

    def planned(**asked: Any) -> Callable[[], Epoch]:
        return lambda: of(PlanSampler(data, 1, 0, **asked))

    def of(sampler: PlanSampler) -> Epoch:
        by = sampler.by
        assert by is not None
        return lambda epoch: by.whole(0, epoch)

    def drawn() -> Epoch:
        given = torch.from_numpy(weights)
        return lambda epoch: torch.multinomial(
            given, samples, True, generator=torch.Generator().manual_seed(epoch)
        ).tolist()

    return {
        "weights": planned(weights=weights),
        "classes, equal, of 10": planned(labels=thousand // 100, per_class="equal"),
        "classes, equal, of 1,000": planned(labels=thousand, per_class="equal"),
        "classes, weighted, of 1,000": planned(labels=thousand, per_class=rng.random(1000) + 0.1),
        "mixture of 3": lambda: of(PlanSampler(Mixture(sources, epoch=samples), 1, 0)),
        "groups of 50": planned(groups=many),
        "blocks": planned(order="blocks"),
        "mixed": planned(order="mixed", block=64, window=0.01),
        "mixed groups of 50": planned(order="mixed", block=500, window=0.01, groups=many),
        "a study": planned(study=7),
        "torch.randperm": lambda: lambda epoch: torch.randperm(samples, generator=torch.Generator().manual_seed(epoch)),
        "WeightedRandomSampler": drawn,
    }


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """The processor time that it took, and what it gave."""
    begin = time.process_time()
    found = act()
    return time.process_time() - begin, found


def cost(samples: int) -> Iterator[dict[str, Any]]:
    """A record for each order."""
    made: dict[str, tuple[float, int, Epoch]] = {}
    for name, make in orders(samples).items():
        tracemalloc.start()
        seconds, epoch = timed(make)
        made[name] = seconds, tracemalloc.get_traced_memory()[0], epoch
        tracemalloc.stop()
    best = dict.fromkeys(made, float("inf"))
    for turn in range(3):
        for name, (_, _, epoch) in made.items():
            best[name] = min(best[name], timed(lambda epoch=epoch, turn=turn: epoch(turn))[0])
    for name, (once, nbytes, _) in made.items():
        each = {"epoch": best[name] / samples, "once": once / samples, "nbytes": nbytes / samples}
        yield {"what": "cost", "order": name, "samples": samples, **each}
