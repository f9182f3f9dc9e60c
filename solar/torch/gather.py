"""How ranks that torchrun started meet: in a gloo process group, whose store carries their letters."""

from __future__ import annotations

from torch import distributed

from solar.io.ranks.gather import Ranks, reached
from solar.io.ranks.letters import StorePost
from solar.values import World


class ByTorch(Ranks):
    """Ranks with a process group: those of torchrun, or of any launcher where MASTER_ADDR is set."""

    def __init__(self, world: World) -> None:
        with reached():
            distributed.init_process_group("gloo", rank=world.rank, world_size=world.ranks)
        super().__init__(world, "torch.distributed", StorePost(world.rank, 0))  # a loader's groups count from 1

    def close(self) -> None:
        super().close()
        distributed.destroy_process_group()
