"""The recipes of examples/recipes, each with all of its readers side by side: whole runs, one process for each.

    python -m bench.recipes [--scenes NAME ...] [--quick] [--record]

A recipe whose packages are not there is told, and left out. docs/recipes.md says how to install them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import machine, parts, records, tables
from examples.recipes import side_by_side

Record = dict[str, Any]
RECIPES = {  # and the packages they need, by the names to import
    "well": ("the_well",),
    "anndata_cells": ("anndata", "scdataset"),
    "physicsnemo_pipe": ("physicsnemo",),
    "lightning_trainer": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "hf_trainer": ("transformers", "accelerate"),
    "ray_train": ("ray",),
    "dlio_run": ("dlio_benchmark",),
}
NAMED = {"physicsnemo": "nvidia-physicsnemo"}  # where pip has another name
ROUNDS = 2


def measured(name: str, quick: bool, out: Path) -> Record:
    """What the recipe's own --compare finds."""
    words = ["--compare", "--rounds", 1 if quick else ROUNDS, "--out", out.resolve()]
    try:
        return side_by_side.run(name, words)  # which has a limit for each run
    except RuntimeError as error:
        return {"bench": "recipes", "recipe": name, "failed": str(error).strip().splitlines()[-1][:300]}


def recipes(found: Iterable[Record], wanted: Iterable[str] = ()) -> str:
    """A row for each reader of each recipe; `wanted`: those that must have one."""
    rows, there = [], tables.newest(found, "recipe")
    for one in there:
        name, ours = f"[{one['recipe']}](../examples/recipes/{one['recipe']}.py)", one["readers"]["solar"]["median"]
        for reader, of in one["readers"].items():
            setting = ", ".join(f"{key} {value}" for key, value in of["setting"].items())
            gain = "" if reader == "solar" else f"{of['median'] / ours:.2f}"
            rows.append((name, of["label"], f"{of['median']:.1f}", gain, tables.rate(of["last_epoch"]), setting))
            name = ""
    missing = [one for one in wanted if one not in {each["recipe"] for each in there}]
    rows += [(f"[{one}](../examples/recipes/{one}.py)", "not recorded", "", "", "", "") for one in missing]
    return tables.table("recipe|reader|whole run, s:|solar is ×:|last epoch, samples/s:|setting", rows)


def main() -> None:
    asked = records.arguments("bench.recipes", __doc__, "recipes", scenes=RECIPES).parse_args()
    load, shown = records.load(asked.load_before), []
    for name in asked.scenes or RECIPES:
        if lacking := [package for package in RECIPES[name] if importlib.util.find_spec(package) is None]:
            parts.note(f"{name}: skipped: {', '.join(lacking)} not installed (docs/recipes.md says how)")
            continue
        record = records.found(asked.out, recipe=name, quick=asked.quick)
        if not record:
            versions = {one: importlib.metadata.version(NAMED.get(one, one)) for one in RECIPES[name]}
            out = asked.folder or records.ROOT / "build" / "recipes"
            record = measured(name, asked.quick, out) | {"quick": asked.quick, "packages": versions}
            record |= {"load_before": load, **machine.described(records.ROOT)}
            records.append(asked.out, record)
        parts.note(f"{name}: {record['failed']}" if "failed" in record else f"{name}\n{side_by_side.table(record)}")
        shown += [] if "failed" in record else [record]
    print(recipes(shown))


if __name__ == "__main__":
    main()
