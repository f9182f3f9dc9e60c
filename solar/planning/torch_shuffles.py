"""The shuffles: which sample every use of every epoch takes, as torch would have it, made without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solar import _native
from solar.errors import PlanError
from solar.samplers.orders import EpochOrder, by_weights

Samples = NDArray[np.int32]


@dataclass(frozen=True)
class ShuffledUses:
    """The order in which the uses of each epoch take samples, over all ranks, after torch's padding or dropping.

    Rank r of W takes of(epoch)[r::W]; step t of all ranks together is of(epoch)[t*G:(t+1)*G], G = batch * W.
    """

    samples: int  # in the data set
    uses: int  # in an epoch
    of: Callable[[int], Samples]  # the epoch's samples, in the order of their use
    facts: tuple[object, ...]  # two orders with the same facts are the same
    epochs: int | None = None  # how many there are; None: any number


def distributed(
    samples: int, *, seed: int = 0, ranks: int = 1, drop_last: bool = False, shuffle: bool = True
) -> ShuffledUses:
    """torch's DistributedSampler(seed=seed, drop_last=drop_last) of all its ranks together.

    >>> distributed(10, seed=3, ranks=4).of(0).tolist()
    [6, 0, 3, 7, 8, 5, 1, 9, 2, 4, 6, 0]
    """
    check_ranks(samples, ranks)
    each = samples // ranks if drop_last else -(-samples // ranks)
    uses = each * ranks

    def of(epoch: int) -> Samples:
        once = _native.randperm(samples, seed + epoch) if shuffle else np.arange(samples, dtype=np.int32)
        return np.resize(once, uses) if uses > samples else once[:uses]

    return ShuffledUses(samples, uses, of, ("distributed", samples, seed, ranks, drop_last, shuffle))


def random(samples: int, *, seed: int = 0, between: int = 0) -> ShuffledUses:
    """torch's RandomSampler(generator=g) after g.manual_seed(seed): one generator goes through all epochs.

    `between` is how many 32-bit numbers others take from it before each epoch: 2 when it is the DataLoader's too.
    """
    check_ranks(samples, 1)
    draws = 2 * _native.randperm_draws(
        samples
    )  # when it is through, the sampler makes another one and takes none of it

    def of(epoch: int) -> Samples:
        return _native.randperm(samples, seed, between * (epoch + 1) + draws * epoch)

    return ShuffledUses(samples, samples, of, ("random", samples, seed, between))


def weighted_order(weights: NDArray[np.float64], *, seed: int = 0, ranks: int = 1) -> ShuffledUses:
    """PlanSampler(weights=weights, seed=seed) of all its ranks together: drawn with replacement."""
    return sampler_order(by_weights(weights, len(weights)), seed=seed, ranks=ranks)


def sampler_order(made: EpochOrder, *, seed: int = 0, ranks: int = 1) -> ShuffledUses:
    """A PlanSampler's of this order, of all its ranks together."""
    check_ranks(made.samples, ranks)
    uses = -(-made.length // ranks) * ranks

    def of(epoch: int) -> Samples:
        return np.resize(made.whole(seed, epoch), uses).astype(np.int32, copy=False)

    return ShuffledUses(made.samples, uses, of, (made.kind, made.digest, seed, ranks))


def mixed_uses(samples: int, block: int, window: int, chunk: int = 1) -> ShuffledUses:
    """PlanSampler(order="mixed", block=block, window=window) of one rank, where so many samples share a chunk."""
    from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks  # only here: most have another order

    return sampler_order(by_mixed_blocks(BlockMix(samples, block, window, chunk)))


def of_samples(made: ShuffledUses, numbers: NDArray[np.int64]) -> ShuffledUses:
    """Returns the same of a Subset: sample i of it is the data set's sample `chosen[i]`.

    >>> of_chosen(distributed(3, shuffle=False), np.array([1, 4, 9])).of(0).tolist()
    [1, 4, 9]
    """
    rows = numbers.astype(np.int32)
    facts = (*made.facts, rows.tobytes())
    return ShuffledUses(int(rows.max()) + 1, made.uses, lambda epoch: rows[made.of(epoch)], facts, made.epochs)


def of_sequences(sequences: Sequence[ArrayLike], samples: int) -> ShuffledUses:
    """Returns an order that is known beforehand, one sequence per epoch, with repeats or without."""
    check_ranks(samples, 1)
    if not sequences:
        raise PlanError("no sequence of samples was given: an order needs one for each epoch")
    epochs = [np.ascontiguousarray(sequence, np.int64) for sequence in sequences]
    for epoch, sequence in enumerate(epochs):
        if sequence.ndim != 1 or len(sequence) != len(epochs[0]) or not len(sequence):
            raise PlanError(
                f"epoch {epoch} has the shape {sequence.shape}, epoch 0 {epochs[0].shape}: "
                "they must be equally many samples"
            )
        if sequence.min() < 0 or sequence.max() >= samples:
            raise PlanError(
                f"epoch {epoch} takes samples {sequence.min()} to {sequence.max()}; the data set has 0 to {samples - 1}"
            )
    held = [sequence.astype(np.int32) for sequence in epochs]
    facts = ("given", samples, *(sequence.tobytes() for sequence in held))
    return ShuffledUses(samples, len(held[0]), held.__getitem__, facts, len(held))


def steps(order: ShuffledUses, global_batch: int, *, drop_last: bool = False) -> NDArray[np.int64]:
    """Returns where each step of an epoch begins in the order, and at last where the last one ends."""
    if global_batch < 1:
        raise PlanError(f"a global batch of {global_batch} samples: it must have at least one")
    end = order.uses - order.uses % global_batch if drop_last else order.uses
    if end == 0:
        raise PlanError(
            f"{order.uses} samples an epoch are less than one global batch of {global_batch}, and drop_last drops it: "
            "no step is left; take a smaller batch, or keep the last one"
        )
    return np.append(np.arange(0, end, global_batch), end)


def check_ranks(samples: int, ranks: int) -> None:
    if not 0 < samples < 2**31:
        raise PlanError(f"{samples} samples: a plan takes 1 to {2**31 - 1}")
    if ranks < 1:
        raise PlanError(f"{ranks} ranks: there must be at least one")
