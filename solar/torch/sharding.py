"""Finds out whether what shards its samples already is sharded once more by a framework around it."""

from __future__ import annotations

import sys

_CALLS = 6  # Accelerate's iterator is two or three calls up


def refuse_second_sharding(ranks: int) -> None:
    """ValueError where Accelerate's BatchSamplerShard asks a sampler that already shards over `ranks`.

    Each would take its part of the other's part, and most samples would be seen by no process.
    """
    frame = sys._getframe(1) if ranks > 1 else None
    for _ in range(_CALLS):
        if frame is None:
            return
        # By its code first: to ask any frame for its variables would keep them alive as long as the frame.
        if frame.f_code.co_qualname.startswith("BatchSamplerShard."):
            processes = getattr(frame.f_locals.get("self"), "num_processes", 1)
            if processes > 1:
                raise ValueError(
                    f"the samples would be sharded twice: by their sampler over {ranks} processes, and once more by "
                    f"Accelerate over {processes}, so that most of them would be left out. Give the loader to "
                    "solar.integrations.accelerate.prepare(accelerator, loader) instead of accelerator.prepare, or "
                    "give it shuffle=True in place of the sampler"
                )
        frame = frame.f_back
