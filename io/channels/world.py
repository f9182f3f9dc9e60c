"""Finds which rank this process is, and how many there are."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from solar.errors import PlanError
from solar.values import World

_NO_STEPS = 0xFFFFFFF0  # Slurm's step ids from here on are its own: batch script, interactive shell, extern


class _Said(NamedTuple):
    """A launcher's information about this process."""

    world: World
    of_node: bool  # also of its place on the node: otherwise that is nobody's word


def detect(rank: int | None = None, ranks: int | None = None) -> World:
    """Returns which rank of how many this process is. Arguments count first; otherwise the first of these that knows:

    1. torch.distributed with a process group: the program itself has said who talks to whom.
    2. mpi4py, if the program imported it and MPI is initialised. A world of one that a launcher started several of is
       an error: MPI and launcher do not know each other, and each process would take itself for the only one.
    3. RANK and WORLD_SIZE: torchrun, also inside a Slurm step or under mpiexec, starts the processes last.
    4. OMPI_COMM_WORLD_RANK and _SIZE, then PMI_RANK and PMI_SIZE. Before Slurm, because mpiexec inside a Slurm job has
       srun start one daemon per node, and the ranks inherit the daemon's SLURM_PROCID.
    5. SLURM_PROCID and SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), in what srun started; the script of sbatch and the shell
       of salloc carry such variables, too, but are one process.
    6. If nobody knows: rank 0 of 1.

    The place on the node is taken from a launcher that names the same rank of the same ranks; where none does, the rank
    counts as alone on its node. Nothing is imported and no message is sent: ranks may ask at different times.
    """
    if rank is None or ranks is None:
        found = _process_group() or _mpi() or _find_launcher()[1] or World(0, 1)
        rank = found.rank if rank is None else rank
        ranks = found.ranks if ranks is None else ranks
    return World(rank, ranks, *(place_on_node(rank, ranks) or (0, 1)))


def place_on_node(rank: int, ranks: int) -> tuple[int, int] | None:
    """Returns this rank's place on its node, by a launcher that knows the same rank of the same ranks; None: unknown.

    A launcher that says 0 of 1 is asked last: that is srun about mpiexec's daemon, or torchrun about its only child. A
    launcher that contradicts itself is passed over.
    """
    alone = None
    for ask in _LAUNCHERS.values():
        with suppress(PlanError):
            said = ask()
            if said is not None and said.of_node and (said.world.rank, said.world.ranks) == (rank, ranks):
                if said.world.ranks_per_node > 1:
                    return said.world.rank_of_node, said.world.ranks_per_node
                alone = 0, 1
    return alone


def distributed_module() -> Any:
    """Returns torch.distributed if it has a process group, else None, without importing it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def mpi_module() -> Any:
    """Returns mpi4py.MPI while MPI is initialised, else None. It is not imported, because that would start MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None


def launched_ranks() -> tuple[str, int]:
    """Returns the launcher that started this process, and the number of ranks."""
    by, world = _find_launcher()
    return by, 1 if world is None else world.ranks


def _process_group() -> World | None:
    """Returns what torch.distributed says."""
    distributed = distributed_module()
    return None if distributed is None else World(distributed.get_rank(), distributed.get_world_size())


def _mpi() -> World | None:
    """Returns what MPI says."""
    mpi = mpi_module()
    if mpi is None:
        return None
    rank, ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    by, launched = _find_launcher()
    # Several MPI ranks in a Slurm step of another size are ordinary: the step is that of mpiexec's daemons.
    if launched is not None and launched.ranks != ranks and (ranks == 1 or by != "Slurm"):
        raise PlanError(
            f"mpi4py says rank {rank} of {ranks}, but {by} rank {launched.rank} of {launched.ranks}: this MPI was not "
            f"started by that launcher. Use the mpiexec of the MPI that mpi4py was built for (under srun, the right "
            f"--mpi=), initialise torch.distributed first, or give rank and ranks"
        )
    return World(rank, ranks)


def _find_launcher() -> tuple[str, World | None]:
    """Returns the launcher of this process, and what it says."""
    for name, ask in _LAUNCHERS.items():
        said = ask()
        if said is not None:
            return name, said.world
    return "nobody", None


def _torchrun() -> _Said | None:
    return ranks_of_variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _open_mpi() -> _Said | None:
    prefix = "OMPI_COMM_WORLD_"
    return ranks_of_variables(prefix + "RANK", prefix + "SIZE", prefix + "LOCAL_RANK", prefix + "LOCAL_SIZE")


def _pmi() -> _Said | None:
    """Returns what PMI says: MPICH, Intel MPI, MVAPICH, and Cray's PALS, which has its own names for the node."""
    pals = "PMI_LOCAL_RANK" in os.environ
    node = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE") if pals else ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return ranks_of_variables("PMI_RANK", "PMI_SIZE", *node)


def _slurm() -> _Said | None:
    step = number_of_variable("SLURM_STEP_ID")
    if step is None or step >= _NO_STEPS:
        return None
    tasks = "SLURM_NTASKS" if number_of_variable("SLURM_STEP_NUM_TASKS") is None else "SLURM_STEP_NUM_TASKS"
    return ranks_of_variables("SLURM_PROCID", tasks, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", _tasks_on_this_node)


_LAUNCHERS: dict[str, Callable[[], _Said | None]] = {
    "torchrun": _torchrun,
    "Open MPI": _open_mpi,
    "PMI": _pmi,
    "Slurm": _slurm,
}


def number_of_variable(name: str) -> int | None:
    """Returns the number in an environment variable; None if it is unset or empty."""
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"{name}={text!r} is not a number: unset it, or give rank and ranks") from None


def _tasks_on_this_node(name: str) -> int | None:
    """Returns how many tasks this node has, from Slurm's list: 4(x2),3 says four, four, three."""
    text, node = os.environ.get(name, ""), number_of_variable("SLURM_NODEID")
    if not text or node is None:
        return None
    before = 0
    for group in text.split(","):
        parts = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", group)
        if parts is None:
            raise PlanError(f"{name}={text!r} is not a list like 4(x2),3: unset it, or give rank and ranks")
        before += int(parts[2] or 1)
        if node < before:
            return int(parts[1])
    raise PlanError(
        f"SLURM_NODEID={node}, but {name}={text!r} lists {before} nodes: unset them, or give rank and ranks"
    )


def ranks_of_variables(
    rank: str,
    ranks: str,
    rank_of_node: str,
    ranks_per_node: str,
    per_node: Callable[[str], int | None] = number_of_variable,
) -> _Said | None:
    """Returns what these variables say; None if neither rank nor ranks is set."""
    values = {rank: number_of_variable(rank), ranks: number_of_variable(ranks)}
    which, of = values.values()
    if which is None and of is None:
        return None
    if which is None or of is None:
        there, missing = (ranks, rank) if which is None else (rank, ranks)
        raise PlanError(
            f"{there}={values[there]} is set, but {missing} is not: set both, unset it, or give the rank and "
            "the number of ranks yourself"
        )
    node = number_of_variable(rank_of_node), per_node(ranks_per_node)
    try:
        if node[0] is None or node[1] is None:
            return _Said(World(which, of), False)
        return _Said(World(which, of, node[0], node[1]), True)
    except PlanError as error:
        names = [name for name in (rank, ranks, rank_of_node, ranks_per_node) if os.environ.get(name)]
        said = ", ".join(f"{name}={os.environ[name]}" for name in names)
        raise PlanError(f"{said} contradict each other ({error}): correct them, or give rank and ranks") from error
