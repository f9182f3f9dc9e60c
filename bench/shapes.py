"""Clips, crops and sparse rows: solar beside h5py's expert and the formats that people leave HDF5 for.

    python -m bench.shapes [--scenes NAME ...] [--peers NAME ...] [--quick] [--folder DIR] [--record]

Each scene is a step of one to four minutes of its own: its data are made, other formats are made of them (time and
bytes are told), every reader runs in a process of its own for some seconds, in exact shuffles, the data are deleted.
Others try several settings, each a run; the best is kept. `memory` is a share of the data: solar's buffer, with three
batches beside it, which count in it; of others chunk caches, or samples that are read ahead. The first batches are
compared with h5py's. Data are warm, but for scenes that say otherwise: `slowed` ones are on a mount that answers as
disks of a parallel file system (bench/slowfs), of `cold` ones nothing is in the page cache, and their first epoch
counts. Formats other than HDF5 need `python -m bench.judges`. Given again within an hour, --record goes on where it was
ended.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import judges, machine, parts, pread, records, shapes_data, shapes_tables, slowfs, tables
from bench.buffer_scenes import RPC
from bench.shapes_data import Scene

SHARES = (0.1, 0.25, 1.0)  # of the data in memory
SECONDS, QUICK_SECONDS, LONGEST, LONGEST_MAKING = 1.5, 0.4, 180, 1200
A_SECOND = 1.2e9  # bytes of data; of more than some seconds reading takes longer
LABELS = {
    "solar": "solar", "solar_stage": "solar, with a stage", "h5py": "h5py",
    "memmap": "numpy.memmap", "ram": "copied to RAM first", "limit": "limit: copying",
    "lance": "Lance", "b2nd": "Blosc2 b2nd", "zarr": "Zarr", "anndata": "anndata", "scdataset": "scDataset, uniform",
    "scdataset_blocks": "scDataset, blocks of 16", "annbatch": "annbatch, uniform",
    "annbatch_blocks": "annbatch, blocks of 32",
}  # fmt: skip
NEEDS = {
    "lance": "pylance", "b2nd": "blosc2", "zarr": "zarr", "anndata": "anndata", "scdataset": "scdataset",
    "scdataset_blocks": "scdataset", "annbatch": "annbatch", "annbatch_blocks": "annbatch",
}  # fmt: skip
FORMS = {  # of each format: all are made, and the best of them counts
    "lance": ("lance_fixed", "lance_bytes"), "b2nd": ("b2nd_16", "b2nd_32"), "zarr": ("zarr_32", "zarr_64"),
    "annbatch": ("annbatch",),
}  # fmt: skip
KEEPING = ("solar", "solar_stage", "h5py", "anndata", "scdataset", "annbatch")  # that can be given memory
OURS = ("solar", "solar_stage")
Record = dict[str, Any]


def shares(scene: Scene, variant: int, peer: str) -> tuple[float | None, ...]:
    """Of the data in memory, for which this reader is measured. None: solar's own choice; 0: as the reader has it."""
    if peer == "ram":
        return (1.0,)
    if scene.real:  # it is small
        return (None if peer in OURS else 0.0,)
    if scene.name == "rows_million":  # memory for all does not fit beside all in the page cache
        return (None if peer in OURS else 0.0, *(SHARES[1:2] if peer in KEEPING else ()))
    if scene.storage == "cold":  # what is kept is what this one epoch has read
        return (None, 1.0) if peer in OURS else (0.0,)
    kept = bool(scene.stored or scene.storage) and peer in KEEPING
    some = SHARES[1:] if variant != scene.variants[0] or not scene.stored.get("compression") else SHARES
    return (None if peer in OURS else 0.0, *(some if kept else ()))


def settings(scene: Scene, peer: str, memory: int, variant: int) -> Iterator[Record]:
    """What is tried of a reader with so much memory beside what it needs; each with the form that it reads."""
    chunked = bool(scene.stored)
    ways = [{"span": True}, {}] if scene.kind == "clips" and variant > 1 else [{}]
    if peer == "h5py" and memory:
        yield from ({**ways[0], **more} for more in (
            {"cache": memory}, {"cache": memory // 2, "workers": 2}, {"ahead": True},
        ))  # fmt: skip
    elif peer == "h5py":
        yield from ways
        yield {**ways[0], "workers": 2}
        if chunked and not (scene.stored.get("compression") or scene.filters):
            yield {"cache": 0}
    elif peer in ("memmap", "ram") and scene.kind == "clips":
        yield from ({}, {"take": True})
    elif peer == "limit":
        yield from ({"mapped": True}, {"mapped": False})
    elif peer == "b2nd":
        yield from ({"form": form, "threads": n} for form in FORMS[peer] for n in (1, 2))
    elif peer.startswith("annbatch"):  # it fetches so many batches at once; its first steps show 256 blocks of 32
        fetch = max(1, memory // (scene.batch * scene.sample_nbytes(variant))) if memory else 128
        yield from ({"form": "annbatch", "fetch": n} for n in (fetch, max(1, fetch // 4)))
    elif peer in FORMS:
        yield from ({"form": form} for form in FORMS[peer])
    elif peer == "anndata":
        yield from ({"cache": memory} if memory else {}, {"workers": 2})
    elif peer.startswith("scdataset"):
        fetch = max(1, memory // (scene.batch * scene.sample_nbytes(variant))) if memory else 16
        yield from ({"fetch": fetch}, {"fetch": max(1, fetch // 2), "workers": 2})
    else:
        yield {}


def run_scene(scene: Scene, asked: Any) -> Iterator[Record]:
    """Makes the data, lets every reader run, deletes the data."""
    reason = slowfs.lacking() if scene.storage == "slowed" else ""
    if scene.real and judges.shipped(scene.real.partition(":")[0]) is None:
        reason = "the package that ships its file is not in build/judges (python -m bench.judges)"
    if reason:
        parts.note(f"{scene.title}: skipped: {reason}")
        return
    home = Path(tempfile.mkdtemp(prefix=f"{scene.name}-", dir=asked.folder))
    job = {
        "scene": scene.name, "quick": asked.quick, "folder": str(home),
        "seconds": QUICK_SECONDS if asked.quick else max(SECONDS, scene.nbytes / A_SECOND),
    }  # fmt: skip
    try:
        parts.note(f"{scene.title}: making {scene.nbytes / 2**20:,.0f} MiB")
        shapes_data.make(scene, home / "data.h5")
        wanted = [peer for peer in scene.peers if not asked.peers or peer in asked.peers]
        made = {peer: [*formats(scene, job, peer)] for peer in wanted if peer in FORMS and not lacking(peer)}
        machine.fill_cache(home)
        own = {"file": {"nbytes": (home / "data.h5").stat().st_size}}
        formed = own | {one["form"]: one for some in made.values() for one in some}
        with slowfs.mounted(home, rpc=RPC) if scene.storage == "slowed" else nullcontext() as mount:
            job |= {"storage": scene.storage, "folder": str(mount.path if mount else home)}
            job |= {"costs": mount.costs} if mount else {}
            for variant in scene.variants:
                for peer in wanted:
                    if reason := lacking(peer):
                        yield described(scene, variant, peer, 0.0) | {"skipped": reason}
                        continue
                    for share in shares(scene, variant, peer):
                        yield best(scene, job, variant, peer, share, formed)
    finally:
        shutil.rmtree(home)


def formats(scene: Scene, job: Record, peer: str) -> Iterator[Record]:
    """Another format is made of the data: how long it took, and how much it takes."""
    for form in FORMS[peer]:
        parts.note(f"    making {form}")
        try:
            yield {"form": form} | ran(job | {"do": "make", "peer": peer, "form": form, "needs": NEEDS[peer]})
        except RuntimeError as error:
            parts.note(f"    {form}: {error}")


def lacking(peer: str) -> str:
    return judges.lacking(NEEDS[peer]) if peer in NEEDS else pread.lacking() if peer == "limit" else ""


def best(scene: Scene, job: Record, variant: int, peer: str, share: float | None, formed: dict[str, Record]) -> Record:
    """The record of a reader with its best setting; or that none of them ran."""
    memory = None if share is None else scene.memory(share, variant, peer)
    one = described(scene, variant, peer, share)
    job = job | {"do": "run", "peer": peer, "variant": variant, "memory": memory, "needs": NEEDS.get(peer)}
    found, failed = [], ""
    for setting in settings(scene, peer, memory or 0, variant):
        form = setting.pop("form", "file")
        if form not in formed:
            continue
        try:
            run = ran(job | {"setting": setting, "form": form})
        except RuntimeError as error:
            failed = str(error).replace(f"{job['folder']}/", "")
            continue
        of_form = formed[form]
        found.append(run | {"setting": setting, "form": form, "disk": of_form["nbytes"]})
        if "seconds" in of_form:
            found[-1]["conversion"] = of_form["seconds"]
    if not found:
        return one | {"failed": failed or "no form of it could be made"}
    kept = max(found, key=lambda run: run["later"])
    return one | kept | {"tried": [[run["form"], run["setting"], run["first"], run["later"]] for run in found]}


def ran(job: Record) -> Record:
    python = str(judges.python(job["needs"])) if job.get("needs") else sys.executable
    longest = LONGEST_MAKING if job["do"] == "make" else LONGEST
    return parts.measured(longest, "bench.shapes_part", job, python=python)[0]


def described(scene: Scene, variant: int, peer: str, share: float | None) -> Record:
    return {
        "bench": "shapes", "scene": scene.name, "title": scene.title, "kind": scene.kind, "variant": variant,
        "what": scene.what(variant), "peer": peer, "label": LABELS[peer], "share": share, "nbytes": scene.nbytes,
        "sample_nbytes": scene.sample_nbytes(variant), "batch": scene.batch,
    }  # fmt: skip


def line(record: Record) -> str:
    """One record for people."""
    share = "own choice" if record["share"] is None else f"{record['share']:g}"
    said = lambda one: (  # noqa: E731
        f"{tables.rate(one['first']):>8} then {tables.rate(one['later']):>8} {one['kind']}/s   {tables.setting(one)} "
        f"{'' if one['form'] == 'file' else one['form']}"
    )
    return tables.line(f"    {record['what']:8} {record['label']:26} {share:10}", record, said)


def main() -> None:
    scenes = shapes_data.scenes()
    parser = records.arguments("bench.shapes", __doc__, "shapes", scenes=scenes, peers=LABELS)
    parser.set_defaults(folder=records.BUILD)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    load, shown = records.load(asked.load_before), list[Record]()
    about = {"quick": asked.quick, "load_before": load}
    for name in asked.scenes or scenes:
        same = {"scene": name, "quick": asked.quick, "last": True}
        if asked.out.is_relative_to(records.RESULTS) and not asked.peers and records.found(asked.out, **same):
            continue
        scene = scenes[name].small() if asked.quick else scenes[name]
        facts = machine.described(asked.folder)
        found = [*shown_as_made(run_scene(scene, asked))]
        for at, one in enumerate(found):
            records.append(asked.out, one | about | facts | {"last": at == len(found) - 1})
        shown += found
    print(shapes_tables.shapes(shown))


def shown_as_made(found: Iterator[Record]) -> Iterator[Record]:
    for one in found:
        parts.note(line(one))
        yield one


if __name__ == "__main__":
    main()
