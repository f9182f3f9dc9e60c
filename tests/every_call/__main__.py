"""Fails, delays and hangs each call to the system of whole programs, one after another; and lets their clock jump.

python -m tests.every_call                                  8 calls of each name, of all scenes
python -m tests.every_call --most 100000                    all calls
python -m tests.every_call --scene far --call stat --words  only these, and what each said
"""

from __future__ import annotations

import argparse
import collections
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where the other kits of the tests are

from .scenes import scenes
from .trials import JUMPS, Trials, built, fault_of, standing

ALL_MODES = ("fails", "late", "hangs", *JUMPS)


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.every_call", description=__doc__.splitlines()[0])
    words.add_argument("--most", type=int, default=8, help="calls of each name that are tried, evenly taken")
    words.add_argument("--scene", action="append", help="only these")
    words.add_argument("--call", action="append", help="only calls of these names")
    words.add_argument("--mode", action="append", choices=ALL_MODES, help="only so")
    words.add_argument("--words", action="store_true", help="says what each trial said")
    given = words.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if "SOLAR_STANDING" not in os.environ:
            environment = {
                "LD_PRELOAD": str(built(Path(folder))),
                "SOLAR_STANDING": "1",
                "OMP_NUM_THREADS": "1",
                "SOLAR_THREADS": "2",
            }
            command = [sys.executable, "-m", "tests.every_call", *sys.argv[1:]]
            return os.spawnve(os.P_WAIT, sys.executable, command, {**os.environ, **environment})
        return tried(Path(folder), given)


def tried(folder: Path, given: argparse.Namespace) -> int:
    library, found, ends = standing(), collections.Counter[str](), collections.Counter[str]()
    logging.getLogger("solar").setLevel(logging.CRITICAL)  # of samples that are left out, and tries that fail
    began = time.monotonic()
    with scenes(folder) as all_scenes:
        for scene in all_scenes:
            if scene.name not in given.scene if given.scene else scene.name.startswith("careless"):
                continue
            trials, count = Trials(library, scene), 0
            for trial in trials.all(given.most, given.mode or ALL_MODES):
                if given.call and trial.call not in given.call:
                    continue
                outcome = trials.run(trial)
                count += 1
                ends[outcome.what if outcome.met else "not met"] += 1
                if fault := fault_of(outcome, trial.mode):
                    if not found[fault]:
                        print(f"{scene.name}: {trial}: {fault} ({outcome.seconds:.1f} s)", flush=True)
                    found[fault] += 1
                if given.words:
                    print(f"  {scene.name}: {trial}: {outcome}", flush=True)
            print(f"{scene.name}: {count} trials of {sum(trials.calls['all'].values())} calls", flush=True)
    told = ", ".join(f"{number} {what}" for what, number in ends.most_common())
    print(f"{told}; {sum(found.values())} wrong in {len(found)} ways; {time.monotonic() - began:.0f} s")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
