"""The order of a shuffle by the user's generator: a copy draws it ahead, and its seed reproduces it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch

from solar.errors import PlanError
from solar.torch.order.draws import (
    check_drawing,
    copied,
    digest,
    draw,
    draw_last,
    drawing,
    draws_again,
    shuffle,
    shuffle_again,
    shuffled,
)
from solar.torch.order.stream import Array, IndexStream, Pass, Trust


class ShuffledByGenerator(IndexStream):
    """torch's shuffle by the user's generator. Its state is too large to save, so its history is saved instead.

    The history is its seed and the passes made since; repeating the same draws restores the state. Where index batches
    are drawn long before they are asked for, a copy of the generator draws them. The user's own generator draws what
    torch draws, when torch does, for the program may use it for other things, and the pass may end early.
    """

    kind = "shuffled by generator"
    draws = True
    told_by_all = ("seed", "replacement", "draws", "passes", "state")
    _state = ""
    _ahead: torch.Generator | None = None  # the copy
    _behind: Iterator[Any] | None = None  # draws from the user's
    _asked = False
    _from = 0  # the samples before the first batch
    _trust = Trust(0, 0)  # it is the user's own, so mostly nobody else draws from it

    def __init__(self, sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> None:
        super().__init__(sampler, batch_sampler, generator)
        self._passes: list[int] = []  # since the generator was seeded: so many whole, so many broken off, and so on

    def begin(self, last: IndexStream | None) -> None:
        self._state = digest(self.sampler.generator)
        self._passes = [] if self._newly_seeded(drawn=True) else _passes_after(last)
        if isinstance(last, ShuffledByGenerator):
            self._trust = last._trust
            if last.exhausted and last._ahead is not None:  # one that ended early drew less
                guess = last._at_end(last._ahead)
                self._draw_base(guess, 1)
                self._trust = last._trust.after(digest(guess) == self._state)

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        drawn = base_seed is not None
        self._passes = [] if self._newly_seeded(drawn) else _passes_after(last)
        generator = self._replayed(self.tell(None), False, check=False) if drawn else self.sampler.generator
        self._state = digest(generator)
        return super().foretell(last, base_seed)

    def tell(self, mark: Any) -> dict[str, Any]:
        seed = self.sampler.generator.initial_seed()
        passes = {"passes": list(self._passes), "state": self._state}
        return {"kind": self.kind, "seed": seed, **passes, **drawing(self.sampler)}

    def prepare(self, told: dict[str, Any], drawn: bool) -> None:
        generator = self._replayed(told, begun=False)
        if drawn:
            self._draw_base(generator, sum(told["passes"]))
        self.sampler.generator.set_state(generator.get_state())

    def start_foretold(self, told: dict[str, Any]) -> Iterator[Any]:
        self._passes, self._state = list(told["passes"]), digest(self.sampler.generator)
        return self.start()  # for `prepare` has put the generator in its place

    def start(self) -> Iterator[Any]:
        return self._drawn_after(0) if self.as_arrays else super().start()

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        check_drawing(self.sampler, told)
        generator = self.sampler.generator
        generator.set_state(self._replayed(told, begun=True).get_state())
        self._passes, self._state = list(told["passes"]), told["state"]
        return self._drawn_after(samples)

    def _drawn_after(self, samples: int) -> Iterator[Any]:
        """The index batches after the first `samples`. Nothing is drawn before the first batch is asked for."""
        self._from = samples
        if self.as_arrays and self.batch_sampler is not None:
            return self.cut_late(partial(self._drawn_ahead, samples))
        return self._drawn_one_by_one(samples)

    def _drawn_one_by_one(self, samples: int) -> Iterator[Any]:
        generator = self._followed(samples) if self.as_arrays else self.sampler.generator
        yield from self.cut(islice(shuffle(self.sampler, generator), samples, None))

    def _drawn_ahead(self, samples: int) -> Array:
        return shuffled(self.sampler, self._followed(samples))[samples:]

    def draw_at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._followed(self._from)
        return batches

    def _followed(self, samples: int) -> torch.Generator:
        """A copy of the user's generator, which draws ahead; the user's own follows it."""
        if self._ahead is None:
            self._ahead = copied(self.sampler.generator)
            self._behind = self.cut(islice(self._draws_again(), samples, None))
            for _ in range(self.in_advance or 1):
                next(self._behind, None)
        return self._ahead

    def _draws_again(self) -> Iterator[int]:
        yield from draws_again(self.sampler, self.sampler.generator)
        self.exhausted = True

    def asked(self) -> None:
        """Draws with the user's generator as each batch reaches the consumer; the first was drawn when asked for.

        Beside workers torch has drawn some batches then, and draws one more for each that it hands out.
        """
        if (self._asked or self.in_advance) and self._behind is not None:
            next(self._behind, None)
        self._asked = True

    def ended(self) -> None:
        if self._behind is None:
            super().ended()

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """The later passes by a copy of the generator. They are right as long as nobody else draws from it."""
        if self._ahead is None or not self._trust.suffices:
            return iter(())
        return self._shuffled_by(self._at_end(self._ahead))

    def _at_end(self, ahead: torch.Generator) -> torch.Generator:
        """The user's generator as it will be at the end of this pass."""
        generator = copied(ahead)
        if self.batch_sampler is not None:  # one by one, it was drawn when the last was taken
            draw_last(self.sampler, generator)
        return generator

    def _shuffled_by(self, generator: torch.Generator) -> Iterator[Callable[[], Pass]]:
        while True:
            self._draw_base(generator, 1)
            yield partial(self._shuffled_from, generator.get_state())
            shuffle_again(self.sampler, generator, whole=True)

    def _shuffled_from(self, state: torch.Tensor) -> Pass:
        generator = torch.Generator(self.sampler.generator.device)
        generator.set_state(state)
        return self.batched(shuffled(self.sampler, generator))

    def _replayed(self, told: dict[str, Any], begun: bool, check: bool = True) -> torch.Generator:
        """The generator's state just before the saved pass shuffled; if it had not begun, before its first draw."""
        generator = torch.Generator(self.sampler.generator.device).manual_seed(int(told["seed"]))
        number = 0
        for turn, times in enumerate(told["passes"]):
            for _ in range(times):
                self._draw_base(generator, number)
                shuffle_again(self.sampler, generator, whole=turn % 2 == 0)
                number += 1
        if begun:
            self._draw_base(generator, number)
        if check and digest(generator) != told["state"]:
            raise PlanError(
                "the shuffle's generator was also used for other draws before the state was saved, so its order cannot "
                "be made again: give the loader a generator of its own, or use solar.PlanSampler, or only shuffle=True"
            )
        return generator

    def _newly_seeded(self, drawn: bool) -> bool:
        generator = self.sampler.generator
        seeded = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        if drawn:
            self._draw_base(seeded, 0)
        return digest(seeded) == digest(generator)

    def _draw_base(self, generator: torch.Generator, number: int) -> None:
        """Makes torch's draw before pass `number`, if it is from the generator that also shuffles."""
        if self.generator is self.sampler.generator and not (self.draws_base_once and number):
            draw(generator)


def _passes_after(last: IndexStream | None) -> list[int]:
    """The passes up to and including this one. A pass that ended early has drawn less."""
    if not isinstance(last, ShuffledByGenerator):
        return []
    passes = list(last._passes) or [0]
    if len(passes) % 2 != last.exhausted:  # the newest count is of the other kind
        passes.append(0)
    passes[-1] += 1
    return passes
