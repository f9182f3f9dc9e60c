"""Writes build/coverage.md: which lines of Python and C++ the tests run, and why the others are not run.

    tools/uncovered.py TREE [NOTE]      # a tree that tools/coverage has built and tested; a line for the page

Lines are counted by coverage.py and by gcov. Why lines are not run is told in uncovered.toml by file and function, or
by what the lines say, so that it stays true when lines move. What has no reason there is listed as such.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LEAST = 90.0  # percent of the lines of each language
NATIVE = ("native/src/*", "native/include/*", "native/bind/*", "native/plugin/*")
NO_REASON = "**no reason is given**"


@dataclass
class Source:
    """A file, how often each of its lines ran, and where its functions are."""

    text: list[str]
    runs: dict[int, int] = field(default_factory=dict)
    functions: list[tuple[int, int, str]] = field(default_factory=list)  # first line, last line, name

    def function(self, line: int) -> str:
        """The name of the innermost function around the line, or that of none: ""."""
        around = [(last - first, name) for first, last, name in self.functions if first <= line <= last]
        return min(around)[1] if around else ""

    def blocks(self) -> Iterator[list[int]]:
        """The lines that never ran, those of one function and without one that ran in between together."""
        block: list[int] = []
        for line in sorted(self.runs):
            if block and (self.runs[line] or self.function(line) != self.function(block[-1])):
                yield block
                block = []
            if not self.runs[line]:
                block.append(line)
        if block:
            yield block


Sources = dict[str, Source]


# --- what was counted ----


def of_python(tree: Path) -> Sources:
    """What coverage.py has counted; a method's name is Class.method."""
    found = {}
    for name, counted in json.loads((tree / "build" / "python.json").read_text())["files"].items():
        text = (tree / name).read_text()
        runs = dict.fromkeys(counted["missing_lines"], 0) | dict.fromkeys(counted["executed_lines"], 1)
        found[name] = Source(text.splitlines(), runs, list(functions(ast.parse(text))))
    return found


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}" if within else child.name
            if not isinstance(child, ast.ClassDef):
                yield child.lineno, child.end_lineno or child.lineno, name
        yield from functions(child, name)


def of_native(tree: Path) -> Sources:
    """What gcov has counted in all objects, added up: a line of a header or a template is in several."""
    objects = sorted((tree / "build" / "coverage").rglob("*.gcno"))
    if not objects:
        raise SystemExit(f"{tree}: there are no objects built with the preset `coverage`; run tools/coverage")
    found: Sources = {}
    with ThreadPoolExecutor() as pool:
        for one in pool.map(gcov, objects):
            for counted in one["files"]:
                path = Path(one["current_working_directory"], counted["file"]).resolve()
                name = str(path.relative_to(tree)) if path.is_relative_to(tree) else ""
                if any(fnmatch(name, pattern) for pattern in NATIVE):
                    source = found.setdefault(name, Source(path.read_text().splitlines()))
                    add(source, counted)
    return found


def gcov(of: Path) -> dict[str, Any]:
    command = ["gcov", "--json-format", "--stdout", str(of)]
    ended = subprocess.run(command, cwd=of.parent, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def add(source: Source, counted: dict[str, Any]) -> None:
    for line in counted["lines"]:
        source.runs[line["line_number"]] = source.runs.get(line["line_number"], 0) + line["count"]
    for one in counted["functions"]:
        place = (one["start_line"], one["end_line"], plain(one["demangled_name"]))
        if "{lambda" not in one["demangled_name"] and place not in source.functions:
            source.functions.append(place)


def plain(demangled: str) -> str:
    """A C++ function's own name, without its namespace, its class, the template's and the call's arguments."""
    name, before = re.sub(r"\[abi:\w+\]|\(anonymous namespace\)::", "", demangled), ""
    while name != before:
        name, before = re.sub(r"<[^<>]*>", "", name), name
    return name.partition("(")[0].split("::")[-1].split(" ")[-1]


# --- why ----


def reason(name: str, source: Source, block: list[int], table: list[dict[str, Any]]) -> str:
    """The reason of the first row that fits: its files, and the functions, words or most lines that it asks for."""
    function, text = source.function(block[0]), "\n".join(source.text[line - 1] for line in block)
    for row in table:
        here = any(fnmatch(name, pattern) for pattern in row["files"])
        of_it = any(fnmatch(function, pattern) for pattern in row.get("functions", ["*"]))
        small = len(block) <= row.get("most", len(block))
        if here and of_it and small and re.search(row.get("says", ""), text):
            return str(row["why"])
    return NO_REASON


# --- the page ----


def ranges(lines: Iterable[int], runs: dict[int, int]) -> str:
    """The lines as ranges; lines between that hold no code, such as comments, are passed over."""
    known = sorted(runs)
    parts: list[list[int]] = []
    after = dict(itertools.pairwise(known))
    for line in sorted(lines):
        if parts and after[parts[-1][1]] == line:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def share(sources: Iterable[Source]) -> tuple[int, int, float]:
    """Lines that ran, lines, and percent."""
    runs = [count > 0 for source in sources for count in source.runs.values()]
    return sum(runs), len(runs), 100 * sum(runs) / len(runs) if runs else 100.0


def uncovered(sources: Sources, table: list[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    """A row for each file and reason: file, lines, reason, how many lines."""
    rows = []
    for name, source in sorted(sources.items()):
        by_reason: dict[str, list[int]] = defaultdict(list)
        for block in source.blocks():
            by_reason[reason(name, source, block, table)] += block
        for why, lines in by_reason.items():
            rows.append((name, ranges(lines, source.runs), why, len(lines)))
    return rows


def page(python: Sources, native: Sources, table: list[dict[str, Any]], head: str) -> str:
    parts = [
        head.lstrip(),
        "\n## Lines that the tests run\n\n| part | run | of | percent |\n| --- | ---: | ---: | ---: |\n",
    ]
    for what, sources in (("**Python**", python), ("**C++**", native)):
        folders = defaultdict(list)
        for name, source in sources.items():
            folders[str(Path(name).parent)].append(source)
        for label, group in [(what, list(sources.values())), *((f"`{k}/`", v) for k, v in sorted(folders.items()))]:
            ran, lines, percent = share(group)
            parts.append(f"| {label} | {ran:,} | {lines:,} | {percent:.1f} |\n")
    rows = uncovered(python, table) + uncovered(native, table)
    by_reason: dict[str, int] = defaultdict(int)
    for _, _, why, count in rows:
        by_reason[why] += count
    parts.append("\n## Why the others are not run\n\n| lines | reason |\n| ---: | --- |\n")
    parts += [f"| {count} | {why} |\n" for why, count in sorted(by_reason.items(), key=lambda one: -one[1])]
    for what, part in (("Python", python), ("C++", native)):
        parts.append(f"\n## Lines of {what} that are not run\n\n| file | lines | reason |\n| --- | --- | --- |\n")
        parts += [f"| `{name}` | {lines} | {why} |\n" for name, lines, why, _ in rows if name in part]
    return "".join(parts)


def main(tree: Path, note: str = "") -> int:
    """Writes the page; 1 if less is run than should be."""
    given = tomllib.loads((ROOT / "tools" / "uncovered.toml").read_text())
    python, native = of_python(tree), of_native(tree)
    (ROOT / "build" / "coverage.md").write_text(page(python, native, given["reason"], given["head"] + note))
    found = {"Python": share(python.values()), "C++": share(native.values())}
    for what, (ran, lines, percent) in found.items():
        print(f"{what}: {ran} of {lines} lines, {percent:.1f} %; build/coverage.md lists the others")
    return int(any(percent < LEAST for _, _, percent in found.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), f"\n{sys.argv[2]}\n" if sys.argv[2:] else ""))
