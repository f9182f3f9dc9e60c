"""What python -m bench.buffer measured, in words and as tables: of its records, or of a file of them.

python -m bench.buffer_report bench/results/buffer.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
OTHERS = ("torch", "pinned")  # that solar is compared with


def line(record: Record) -> str:
    """One record for people."""
    head = f"{record['title']:38} f={record['fraction']:<5} {record['peer']:7}"
    if "failed" in record:
        return f"{head} failed: {record['failed']}"
    text = f"{head} {record['median']:10,.1f} samples/s, {record['epoch_seconds']:8,.2f} s an epoch"
    if "planned_seconds" in record:
        text += f" ({record['planned_seconds']:,.2f} planned)"
    if "modelled_seconds" in record:
        text += f" ({record['modelled_seconds']:,.2f} modelled for what the mount counted)"
    return f"{text}, {record['peak_rss'] / 2**20:,.0f} MiB, {setting(record)}"


def setting(record: Record) -> str:
    """The setting that was best, in words."""
    return " ".join(f"{name} {value}" for name, value in record["setting"].items()) or "default"


def markdown(records: Iterable[Record]) -> str:
    """A table for each scene, ratios in it, and the machine above it. Of records of the same, the last one counts."""
    by = {(one["scene"], one["fraction"], one["peer"]): one for one in records if "median" in one}
    return "\n\n".join(_scene(scene, by) for scene in dict.fromkeys(scene for scene, _, _ in by))


def _scene(scene: str, by: dict[tuple[str, float, str], Record]) -> str:
    found = [one for (name, _, _), one in by.items() if name == scene]
    first = found[0]
    machine, versions = first["machine"], first["versions"]
    head = (
        f"{first['title']}: {first['samples']:,} samples, batches of {first['batch']}; {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}; torch {versions['torch']}, h5py {versions['h5py']}."
    )
    rows = [
        "| memory | reader | samples/s | min–max | epoch, s | planned, s | × PyTorch | × pinned | peak MiB | setting |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in found:
        cells = [
            f"{one['fraction']:g}, {one['memory'] / 2**20:,.0f} MiB",
            one["label"],
            f"{one['median']:,.1f}",
            f"{min(one['samples_per_second']):,.1f}–{max(one['samples_per_second']):,.1f}",
            f"{one['epoch_seconds']:,.2f}",
            f"{one['planned_seconds']:,.2f}" if "planned_seconds" in one else "",
            *(_times(one, _beside(by, one, other)) for other in OTHERS),
            f"{one['peak_rss'] / 2**20:,.0f}",
            setting(one),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return f"{head}\n\n" + "\n".join(rows)


def _beside(by: dict[tuple[str, float, str], Record], one: Record, other: str) -> Record | None:
    """The other reader's record with as much memory; of torch any of the scene, if memory makes no difference to it."""
    scene = one["scene"]
    same = by.get((scene, one["fraction"], other))
    alike = [found for (name, _, peer), found in by.items() if (name, peer) == (scene, "torch")]
    return same or (alike[0] if other == "torch" and alike else None)


def _times(one: Record, other: Record | None) -> str:
    if other is None or one["peer"] == other["peer"]:
        return ""
    return f"{one['median'] / other['median']:,.1f}"


def calibration(records: Iterable[Record]) -> Iterator[str]:
    """What plain reads of the slowed mount gave, of the last run that measured it."""
    measured = [one["calibration"] for one in records if one.get("calibration")]
    for one in measured[-1] if measured else ():
        off = one["reads_per_second"] / one["modelled_reads_per_second"] - 1
        yield (
            f"| {one['title']} | {one['threads']} | {one['reads_per_second']:,.1f} | "
            f"{one['bytes_per_second'] / 1e6:,.1f} | {off:+.1%} |"
        )


def main() -> None:
    records = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines()]
    if rows := list(calibration(records)):
        print("| plain reads of the slowed mount | threads | reads/s | MB/s | off the model |\n|---|--:|--:|--:|--:|")
        print("\n".join(rows), end="\n\n")
    print(markdown(records))


if __name__ == "__main__":
    main()
