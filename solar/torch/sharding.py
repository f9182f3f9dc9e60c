"""Detects that a framework shards a sampler which already shards its samples."""

from __future__ import annotations

import sys

_CALLS = 6  # Accelerate's iterator is two or three calls up


def refuse_second_sharding(ranks: int) -> None:
    """ValueError where Accelerate's BatchSamplerShard asks a sampler that already shards over `ranks`.

    Both would take a part of a part, and no process would see most of the samples.
    """
    frame = sys._getframe(1) if ranks > 1 else None
    for _ in range(_CALLS):
        if frame is None:
            return
        # Compare the code first: reading a frame's variables keeps them alive as long as the frame.
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
