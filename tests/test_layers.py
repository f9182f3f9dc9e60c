"""The import law: who may import whom. docs/architecture.md draws the same table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# layer: what it may import of solar
MAY_IMPORT = {
    "errors": set(),
    "values": {"errors"},
    "planner": {"errors", "values", "_native", "planner"},
    "io": {"errors", "values", "_native", "io"},
    "filters": {"errors", "values", "io", "filters"},
    "device": {"errors", "values", "io", "device", "_native"},
    "torch": {"errors", "values", "planner", "io", "device", "torch", "_native"},
    "integrations": {"errors", "values", "planner", "io", "torch", "integrations"},
    "cli": {"errors", "values", "planner", "io", "filters", "torch", "cli", "_native"},
}
# outside package: the layers that may import it
FRAMEWORKS = ("accelerate", "dlio_benchmark", "ignite", "lightning", "physicsnemo", "torchdata", "transformers")
GUARDED = {"torch": {"device", "torch", "integrations"}, "triton": {"device"}, "h5py": {"io"}}
GUARDED |= {"hdf5plugin": {"io"}, "mpi4py": {"io"}, "kvikio": {"io"}}
GUARDED |= {framework: {"integrations"} for framework in FRAMEWORKS}


def modules() -> Iterator[tuple[Path, str]]:
    for folder in ("solar", "io"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            layer = "io" if "io" in parts[:2] else parts[1]
            if layer not in ("__init__", "__main__", "selftest"):  # the front doors
                yield path, layer


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("path", "layer"), list(modules()), ids=lambda value: getattr(value, "name", value))
def test_a_layer_imports_only_what_lies_below_it(path: Path, layer: str) -> None:
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "solar":
            part = rest.partition(".")[0]
            own = part == layer and layer in MAY_IMPORT[layer]
            public = part in {"__version__"}
            assert own or public or part in MAY_IMPORT[layer], f"{path.relative_to(ROOT)} ({layer}) imports {name}"
        elif top in GUARDED:
            assert layer in GUARDED[top], f"{path.relative_to(ROOT)} ({layer}) imports {name}"


def test_every_layer_is_in_the_table() -> None:
    assert {layer for _, layer in modules()} <= MAY_IMPORT.keys()
    drawn = (ROOT / "docs" / "architecture.md").read_text()
    assert [layer for layer in MAY_IMPORT if f"| {layer} |" not in drawn] == []


@pytest.mark.parametrize("path", [path for path, layer in modules() if layer != "cli"], ids=lambda path: path.name)
def test_only_the_command_line_prints(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
        assert called not in {"print", "eval", "exec", "input"}, f"{path}:{getattr(node, 'lineno', 0)}: {called}()"


def test_native_code_below_bind_knows_no_python_hdf5_or_mpi() -> None:
    forbidden = re.compile(r'#include\s+[<"](Python|nanobind/|hdf5\.h|H5|mpi\.h|pybind11/)')
    for folder in ("include", "src"):
        for path in (ROOT / "native" / folder).rglob("*.?pp"):
            assert not forbidden.search(path.read_text()), path


def test_no_source_file_exceeds_four_hundred_lines() -> None:
    for folder in ("solar", "io", "native/include", "native/src", "native/bind", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".cpp", ".hpp"} and not path.is_symlink():
                assert len(path.read_text().splitlines()) <= 400, path
