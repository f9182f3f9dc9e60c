"""IndexStream: how the index batches of one pass come, whatever the sampler; streams.py has one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from solar.torch.order.draws import copied, draw

Array = np.ndarray[Any, np.dtype[np.int64]]
Pass = tuple[Array, Array]  # samples in the order of their use; where each batch begins in it, and the last one ends


UNCOUNTED = 4096  # batches to draw beforehand where nobody knows how many there are


class IndexStream:
    """How the index batches of one pass come.

    `tell` says, in JSON, enough for `resume` to give the batches that are left.
    """

    kind = "none"
    told_by_all: tuple[str, ...] = ()  # what `tell` of every order of this kind says
    exhausted = False  # drawn to its end
    as_arrays = False  # where the samples are known beforehand, index batches are arrays instead of lists
    fixed = True  # it is the same whether it is drawn now or later
    draws_base_once = False  # torch draws a base seed for each pass, but for persistent workers once

    def __init__(self, sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> None:
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator  # the loader's: torch draws a base seed from it before a pass

    def start(self) -> Iterator[Any]:
        """All index batches, as torch takes them. Random draws are made when torch makes them."""
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def begin(self, last: IndexStream | None) -> None:
        """Called when the first index is about to be drawn; `last` is the order of the loader's pass before."""

    def ended(self) -> None:
        """Called when there is no index batch left to draw."""
        self.exhausted = True

    def asked(self) -> None:
        """Called when the consumer has the next batch, or is told that there is none."""

    def mark(self, batch: Any) -> Any:
        """What `tell` needs to know of the order right after this index batch was drawn."""

    def tell(self, mark: Any) -> dict[str, Any]:
        """The order, when the batch of this mark was the last one taken (None: none was)."""
        return {"kind": self.kind}

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        """The base seed and the order of a pass that would begin now. Nothing is drawn.

        With a base seed given, torch has drawn that already.
        """
        return draw(copied(self.generator)) if base_seed is None else base_seed, self.tell(None)

    def prepare(self, told: dict[str, Any], drawn: bool) -> None:
        """Called for a pass that was foretold, before torch's draws; `drawn`: which were made when it was."""

    def start_foretold(self, told: dict[str, Any]) -> Iterator[Any]:
        """All index batches of a pass that was foretold. It draws from the generators what `start` would have."""
        return self.resume(told, 0, 0)

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        """The index batches after the first `samples` samples, or after `batches` batches where they are not ours."""
        return islice(self.start(), batches, None)

    def drawn_at_once(self, batches: int | None) -> int:
        """How many index batches may be drawn before the first is used; more than all, where their number is known."""
        return UNCOUNTED if batches is None else batches + 1

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """The passes after this one, one after another, as far as they are known; each can be made again and again.

        Nothing is drawn from generators of the user's. `stride` is by how much the epoch grows from pass to pass.
        Asked when this pass was drawn to its end.
        """
        return iter(())

    def of_all(self, begun_at: int) -> Pass | None:
        """The pass of all ranks together that began after so many samples; None where they have none together."""
        return None

    def later_of_all(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """`later` for the passes of all ranks together."""
        return iter(())

    def batched(self, samples: Array) -> Pass:
        """All samples of a pass, with where its batches begin, as `cut` cuts them."""
        length, cutter = len(samples), self.batch_sampler
        if cutter is None:
            return samples, np.arange(length + 1)
        if cutter.drop_last:
            length -= length % cutter.batch_size
        return samples[:length], np.append(np.arange(0, length, cutter.batch_size), length)

    def consumed(self, begun_at: int, batches: int, samples: int) -> int:
        """Samples of the whole order consumed: the pass began after `begun_at`, and this loader took so many since."""
        return begun_at + samples

    def cut(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Samples cut into batches as the loader's own are."""
        cutter = self.batch_sampler
        if cutter is None:
            return iter(samples)
        if isinstance(samples, np.ndarray):
            begins = range(0, len(samples) - cutter.drop_last * (cutter.batch_size - 1), cutter.batch_size)
            return (samples[begin : begin + cutter.batch_size] for begin in begins)
        return iter(BatchSampler(_Given(samples), cutter.batch_size, cutter.drop_last))


class KnownStream(IndexStream):
    """An order whose samples can be had at once, before the first of them is asked for."""

    def whole(self) -> Array:
        """All samples of the pass that begins now. Draws what `start` draws when its first is asked for."""
        raise NotImplementedError

    def start(self) -> Iterator[Any]:
        return self._cut_late() if self.as_arrays and self.batch_sampler is not None else super().start()

    def _cut_late(self) -> Iterator[Any]:
        """As torch does, nothing is drawn before the first batch is asked for."""
        yield from self.cut(self.whole())


class _Given:
    """An iterator as torch's BatchSampler wants a sampler: something to iterate."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)
