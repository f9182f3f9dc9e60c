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
    adopt_tables,
    buffer_scenes,
    buffer_tables,
    cluster_tables,
    codec_tables,
    gallery,
    orders_tables,
    recipes,
    records,
    serve_nodes,
    shapes_data,
    shapes_tables,
    situations,
    tables,
    training,
    utilisation,
)
from bench.scenes import all_scenes
from bench.tables import Record, folded, parted, table

ROOT = Path(__file__).parent.parent
RESULTS, BUILD, DOCS = records.RESULTS, ROOT / "build", ROOT / "docs"


def buffered(found: list[Record]) -> str:
    return parted(buffer_tables.calibrated(found), buffer_tables.buffered(found))


TABLES: dict[str, Callable[[list[Record]], str]] = {
    "adopt": tables.adopt,
    "rates": tables.rates, "buffer": buffered, "utilisation": tables.utilisation, "dlio": tables.dlio,
    "ranks": tables.ranks, "loader": tables.loader, "timeline": tables.timeline, "lossy": tables.lossy,
    "codec": codec_tables.codec, "gpu": tables.gpu, "shapes": shapes_tables.shapes,
    "serve": tables.serve, "serve_nodes": serve_nodes.table, "far": tables.far,
    "accelerators": accelerators.accelerators, "recipes": recipes.recipes, "training": training.training,
    "orders": orders_tables.orders, "cluster": cluster_tables.cluster, "gallery": gallery.table,
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


def people() -> str:
    """Solar beside PyTorch with h5py and workers, in every scene of files and of memory."""
    rated, kept = records.quoted("rates"), records.quoted("buffer")
    return parted(
        tables.measured(rated),
        folded("Files of every kind, from the page cache and cold", tables.rates_of_people(rated, scenes_of_rates())),
        folded("Memory for a part of the data", buffer_tables.of_people(kept, scenes_of_buffer())),
    )


def experts() -> str:
    """Solar beside the best others there."""
    rated, kept = records.quoted("rates"), records.quoted("buffer")
    return parted(
        folded("Files of every kind, from the page cache and cold", tables.rates_of_experts(rated, scenes_of_rates())),
        folded("Memory for a part of the data", buffer_tables.of_experts(kept, scenes_of_buffer())),
        tables.not_counted(rated),
    )


def readers() -> str:
    """Every reader of every scene, of which the page of benchmarks has the best."""
    rated, kept, of_shapes = records.quoted("rates"), records.quoted("buffer"), records.quoted("shapes")
    sections = {
        "Files of every kind, from the page cache and cold": tables.peers(tables.by_scene(rated).values()),
        "Memory for a part of the data": buffer_tables.of_readers(kept),
        "Clips, crops and sparse rows": shapes_tables.readers(of_shapes),
        "What each format takes on the disk, and how long the conversion took": shapes_tables.formats(of_shapes),
    }
    return parted(*(f"## {head}\n\n{text}" for head, text in sections.items() if text))


def limits() -> str:
    """What the machine and the slowed mounts allow."""
    return parted(
        folded("Solar beside the limit of each scene", tables.limits(records.quoted("rates"))),
        folded("What plain reads of the slowed mounts give", buffer_tables.calibrated(records.quoted("buffer"))),
    )


def scenes_of_rates() -> dict[str, str]:
    return {name: scene.title for name, scene in all_scenes().items()}


def scenes_of_buffer() -> dict[buffer_tables.Key, str]:
    return {(one.name, share): one.title for one in buffer_scenes.scenes(False).values() for share in one.fractions}


def shapes() -> str:
    titles = {
        (one.name, variant): shapes_tables.named({"title": one.title, "what": one.what(variant)})
        for one in shapes_data.scenes().values() for variant in one.variants
    }  # fmt: skip
    return shapes_tables.beside_others(records.quoted("shapes"), titles)


def utilised() -> str:
    """A row for each scene, of PyTorch and of solar."""
    titles = [(name, peer) for name in utilisation.SCENES for peer in ("torch", "solar")]
    return tables.utilisation(records.quoted("utilisation"), titles)


def of_docs() -> dict[tuple[str, str], str]:
    """By page and mark, the tables that stand there."""
    shown = situations.of_readme()
    every = [(scene, peer) for scene in accelerators.LOADS for peer in accelerators.PEERS]
    return {
        ("../README.md", "helps"): situations.compared(shown),
        ("../README.md", "no_gain"): situations.no_gain(),
        ("../paper/paper.md", "brief"): situations.brief(shown),
        ("benchmarks.md", "situations"): situations.compared(shown),
        ("benchmarks.md", "people"): people(),
        ("benchmarks.md", "experts"): experts(),
        ("benchmarks.md", "limits"): limits(),
        ("../bench/results/readers.md", "readers"): readers(),
        ("benchmarks.md", "loader"): tables.loader_costs(records.read(RESULTS / "loader.jsonl")),
        ("../bench/results/readers.md", "shapes"): shapes(),
        ("benchmarks.md", "utilisation"): utilised(),
        ("benchmarks.md", "dlio"): tables.dlio(records.read(RESULTS / "dlio.jsonl")),
        ("benchmarks.md", "accelerators"): accelerators.accelerators(records.quoted("accelerators"), every),
        ("measured.md", "recipes"): recipes.recipes(records.quoted("recipes"), recipes.RECIPES),
        ("benchmarks.md", "ranks"): tables.ranks(records.read(RESULTS / "ranks.jsonl")),
        ("benchmarks.md", "codec"): codec_tables.codec(records.read(RESULTS / "codec.jsonl"), hidden=True),
        ("measured.md", "far"): tables.far(records.read(RESULTS / "far.jsonl")),
        ("measured.md", "serve"): tables.serve(records.quoted("serve")),
        ("../bench/results/readers.md", "serve_nodes"): serve_nodes.table(records.quoted("serve_nodes")),
        ("measured.md", "training"): training.measured(records.quoted("training")),
        ("measured.md", "losses"): training.ended(records.read(RESULTS / "training.jsonl")),  # not of times
        ("measured.md", "trained"): orders_tables.training(records.read(RESULTS / "orders.jsonl")),  # not of times
        ("measured.md", "read"): orders_tables.reading(records.read(RESULTS / "orders.jsonl")),
        ("measured.md", "web"): orders_tables.web(records.read(RESULTS / "orders.jsonl")),
        ("measured.md", "adopt"): adopt_tables.measured(records.read(RESULTS / "adopt.jsonl")),
        ("migrating.md", "adopt"): adopt_tables.in_words(records.read(RESULTS / "adopt.jsonl")),
        ("measured.md", "results"): tables.gpu(records.read(RESULTS / "gpu.jsonl")),
        **{("gallery.md", mark): text for mark, text in gallery.shown().items()},
        ("paper.md", "measured"): cluster_tables.measured(read := records.read(RESULTS / "cluster.jsonl")),
        ("paper.md", "shared"): cluster_tables.shared(read),
        ("paper.md", "modelled"): cluster_tables.modelled(read),
        ("paper.md", "readers"): cluster_tables.readers(read),
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
