"""Runs transforms, whose random numbers depend on the epoch and the sample alone."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from solar import _native

Transform: TypeAlias = Callable[..., Any]


Words: TypeAlias = tuple[int, int, int]  # seed, epoch, how often the epoch was begun before
SampleKeys: TypeAlias = tuple[Words, NDArray[np.int64]]  # what random numbers follow from: the words and the sample


def transformed(transform: Transform, samples: list[Any], numbers: Iterable[int]) -> list[Any]:
    """Transforms every sample, outside of a loader. Random numbers follow the generator of `draw_seed`."""
    if not takes_rng(transform):
        return _each(transform, samples, [*numbers])
    return _each(transform, samples, [*numbers], (np.random.default_rng(draw_seed()) for _ in samples))


def transformed_by_key(
    transform: Transform, samples: list[Any], keys: SampleKeys, thread_safe: bool, with_rng: bool
) -> list[Any]:
    """Transforms every sample with the random numbers of its key. `with_rng`: it takes a generator.

    A transform without `rng` may draw from the global generators of random, numpy and torch. They are seeded for every
    sample and restored afterwards. In threads, which share them, they are left alone.
    """
    words, numbers = keys
    if with_rng:
        of_sample = (np.random.default_rng(_entropy((*words, number))) for number in numbers.tolist())
        return _each(transform, samples, numbers, of_sample)
    if thread_safe:
        return _each(transform, samples, numbers)
    return _each_seeded(transform, samples, keys)


def _each(
    transform: Transform, samples: list[Any], numbers: Any, rngs: Iterable[np.random.Generator] | None = None
) -> list[Any]:
    made: list[Any] = []
    try:
        if rngs is None:
            for sample in samples:
                made.append(transform(sample))
        else:
            for sample, rng in zip(samples, rngs, strict=True):
                made.append(transform(sample, rng=rng))
    except Exception as error:
        _add_note(error, numbers[len(made)])
        raise
    return made


def _each_seeded(transform: Transform, samples: list[Any], keys: SampleKeys) -> list[Any]:
    """Seeds the global generators before each sample, as `seed_global_generators` does, and restores them at the end.

    It calls nothing that is written in Python but the transform.
    """
    words, numbers = keys
    seeds = _native.seeds(_halves(words), numbers).tolist()
    of_python: Any = getattr(random.seed, "__self__", None)
    in_c: Any = super(random.Random, of_python)
    seed_python, seed_numpy, torch = in_c.seed, np.random.seed, sys.modules.get("torch")
    seed_torch = int if torch is None else torch.default_generator.manual_seed
    states = in_c.getstate(), of_python.gauss_next, np.random.get_state()
    of_torch = None if torch is None else torch.default_generator.get_state()
    made: list[Any] = []
    try:
        for sample, first, second in zip(samples, seeds[::2], seeds[1::2], strict=True):
            seed_python(first)
            of_python.gauss_next = None
            seed_numpy(second & 0xFFFFFFFF)
            seed_torch(first)
            made.append(transform(sample))
    except Exception as error:
        _add_note(error, numbers[len(made)])
        raise
    finally:
        in_c.setstate(states[0])
        of_python.gauss_next = states[1]
        np.random.set_state(states[2])
        if torch is not None:
            torch.default_generator.set_state(of_torch)
    return made


def _add_note(error: Exception, number: int) -> None:
    error.add_note(f"The transform was at sample {number}, counted from 0 in the order of the files.")


def takes_rng(transform: Transform | None) -> bool:
    """Returns whether the transform has a parameter named `rng`."""
    try:
        return transform is not None and "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False


def seed_global_generators(words: tuple[int, ...]) -> None:
    """Seeds random, numpy.random and, where it is imported, torch by these words."""
    first, second = np.random.SeedSequence(_entropy(words)).generate_state(2, np.uint64).tolist()
    random.seed(first)
    np.random.seed(second & 0xFFFFFFFF)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(first)


def draw_seed() -> int:
    """Draws a seed from torch's global generator; from numpy's in a program without torch."""
    if (torch := sys.modules.get("torch")) is None:
        return int(np.random.randint(2**63, dtype=np.int64))
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _entropy(words: tuple[int, ...]) -> list[int]:
    """Non-negative words for numpy's entropy; seeds may be negative."""
    return [word & 0xFFFFFFFFFFFFFFFF for word in words]


@lru_cache(maxsize=8)
def _halves(words: Words) -> NDArray[np.uint32]:
    """Returns these words in 32 bits each, as numpy's SeedSequence takes them: the lower half of a long one first."""
    halves = [(word & 0xFFFFFFFF, word >> 32) for word in _entropy(words)]
    return np.array([half for low, high in halves for half in ((low, high) if high else (low,))], np.uint32)
