"""examples/jobs: a training that is warned, saves itself, and goes on with other ranks; its scripts, under Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hosts_kit import HOSTS, NETWORK, ON_HOST, asked_for, environment, on_hosts
from mpi_kit import mpiexec, under_gloo, under_mpi

_ = asked_for  # a fixture

ROOT = Path(__file__).parent.parent
SAMPLES, BATCH, EPOCHS = 480, 16, 2
STEPS = SAMPLES // BATCH
OPTIONS = f"--samples {SAMPLES} --global-batch {BATCH} --epochs {EPOCHS} --every 7".split()
# A rank that warns itself, as Slurm would, when so many lines are recorded; it alone, or none if it is not there.
PROGRAM = f"""
import json, os, signal, sys, threading, time
from pathlib import Path
sys.path.append({str(ROOT)!r})
from examples.jobs import train
rank = next(os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ)
which, lines, record = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
def warn():
    while not record.exists() or record.read_text().count("\\n") < lines:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)
if which == rank:
    threading.Thread(target=warn, daemon=True).start()
train.print = lambda *_, **__: None
print(json.dumps(train.main([*sys.argv[4:], "--record", str(record)])))
"""


def trained(start: Callable[..., list[Any]], ranks: int, folder: Path, *, warned: tuple[int, int] = (-1, 0)) -> int:
    """The exit status, the same on all ranks, of a run there; `warned` are a rank, and after how many steps."""
    folder.mkdir(exist_ok=True)
    data, checkpoint = folder.parent / "data.h5", folder / "checkpoint.pt"
    arguments = [data, *OPTIONS, "--checkpoint", checkpoint, "--compute", 0.02 if warned[0] >= 0 else 0]
    ended = start(ranks, PROGRAM, *warned, folder / "record", *arguments, seconds=300)
    assert len(ended) == ranks
    assert len(set(ended)) == 1
    return int(ended[0])


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """What was recorded of each step."""
    return [json.loads(line) for line in (folder / "record").read_text().splitlines()]


def seen_in(epoch: int, steps: list[dict[str, Any]]) -> list[int]:
    """All samples of an epoch, ascending."""
    return sorted(sample for step in steps if step["epoch"] == epoch for sample in step["samples"])


def check_whole(folder: Path) -> list[list[int]]:
    """That each epoch saw each sample once, and every step came once; the samples of the steps."""
    steps = steps_of(folder)
    assert [step["step"] for step in steps] == [*range(1, EPOCHS * STEPS + 1)]
    for epoch in range(EPOCHS):
        assert seen_in(epoch, steps) == [*range(SAMPLES)]
    return [step["samples"] for step in steps]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one rank that nobody stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert trained(under_gloo, 1, folder) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("start", "ranks"), [(under_mpi, (4, 2, 1)), (under_gloo, (2, 4))])
def test_a_run_that_is_warned_goes_on_with_other_ranks_as_if_nothing_had_been(
    start: Callable[..., list[Any]], ranks: tuple[int, ...], uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    again = folder / "checkpoint.pt.again"
    for epoch, several in enumerate(ranks[:-1]):
        warned = epoch * STEPS + 7
        assert trained(start, several, folder, warned=(several - 1, warned)) == 85  # only one rank hears of it
        assert warned <= len(steps_of(folder)) < (epoch + 1) * STEPS
        assert again.exists()
    assert trained(start, ranks[-1], folder) == 0
    assert not again.exists()
    assert check_whole(folder) == check_whole(uninterrupted)
    losses, expected = ([step["loss"] for step in steps_of(one)] for one in (folder, uninterrupted))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]


def test_a_run_that_is_killed_goes_on_from_the_last_whole_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    program = PROGRAM.replace("os.kill(os.getpid(), signal.SIGUSR1)", "os.kill(os.getpid(), signal.SIGKILL)")
    arguments = [*OPTIONS, "--checkpoint", folder / "checkpoint.pt", "--compute", 0.02]
    folder.mkdir()
    ended = under_gloo(1, program, 0, 17, folder / "record", tmp_path / "data.h5", *arguments, dying=[0], seconds=300)
    assert ended == []
    steps = steps_of(folder)
    assert 17 <= len(steps) < EPOCHS * STEPS
    kept = len(steps) // 7 * 7  # with a checkpoint behind them, but for one that was being written
    torn = folder / "checkpoint.pt.part"
    torn.write_bytes(b"half of it")
    assert trained(under_gloo, 2, folder) == 0
    more = steps_of(folder)[len(steps) :]
    assert more[0]["step"] in (kept + 1, kept - 6)
    lines = steps[: more[0]["step"] - 1] + more
    (folder / "record").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert check_whole(folder) == check_whole(uninterrupted)
    assert not torn.exists()


def test_ranks_that_do_not_divide_the_global_batch_are_refused(tmp_path: Path) -> None:
    arguments = [tmp_path / "data.h5", *OPTIONS, "--checkpoint", tmp_path / "checkpoint.pt"]
    assert under_gloo(3, PROGRAM, -1, 0, tmp_path / "record", *arguments, dying=range(3), seconds=300) == []
    assert not (tmp_path / "record").exists()


# --- the scripts ----

SCRIPTS = sorted((ROOT / "examples" / "jobs").glob("*.s*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with the project's examples in it, for solar is to be the installed one."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_has_nothing_that_shellcheck_minds(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", str(script)], check=True)


@pytest.mark.slow
def test_mpiexec_hands_the_warning_on_and_the_exit_status_back(place: Path) -> None:
    path = f"{Path(mpiexec()).parent}{os.pathsep}{environment()['PATH']}"
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    root |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    script = ["examples/jobs/mpiexec.sh", "2", "1000", "data.h5", *OPTIONS, "--record", "record", "--compute", "0.05"]
    with subprocess.Popen(script, cwd=place, env=environment(PATH=path, **root), start_new_session=True) as running:
        try:
            while running.poll() is None and not (place / "record").exists():
                with_patience(running)
            running.send_signal(signal.SIGUSR1)  # to `timeout`, which hands it on as it would its own
            assert running.wait(300) == 85
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)  # mpiexec too; its ranks end when it is gone
    assert (place / "checkpoint.pt.again").exists()
    assert 0 < len(steps_of(place)) < EPOCHS * STEPS


def with_patience(running: subprocess.Popen[bytes]) -> None:
    """A tenth of a second, or less if it ends."""
    try:
        running.wait(0.1)
    except subprocess.TimeoutExpired:
        return


# --- several hosts ----


def rehearsal(place: Path) -> list[str]:
    """The command of a short one, in that folder."""
    from examples.jobs.train import make_data  # on the path by now

    make_data(place / "data.h5", SAMPLES, 0)
    solar = [sys.executable, "-c", "import sys; from solar.cli import main; sys.exit(main())"]
    return [*solar, "rehearse", str(place / "data.h5"), "--batch-size", "8", "--buffer", "8MiB", "--json"]


def check_rehearsed(said: str, by: str) -> None:
    """That four ranks on two nodes had their shares, some of them from each other."""
    answer = json.loads(said[said.index("{") :])
    assert (answer["ranks"], answer["nodes"], answer["by"]) == (4, 2, by)
    assert [one["node"] for one in answer["per_rank"]] == ["h1", "h1", "h2", "h2"]
    assert [epoch["samples"] for epoch in answer["epochs"]] == [SAMPLES, SAMPLES]
    assert sum(epoch["exchanged_bytes"] for epoch in answer["epochs"]) > 0  # each node has half of the file


@pytest.mark.usefixtures("hosts")
def test_ranks_on_two_hosts_rehearse_by_mpi_over_the_network(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    ssh = ["-launcher", "ssh", "-launcher-exec", str(ON_HOST), "-hosts", "h1,h2", "-ppn", "2"]
    if "HYDRA" not in subprocess.run([mpiexec(), "--version"], capture_output=True, text=True).stdout:
        pytest.skip("needs MPICH's mpiexec")
    said = on_hosts(place, mpiexec(), *ssh, "-n", "4", *rehearsal(place), **NETWORK)
    check_rehearsed(said, "MPI")


@pytest.mark.usefixtures("hosts")
def test_ranks_on_two_hosts_rehearse_by_gloo_over_the_network(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--no-python"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.78.0.1:21000"]
    there = str(ON_HOST)
    line = shlex.join([*torchrun, *rehearsal(place)])  # which a shell reads there, as with ssh
    both = " & ".join(shlex.join([there, host, line]) for host in ("h1", "h2"))
    check_rehearsed(on_hosts(place, "sh", "-c", f"{both} & wait"), "torch.distributed")


@pytest.mark.usefixtures("hosts")
def test_tasks_that_srun_starts_rehearse(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    srun = ["srun", "--nodes", "2", "--ntasks", "4"]
    said = on_hosts(place, *srun, *rehearsal(place), slurm=True, MASTER_ADDR="h1", MASTER_PORT="21000")
    check_rehearsed(said, "torch.distributed")


@pytest.mark.parametrize(("script", "how"), [("slurm.sbatch", "limit"), ("slurm-torchrun.sbatch", "scancel")])
@pytest.mark.usefixtures("hosts")
def test_a_job_warned_by_slurm_goes_on_with_fewer_nodes(script: str, how: str, place: Path) -> None:
    options = f"data.h5 --samples {SAMPLES} --global-batch {BATCH} --epochs 8 --compute 0.12".split()
    command = [sys.executable, str(HOSTS.with_name("warned_job.py")), f"examples/jobs/{script}", how, *options]
    said = on_hosts(place, *command, slurm=True, RANKS_PER_NODE="2")
    assert said.split() == ["COMPLETED", "1"]
    output = (place / "slurm-1.out").read_text()
    assert "begun on 2 nodes: h[1-2]; restarts: 0" in output
    assert "begun on 1 nodes: h1; restarts: 1" in output
    steps = steps_of(place)
    assert [step["step"] for step in steps] == [*range(1, 8 * STEPS + 1)]
    for epoch in range(8):
        assert seen_in(epoch, steps) == [*range(SAMPLES)]


TRIAL = """
import hashlib, os, sys
from solar import DataLoader, H5Dataset, PlanSampler
seed, sha = int(sys.argv[sys.argv.index("--seed") + 1]), hashlib.blake2b()
data = H5Dataset(sys.argv[1], "x")
with DataLoader(data, 8, sampler=PlanSampler(data, seed=seed), buffer=0) as loader:
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            sha.update(batch.numpy().tobytes())
    served = getattr(loader._buffered.running, "counts", dict)().get("served", 0)
    print("trial", seed, sha.hexdigest(), served, os.uname().nodename, flush=True)
"""
OWN = f"/run/user/{os.getuid()}"  # which each host has by itself, as nodes have their /tmp
SERVED_BY = {
    "slurm-array.sbatch": (["--nodelist=h1", "--array=0-3", "--mem=100", "--cpus-per-task=1"], [], 4),
    "slurm-search.sbatch": (["--nodelist=h1"], ["3"], 3),
    "slurm-search-nodes.sbatch": (["--nodes=2"], ["4"], 4),
}


@pytest.mark.parametrize("script", SERVED_BY)
@pytest.mark.usefixtures("hosts")
def test_trials_under_slurm_share_a_service(script: str, place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    options, first, trials = SERVED_BY[script]
    (place / "trial.py").write_text(TRIAL)
    with h5py.File(place / "scan.h5", "w") as file:
        file["x"] = np.arange(800 * 64).reshape(800, 64)
    runtime = tmp_path_factory.mktemp("runtime")
    runtime.chmod(0o700)
    sbatch = ["--export=ALL", *options, f"examples/jobs/{script}", *first, "scan.h5", "trial.py"]
    command = [sys.executable, str(HOSTS.with_name("batch_job.py")), *sbatch]
    more = {"SOLAR_RUNTIME": str(runtime), "SERVICE_MEMORY": "1MiB", "USER": "root", "TMPDIR": OWN, **NETWORK}
    states = on_hosts(place, *command, slurm=True, **more).split()
    output = "".join(path.read_text() for path in sorted(place.glob("slurm-*.out")))
    assert set(states) == {"COMPLETED"}, output
    found = {int(of[0]): of for of in re.findall(r"trial (\d+) (\w+) (\d+) (\w+)", output)}
    assert sorted(found) == [*range(trials)], output
    for seed, (_, digest, served, host) in found.items():
        alone = [sys.executable, str(place / "trial.py"), str(place / "scan.h5"), "--seed", str(seed)]
        said = subprocess.run(alone, check=True, capture_output=True, text=True).stdout.split()
        assert said[2] == digest and said[3] == "0" and int(served) > 0, output
        assert host == ("h2" if seed % 2 and "nodes" in script else "h1")


CANCELLED = """
trap 'cat slurm-*.out >&2' EXIT
job=$(sbatch --parsable --export=ALL "examples/jobs/$1" 2 scan.h5 endless.py) || exit
until [ "$(grep --count begun slurm-"$job".out 2>/dev/null)" = 2 ]; do sleep 0.2; done
ls /run/hosts/*/*
pgrep --count --full 'solar serve'
scancel "$job"
while squeue --noheader | grep --quiet .; do sleep 0.2; done
ls /run/hosts/*/*
pgrep --count --full 'solar serve|endless.py'
true
"""


HANGS = f"""#!{sys.executable}
import os, sys, time
from solar.cli import main
from solar.service.service import Service
if os.environ.get("SLURM_PROCID") == "1":
    Service.close = lambda self: time.sleep(600)  # until Slurm kills it
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("script", "how"),
    [("slurm-search.sbatch", ""), ("slurm-search-nodes.sbatch", ""), ("slurm-search-nodes.sbatch", "one hangs")],
)
@pytest.mark.usefixtures("hosts")
def test_services_of_a_cancelled_job_end_and_leave_nothing(script: str, how: str, place: Path) -> None:
    endless = TRIAL.replace("range(2)", "iter(int, 1)")
    (place / "endless.py").write_text(endless.replace("with DataLoader", 'print("begun", flush=True)\nwith DataLoader'))
    (place / "cancelled.sh").write_text(CANCELLED)  # a line of its own would be found by its text
    with h5py.File(place / "scan.h5", "w") as file:
        file["x"] = np.arange(800 * 64).reshape(800, 64)
    more = {"SERVICE_MEMORY": "1MiB", "TMPDIR": OWN, **NETWORK}
    if how:
        (place / "bin").mkdir()
        (place / "bin" / "solar").write_text(HANGS)
        (place / "bin" / "solar").chmod(0o755)
        more["PATH"] = f"{place / 'bin'}{os.pathsep}{environment()['PATH']}"
    said = on_hosts(place, "timeout", "300", "bash", "cancelled.sh", script, slurm=True, **more).split()
    first, second = (f"/run/hosts/h{host}/{os.getuid()}:" for host in (1, 2))
    there, services = said[:-4], int(said[-4])
    if "nodes" in script:
        assert there == [first, "solar-job-1", second, "solar-job-1"] and services >= 2
    else:
        assert (there[0], there[2:]) == (first, [second]) and services >= 1
    assert said[-3:] == [first, second, "0"]
