"""torch's random draws for an epoch, made, looked ahead at, and made again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler

from solar.errors import PlanError


def draw(generator: torch.Generator | None) -> int:
    """A seed, drawn as torch's loader and sampler draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def skip(generator: torch.Generator, count: int) -> None:
    """Draws so many numbers of 32 bits; a seed takes two of them."""
    torch.empty(count, dtype=torch.int32).random_(generator=generator)


def copied(generator: torch.Generator | None) -> torch.Generator:
    """A generator that is where this one is; None means torch's global one."""
    copy = torch.Generator("cpu" if generator is None else generator.device)
    copy.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return copy


def digest(generator: torch.Generator) -> str:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:16]


def shuffle(sampler: RandomSampler, generator: torch.Generator) -> Iterator[int]:
    return iter(RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator))


def shuffle_again(sampler: RandomSampler, generator: torch.Generator, whole: bool) -> None:
    """Draws what `shuffle` draws of the generator: to its end, or only for its first sample."""
    samples = len(sampler.data_source)
    if sampler.replacement:
        for _ in shuffle(sampler, generator):
            if not whole:
                break
        return
    for _ in range(sampler.num_samples // samples + 1 if whole else 1):
        torch.randperm(samples, generator=generator)


def drawing(sampler: RandomSampler) -> dict[str, Any]:
    return {"replacement": sampler.replacement, "draws": sampler.num_samples}


def check_drawing(sampler: RandomSampler, told: dict[str, Any]) -> None:
    for name, value in drawing(sampler).items():
        if told[name] != value:
            raise PlanError(f"the state is of a RandomSampler with {name}={told[name]}; this loader's has {value}")
