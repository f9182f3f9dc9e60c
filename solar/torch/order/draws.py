"""torch's random draws for an epoch: made, predicted, and repeated."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler

from solar import _native
from solar.errors import PlanError
from solar.torch.samplers import Indices, permutation

SKIPPED = 1 << 16  # random numbers at a time, so that they take no memory


def draw(generator: torch.Generator | None) -> int:
    """A seed, drawn as torch's loader and sampler draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def skip(generator: torch.Generator, count: int) -> None:
    """Draws and discards `count` 32-bit numbers; a seed takes two of them."""
    torch.empty(count, dtype=torch.int32).random_(generator=generator)


def skip_permutation(samples: int, generator: torch.Generator) -> None:
    """Draws what torch.randperm draws, and makes nothing of it."""
    draws = _native.randperm_draws(samples)
    for begin in range(0, draws, SKIPPED):
        skip(generator, min(SKIPPED, draws - begin))


def copied(generator: torch.Generator | None) -> torch.Generator:
    """A copy of a generator in its present state; None means torch's global one."""
    copy = torch.Generator("cpu" if generator is None else generator.device)
    copy.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return copy


def digest(generator: torch.Generator) -> str:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:16]


def shuffle(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    return iter(RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator))


def shuffled(sampler: RandomSampler, generator: torch.Generator) -> Indices:
    """All that `shuffle` gives, as an array. What it draws at its very end, and uses nothing of, is `draw_last`'s."""
    samples, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        return np.fromiter(shuffle(sampler, generator), np.int64, wanted)
    if samples == wanted:
        return permutation(samples, generator)
    return np.concatenate([permutation(samples, generator)[: wanted - begin] for begin in range(0, wanted, samples)])


def draw_last(sampler: RandomSampler, generator: torch.Generator) -> None:
    """What `shuffle` draws once all samples are taken."""
    if not sampler.replacement and sampler.num_samples % len(sampler.data_source) == 0:
        skip_permutation(len(sampler.data_source), generator)


def draws_again(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    """Makes the draws of `shuffle` from the generator, at the same times. The numbers it yields mean nothing."""
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


def check_drawing(sampler: RandomSampler, told: dict[str, Any]) -> None:
    for name, value in drawing(sampler).items():
        if told[name] != value:
            raise PlanError(f"the state is of a RandomSampler with {name}={told[name]}; this loader's has {value}")
