"""The picture of a service's page in docs/: `solar serve --page` while it reads for four trainings.

    python -m bench.serve_page [FILE]        # a minute; FILE.png (docs/pictures/serve-page.png), or FILE.html

A .png needs chromium, which shows the page as it was. The data lie on the slowed mount where there can be one.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from bench import slowfs

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "serve-page.png"
SAMPLES, SHAPE, MEMORY = 3072, (128, 256), "96MiB"  # uint16: 64 KiB a sample
STEPS = (0.02, 0.02, 0.03, 0.07)  # seconds that a step of each training takes
TRAIN = """
import sys, time
from solar import DataLoader, H5Dataset, PlanSampler
path, socket, number, step = sys.argv[1:]
data = H5Dataset(path, {"x": "frames"}, page_cache=False)
loader = DataLoader(data, 16, sampler=PlanSampler(data, 1, 0, seed=int(number)), epochs=9, service=socket)
for epoch in range(9):
    loader.set_epoch(epoch)
    for batch in loader:
        time.sleep(float(step))
"""


@contextlib.contextmanager
def slowed(folder: Path) -> Iterator[Path]:
    """The folder as slow disks have it, or as it is."""
    if slowfs.lacking():
        yield folder
    else:
        with slowfs.mounted(folder) as mount:
            yield mount.path


def page(folder: Path, seconds: float) -> str:
    """The page of a service after so many seconds of four trainings."""
    with h5py.File(folder / "scan.h5", "w") as file:
        file["frames"] = np.random.default_rng(0).integers(0, 50, (SAMPLES, *SHAPE), "u2")
    (folder / "train.py").write_text(TRAIN)
    socket = str(folder / "socket")
    with slowed(folder) as data, contextlib.ExitStack() as stack:
        serve = ["serve", data / "scan.h5", "--memory", MEMORY, "--socket", socket, "--page"]
        service = begun([sys.executable, "-m", "solar", *serve], stack)
        assert service.stdout is not None
        found = next(match for line in service.stdout if (match := re.search(r"http://\S+/", line)))
        for number, step in enumerate(STEPS):
            begun([sys.executable, folder / "train.py", data / "scan.h5", socket, number, step], stack)
        time.sleep(seconds)
        with urllib.request.urlopen(found[0], timeout=10) as answer:
            text: str = answer.read().decode()
    return text


def begun(command: list[object], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
    """A process that is ended with the others."""
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.serve_page", description=__doc__, formatter_class=form)
    parser.add_argument("out", type=Path, nargs="?", default=PICTURE, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=50.0, help="after which the page is taken (50)")
    asked = parser.parse_args()
    browser = shutil.which("chromium")
    if asked.out.suffix == ".png" and browser is None:
        raise SystemExit("chromium is not installed: give a FILE.html, and look at it in another browser")
    with tempfile.TemporaryDirectory(prefix="serve-page-") as name:
        text = page(Path(name), asked.seconds).replace('<meta http-equiv="refresh" content="1">', "")
        if asked.out.suffix == ".png":
            (shown := Path(name) / "page.html").write_text(text)
            options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=720,900"]
            subprocess.run(
                [str(browser), *options, f"--screenshot={asked.out.absolute()}", shown.as_uri()],
                check=True, capture_output=True,
            )  # fmt: skip
        else:
            asked.out.write_text(text)
    print(asked.out)


if __name__ == "__main__":
    main()
