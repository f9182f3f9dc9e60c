"""Which rank of how many: what counts, what contradicts, and that nothing is imported or sent to find out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
from mpi_kit import under_gloo, under_mpi

from solar import PlanError, World
from solar.io.channels.world import detect, place_on_node

LAUNCHERS = re.compile(r"RANK$|WORLD_SIZE$|^LOCAL_|^SLURM_|^OMPI_|^PMI|^PALS|^MPI_LOCAL")
TORCHRUN = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
OPEN_MPI = {
    f"OMPI_COMM_WORLD_{name}": value for name, value in dict(RANK=2, SIZE=6, LOCAL_RANK=0, LOCAL_SIZE=2).items()
}
MPICH = {"PMI_RANK": 3, "PMI_SIZE": 4, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
PALS = {"PMI_RANK": 3, "PMI_SIZE": 4, "PMI_LOCAL_RANK": 1, "PMI_LOCAL_SIZE": 2}
SLURM = {
    "SLURM_JOB_ID": 17,
    "SLURM_STEP_ID": 0,
    "SLURM_PROCID": 9,
    "SLURM_NTASKS": 11,
    "SLURM_STEP_NUM_TASKS": 11,
    "SLURM_LOCALID": 1,
    "SLURM_NODEID": 2,
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}


@pytest.fixture(autouse=True)
def started_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An environment without launcher, torch.distributed and MPI; started_by(names) sets variables."""
    for name in list(os.environ):
        if LAUNCHERS.search(name):
            monkeypatch.delenv(name)
    for name in ("mpi4py.MPI", "torch.distributed"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def started_by(*launchers: dict[str, Any], **more: Any) -> None:
        for variables in (*launchers, more):
            for name, value in variables.items():
                monkeypatch.setenv(name, str(value))

    return started_by


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """mpi(rank, ranks) acts as if the program had imported mpi4py.MPI."""

    def mpi(rank: int, ranks: int, initialised: bool = True, finalised: bool = False) -> None:
        world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: ranks)
        module = SimpleNamespace(COMM_WORLD=world, Is_initialized=lambda: initialised, Is_finalized=lambda: finalised)
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)

    return mpi


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """group(rank, ranks) acts as if the program had initialised torch.distributed."""

    def group(rank: int, ranks: int, available: bool = True, initialised: bool = True) -> None:
        module = SimpleNamespace(is_available=lambda: available)
        if available:  # a torch without distributed has none of these
            module.is_initialized = lambda: initialised
            module.get_rank, module.get_world_size = lambda: rank, lambda: ranks
        monkeypatch.setitem(sys.modules, "torch.distributed", module)

    return group


@pytest.fixture
def real_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert detect() == World(0, 1)


@pytest.mark.parametrize(
    ("launcher", "world"),
    [
        (TORCHRUN, World(5, 8, 1, 4)),
        (OPEN_MPI, World(2, 6, 0, 2)),
        (MPICH, World(3, 4, 1, 2)),
        (PALS, World(3, 4, 1, 2)),
        (SLURM, World(9, 11, 1, 3)),
    ],
    ids=["torchrun", "Open MPI", "MPICH", "PALS", "Slurm"],
)
def test_a_launcher_is_known_by_its_environment(started_by: Any, launcher: dict[str, Any], world: World) -> None:
    started_by(launcher)
    assert detect() == world


def test_a_launcher_that_is_silent_about_the_node_leaves_the_rank_alone_on_it(started_by: Any) -> None:
    started_by(RANK=1, WORLD_SIZE=3, LOCAL_RANK=1)
    assert detect() == World(1, 3)


def test_a_launcher_that_is_silent_about_the_node_is_helped_out_by_another(started_by: Any) -> None:
    started_by(SLURM, PMI_RANK=9, PMI_SIZE=11)  # srun --mpi=pmi2
    assert detect() == World(9, 11, 1, 3)


def test_an_empty_variable_counts_as_unset(started_by: Any) -> None:
    started_by(RANK="", WORLD_SIZE="")
    assert detect() == World(0, 1)


def test_pmix_alone_says_nothing_because_it_names_no_size(started_by: Any) -> None:
    started_by(PMIX_RANK=3)
    assert detect() == World(0, 1)


def test_slurm_before_it_named_the_step_tasks_is_understood(started_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(SLURM)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    assert detect() == World(9, 11, 1, 3)


def test_a_step_smaller_than_its_job_has_the_ranks_of_the_step(started_by: Any) -> None:
    started_by(SLURM, SLURM_NTASKS=64)
    assert detect().ranks == 11


@pytest.mark.parametrize(
    "step", [None, 0xFFFFFFFA, 0xFFFFFFFB, 0xFFFFFFFC], ids=["salloc", "shell", "sbatch", "extern"]
)
def test_a_shell_in_a_slurm_job_is_one_process(started_by: Any, step: int | None, monkeypatch: Any) -> None:
    started_by(SLURM, SLURM_STEP_ID=step)
    if step is None:
        monkeypatch.delenv("SLURM_STEP_ID")
    assert detect() == World(0, 1)


@pytest.mark.parametrize(("node", "tasks"), [(0, 4), (1, 4), (2, 3), (3, 1)])
def test_the_tasks_of_a_slurm_node_are_found_in_the_list_of_all_nodes(started_by: Any, node: int, tasks: int) -> None:
    started_by(SLURM, SLURM_LOCALID=0, SLURM_NODEID=node, SLURM_STEP_TASKS_PER_NODE="4(x2),3,1(x1000000000)")
    assert detect().ranks_per_node == tasks


def test_torchrun_counts_inside_a_slurm_step_and_under_mpiexec(started_by: Any) -> None:
    started_by(TORCHRUN, OPEN_MPI, MPICH, SLURM)
    assert detect() == World(5, 8, 1, 4)


@pytest.mark.parametrize(("launcher", "world"), [(OPEN_MPI, World(2, 6, 0, 2)), (MPICH, World(3, 4, 1, 2))])
def test_ranks_of_mpiexec_do_not_take_its_daemons_slurm_task_for_their_own(
    started_by: Any, launcher: dict[str, Any], world: World
) -> None:
    started_by(SLURM, SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2, SLURM_STEP_TASKS_PER_NODE="1(x2)")
    started_by(launcher)
    assert detect() == world


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"RANK": "three", "WORLD_SIZE": 4}, ["RANK='three'", "unset"]),
        ({"RANK": 1}, ["RANK=1", "WORLD_SIZE is not"]),
        ({"WORLD_SIZE": 4}, ["WORLD_SIZE=4", "RANK is not"]),
        ({"RANK": 4, "WORLD_SIZE": 4}, ["RANK=4", "WORLD_SIZE=4"]),
        ({"RANK": -1, "WORLD_SIZE": 4}, ["RANK=-1"]),
        ({"RANK": 0, "WORLD_SIZE": 0}, ["WORLD_SIZE=0"]),
        (TORCHRUN | {"LOCAL_RANK": 4}, ["LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": 9}, ["LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"]),
        ({"OMPI_COMM_WORLD_RANK": 1}, ["OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not"]),
        ({"PMI_RANK": 7, "PMI_SIZE": 4}, ["PMI_RANK=7", "PMI_SIZE=4"]),
        ({"SLURM_STEP_ID": 0, "SLURM_PROCID": 1}, ["SLURM_PROCID=1", "SLURM_NTASKS is not"]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "many"}, ["SLURM_STEP_TASKS_PER_NODE='many'"]),
        (SLURM | {"SLURM_NODEID": 3}, ["SLURM_NODEID=3", "lists 3 nodes"]),
    ],
)
def test_an_environment_without_sense_is_refused_by_the_names_of_its_variables(
    started_by: Any, variables: dict[str, Any], names: list[str]
) -> None:
    started_by(variables)
    with pytest.raises(PlanError) as refusal:
        detect()
    for name in (*names, "give "):
        assert name in str(refusal.value)


def test_arguments_count_whatever_the_environment_says(started_by: Any, mpi: Any, group: Any) -> None:
    started_by(TORCHRUN, RANK="nonsense")
    mpi(1, 2)
    group(2, 3)
    assert detect(6, 7) == World(6, 7)


def test_the_argument_that_is_not_given_is_taken_from_who_knows(started_by: Any) -> None:
    started_by(TORCHRUN)
    assert detect(rank=3) == World(3, 8)
    assert detect(ranks=6) == World(5, 6)
    with pytest.raises(PlanError, match="rank=5 of ranks=4"):
        detect(ranks=4)


def test_arguments_that_say_what_the_launcher_says_have_its_place_on_the_node(started_by: Any) -> None:
    started_by(TORCHRUN)
    assert detect(5, 8) == World(5, 8, 1, 4)
    assert detect(5, 9) == World(5, 9)


def test_a_process_group_counts_before_mpi_and_launchers(started_by: Any, mpi: Any, group: Any) -> None:
    started_by(SLURM)
    mpi(1, 2)
    group(2, 3)
    assert detect() == World(2, 3)


def test_a_process_group_of_the_launchers_ranks_has_their_place_on_the_node(started_by: Any, group: Any) -> None:
    started_by(SLURM)
    group(9, 11)
    assert detect() == World(9, 11, 1, 3)


def test_a_torch_without_process_group_is_passed_over(started_by: Any, group: Any) -> None:
    started_by(TORCHRUN)
    group(0, 1, initialised=False)
    assert detect().rank == 5
    group(0, 1, available=False)
    assert detect().rank == 5


@pytest.mark.usefixtures("real_group")
def test_a_real_process_group_is_asked(started_by: Any) -> None:
    started_by(TORCHRUN)
    assert detect() == World(0, 1)


def test_mpi_counts_when_the_program_uses_it(started_by: Any, mpi: Any) -> None:
    mpi(3, 4)
    assert detect() == World(3, 4)
    started_by(MPICH)
    assert detect() == World(3, 4, 1, 2)


@pytest.mark.parametrize("state", [{"initialised": False}, {"finalised": True}])
def test_mpi_that_has_not_begun_or_has_ended_is_passed_over(mpi: Any, state: dict[str, bool]) -> None:
    mpi(3, 4, **state)
    assert detect() == World(0, 1)


@pytest.mark.parametrize(("launcher", "name"), [(SLURM, "Slurm rank 9 of 11"), (TORCHRUN, "torchrun rank 5 of 8")])
def test_mpi_worlds_of_one_under_a_launcher_of_many_are_refused(
    started_by: Any, mpi: Any, launcher: dict[str, Any], name: str
) -> None:
    started_by(launcher)
    mpi(0, 1)
    with pytest.raises(PlanError, match=f"mpi4py says rank 0 of 1, but {name}.*initialise torch.distributed"):
        detect()
    assert detect(0, 1) == World(0, 1)


def test_mpi_of_another_size_than_its_launcher_is_refused(started_by: Any, mpi: Any) -> None:
    started_by(TORCHRUN)
    mpi(1, 2)
    with pytest.raises(PlanError, match="rank 1 of 2, but torchrun rank 5 of 8"):
        detect()


def test_mpi_of_several_ranks_may_run_in_a_slurm_step_of_its_daemons(started_by: Any, mpi: Any) -> None:
    started_by(SLURM)
    mpi(30, 44)
    assert detect() == World(30, 44)


WORLD_OF_MPI = """
import dataclasses, json
from mpi4py import MPI
from solar import PlanError
from solar.io.channels import detect
try:
    print(json.dumps([MPI.COMM_WORLD.rank, dataclasses.astuple(detect())]))
except PlanError as error:
    print(json.dumps([MPI.COMM_WORLD.rank, str(error)]))
"""


@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_of_a_real_mpiexec_have_its_numbers_and_places(ranks: int) -> None:
    assert dict(under_mpi(ranks, WORLD_OF_MPI)) == {rank: [rank, ranks, rank, ranks] for rank in range(ranks)}


def test_ranks_of_a_real_mpiexec_on_several_hosts_have_their_places_there() -> None:
    said = dict(under_mpi(4, WORLD_OF_MPI, options=["-launcher", "fork", "-hosts", "a:1,b:3"]))
    assert said == {0: [0, 4, 0, 1], 1: [1, 4, 0, 3], 2: [2, 4, 1, 3], 3: [3, 4, 2, 3]}


def test_a_real_mpiexec_under_variables_of_another_launcher_is_refused() -> None:
    """As where a shell that torchrun or a user has prepared starts mpiexec: every rank would inherit RANK=0."""
    said = dict(under_mpi(2, WORLD_OF_MPI, env={"RANK": "0", "WORLD_SIZE": "4"}))
    for rank, text in said.items():
        assert f"mpi4py says rank {rank} of 2, but torchrun rank 0 of 4" in text
    assert len(said) == 2


def test_real_mpi_worlds_of_one_are_refused() -> None:
    """Processes of torchrun that import mpi4py: each is a world of its own."""
    said = under_gloo(2, WORLD_OF_MPI)
    texts = [text for _, text in said]
    for rank, text in enumerate(texts):
        assert f"mpi4py says rank 0 of 1, but torchrun rank {rank} of 2" in text
    assert len(said) == 2


def test_one_place_on_a_node_is_told_from_no_word_about_it(started_by: Any) -> None:
    started_by(RANK=1, WORLD_SIZE=3, LOCAL_RANK=0)
    assert place_on_node(1, 3) is None
    started_by(LOCAL_WORLD_SIZE=1)
    assert place_on_node(1, 3) == (0, 1)
    assert place_on_node(2, 3) is None, "that is said of rank 1"


def test_who_names_several_ranks_of_a_node_is_heard_before_who_names_one(started_by: Any) -> None:
    started_by(SLURM, RANK=9, WORLD_SIZE=11, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)  # a torchrun for each task of srun
    assert place_on_node(9, 11) == (1, 3)
    assert detect() == World(9, 11, 1, 3)


def test_detecting_imports_neither_torch_nor_mpi() -> None:
    code = (
        "import sys; from solar.io.channels import detect; detect()\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules), 'imported to find out'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("numbers", [(1, 1), (-1, 2), (0, 0), (0, 4, 2, 2), (0, 4, -1, 2), (0, 4, 0, 5), (0, 4, 0, 0)])
def test_a_world_that_cannot_be_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="of ranks"):
        World(*numbers)


def test_a_world_counts_in_whole_numbers() -> None:
    with pytest.raises(TypeError, match=r"ranks=4\.0"):
        World(0, 4.0)  # type: ignore[arg-type]
