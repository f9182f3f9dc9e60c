"""The index streams of torch's samplers and ours. A few JSON values describe each, and each can resume."""

from __future__ import annotations

import hashlib
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

from solar import _native
from solar.errors import PlanError
from solar.samplers.index_stream import (
    UNCOUNTED,
    Array,
    BatchCuts,
    Distributed,
    IndexStream,
    KnownOrder,
    KnownStream,
    Pass,
)
from solar.samplers.samplers import Indices, PlanBatchSampler, PlanSampler, ascending, permutation, seeded

# --- torch's random draws: made, predicted, repeated and skipped ----

SKIPPED = 1 << 16  # random numbers at a time, so that they take no memory


def draw_torch_seed(generator: torch.Generator | None) -> int:
    """Returns a seed, drawn as torch's loader and sampler draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def skip(generator: torch.Generator, count: int) -> None:
    """Draws and discards `count` 32-bit numbers; a seed takes two of them."""
    torch.empty(count, dtype=torch.int32).random_(generator=generator)


def skip_permutation(samples: int, generator: torch.Generator) -> None:
    """Draws what torch.randperm draws, and throws it away."""
    draws = _native.randperm_draws(samples)
    for begin in range(0, draws, SKIPPED):
        skip(generator, min(SKIPPED, draws - begin))


def copy_generator(generator: torch.Generator | None) -> torch.Generator:
    """Returns a copy of a generator in its present state; None is torch's global one."""
    copied = torch.Generator("cpu" if generator is None else generator.device)
    copied.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return copied


def digest(generator: torch.Generator) -> str:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:16]


def shuffle(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    return iter(RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator))


def shuffled(sampler: RandomSampler, generator: torch.Generator) -> Indices:
    """Returns everything that `shuffle` yields, as an array. Its last, unused draws are left to `draw_last`."""
    samples, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        return np.fromiter(shuffle(sampler, generator), np.int64, wanted)
    if samples == wanted:
        return permutation(samples, generator)
    return np.concatenate([permutation(samples, generator)[: wanted - begin] for begin in range(0, wanted, samples)])


def draw_last(sampler: RandomSampler, generator: torch.Generator) -> None:
    """Draws what `shuffle` draws once all samples are taken."""
    if not sampler.replacement and sampler.num_samples % len(sampler.data_source) == 0:
        skip_permutation(len(sampler.data_source), generator)


def draws_again(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    """Makes the draws of `shuffle` from the generator, at the same times. The numbers that it yields mean nothing."""
    if sampler.replacement:
        yield from shuffle(sampler, generator)
        return
    samples = len(sampler.data_source)
    for begin in range(0, sampler.num_samples + 1, samples):  # after the last whole one it draws once more in any case
        skip_permutation(samples, generator)
        yield from repeat(0, min(samples, sampler.num_samples - begin))


def shuffle_again(sampler: RandomSampler, generator: torch.Generator, whole: bool) -> None:
    """Makes the draws of `shuffle` from the generator: all of them, or only those for its first sample."""
    draws = draws_again(sampler, generator)
    deque(draws, maxlen=0) if whole else next(draws)


def drawing(sampler: RandomSampler) -> dict[str, Any]:
    return {"replacement": sampler.replacement, "draws": sampler.num_samples}


def check_drawing(sampler: RandomSampler, saved: dict[str, Any]) -> None:
    for name, value in drawing(sampler).items():
        if saved[name] != value:
            raise PlanError(f"the state is of a RandomSampler with {name}={saved[name]}; this loader's has {value}")


# --- the streams ----


class ShuffledByGenerator(IndexStream):
    """torch's shuffle by the user's generator.

    The generator's state is too large to save, so its history is saved instead: its seed and the passes since, whose
    draws are repeated to restore it. If index batches are drawn long before they are asked for, a copy of the generator
    draws them. The user's own generator draws what torch draws, when torch does, because the program may use it for
    other things and the pass may end early.
    """

    kind = "shuffled by generator"
    draws = True
    saved_keys = ("seed", "replacement", "draws", "passes", "state")
    _state = ""
    _ahead: torch.Generator | None = None  # the copy
    _behind: Iterator[Any] | None = None  # draws from the user's
    _asked = False
    _from = 0  # the samples before the first batch
    _trust = KnownOrder(0, 0)  # it is the user's own, so mostly nobody else draws from it

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
        generator = self._replay(self.tell(None), False, check=False) if drawn else self.sampler.generator
        self._state = digest(generator)
        return super().foretell(last, base_seed)

    def tell(self, mark: Any) -> dict[str, Any]:
        seed = self.sampler.generator.initial_seed()
        passes = {"passes": list(self._passes), "state": self._state}
        return {"kind": self.kind, "seed": seed, **passes, **drawing(self.sampler)}

    def prepare(self, saved: dict[str, Any], drawn: bool) -> None:
        generator = self._replay(saved, begun=False)
        if drawn:
            self._draw_base(generator, sum(saved["passes"]))
        self.sampler.generator.set_state(generator.get_state())

    def start_foretold(self, saved: dict[str, Any]) -> Iterator[Any]:
        self._passes, self._state = list(saved["passes"]), digest(self.sampler.generator)
        return self.start()  # for `prepare` has put the generator in its place

    def start(self) -> Iterator[Any]:
        return self._draw_after(0) if self.as_arrays else super().start()

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        check_drawing(self.sampler, saved)
        generator = self.sampler.generator
        generator.set_state(self._replay(saved, begun=True).get_state())
        self._passes, self._state = list(saved["passes"]), saved["state"]
        return self._draw_after(samples)

    def _draw_after(self, samples: int) -> Iterator[Any]:
        """Returns the index batches after the first `samples`. Nothing is drawn before the first batch is asked for."""
        self._from = samples
        if self.as_arrays and self.batch_sampler is not None:
            return self.cut_late(partial(self._draw_ahead, samples))
        return self._draw_one_by_one(samples)

    def _draw_one_by_one(self, samples: int) -> Iterator[Any]:
        generator = self._follow(samples) if self.as_arrays else self.sampler.generator
        yield from self.cut(islice(shuffle(self.sampler, generator), samples, None))

    def _draw_ahead(self, samples: int) -> Array:
        generator = self._follow(samples)
        state = generator.get_state()
        try:
            return shuffled(self.sampler, generator)[samples:]
        except BaseException:  # Ctrl-C: it is drawn again
            generator.set_state(state)
            raise

    def draw_at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._follow(self._from)
        return batches

    def _follow(self, samples: int) -> torch.Generator:
        """Returns a copy of the user's generator that draws ahead; the user's own follows it."""
        if self._ahead is None:
            self._ahead = copy_generator(self.sampler.generator)
            self._behind = self.cut(islice(self._draws_again(), samples, None))
            for _ in range(self.in_advance or 1):
                next(self._behind, None)
        return self._ahead

    def _draws_again(self) -> Iterator[int]:
        yield from draws_again(self.sampler, self.sampler.generator)
        self.exhausted = True

    def asked(self) -> None:
        """Draws with the user's generator as each batch reaches the consumer; the first was drawn when asked for.

        With workers, torch has drawn several batches by then, and draws one more for each that it hands out.
        """
        if (self._asked or self.in_advance) and self._behind is not None:
            next(self._behind, None)
        self._asked = True

    def ended(self) -> None:
        if self._behind is None:
            super().ended()

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """Returns the later passes, by a copy of the generator. They assume that nothing else draws from it."""
        if self._ahead is None or not self._trust.suffices:
            return iter(())
        return self._shuffle_by(self._at_end(self._ahead))

    def _at_end(self, ahead: torch.Generator) -> torch.Generator:
        """Returns the user's generator as it will be at the end of this pass."""
        generator = copy_generator(ahead)
        if self.batch_sampler is not None:  # one by one, it was drawn when the last was taken
            draw_last(self.sampler, generator)
        return generator

    def _shuffle_by(self, generator: torch.Generator) -> Iterator[Callable[[], Pass]]:
        while True:
            self._draw_base(generator, 1)
            yield partial(self._shuffle_from, generator.get_state())
            shuffle_again(self.sampler, generator, whole=True)

    def _shuffle_from(self, state: torch.Tensor) -> Pass:
        generator = torch.Generator(self.sampler.generator.device)
        generator.set_state(state)
        return self.batched(shuffled(self.sampler, generator))

    def _replay(self, saved: dict[str, Any], begun: bool, check: bool = True) -> torch.Generator:
        """Returns the generator's state just before the saved pass shuffled, or before its first draw."""
        generator = torch.Generator(self.sampler.generator.device).manual_seed(int(saved["seed"]))
        number = 0
        for turn, times in enumerate(saved["passes"]):
            for _ in range(times):
                self._draw_base(generator, number)
                shuffle_again(self.sampler, generator, whole=turn % 2 == 0)
                number += 1
        if begun:
            self._draw_base(generator, number)
        if check and digest(generator) != saved["state"]:
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
            draw_torch_seed(generator)


def _passes_after(last: IndexStream | None) -> list[int]:
    """Returns the passes up to and including this one. A pass that ended early has drawn less."""
    if not isinstance(last, ShuffledByGenerator):
        return []
    passes = list(last._passes) or [0]
    if len(passes) % 2 != last.exhausted:  # the newest count is of the other kind
        passes.append(0)
    passes[-1] += 1
    return passes


FEW = 65  # random numbers that others may draw between two passes: a loader draws two, four if it shuffles
STATIC = (list, tuple, range, SubsetRandomSampler, WeightedRandomSampler, SequentialSampler, RandomSampler)
DRAWING = (SubsetRandomSampler, WeightedRandomSampler, RandomSampler)
BATCHING = (BatchSampler, PlanBatchSampler)  # we know how these cut samples into batches


def stream_of(sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> IndexStream:
    """Returns the IndexStream for these samplers of a loader."""
    if batch_sampler is not None and type(batch_sampler) not in BATCHING:
        return Custom(sampler, batch_sampler, generator)
    inner = sampler if batch_sampler is None else batch_sampler.sampler
    kinds: dict[type, type[IndexStream]] = {
        SequentialSampler: Sequential,
        _InfiniteConstantSampler: EndlessStream,
        DistributedSampler: Distributed,
        PlanSampler: Distributed,
        RandomSampler: Shuffled if getattr(inner, "generator", None) is None else ShuffledByGenerator,
        WeightedRandomSampler: Custom if getattr(inner, "generator", None) is None else DrawnByGenerator,
    }
    return kinds.get(type(inner), Custom)(inner, batch_sampler, generator)


class EndlessStream(IndexStream):
    """The order of an iterable dataset, which has no indices."""

    kind = "stream"

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        return self.start()


class Sequential(KnownStream):
    """The samples in the order of the dataset."""

    kind = "sequential"

    def whole(self) -> Array:
        return ascending(len(self.sampler))

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return repeat(lambda: self.batched(self.whole()))

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        left = self.whole()[samples:]
        return self.cut(left if self.as_arrays else left.tolist())


class Shuffled(KnownStream):
    """torch's shuffle by a seed that it draws from the global generator for every pass."""

    kind = "shuffled"
    saved_keys = ("seed", "replacement", "draws")
    guessed = draws = True
    _seed: int | None = None
    _drawn: int | None = None  # the seed of a new pass, once it is drawn
    _resumed = False
    _after: torch.Generator | None = None  # the global generator, right after it gave the seed
    _between: int | None = None  # numbers that others drew from it since the previous pass, if few
    _guess: int | None = None  # the seed of the next pass, if others draw as many again
    _trust = KnownOrder(0, 1)

    def start(self) -> Iterator[Any]:
        return super().start() if self._permutes() else IndexStream.start(self)

    def whole(self) -> Array:
        return self._permutation(draw_torch_seed(None) if self._drawn is None else self._drawn)

    def draw_at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not isinstance(batches, BatchCuts):
            return super().draw_at_once(batches)
        if not self._resumed:
            self._drawn = draw_torch_seed(None)
        return batches

    def _permutes(self) -> bool:
        return not self.sampler.replacement and self.sampler.num_samples == len(self.sampler.data_source)

    def _permutation(self, seed: int) -> Array:
        return seeded(len(self.sampler.data_source), seed)

    def begin(self, last: IndexStream | None) -> None:
        self._after = copy_generator(None)
        self._seed = draw_torch_seed(self._after)
        if isinstance(last, Shuffled) and last._after is not None:
            tried = range(FEW)
            self._between = next(
                (few for few in tried if self._seed_after(copy_generator(last._after), few) == self._seed), None
            )
            self._trust = last._trust.after(last._guess == self._seed)
        self._guess = next(self._foreseen(), None)

    def _seed_after(self, generator: torch.Generator, between: int) -> int:
        """Returns the seed that the next pass draws, if `between` other numbers are drawn before it."""
        skip(generator, between)
        if self.generator is None and not self.draws_base_once:
            draw_torch_seed(generator)
        return draw_torch_seed(generator)

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """Guesses that as many numbers are drawn in between as since the last pass. The caller compares it with the
        real pass.

        Returns nothing before such a guess came true: knowing one epoch, less is read than with a wrong guess of the
        next.
        """
        seeds = self._foreseen() if self._trust.suffices else ()
        return (partial(self._shuffle_by, seed) for seed in seeds)

    def _foreseen(self) -> Iterator[int]:
        """Yields the seeds of later passes, if as many numbers are drawn before each as before this one."""
        if self._after is None or self._between is None:
            return
        generator = copy_generator(self._after)
        while True:
            yield self._seed_after(generator, self._between)

    def _shuffle_by(self, seed: int) -> Pass:
        if self._permutes():
            return self.batched(self._permutation(seed))
        return self.batched(shuffled(self.sampler, torch.Generator().manual_seed(seed)))

    def tell(self, mark: Any) -> dict[str, Any]:
        return {"kind": self.kind, "seed": self._seed, **drawing(self.sampler)}

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        ahead = copy_generator(None)
        if base_seed is None:
            base_seed = draw_torch_seed(ahead if self.generator is None else copy_generator(self.generator))
        self._seed = draw_torch_seed(ahead)
        return base_seed, self.tell(None)

    def start_foretold(self, saved: dict[str, Any]) -> Iterator[Any]:
        draw_torch_seed(None)
        return super().start_foretold(saved)

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        check_drawing(self.sampler, saved)
        self._seed, self._resumed = int(saved["seed"]), True
        if self._permutes():
            left = self._permutation(self._seed)[samples:]
            return self.cut(left if self.as_arrays else left.tolist())
        generator = torch.Generator().manual_seed(self._seed)
        return self.cut(islice(shuffle(self.sampler, generator), samples, None))


class Custom(IndexStream):
    """Any other sampler. If it has a state, that is saved; otherwise resuming draws again and skips what was taken."""

    kind = "custom"

    def __init__(self, sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> None:
        super().__init__(sampler, batch_sampler, generator)
        self._cuts = batch_sampler is None or type(batch_sampler) in BATCHING
        self._source = sampler if self._cuts else batch_sampler
        # The user's sampler may depend on the training so far: what it gives depends on when it is drawn.
        self.fixed, self.draws = type(self._source) in STATIC, type(self._source) in DRAWING
        self._items: Iterator[Any] | None = None  # the source's iterator, which may have a state, too
        self._checksum = 0
        self._at_start: dict[str, Any] | None = None

    def begin(self, last: IndexStream | None) -> None:
        self._at_start = self._states() or {"checksum": 0}

    def start(self) -> Iterator[Any]:
        if self._cuts and self.batch_sampler is not None:
            return self.cut(self._begin_late())
        self._items = iter(self._source)
        return self._items

    def drawn_at_once(self, batches: int | None) -> int:
        """Returns how many batches may be drawn ahead: each keeps the state after it, which may be large."""
        return UNCOUNTED if self._states() else super().drawn_at_once(batches)

    def _begin_late(self) -> Iterator[Any]:
        """Yields the batches. As in BatchSampler, the sampler's iterator is made when the first is asked for."""
        self._items = iter(self._source)
        yield from self._items

    def mark(self, batch: Any) -> Any:
        if states := self._states():
            return states
        self._checksum = _checksum(self._checksum, batch)
        return {"checksum": self._checksum}

    def _states(self) -> dict[str, Any]:
        parts = {"sampler": self._source, "iterator": self._items}
        return {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")}

    def tell(self, mark: Any) -> dict[str, Any]:
        if mark is None:
            mark = self._states() if self._at_start is None else self._at_start
        return {"kind": self.kind, **mark}

    def start_foretold(self, saved: dict[str, Any]) -> Iterator[Any]:
        """Returns all index batches. A sampler that remembers its end is iterated once more, as it would have been."""
        batches = self.resume(saved, 0, 0)
        try:
            return chain([next(batches)], batches)
        except StopIteration:
            return self.start()

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        if "sampler" in saved:
            self._source.load_state_dict(saved["sampler"])
        self._items = iter(self._source)
        if "iterator" in saved:
            self._items.load_state_dict(saved["iterator"])  # type: ignore[union-attr]
        if "sampler" not in saved and "iterator" not in saved:
            for item in islice(self._items, samples if self._cuts else batches):
                self._checksum = _checksum(self._checksum, item)
            if self._checksum != saved.get("checksum", 0):
                warnings.warn(
                    f"{type(self._source).__name__} gave other samples than before the state was saved, so this epoch "
                    "will not hold every sample once: seed its random numbers as they were, or use solar.PlanSampler",
                    stacklevel=2,
                )
        self._at_start = self._states() or {"checksum": self._checksum}
        return self.cut(self._items) if self._cuts else self._items


class DrawnByGenerator(Custom):
    """torch's WeightedRandomSampler with a generator of the user's. A copy of it draws the later passes."""

    _trust = KnownOrder(0, 0)  # it is the user's own, so mostly nobody else draws from it
    _guess = ""  # the generator as the next pass will find it

    def begin(self, last: IndexStream | None) -> None:
        super().begin(last)
        if isinstance(last, DrawnByGenerator) and last._guess:
            self._trust = last._trust.after(digest(self.sampler.generator) == last._guess)

    def ended(self) -> None:
        super().ended()
        self._guess = digest(self._before_the_next(copy_generator(self.sampler.generator)))

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return self._draw_by(copy_generator(self.sampler.generator)) if self._trust.suffices else iter(())

    def _draw_by(self, generator: torch.Generator) -> Iterator[Callable[[], Pass]]:
        while True:
            ahead = self._before_the_next(generator)
            copy_ = WeightedRandomSampler(
                self.sampler.weights,
                self.sampler.num_samples,
                self.sampler.replacement,
                ahead,
            )
            yield partial(self.batched, np.fromiter(copy_, np.int32, self.sampler.num_samples))

    def _before_the_next(self, generator: torch.Generator) -> torch.Generator:
        """Makes torch's draw before a pass, if it is from the generator that also draws the samples."""
        if self.generator is self.sampler.generator and not self.draws_base_once:
            draw_torch_seed(generator)
        return generator


def _checksum(before: int, drawn: Any) -> int:
    """Returns a checksum over all integers drawn so far; other kinds of indices have none."""
    try:
        indices = np.asarray(drawn)
    except (TypeError, ValueError):
        return before
    return zlib.crc32(indices.astype(np.int64).tobytes(), before) if indices.dtype.kind in "iu" else before
