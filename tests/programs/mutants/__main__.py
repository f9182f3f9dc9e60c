"""Puts each fault of this folder back in a copy of the sources, and runs programs until one finds it.

python -m tests.programs.mutants                 all of them
python -m tests.programs.mutants --count 2000 a_changed_file_is_not_looked_at
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from solar import _native

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# The copy is found in the working folder, not where an editable installation has its sources.
RUN = """
import runpy, sys
sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__name__.startswith("ScikitBuild")]
import solar
assert solar.__file__.startswith(sys.argv.pop(1)), solar.__file__
runpy.run_module("tests.programs", run_name="__main__", alter_sys=True)
"""


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.programs.mutants", description=__doc__.splitlines()[0])
    words.add_argument("names", nargs="*", help="some of them")
    words.add_argument("--count", type=int, default=1000, help="programs to try for each")
    words.add_argument("--from", type=int, default=0, dest="first", help="the seed of the first")
    words.add_argument("--workers", type=int, default=2, help="programs that run at a time")
    given = words.parse_args()
    survived = []
    for patch in sorted(HERE.glob("*.patch")):
        if given.names and patch.stem not in given.names:
            continue
        seed = found_by(patch, given.first, given.count, given.workers)
        said = f"found by program {seed}" if seed is not None else f"not found by {given.count} programs"
        print(f"{patch.stem}: {said}", flush=True)
        survived += [patch.stem] if seed is None else []
    return bool(survived)


def found_by(patch: Path, first: int, count: int, workers: int) -> int | None:
    """The seed of the first program that fails with this patch and passes without."""
    end = first + count
    with tempfile.TemporaryDirectory(prefix="solar-mutant-") as folder:
        copy_sources(Path(folder))
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
        while first < end:
            more = ["--from", str(first), "--count", str(end - first), "--workers", str(workers), "--first-failure"]
            said = programs(Path(folder), *more)
            if (seed := re.search(r"^--- program (\d+) ", said, re.MULTILINE)) is None:
                return None
            passes = subprocess.run(
                [sys.executable, "-m", "tests.programs", "--seed", seed[1]], cwd=ROOT, capture_output=True
            )
            if passes.returncode == 0:
                return int(seed[1])
            first = int(seed[1]) + 1
    return None


def copy_sources(folder: Path) -> None:
    """Everything of Python, with the native part that is installed."""
    for name in ("solar", "io", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    installed = Path(_native.__file__)
    shutil.copy(installed, folder / "solar")
    shutil.copytree(installed.parent / "plugins", folder / "solar" / "plugins", dirs_exist_ok=True)


def programs(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", RUN, str(folder), *words], cwd=folder, capture_output=True, text=True)
    assert "programs in" in done.stdout, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
