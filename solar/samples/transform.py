"""Runs transforms, whose random numbers depend on the epoch and the sample alone."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

Transform: TypeAlias = Callable[..., Any]
Key: TypeAlias = tuple[int, int, int, int]  # seed, epoch, how often it was begun before, sample


def transformed(transform: Transform, samples: list[Any], numbers: Iterable[int]) -> list[Any]:
    """Transforms every sample, outside of a loader. Random numbers follow the generator of `draw_seed`."""
    if not takes_rng(transform):
        return [_of_one(transform, sample, number) for sample, number in zip(samples, numbers, strict=True)]
    return [
        _of_one(transform, sample, number, rng=np.random.default_rng(draw_seed()))
        for sample, number in zip(samples, numbers, strict=True)
    ]


def transformed_by_key(transform: Transform, samples: list[Any], keys: list[Key], thread_safe: bool) -> list[Any]:
    """Transforms every sample with the random numbers of its key.

    A transform without `rng` may draw from the global generators of random, numpy and torch. They are seeded for every
    sample and restored afterwards. In threads, which share them, they are left alone.
    """
    pairs = zip(samples, keys, strict=True)
    if takes_rng(transform):
        return [_of_one(transform, sample, key[3], rng=np.random.default_rng(_entropy(key))) for sample, key in pairs]
    if thread_safe:
        return [_of_one(transform, sample, key[3]) for sample, key in pairs]
    with global_generators_kept():
        made = []
        for sample, key in pairs:
            seed_global_generators(key)
            made.append(_of_one(transform, sample, key[3]))
        return made


def _of_one(transform: Transform, sample: Any, number: int, **rng: np.random.Generator) -> Any:
    """Returns what the transform makes of a sample. Its error gets a note that says which sample it was."""
    try:
        return transform(sample, **rng)
    except Exception as error:
        error.add_note(f"The transform was at sample {number}, counted from 0 in the order of the files.")
        raise


def takes_rng(transform: Transform) -> bool:
    """Returns whether the transform has a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False


def seed_global_generators(words: tuple[int, ...]) -> None:
    """Seeds random, numpy.random and, where it is imported, torch by these words."""
    first, second = np.random.SeedSequence(_entropy(words)).generate_state(2, np.uint64).tolist()
    random.seed(first)
    np.random.seed(second & 0xFFFFFFFF)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(first)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restores the states of the global generators at the end."""
    states, torch = (random.getstate(), np.random.get_state()), sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(of_torch)


def draw_seed() -> int:
    """Draws a seed from torch's global generator; from numpy's in a program without torch."""
    if (torch := sys.modules.get("torch")) is None:
        return int(np.random.randint(2**63, dtype=np.int64))
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _entropy(words: tuple[int, ...]) -> list[int]:
    """Non-negative words for numpy's entropy; seeds may be negative."""
    return [word & 0xFFFFFFFFFFFFFFFF for word in words]
