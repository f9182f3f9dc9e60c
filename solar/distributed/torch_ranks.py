"""Lets ranks that torchrun started exchange messages, in a gloo process group."""

from __future__ import annotations

from torch import distributed

from solar.io.channels.control import Ranks, StoreControlChannel, reached
from solar.values import World


class TorchRanks(Ranks):
    """Ranks with a process group: those of torchrun, or of any launcher where MASTER_ADDR is set."""

    def __init__(self, world: World) -> None:
        with reached():
            distributed.init_process_group("gloo", rank=world.rank, world_size=world.ranks)
        super().__init__(
            world, "torch.distributed", StoreControlChannel(world.rank, 0)
        )  # a loader's groups count from 1
        self.connect()

    def close(self) -> None:
        super().close()
        distributed.destroy_process_group()
