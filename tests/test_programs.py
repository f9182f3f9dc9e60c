"""Programs drawn at random give what torch's loader gives, whatever fails meanwhile: some of them, and what runs them.

`make programs` runs ten thousand; docs/fuzzing.md says more.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from faults_kit import fault, injected
from kit import settle
from programs.drawn import drawn, simpler, sound, text_of
from ready_kit import python

from solar import DataLoader, Field, H5Dataset, PlanError, SolarError

ROOT = Path(__file__).parent.parent
MUTANTS = sorted((Path(__file__).parent / "programs" / "mutants").glob("*.patch"))
SEEDS, MORE_SEEDS = 27, 500  # beside those that have a name, some forty in all
PATIENCE = 1200


def programs(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*python(), "-m", "tests.programs", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


def test_some_programs_and_all_that_have_a_name_give_what_torch_gives() -> None:
    done = programs("--named", "--count", str(SEEDS), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_more_programs_give_what_torch_gives() -> None:
    done = programs("--from", str(SEEDS), "--count", str(MORE_SEEDS - SEEDS), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_one_program_and_each_is_a_script() -> None:
    texts = [text_of(drawn(seed), str(seed)) for seed in range(1000)]
    assert texts == [text_of(drawn(seed), str(seed)) for seed in range(1000)]
    assert len(set(texts)) == 1000
    for text in texts:
        compile(text, "program", "exec")


def test_what_is_simpler_than_a_program_is_another_that_makes_sense() -> None:
    for seed in range(200):
        for one in simpler(drawn(seed)):
            assert one == sound(one) != drawn(seed)


WRONG = {
    "raise ArithmeticError('the words of a program')": ("failed", "the words of a program"),
    "import os\nos.abort()": ("crashed", "by SIGABRT"),
    "import time\nprint('it waits', flush=True)\ntime.sleep(1000)": ("hung", "it waits"),
    "write('a.h5', x=np.arange(8))\n"
    "pair = Pair(lambda: H5Dataset('a.h5', 'x'), lambda epoch: list(range(1, 9)), lambda data: dict(batch_size=4))\n"
    "pair.epoch()": ("failed", "batch 0 of 2 differs"),
}


@pytest.mark.parametrize("text", WRONG, ids=[how for how, _ in WRONG.values()])
def test_a_program_that_does_not_pass_is_told(text: str, tmp_path: Path) -> None:
    from programs.drawn import HEAD

    how, said = WRONG[text]
    (tmp_path / "program.py").write_text((HEAD if "Pair" in text else "") + text)
    done = programs("--script", str(tmp_path / "program.py"), "--seconds", "3" if how == "hung" else "60")
    assert done.returncode == 1
    assert f"program.py {how}:" in done.stdout
    assert said in done.stdout


SHRINKING = """
import sys
sys.path.insert(0, "tests")
from programs.drawn import Program
from programs.run import shrunk

program = Program(count=40, stored="gzip", buffer="8MiB", order="plan", acts=("leave(1)", "no_such_act()", "epoch()"))
assert shrunk(program, "a program") == Program(count=7, acts=("no_such_act()",))
"""


@pytest.mark.slow
def test_a_program_that_fails_is_made_shorter() -> None:
    """In a process of its own, as programs are forks of it."""
    subprocess.run([*python(), "-c", SHRINKING], cwd=ROOT, check=True, timeout=PATIENCE)


@pytest.mark.parametrize("patch", MUTANTS, ids=lambda patch: patch.stem)
def test_faults_that_programs_must_find_can_be_put_back(patch: Path) -> None:
    """`python -m tests.programs.mutants` shows that they are found."""
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, check=True)


# --- what programs have found ----


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(40)
    settle(path)
    return str(path)


class Closing:
    """A sampler in whose turn another thread, or a signal's handler, closes the loader."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.loader: Any = None

    def __iter__(self) -> Iterator[int]:
        for index in range(40):
            if index == self.at:
                self.loader.close()
            yield index
        if self.at == 40:
            self.loader.close()

    def __len__(self) -> int:
        return 40


def same(sample: Any) -> Any:
    return sample


def batches_until_closed(path: str, at: int) -> list[list[int]]:
    """Those of a loop whose loader is closed when the sampler is asked for this sample; it must be told."""
    sampler, found = Closing(at), []
    loader: Any = DataLoader(H5Dataset(path, "x", transform=same), 4, sampler=sampler, buffer=0, ahead=4)
    sampler.loader = loader
    with pytest.raises(RuntimeError, match="closed with its loader"):
        for batch in loader:
            found.append(batch.tolist())
    return found


def test_a_loop_whose_loader_is_closed_as_the_sampler_ends_is_told(path: str) -> None:
    found = batches_until_closed(path, 40)
    assert found == [list(range(begin, begin + 4)) for begin in range(0, 4 * len(found), 4)]


def test_a_loop_whose_loader_is_closed_as_a_batch_begins_has_no_later_batch_in_place_of_the_next(path: str) -> None:
    found = batches_until_closed(path, 8)
    assert found == [list(range(begin, begin + 4)) for begin in range(0, 4 * len(found), 4)]


def test_a_loop_whose_loader_is_closed_as_it_begins_has_no_batch_without_its_fields(path: str) -> None:
    sampler = Closing(0)
    data = H5Dataset(path, Field("x", mean=1000))
    loader: Any = DataLoader(data, 4, sampler=sampler, buffer="8MiB")
    sampler.loader = loader
    with pytest.raises(RuntimeError, match="closed with its loader"):
        for batch in loader:
            assert float(batch.max()) < 0, batch


def test_an_allocation_that_fails_spoils_no_later_epoch_of_a_buffer(path: str) -> None:
    for after in range(8):
        with DataLoader(H5Dataset(path, "x"), 1, buffer="8MiB") as loader:
            with injected([fault("memory", errno.ENOMEM, after=after, times=1)]):
                for _ in outcomes(loader):
                    pass
            for _ in outcomes(loader):  # what was read ahead
                pass
            assert [int(one) for one in outcomes(loader)] == list(range(40))


def test_the_least_buffer_has_a_report(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((23, 3, 5), "f4"), chunks=(23, 3, 5), compression="gzip")
    data = H5Dataset(tmp_path / "a.h5", "x")
    with pytest.raises(PlanError, match="give at least buffer=") as caught:
        next(iter(DataLoader(data, 8, shuffle=True, buffer=1)))
    least = int(str(caught.value).partition("at least buffer=")[2].partition(",")[0])
    with DataLoader(data, 8, shuffle=True, buffer=least, ahead=1) as loader:
        assert len(list(loader)) == 3
        assert "epoch" in str(loader.report())


def outcomes(loader: Any) -> Iterator[Any]:
    """Batches, or errors in their place."""
    iterator = iter(loader)
    for _ in range(100):
        try:
            yield next(iterator)
        except StopIteration:
            return
        except (SolarError, MemoryError) as error:
            yield error


class Own:
    """A Dataset of the user's own."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def test_close_ends_an_iterator_over_a_dataset_of_ones_own(path: str) -> None:
    loader: Any = DataLoader(Own(), 2)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="closed with its loader"):
        next(iterator)
