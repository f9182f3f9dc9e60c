"""The ranks of a command: alone, by MPI, or by torch.distributed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from solar.cli.words import error_text_of
from solar.errors import PlanError, SolarError
from solar.io.channels.control import MpiRanks, Ranks
from solar.io.channels.world import detect


@contextlib.contextmanager
def meet_ranks(exchange: str | None = None) -> Iterator[Ranks]:
    """Yields the ranks that the launcher started, connected as `exchange` needs; one if there is one process."""
    ranks = _meet(exchange)
    try:
        yield ranks
    except SystemExit:
        raise
    except BaseException as error:  # of whatever kind: the others would wait for ever
        if isinstance(error, SolarError | OSError) and not isinstance(error, BrokenPipeError):
            print(f"solar: {error_text_of(error)}", file=sys.stderr)
        elif not isinstance(error, KeyboardInterrupt):
            sys.excepthook(*sys.exc_info())
        ranks.give_up()
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
    ranks.close()


def _meet(exchange: str | None) -> Ranks:
    world = detect()
    if world.ranks == 1:
        return Ranks(world)
    by_torch = "MASTER_ADDR" in os.environ if exchange in (None, "auto", "read", "off") else exchange == "torch"
    if by_torch:
        if "MASTER_ADDR" not in os.environ:
            raise PlanError(
                f"rank {world.rank} of {world.ranks}: --exchange torch, but MASTER_ADDR is not set: start with "
                "torchrun, or set MASTER_ADDR and MASTER_PORT to a free port of the node of rank 0"
            )
        from solar.distributed.torch_ranks import TorchRanks  # here: torch takes a second to import

        return TorchRanks(world)
    return MpiRanks(world)
