"""Runs tests that Grain's wheel carries, over sources of ours.

    grain_own_program.py FOLDER MODULE CLASS NAME [TEST ...]

NAME is the source that this module of tests makes, of a list or of a range. Without a TEST all tests of the class run.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from solar import H5Dataset
from solar.integrations.grain import Source


def source_of(folder: Path, *numbers: Any, **named: int) -> Source:
    """Returns a source of a file with these values, or with those of a range; the same file for the same ones."""
    values = np.array(numbers[0] if named == {} and len(numbers) == 1 else range(*numbers, *named.values()), np.int64)
    path = folder / f"{'_'.join(map(str, values))}.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["x"] = values
    return Source(H5Dataset(path, "x"))


def main() -> int:
    folder, (module, of_class, name, *chosen) = Path(sys.argv[1]), sys.argv[2:]
    from absl import flags

    tests: Any = importlib.import_module(f"grain._src.python.{module}")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    above, _, last = name.rpartition(".")
    setattr(getattr(tests, above) if above else tests, last, partial(source_of, folder))
    case = getattr(tests, of_class)
    names = chosen or unittest.TestLoader().getTestCaseNames(case)
    done = unittest.TextTestRunner(sys.stdout).run(unittest.TestSuite(map(case, names)))
    print(f"of {len([*folder.iterdir()])} files")
    return 0 if done.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
