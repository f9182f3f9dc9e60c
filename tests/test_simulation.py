"""A service, its trainings and its nodes in virtual time: whatever is late, stopped, killed or in parts.

`make simulation` lets a hundred thousand worlds happen; docs/fuzzing.md says more. SOLAR_SIM=SEED is one of them.
"""

from __future__ import annotations

import ast
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from simulation import mutants
from simulation.tasks import Actor, Condition, Killed, Lock, Simulation, Stuck
from simulation.wire import Wire, Wires
from simulation.world import Data, Failed, Run, happen, happens, world_of

import solar

SEEDS, MORE_SEEDS = 20, 500
# Seeds that failed once, and what was mended.
FAILED = {
    143: "rows that a plan reads straight into a batch need not be held",
    1972: "the condition of a reader changed while it was held",
    10127: "a bell that was closed was handed to a job",
    20571: "an epoch that was told late waited for 46 steps of others",
    21550: "a training that came waited for 46 slow steps of others",
    31566: "a rank that asked whether another has closed sent that between the head and the rows of a batch",
    153: "a training that stood still in the middle of an answer took the service for gone",
}
QUICKLY_FOUND = ("a service keeps what it was handed open", "a step is freed when the first job has copied it")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("simulated"))


@pytest.mark.parametrize("seed", [int(os.environ["SOLAR_SIM"])] if "SOLAR_SIM" in os.environ else range(SEEDS))
def test_what_must_hold_holds_in_a_world(seed: int, data: Data) -> None:
    happen(seed, data)


@pytest.mark.slow
def test_what_must_hold_holds_in_many_worlds(data: Data) -> None:
    served, left = 0, {}
    for seed in range(SEEDS, MORE_SEEDS):
        try:
            served += happen(seed, data).served
        except AssertionError as error:
            left[seed] = str(error)
    assert not left
    assert served > 50 * (MORE_SEEDS - SEEDS) / 10


@pytest.mark.parametrize("seed", FAILED)
def test_a_seed_that_failed_fails_no_more(seed: int, data: Data) -> None:
    happen(seed, data)


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_faults_that_are_put_back_are_found(name: str, data: Data) -> None:
    changed = mutants.seams(name)
    with pytest.raises(AssertionError):
        for seed in range(5 * SEEDS):
            happen(seed, data, changed)


def test_every_mutant_changes_words_that_are_there() -> None:
    for name in mutants.MUTANTS:
        assert mutants.seams(name)


def test_a_seed_is_the_same_world_each_time(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "solar")
    for seed in (2, 7, 12):
        one, two = happen(seed, data), happen(seed, data)
        assert (one.simulation.trace, one.simulation.now) == (two.simulation.trace, two.simulation.now)


def test_a_wrong_batch_is_told(data: Data) -> None:
    world = next(one for one in (world_of(seed, data.parts) for seed in range(1, 100, 3)) if one.nodes == 1)
    wrong = {key: np.zeros_like(values) for key, values in data.parts.items()}
    world.disk.values, world.service_ends = wrong, ("", 0.0)
    world.trainings[0].begins, world.trainings[0].leaves = 1.0, -1
    with pytest.raises(AssertionError, match="has other values"):
        happens(world, data)


def test_what_nobody_ends_is_told_with_where_it_waits() -> None:
    simulation = Simulation(1)
    condition = Condition(simulation)

    def waits() -> None:
        with condition:
            condition.wait()

    simulation.begin(Actor("a service", 1, 0), "plan", waits)
    with pytest.raises(Stuck, match="a service: plan"):
        simulation.run(lambda: not simulation.tasks, 100.0)


def test_who_is_killed_changes_nothing_more() -> None:
    simulation = Simulation(1)
    lock, done = Lock(simulation), list[str]()
    one = Actor("one", 1, 0)

    def holds() -> None:
        try:
            with lock:
                simulation.sleep(10.0)
                done.append("slept")
        finally:
            with pytest.raises(Killed):
                lock.acquire()

    simulation.begin(one, "holds", holds)
    simulation.at(1.0, lambda: simulation.kill(one))
    simulation.run(lambda: simulation.now >= 1.0 and not simulation.tasks, 100.0)
    assert not done


def test_bytes_come_late_in_parts_and_in_order(tmp_path: Path) -> None:
    simulation = Simulation(3)
    wires = Wires(simulation, Wire(late=0.9, latest=5.0, parts=0.5))
    what, found = bytes(range(256)) * 8, bytearray()
    path = str(tmp_path / "s")

    def listens() -> None:
        with wires.socket() as own:
            own.bind(path)
            own.listen(1)
            with own.accept()[0] as peer:
                while some := peer.recv(100):
                    found.extend(some)

    def sends() -> None:
        simulation.sleep(1.0)
        with wires.socket() as own:
            own.connect(path)
            own.sendall(what)

    for name, act in (("a", listens), ("b", sends)):
        simulation.begin(Actor(name, 1, 0), name, act)
    simulation.run(lambda: not simulation.tasks, 1000.0)
    assert bytes(found) == what
    assert simulation.now > 2.0


def test_what_is_simulated_reaches_clock_tasks_and_wires_by_the_names_that_are_replaced(data: Data) -> None:
    """A clock or lock that is imported by another name would be the real one."""
    replaced = Run(world_of(1, data.parts), data).seams()
    names: dict[str, set[str]] = {}
    for of, name, _ in replaced:
        names.setdefault(getattr(of, "__name__", ""), set()).add(name)
    solar_folder = Path(solar.__file__).parent
    files = {f"solar.service.{one.stem}": one for one in (solar_folder / "service").glob("*.py")}
    files["solar.distributed.exchange"] = solar_folder / "distributed" / "exchange.py"
    files["solar.io.channels.frames"] = Path(solar.io.channels.frames.__file__)
    del files["solar.service.status_page"]  # which only shows what is there
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("time", "threading", "socket", "select", "selectors"), file
            if isinstance(node, ast.Import):
                taken = {one.name for one in node.names} & {"time", "threading", "socket", "select"}
                left = taken - names.get(module, set()) - ({"time"} if module.endswith("pace") else set())
                assert not left, f"{file} imports {left}, which no simulation replaces"


def test_words_of_the_command(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    from simulation.__main__ import many, one

    assert many(range(2), 1) == 0
    assert "2 worlds in" in capsys.readouterr().out
    assert one(2) == 0
    assert "came from services" in capsys.readouterr().out
    assert issubclass(Failed, AssertionError)
