"""Makes the order "mixed" from the arguments of a PlanSampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks, by_mixed_groups
from solar.samplers.orders import EpochOrder
from solar.samples.placement import Placement, block_and_window, placement
from solar.samples.source import sample_source

NOT_MIXED = {  # why it does not go with others
    "weights": "draws by weight take samples from anywhere, so there are no blocks to read at once: leave out order",
    "labels": "classes are gone through each by itself, wherever their samples lie: leave out order",
    "by_length": "samples of similar length lie anywhere, so there are no blocks to read at once: leave out order",
}


def check_mixed(by: Mapping[str, Any], kinds: Sequence[str], num_samples: int | None, mixes: bool) -> None:
    """Raises ValueError unless `block` and `window` are given for a mixed order, and for no other."""
    beside = [kind for kind in kinds if kind in NOT_MIXED]
    if not mixes or by["block"] is None or by["window"] is None:
        raise ValueError(
            'block and window are of order="mixed", as numbers of samples, as bytes ("1MiB"), or as shares of the data '
            "(0.01): give both with it, and none without. `solar plan FILE --order mixed` says what windows would read"
        )
    if beside:
        raise ValueError(f'{beside[0]} and order="mixed": {NOT_MIXED[beside[0]]}')
    if num_samples is not None:
        raise ValueError(f"num_samples={num_samples}: only weights or labels have an epoch as long as you like")
    if isinstance(by["study"], tuple):
        raise ValueError(
            f'study={by["study"]!r} and order="mixed": the stretches of the study are the windows: give its number'
        )


def mixed_blocks_order(
    dataset: Any, block: Any, window: Any, groups: NDArray[np.int64] | None, study: int | None
) -> EpochOrder:
    """Returns the mixed order of the samples of a dataset, or of their groups, which are numbered from 0."""
    samples = len(dataset)
    found = sample_source(dataset)
    if isinstance(found, str):
        lies = Placement(None, 1, 0.0)
    elif groups is not None:
        lies = Placement(None, 1, float(sum(layout.nbytes for layout in found.layouts())))
    elif found.draws and found.boxes:
        raise ValueError(
            'order="mixed": each epoch draws the places of these crops anew, so no two samples are neighbours in every '
            'epoch. Take Crops(at="grid"), or say with groups= which samples are of one volume'
        )
    else:
        lies = placement(found, samples)
    of_block, of_window = block_and_window(block, window, lies, samples)
    if groups is not None:
        return by_mixed_groups(groups, of_block, of_window, study)
    return by_mixed_blocks(BlockMix(samples, of_block, of_window, lies.edges, lies.members, study))
