"""A report in a notebook: its words, escaped, and a bar for each epoch whose parts are its time."""

from __future__ import annotations

import pickle
import xml.etree.ElementTree as ET
from pathlib import Path

import h5py
import numpy as np

from solar import DataLoader, H5Dataset
from solar.loader.report import LEFT, WIDTH, Report

SVG = "{http://www.w3.org/2000/svg}"
EPOCHS = [
    (1, {"busy_seconds": 3.0, "wait_seconds": {"storage": 1.0, "decode": 0.0, "<b>": 2.0}}),
    (2, {"busy_seconds": 3.0, "wait_seconds": {"storage": 0.0, "decode": 0.0, "<b>": 0.0}}),
    (3, {"busy_seconds": 0.0, "wait_seconds": {"storage": 0.0}}),  # nothing was timed: no bar
]


def bars(report: Report) -> list[ET.Element]:
    tree = ET.fromstring(report._repr_html_())  # it is well formed, so all that is said is escaped
    return [one for one in tree.iter("rect") if one.find("title") is not None]


def test_bars_are_as_long_as_what_they_tell() -> None:
    report = Report.of("All <well> & good.", EPOCHS)
    assert report == "All <well> & good."
    found = [(one.findtext("title"), float(one.get("width", ""))) for one in bars(report)]
    whole = WIDTH - LEFT  # the longest epoch took 6 seconds
    assert found == [
        ("epoch 1: 3 s of computing", whole / 2),
        ("epoch 1: 1 s waiting for storage", round(whole / 6, 1)),
        ("epoch 1: 2 s waiting for <b>", round(whole / 3, 1)),
        ("epoch 2: 3 s of computing", whole / 2),
    ]


def test_without_epochs_there_are_only_words() -> None:
    assert Report("Nothing <yet>.")._repr_html_() == "<div><pre>Nothing &lt;yet&gt;.</pre></div>"


def test_a_loaders_report_has_a_bar_for_each_epoch(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["x"] = np.zeros((40, 8), "f4")
    loader = DataLoader(H5Dataset(str(tmp_path / "one.h5"), "x"), batch_size=10)
    for _ in range(3):
        for _ in loader:
            pass
    report = loader.report()
    assert isinstance(report, str)
    told = {str(one.findtext("title")).partition(":")[0] for one in bars(report)}
    assert told == {"epoch 1", "epoch 2", "epoch 3"}
    assert pickle.loads(pickle.dumps(report)) == report
