"""torch's random draws for an epoch: made, predicted, and repeated."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import RandomSampler

from solar.errors import PlanError


def draw(generator: torch.Generator | None) -> int:
    """A seed, drawn as torch's loader and sampler draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def skip(generator: torch.Generator, count: int) -> None:
    """Draws and discards `count` 32-bit numbers; a seed takes two of them."""
    torch.empty(count, dtype=torch.int32).random_(generator=generator)


def copied(generator: torch.Generator | None) -> torch.Generator:
    """A copy of a generator in its present state; None means torch's global one."""
    copy = torch.Generator("cpu" if generator is None else generator.device)
    copy.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return copy


def digest(generator: torch.Generator) -> str:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:16]


def shuffle(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    return iter(RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator))


def draws_again(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    """Makes the draws of `shuffle` from the generator, at the same times. The numbers it yields mean nothing."""
    if sampler.replacement:
        yield from shuffle(sampler, generator)
        return
    samples = len(sampler.data_source)
    for begin in range(0, sampler.num_samples + 1, samples):  # after the last whole one it draws once more in any case
        torch.randperm(samples, generator=generator)
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
