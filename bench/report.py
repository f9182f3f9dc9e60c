"""Records as tables.

    python -m bench.report                       # all that is recorded, as one page: build/report/report.md
    python -m bench.report RECORDS.jsonl ...     # what these files hold, printed
    python -m bench.report --docs                # puts the tables of docs/ where they stand, from bench/results

The page has what is committed in bench/results, what this machine has measured in build/bench, and the losses of
examples/ from build/examples. `make report` makes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import (
    accelerators,
    buffer_scenes,
    buffer_tables,
    cluster_tables,
    codec_tables,
    orders_tables,
    recipes,
    records,
    serve_nodes,
    shapes_data,
    shapes_tables,
    tables,
    training,
    utilisation,
)
from bench.scenes import all_scenes
from bench.tables import Record, parted, table

ROOT = Path(__file__).parent.parent
README_RATES = (
    "contiguous_64k", "contiguous_3m", "chunk1_deflate", "chunk16_plain", "chunk64_deflate", "auto_gzip", "codec_64k",
    "cold_64k", "virtual_64k",
)  # fmt: skip
README_BUFFER = (("slowed", 0.5), ("slowed", 0.25), ("slowed", 0.1), ("disks_3mb", 0.25), ("flash_64kb", 0.25),
                 ("nvme_17mb", 0.25), ("auto_gzip", 0.25))  # fmt: skip
RESULTS, BUILD, DOCS = ROOT / "bench" / "results", ROOT / "build", ROOT / "docs"


def buffered(found: list[Record]) -> str:
    return parted(buffer_tables.calibrated(found), buffer_tables.buffered(found))


TABLES: dict[str, Callable[[list[Record]], str]] = {
    "adopt": tables.adopt,
    "rates": tables.rates, "buffer": buffered, "utilisation": tables.utilisation, "dlio": tables.dlio,
    "ranks": tables.ranks, "loader": tables.loader, "timeline": tables.timeline, "lossy": tables.lossy,
    "codec": codec_tables.codec, "gpu": tables.gpu, "shapes": shapes_tables.shapes,
    "serve": tables.serve, "serve_nodes": serve_nodes.table, "far": tables.far,
    "accelerators": accelerators.accelerators, "recipes": recipes.recipes, "training": training.training,
    "orders": orders_tables.orders, "cluster": cluster_tables.cluster,
}  # fmt: skip


def kind(record: Record, file: str = "rates") -> str:
    """Of which bench it is. Where it does not say so, its keys or its file do."""
    return str(record.get("bench") or ("codec" if "codec" in record else "rates" if "scene" in record else file))


def of_all(found: list[Record], file: str = "rates") -> str:
    """The tables of records, by kind."""
    by: dict[str, list[Record]] = {}
    for one in found:
        by.setdefault(kind(one, file), []).append(one)
    parts = []
    for name, some in by.items():
        try:
            text = TABLES.get(name, tables.plain)(some)
        except LookupError as error:
            text = (
                f"{name}: no table of these {len(some)} records, which have another form than those of today ({error})."
            )
        parts.append(text)
        if (left := tables.not_counted(some)) not in text:
            parts.append(left)
    return parted(*parts)


def page(files: Iterable[Path], curves: Iterable[Path] = ()) -> str:
    """A section for each file, for records of two runs are not to be put beside each other."""
    parts = ["# solar: what was measured"]
    for path in files:
        if found := records.read(path):
            text, on = of_all(found, path.stem), [tables.where(one) for one in found if "machine" in one][-1:]
            parts += [f"## {path.stem}", *(said for said in on if said not in text), text]
    lost = losses(curves)
    return parted(*parts, *(["## Losses of the examples", lost] if lost else [])) + "\n"


def losses(curves: Iterable[Path]) -> str:
    """How the examples ended, by either loader."""
    rows, steps = [], dict[str, list[float]]()
    for path in curves:
        curve, name = json.loads(path.read_text()), path.stem.rpartition("-")[0]
        if curve.get("steps") and curve.get("held_out"):
            same = "yes" if steps.setdefault(name, curve["steps"]) == curve["steps"] else "no"
            last = (tables.rate(curve[part][-1]) for part in ("steps", "held_out"))
            rows.append((name, curve["loader"], len(curve["steps"]), *last, same))
    return table("example|loader|steps:|last loss:|last held out:|the same to the bit in every step", rows)


# --- what stands in docs/ ----


def quoted(name: str) -> list[Record]:
    """What the pages may say: whole, not a quick look, and of a machine that was quiet before."""
    found = records.read(RESULTS / f"{name}.jsonl")
    return [one for one in found if not one.get("quick") and one.get("load_before", records.QUIET) < records.QUIET]


def rates() -> str:
    return tables.rates(quoted("rates"), {name: scene.title for name, scene in all_scenes().items()})


def buffer() -> str:
    titles = {(one.name, share): one.title for one in buffer_scenes.scenes(False).values() for share in one.fractions}
    found = quoted("buffer")
    return parted(buffer_tables.calibrated(found), buffer_tables.buffered(found, titles))


def shapes() -> str:
    titles = {
        (one.name, variant): shapes_tables.named({"title": one.title, "what": one.what(variant)})
        for one in shapes_data.scenes().values() for variant in one.variants
    }  # fmt: skip
    return shapes_tables.shapes(quoted("shapes"), titles)


def utilised() -> str:
    """A row for each scene, of PyTorch and of solar."""
    titles = [(name, peer) for name in utilisation.SCENES for peer in ("torch", "solar")]
    return tables.utilisation(quoted("utilisation"), titles)


def first() -> str:
    """For README: where we lose or tie, then some scenes of each kind, by the same records."""
    return buffer_tables.short(quoted("rates"), quoted("buffer"), README_RATES, README_BUFFER)


def of_docs() -> dict[tuple[str, str], str]:
    """By page and mark, the tables that stand there."""
    every = [(scene, peer) for scene in accelerators.LOADS for peer in accelerators.PEERS]
    return {
        ("../README.md", "figures"): first(),
        ("benchmarks.md", "first"): first(),
        ("benchmarks.md", "rates"): rates(),
        ("benchmarks.md", "buffer"): buffer(),
        ("benchmarks.md", "shapes"): shapes(),
        ("benchmarks.md", "utilisation"): utilised(),
        ("benchmarks.md", "dlio"): tables.dlio(records.read(RESULTS / "dlio.jsonl")),
        ("benchmarks.md", "accelerators"): accelerators.accelerators(quoted("accelerators"), every),
        ("recipes.md", "recipes"): recipes.recipes(quoted("recipes"), recipes.RECIPES),
        ("benchmarks.md", "ranks"): tables.ranks(records.read(RESULTS / "ranks.jsonl")),
        ("benchmarks.md", "codec"): codec_tables.codec(records.read(RESULTS / "codec.jsonl")),
        ("remote.md", "far"): tables.far(records.read(RESULTS / "far.jsonl")),
        ("serving.md", "serve"): tables.serve(quoted("serve")),
        ("serving.md", "serve_nodes"): serve_nodes.table(quoted("serve_nodes")),
        ("training.md", "training"): training.measured(quoted("training")),
        ("training.md", "losses"): training.ended(records.read(RESULTS / "training.jsonl")),  # not of times
        ("orders.md", "trained"): orders_tables.training(records.read(RESULTS / "orders.jsonl")),  # not of times
        ("orders.md", "read"): orders_tables.reading(records.read(RESULTS / "orders.jsonl")),
        ("orders.md", "web"): orders_tables.web(records.read(RESULTS / "orders.jsonl")),
        ("paper.md", "measured"): cluster_tables.measured(read := records.read(RESULTS / "cluster.jsonl")),
        ("paper.md", "shared"): cluster_tables.shared(read),
        ("paper.md", "modelled"): cluster_tables.modelled(read),
        ("paper.md", "readers"): cluster_tables.readers(read),
        ("gpu.md", "results"): tables.gpu(records.read(RESULTS / "gpu.jsonl")),
    }


def put_into(document: Path, mark: str, text: str) -> None:
    """Replaces what stands between a mark and its end."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, _, rest = document.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{document}: there is no place for the table between {begin} and {end}")
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__, formatter_class=form)
    parser.add_argument("records", type=Path, nargs="*", help="whose tables are printed")
    parser.add_argument("--docs", action="store_true", help="put the tables of docs/ where they stand")
    asked = parser.parse_args()
    if asked.docs:
        for (name, mark), text in of_docs().items():
            put_into(DOCS / name, mark, text)
    elif asked.records:
        print(parted(*(of_all(records.read(path), path.stem) for path in asked.records)))
    else:
        files = [path for folder in (RESULTS, BUILD / "bench") for path in sorted(folder.glob("*.jsonl"))]
        out = BUILD / "report" / "report.md"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(files, sorted((BUILD / "examples").glob("*-*.json"))))
        print(f"{out.relative_to(ROOT)}, of {len(files)} files")


if __name__ == "__main__":
    main()
