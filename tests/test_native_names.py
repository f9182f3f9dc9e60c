"""Names in native code: SOLAR_UNITY compiles many files, and some tests, as one with their anonymous names."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import accumulate
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"
BUILD = (NATIVE / "CMakeLists.txt").read_text()
SOURCES = sorted((NATIVE / "src").rglob("*.cpp"))
OF_A_PROCESSOR = re.compile(r"(avx2|avx512|neon)$")  # their names are in namespaces of their own

# Comments and lines of the preprocessor go, texts become a number.
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'')


def without_template(head: str) -> str:
    """Returns a declaration without the `template <...>` before it."""
    while head.startswith("template"):
        depths = accumulate((letter == "<") - (letter == ">") for letter in head)
        end = next(place for place, depth in enumerate(depths) if depth == 0 and head[place] == ">")
        head = head[end + 1 :].strip()
    return head


def name_of(declaration: str) -> str | None:
    """Returns the name that a declaration at file scope makes; None for a member, and for what makes none."""
    head = re.sub(r"\[\[.*?\]\]", "", without_template(" ".join(declaration.split()))).strip()
    if found := re.match(r"(?:enum class|enum|struct|class|union)\s+(\w+)", head):
        return found[1]
    if found := re.match(r"using\s+(\w+)\s*=", head):
        return found[1]
    if not head or head.startswith(("using", "static_assert", "extern", "return", "namespace")):
        return None
    if found := re.match(r"[^=(]*?(\w+|operator\W+)\s*\(", head):
        return None if head[: found.start(1)].rstrip().endswith("::") else found[1]
    found = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", head)
    return found and found[1]


def names_in_anonymous_namespaces(code: str) -> set[str]:
    names, scopes, head = set[str](), list[str](), ""
    for piece in re.findall(r"[{};]|[^{};]+", TEXT.sub("0", NO_CODE.sub("", code))):
        if piece not in "{};":
            head = piece
            continue
        line = " ".join(head.split())
        opens_namespace = piece == "{" and re.search(r"\bnamespace(?: [\w:]+)?$", line)
        if (
            piece in "{;"
            and not opens_namespace
            and set(scopes) <= {"namespace", "anonymous"}
            and "anonymous" in scopes
        ):
            names |= {name for name in (name_of(head),) if name}
        if piece == "{":
            kind = "anonymous" if line.endswith("namespace") else "namespace"
            scopes.append(kind if opens_namespace else "other")
        elif piece == "}" and scopes:
            scopes.pop()
        head = ""
    return names


def text_of(path: Path) -> str:
    """Returns a file with the headers in it that have no include guard: they are included in anonymous namespaces."""

    def included(line: re.Match[str]) -> str:
        for folder in (path.parent, NATIVE / "src"):
            if (folder / line[1]).exists():
                text = (folder / line[1]).read_text()
                return "" if "#pragma once" in text else text
        return ""

    return re.sub(r'^#include "([^"]+)"$', included, path.read_text(), flags=re.MULTILINE)


def with_two_meanings(paths: list[Path]) -> dict[str, list[str]]:
    files = defaultdict(list)
    for path in paths:
        for name in names_in_anonymous_namespaces(text_of(path)):
            files[name].append(path.name)
    return {name: where for name, where in files.items() if len(where) > 1}


def groups() -> dict[str, list[Path]]:
    """Returns the files that native/CMakeLists.txt compiles as one."""
    found: dict[str, list[Path]] = {part: sorted((NATIVE / part).glob("*.cpp")) for part in ("bind", "plugin")}
    left = [path for path in SOURCES if not OF_A_PROCESSOR.search(path.stem)]
    folders = re.findall(r'MATCHES "/src/\(([\w|]+)\)/"\)', BUILD)
    assert len(folders) == 2
    for group in folders:
        found[group] = [path for path in left if path.relative_to(NATIVE / "src").parts[0] in group.split("|")]
        left = [path for path in left if path not in found[group]]
    return found | {"the rest": left}


@pytest.mark.parametrize(("group", "paths"), groups().items())
def test_no_two_files_that_are_compiled_as_one_give_a_name_two_meanings(group: str, paths: list[Path]) -> None:
    """Two functions of one name would become overloads of each other: a call could silently reach the other file's."""
    assert len(paths) > 2, group
    assert with_two_meanings(paths) == {}


def test_no_two_tests_that_are_compiled_as_one_give_a_name_two_meanings() -> None:
    (listed,) = re.findall(r"set\(together\s+([^)]*)\)", BUILD)
    groups = [line.split() for line in re.findall(r'"([^"]+)"', listed)]
    assert len(groups) > 4
    assert len({name for group in groups for name in group}) == sum(map(len, groups))
    for group in groups:
        assert with_two_meanings([NATIVE / "tests" / f"{name}_test.cpp" for name in group]) == {}
