"""The import law: which shelf may import which. docs/architecture.md draws them, their READMEs say what is on them."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VALUES = "errors values extents group_names blocks boxes _native"
IO = "io.constants io.in_groups io.locate io.far "
IO += "io.field io.ragged io.unequal io.varying io.windows io.crops io.joined io.lying io.given io.layout io.read "
IO += "io.read io.libhdf5 io.ranks io.exchange io.workers io.machine io.serve"

# shelf: what it may import of solar. A shelf is a folder, or a file that lies in none.
MAY_IMPORT = {
    "errors": "",
    "group_names": "",
    "values": "errors extents group_names",
    "extents": "_native",
    "blocks": "extents values",
    "boxes": "extents",
    "orders": VALUES,
    "planner": f"{VALUES} io.machine orders",
    "io.threads": "errors",
    "io.far": "errors values _native io.threads",
    "io.machine": f"{VALUES} io.far io.threads",
    "io.workers": "errors io.machine",
    "io.serve": f"{VALUES} io.machine io.ranks",
    "io.libhdf5": f"{VALUES} io.machine io.threads",
    "io.ranks": f"{VALUES} io.machine",
    "io.layout": f"{VALUES} io.far io.machine io.ranks io.libhdf5",
    "io.given": "",
    "io.column": "",
    "io.converted": "_native io.given io.layout",
    "io.field": f"{VALUES} io.column io.converted io.given io.layout",
    "io.read": f"{VALUES} io.far io.field io.layout io.libhdf5 io.machine",
    "io.windows": f"{VALUES} io.layout io.read",
    "io.ragged": f"{VALUES} io.layout io.varying io.windows",
    "io.unequal": f"{VALUES} io.field io.layout io.ragged",
    "io.varying": f"{VALUES} io.layout io.read",
    "io.crops": f"{VALUES} io.layout io.read",
    "io.joined": f"{VALUES} io.field io.read",
    "io.lying": f"{VALUES} io.crops io.joined io.field io.layout io.ragged io.read io.unequal io.windows",
    "io.constants": f"{VALUES} io.field io.layout io.ragged io.read",
    "io.in_groups": f"{VALUES} io.field io.layout io.lying io.ragged io.unequal io.windows",
    "io.locate": f"{VALUES} io.lying io.ragged",
    "io.exchange": f"{VALUES} io.machine io.ranks io.read",
    "io.compress": f"{VALUES} io.layout io.read io.libhdf5 io.machine io.ranks",
    "io.plain": "values io.far io.libhdf5",
    "io.pieces": f"{VALUES} io.layout io.plain io.ragged",
    "io.sample_file": "",
    "io.one_of_each": "",
    "filters": "io.compress",
    "device": "gpu.kernels",
    "torch.states": "errors",
    "torch.sharding": "",
    "torch.one_by_one": "",
    "torch.plain": "values io.pieces io.plain",
    "torch.on_device": "",
    "torch.mixture": f"{VALUES} {IO} orders torch.batch torch.dataset torch.source",
    "torch.chosen": "errors extents io.ragged io.read orders torch.batch torch.mixture torch.source",
    "torch.samplers": "errors _native io.ranks orders torch.chosen torch.states torch.sharding",
    "torch.gather": "errors values io.ranks",
    "torch.batch": f"{VALUES} {IO}",
    "torch.order": f"{VALUES} torch.samplers torch.states",
    "torch.monitor": "io.compress io.machine",
    "torch.metrics": "io.ranks torch.monitor",
    "torch.ragged": f"{VALUES} {IO} torch.batch",
    "torch.kinds": f"{VALUES} {IO} torch.batch",
    "torch.reading": f"{VALUES} {IO} torch.batch torch.ragged",
    "torch.dataset": f"{VALUES} {IO} torch.batch torch.kinds torch.one_by_one torch.reading",
    "torch.source": f"{VALUES} {IO} torch.dataset torch.batch torch.ragged",
    "serve": f"{VALUES} io.exchange io.in_groups io.layout io.machine io.ragged io.ranks io.read io.serve io.unequal "
    "planner",
    "torch.buffer": f"{VALUES} {IO} planner serve torch.batch torch.dataset torch.monitor torch.order torch.ragged "
    "torch.reading torch.source",
    "gpu.kernels": VALUES,
    "gpu": f"{VALUES} {IO} gpu.kernels torch.batch torch.buffer torch.dataset torch.monitor torch.source",
    "torch.epoch": f"{VALUES} {IO} gpu torch.batch torch.buffer torch.order torch.samplers torch.source",
    "torch.loader": f"{VALUES} gpu torch.batch torch.buffer torch.dataset torch.epoch torch.metrics torch.mixture "
    "torch.monitor torch.order torch.samplers torch.source",
    "torch": "",
    "torch.tuning": f"{VALUES} {IO} io.compress torch.batch",
    "training": "io.compress torch.tuning",
    "integrations": f"{VALUES} {IO} torch torch.loader torch.samplers",
    "cli": f"{VALUES} {IO} io.compress io.one_of_each io.pieces io.plain io.sample_file filters orders planner serve "
    "torch torch.gather torch.plain torch.tuning",
}
LAW = {shelf: set(may.split()) for shelf, may in MAY_IMPORT.items()}

# outside package: the layers that may import it
FRAMEWORKS = ("accelerate", "dlio_benchmark", "ignite", "lightning", "physicsnemo", "torchdata", "transformers")
GUARDED = {"torch": {"gpu", "torch", "training", "integrations"}, "triton": {"gpu"}, "h5py": {"io"}}
GUARDED |= {"hdf5plugin": {"io"}, "mpi4py": {"io"}, "obstore": {"io"}}
GUARDED |= {framework: {"integrations"} for framework in FRAMEWORKS}


def name_of(path: Path) -> str:
    """A module's name, without `solar.` before it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "solar" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for folder in ("solar", "io")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if name_of(path) not in ("", "__main__", "selftest")  # the front doors
}


def shelf_of(module: str) -> str:
    """The longest name in the law that a module's begins with; the module itself where there is none."""
    while module and module not in LAW:
        module = module.rpartition(".")[0]
    return module


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, types: bool = False) -> Iterator[str]:
    """What a file imports, by statement or by `import_module`; with `types` also what only the type checker reads."""
    tree = tree_of(path)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types and not types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            yield from spelled(node.args[0])


def spelled(name: ast.expr) -> Iterator[str]:
    """The module that a call imports, as far as it is written there; a name that only the user knows is none."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.Constant):
        yield str(first.value).rstrip(".")


def of_solar(path: Path, types: bool = False) -> Iterator[tuple[str, str]]:
    """The shelves that a file imports, each with what it imports of it."""
    for name in imports(path, types):
        top, _, rest = name.partition(".")
        if top == "solar" and rest not in ("", "__version__"):
            yield ("_native" if rest.partition(".")[0] == "_native" else shelf_of(rest)), name


@pytest.mark.parametrize("module", MODULES)
def test_a_shelf_imports_only_what_lies_below_it(module: str) -> None:
    shelf = shelf_of(module)
    assert shelf, f"{module} lies on no shelf of the law"
    for other, name in of_solar(MODULES[module]):
        assert other == shelf or other in LAW[shelf], f"{module} (shelf {shelf}) imports {name} (shelf {other or name})"


@pytest.mark.parametrize("module", MODULES)
def test_what_comes_from_outside_has_one_door(module: str) -> None:
    for name in imports(MODULES[module], types=True):
        top = name.partition(".")[0]
        assert module.partition(".")[0] in GUARDED.get(top, {module.partition(".")[0]}), f"{module} imports {name}"


def test_each_module_can_be_imported_before_all_others() -> None:
    graph = {}
    for module, path in MODULES.items():
        tree, needed = tree_of(path), set()
        for node in tree.body:  # what functions import comes later
            if isinstance(node, ast.ImportFrom):
                needed |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                needed |= {alias.name for alias in node.names}
        names = {name.removeprefix("solar.") for name in needed if name.startswith("solar.")}
        names |= {name.rpartition(".")[0] for name in names}  # whose __init__ runs first
        graph[module] = {name for name in names if name in MODULES and not f"{module}.".startswith(f"{name}.")}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_no_shelf_is_above_itself() -> None:
    tuple(graphlib.TopologicalSorter({shelf: may - {"_native"} for shelf, may in LAW.items()}).static_order())


def test_no_two_shelves_name_each_other_not_even_for_types() -> None:
    named = {(shelf_of(module), other) for module, path in MODULES.items() for other, _ in of_solar(path, types=True)}
    assert [(one, two) for one, two in named if one < two and (two, one) in named] == []


def test_the_law_allows_no_more_than_is_used() -> None:
    used = defaultdict(set)
    for module, path in MODULES.items():
        used[shelf_of(module)] |= {other for other, _ in of_solar(path)}
    assert set(used) == set(LAW)
    everywhere = {*VALUES.split(), *IO.split()}
    assert {shelf: more for shelf, may in LAW.items() if (more := may - used[shelf] - everywhere)} == {}


@pytest.mark.parametrize("shelf", sorted({path.parent for path in MODULES.values()}), ids=str)
def test_a_shelf_has_a_page_with_a_line_for_each_of_its_files(shelf: Path) -> None:
    if shelf.name == "solar":  # the front doors
        return
    page = (shelf / "README.md").read_text()
    lines = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {path.name for path in shelf.glob("*.py")} - {"__init__.py"} <= lines
    assert shelf.name == "planner" or len(page.splitlines()) < 60, "a shelf's page fits on one screen"


def test_a_name_has_one_meaning() -> None:
    classes, numbers = defaultdict(set), defaultdict(set)
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(module)
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name) and target.id.isupper() and target.id not in ("DETAILS", "T"):
                    numbers[target.id].add(ast.unparse(node.value) if node.value else "")
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
    assert {name: values for name, values in numbers.items() if len(values) > 1} == {}  # DETAILS: each command's own


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("cli")])
def test_only_the_command_line_prints(module: str) -> None:
    for node in ast.walk(tree_of(MODULES[module])):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
        assert called not in {"print", "eval", "exec", "input"}, f"{module}:{getattr(node, 'lineno', 0)}: {called}()"


def test_native_code_below_bind_knows_no_python_hdf5_or_mpi() -> None:
    forbidden = re.compile(r'#include\s+[<"](Python|nanobind/|hdf5\.h|H5|mpi\.h|pybind11/)')
    for folder in ("include", "src"):
        for path in (ROOT / "native" / folder).rglob("*.?pp"):
            assert not forbidden.search(path.read_text()), path


def test_no_source_file_exceeds_a_thousand_lines() -> None:
    for folder in ("solar", "io", "native/include", "native/src", "native/bind", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".cpp", ".hpp"} and not path.is_symlink():
                assert len(path.read_text().splitlines()) <= 1000, path
