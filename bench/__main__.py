"""All peers on all scenes, in turns, on one machine: JSON lines and a table.

    python -m bench [--scenes NAME ...] [--peers NAME ...] [--rounds 2] [--quick] [--folder DIR] [--record]

For each scene: the data are made; each peer gets ready in its own process (its own format, trials of its settings, its
samples compared with h5py's); then whole runs of all peers take turns, each in a fresh process, from its first import
to the last batch of the scene's epochs; the data are deleted. --record adds the lines to bench/results/rates.jsonl;
given again within an hour, it goes on where it was ended. `python -m bench.matrix` runs this and all other scenes.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import machine, parts, peers, records, tables
from bench.scene import Scene, make
from bench.scenes import all_scenes

READY_SECONDS, RUN_SECONDS = 600, 240
Record = dict[str, Any]


def run_scene(scene: Scene, names: list[str], folder: Path, rounds: int) -> list[Record]:
    """Makes the data of a scene, lets the peers take turns, deletes the data."""
    home = Path(tempfile.mkdtemp(prefix=f"{scene.name}-", dir=folder))
    try:
        parts.note(f"{scene.title}: making {scene.samples * scene.sample_nbytes / 2**20:,.0f} MiB")
        make(scene, home)
        found = [one_ready(name, scene, home) for name in names]
        running = [one for one in found if "setting" in one]
        for turn in range(rounds):
            for one in running[turn % len(running) :] + running[: turn % len(running)]:
                if "failed" not in one:
                    run(one, scene, home)
    finally:
        shutil.rmtree(home)
    facts = machine.described(folder)
    done = [finished(one, scene) | facts for one in found]
    for one in done:
        parts.note(f"    {line(one)}")
    return done


def one_ready(name: str, scene: Scene, home: Path) -> Record:
    one = {"peer": name, "scene": scene.name, "quick": scene != all_scenes()[scene.name]}
    if reason := peers.lacking(peers.load(name), scene):
        return one | {"skipped": reason}
    try:
        job = one | {"do": "ready", "folder": str(home)}
        return one | parts.measured(READY_SECONDS, "bench.run", job)[0] | {"runs": [], "rates": []}
    except RuntimeError as error:
        return one | {"failed": str(error)}


def run(one: Record, scene: Scene, home: Path) -> None:
    """A whole run, which is added to the record; or that it failed."""
    if scene.cache == "cold":
        one["cache_how"] = machine.drop_cache(home)
    job = {name: one[name] for name in ("peer", "scene", "quick", "setting")}
    job |= {"do": "rate" if one["is_limit"] else "whole", "folder": str(home), "epochs": scene.epochs}
    try:
        [found] = parts.measured(RUN_SECONDS, "bench.run", job)
        one["rates"].append(found["rate"]) if one["is_limit"] else one["runs"].append(found)
    except RuntimeError as error:
        one["failed"] = str(error)


def finished(one: Record, scene: Scene) -> Record:
    """With its rates: of whole runs; of epochs that began after the first one ended; and the time to the first batch"""
    one |= {
        "title": scene.title, "samples": scene.samples, "batch": scene.batch, "sample_nbytes": scene.sample_nbytes,
        "cache": scene.cache, "epochs": scene.epochs,
    }  # fmt: skip
    if runs := one.get("runs"):
        one["rates"] = [each["samples"] / each["ends"][-1] for each in runs]
        one["start"] = statistics.median(each["first"] for each in runs)
        a_run = runs[0]["samples"] / scene.epochs
        steady = [a_run / (b - a) for each in runs for a, b in itertools.pairwise(each["ends"])]
        # Of one epoch: all but the start.
        alone = [each["samples"] / (each["ends"][-1] - each["first"]) for each in runs]
        one["steady"] = statistics.median(steady or alone)
    if one.get("rates") and "failed" not in one:
        one["median"] = statistics.median(one["rates"])
    return one


def line(record: Record) -> str:
    """One record for people."""

    def said(one: Record) -> str:
        beside = f", steady {tables.rate(one['steady'])}, first batch {one['start']:.1f} s" if "steady" in one else ""
        return f"{tables.rate(one['median']):>8} samples/s{beside}   {tables.setting(one)}"

    return tables.line(f"{record['peer']:20}", record, said)


def main() -> None:
    scenes = all_scenes()
    parser = records.arguments("bench", __doc__, "rates", scenes=scenes, peers=peers.names("all"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.set_defaults(folder=records.BUILD)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    load, shown = records.load(asked.load_before), list[Record]()
    for name in asked.scenes or scenes:
        scene = all_scenes(asked.quick)[name]
        wanted = [peer for peer in peers.names(scene.peers) if not asked.peers or peer in asked.peers]
        # The peers of a scene take turns: they are measured together, or not at all.
        there = [records.found(asked.out, scene=name, peer=peer, quick=asked.quick) for peer in wanted]
        ran = [one for one in there if one]
        for one in [] if ran else run_scene(scene, wanted, asked.folder, asked.rounds):
            ran.append({"bench": "rates", **one, "load_before": load})
            records.append(asked.out, ran[-1])
        shown += ran
    print(tables.rates(shown))


if __name__ == "__main__":
    main()
