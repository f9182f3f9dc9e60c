"""What docs/gallery.md shows: a plan, and a training that waits for slow disks, before its loader has memory and after.

    python -m bench.gallery [--record]       # half a minute; needs the slowed mount (bench/slowfs)
    python -m bench.report --docs            # puts what was recorded into the page
    python -m bench.pictures                 # draws the pictures of it

The training is a sleep of 10 ms a step, for an accelerator computes elsewhere. Its file lies on a mount that answers as
disks do, and past the page cache: what a data set larger than memory meets in each epoch. It is no measurement of
speed; how long something takes depends on what else runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np

from bench import machine, records, slowfs
from solar import DataLoader, H5Dataset, PlanSampler
from solar.cli import main as command
from solar.loader.report import Report

Record = dict[str, Any]
SAMPLES, SHAPE, BATCH, EPOCHS, STEP = 1024, (128, 256), 16, 3, 0.01  # uint16: 64 KiB a sample
THREADS = "2"  # that decode: a plan leaves room for what each decodes
PLAN = (
    "solar plan --samples 1024 --sample-bytes 64KiB --batch-size 16 --memory 16MiB"
    " --latency 1ms --bandwidth 1GB/s --iops 500"
)
LOADERS = {  # what each is given, as it stands in the page and as it is called
    "before": ("", {"buffer": 0}),
    "after": (', buffer="16MiB", epochs=3', {"buffer": "16MiB", "epochs": EPOCHS}),
}


def planned(plot: Path | None = None) -> str:
    """What the command of the page prints, and its picture in a file."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.dict(os.environ, SOLAR_THREADS=THREADS):
        status = command(PLAN.split()[1:] + ([] if plot is None else ["--plot", str(plot)]))
    assert status == 0, printed.getvalue()
    return printed.getvalue().strip()


def plan_svg() -> str:
    """The drawing in the page that `solar plan --plot plan.html` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.html"
        planned(path)
        page = path.read_text()
    return page[page.index("<svg") : page.index("</html>")]


def trained(path: Path, passes: int, **given: Any) -> Record:
    """The report of a training, and of each epoch what the picture of a notebook is drawn from."""
    data = H5Dataset(str(path), {"x": "frames"}, page_cache=False)
    with contextlib.closing(DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=0), **given)) as loader:
        for epoch in range(passes):
            loader.set_epoch(epoch)
            for _ in loader:
                time.sleep(STEP)
        report = loader.report()
    kept = [(number, {name: one[name] for name in ("busy_seconds", "wait_seconds")}) for number, one in report.epochs]
    return {"report": str(report), "epochs": kept}


def measure(folder: Path, samples: int, epochs: int) -> Record:
    """The record of both loaders on a file made for it."""
    with h5py.File(folder / "scan.h5", "w") as file:
        file["frames"] = np.random.default_rng(0).integers(0, 50, (samples, *SHAPE), "u2")
    with slowfs.mounted(folder) as slowed:
        found = {name: trained(slowed.path / "scan.h5", epochs, **given) for name, (_, given) in LOADERS.items()}
    title = "a training on emulated disks, before and after its loader has memory"
    return {"bench": "gallery", "title": title, "loaders": found, **machine.described(folder)}


# --- what stands in the page ----


def shown() -> dict[str, str]:
    """By mark: the plan, and both reports."""
    last = records.read(records.RESULTS / "gallery.jsonl")[-1]["loaders"]
    return {"planned": fenced(planned())} | {name: fenced(last[name]["report"]) for name in LOADERS}


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def report_svg(name: str) -> str:
    """The drawing that a notebook shows of a recorded report."""
    last = records.read(records.RESULTS / "gallery.jsonl")[-1]["loaders"][name]
    page = Report.of(last["report"], [(number, one) for number, one in last["epochs"]])._repr_html_()
    return page[page.index("<svg") : page.index("</svg>") + len("</svg>")]


def table(found: list[Record]) -> str:
    """The reports of the newest record."""
    loaders = found[-1]["loaders"]
    return "\n\n".join(f"{name}:\n\n{fenced(one['report'])}" for name, one in loaders.items())


def main() -> None:
    asked = records.arguments("bench.gallery", __doc__, "gallery").parse_args()
    if lacking := slowfs.lacking():
        raise SystemExit(f"no slowed mount: {lacking}")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gallery-", dir=asked.folder or asked.out.parent) as folder:
        record = measure(Path(folder), SAMPLES // (8 if asked.quick else 1), EPOCHS)
    asked.out.write_text(json.dumps(record) + "\n")
    print(table([record]))


if __name__ == "__main__":
    main()
