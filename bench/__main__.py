"""All peers on all scenes, in turns, on one machine: JSON lines and a table.

    python -m bench [--quick] [--scenes NAME ...] [--peers NAME ...] [--out FILE] [--folder DIR] [--record]

For each scene: the data are made, each peer gets ready in its own fresh process (one after another), then the rounds go
around all of them, so that ratios come from the same minutes; the data are deleted. Whoever is not in turn is stopped.
--quick takes fewer scenes and shorter rounds. --record adds the lines to bench/results/matrix.jsonl; given again within
hours, it goes on where it was ended. `python -m bench.matrix` runs this and all other scenes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench import parts, peers, records, tables
from bench.scene import Scene, make
from bench.scenes import all_scenes

READY_SECONDS, ROUND_SECONDS = 600, 240
BUSY = 0.5  # load average above which the machine is not ours alone
Record = dict[str, Any]


class Process:
    """A peer in its own process, which is told when to run a round and stopped in between."""

    def __init__(self, name: str, scene: Scene, folder: Path, seconds: float) -> None:
        self.name, self.scene = name, scene
        self.record: Record | None = None
        self.errors = folder / f"{name}.errors"
        command = [sys.executable, "-m", "bench.run", name, scene.name, str(folder), "--told", f"--seconds={seconds}"]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=records.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.expect(READY_SECONDS)

    def round(self) -> None:
        if self.record is None:
            self.signal(signal.SIGCONT)
            stdin = self.process.stdin
            assert stdin
            stdin.write("\n")
            stdin.flush()
            self.expect(ROUND_SECONDS)

    def finish(self) -> Record:
        if self.record is None:
            self.signal(signal.SIGCONT)
            assert self.process.stdin
            self.process.stdin.close()
            self.expect(ROUND_SECONDS)
        self.end()
        return self.record or {"peer": self.name, "scene": self.scene.name, "failed": "it ended without a record"}

    def expect(self, seconds: float) -> None:
        """Waits for one line: an answer, or a record, which ends it; no line is a failure."""
        assert self.process.stdout
        alarm = threading.Timer(seconds, self.signal, [signal.SIGKILL])
        alarm.start()
        start = time.monotonic()
        line = self.process.stdout.readline()
        late = time.monotonic() - start >= seconds
        alarm.cancel()
        if line.startswith("{"):
            self.record = json.loads(line)
        elif not line:
            reason = f"no answer in {seconds:.0f} s" if late else self.last_words()
            self.record = {"peer": self.name, "scene": self.scene.name, "failed": reason}
        else:
            self.signal(signal.SIGSTOP)

    def last_words(self) -> str:
        return parts.last_words(self.errors.read_text(errors="replace"), self.process.poll() or 0)

    def signal(self, number: signal.Signals) -> None:
        """To the peer and all its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


def run_scene(scene: Scene, names: list[str], folder: Path, seconds: float, rounds: int) -> list[Record]:
    """Makes the data of a scene, lets the peers take turns, deletes the data."""
    home = Path(tempfile.mkdtemp(prefix=f"{scene.name}-", dir=folder))
    running: list[Process] = []
    try:
        parts.note(f"{scene.title}: making {scene.samples * scene.sample_nbytes / 2**20:,.0f} MiB")
        make(scene, home)
        for name in names:
            running.append(Process(name, scene, home, seconds))
        for turn in range(rounds):
            for process in running[turn % len(running) :] + running[: turn % len(running)]:
                process.round()
        records = [process.finish() for process in running]
    finally:
        for process in running:
            process.end()
        shutil.rmtree(home)
    for record in records:
        parts.note(f"    {line(record)}")
    return records


def line(record: Record) -> str:
    """One record for people."""
    return tables.line(
        f"{record['peer']:20}", record,
        lambda one: f"{tables.rate(one['median']):>8} samples/s   {tables.setting(one)}",
    )  # fmt: skip


def main() -> None:
    scenes = all_scenes()
    parser = records.arguments("bench", __doc__, "matrix", scenes=scenes, peers=peers.names("all"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="length of a round (1; with --quick 0.4)")
    parser.set_defaults(out=records.BUILD / "results.jsonl", folder=records.BUILD)
    asked = parser.parse_args()
    seconds, out = asked.seconds or (0.4 if asked.quick else 1.0), asked.out
    asked.folder.mkdir(parents=True, exist_ok=True)
    chosen = asked.scenes or [name for name, scene in scenes.items() if scene.quick or not asked.quick]
    if records.RESULTS not in out.parents:
        out.unlink(missing_ok=True)
    load = os.getloadavg()[0]
    if load > BUSY:
        parts.note(f"load average {load:.1f}: others are at work here, and the figures will show it")
    shown: list[Record] = []
    for name in chosen:
        wanted = [peer for peer in peers.names(scenes[name].peers) if not asked.peers or peer in asked.peers]
        # The peers of a scene take turns: they are measured together, or not at all.
        there = [records.found(out, scene=name, peer=peer, seconds_per_round=seconds) for peer in wanted]
        ran = [one for one in there if one]
        for record in [] if ran else run_scene(scenes[name], wanted, asked.folder, seconds, asked.rounds):
            ran.append({"bench": "rates", **record, "load_before": load})
            records.append(out, ran[-1])
        shown += ran
    print(tables.rates(shown))


if __name__ == "__main__":
    main()
